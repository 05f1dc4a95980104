//! Activations: plain, and gated as in SwiGLU and GeGLU.

use super::check::{Call, Launch, Rows, map_args};
use super::{MlpDesc, MlpOp};
use crate::args::MapArgs;
use crate::error::Result;
use crate::gemm::Activation;
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// `y = act(x)`, element by element.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | any | f32, f16, bf16 |
/// | y | x's | x's |
///
/// Computed in f32 and rounded once; the error of each function is in docs/numerics.md. The last stride of every operand
/// is 1; up to three other axes may be strided on their own, and x may be broadcast along them. y may be exactly x. NaN
/// stays NaN, relu included; nothing clips or overflows: silu and the GELUs of -infinity are 0.
///
/// ```
/// use tessl::{nn::Activate, Activation, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[-2.0f32, 0.0, 3.0], &[3])?;
/// Activate::new(&x, &x, Activation::Relu).run()?;
/// assert_eq!(x.read::<f32>()?, [0.0, 0.0, 3.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an Activate does nothing until run() or run_on()"]
pub struct Activate<'a> {
    x: &'a Tensor,
    y: &'a Tensor,
    activation: Activation,
}

impl<'a> Activate<'a> {
    /// `y = activation(x)`.
    pub fn new(x: &'a Tensor, y: &'a Tensor, activation: Activation) -> Self {
        Activate { x, y, activation }
    }

    fn check(&self) -> Result<(Call<'a, 2>, MlpDesc, Rows<2>)> {
        check(MlpOp::Activate, [("x", self.x), ("y", self.y)], self.activation)
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, rows) = self.check()?;
        encode(&call, stream, desc, &rows)
    }
}

operation!(Activate, MlpDesc, |checked| checked.1);

/// `out = act(gate) * up`, element by element: SwiGLU with [`Activation::Silu`], GeGLU with one of the GELUs.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | gate | any | f32, f16, bf16 |
/// | up, out | gate's | gate's |
///
/// Computed in f32 and rounded once. The last stride of every operand is 1; up to three other axes may be strided on
/// their own, so gate and up may be the halves of one `[rows, 2 n]` buffer. out may be exactly gate or exactly up. NaN in
/// gate or up gives NaN; `act(gate) = 0` times an infinite up is NaN, as the product says.
///
/// ```
/// use tessl::{nn::Glu, Activation, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// // One row: gate [1, -1], up [10, 20].
/// let both = rt.from_slice(&[1.0f32, -1.0, 10.0, 20.0], &[1, 4])?;
/// let (gate, up) = (both.narrow(1, 0, 2)?, both.narrow(1, 2, 2)?);
/// let out = rt.alloc_tensor_f32(&[1, 2])?;
/// Glu::new(&gate, &up, &out, Activation::Relu).run()?;
/// assert_eq!(out.read::<f32>()?, [10.0, 0.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a Glu does nothing until run() or run_on()"]
pub struct Glu<'a> {
    gate: &'a Tensor,
    up: &'a Tensor,
    out: &'a Tensor,
    activation: Activation,
}

impl<'a> Glu<'a> {
    /// `out = activation(gate) * up`.
    pub fn new(gate: &'a Tensor, up: &'a Tensor, out: &'a Tensor, activation: Activation) -> Self {
        Glu { gate, up, out, activation }
    }

    fn check(&self) -> Result<(Call<'a, 3>, MlpDesc, Rows<3>)> {
        check(MlpOp::Glu, [("gate", self.gate), ("up", self.up), ("out", self.out)], self.activation)
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, rows) = self.check()?;
        encode(&call, stream, desc, &rows)
    }
}

operation!(Glu, MlpDesc, |checked| checked.1);

type Operands<'a, const N: usize> = [(&'static str, &'a Tensor); N];

/// The last operand is the output.
fn check<'a, const N: usize>(
    op: MlpOp,
    operands: Operands<'a, N>,
    activation: Activation,
) -> Result<(Call<'a, N>, MlpDesc, Rows<N>)> {
    let call = Call::new(op.name(), operands)?;
    call.float(0)?;
    let (dtype, expected) = (operands[0].1.dtype(), if N == 2 { "the dtype of `x`" } else { "the dtype of `gate`" });
    (1..N).try_for_each(|i| call.dtype(i, &[dtype], expected))?;
    (1..N).try_for_each(|i| call.same_shape(i, 0))?;
    (0..N).try_for_each(|i| call.unit_stride(i))?;
    call.output(N - 1, if N == 2 { &[0] } else { &[0, 1] })?;
    let rows = Rows::flat(op.name(), operands)?;
    let align = (0..N).map(|i| rows.align(i, operands[i].1)).min().unwrap_or_default();
    let desc = MlpDesc { op, rows: rows.count, n: rows.n, dtype, activation, align };
    Ok((call, desc, rows))
}

fn encode<const N: usize>(
    call: &Call<'_, N>,
    stream: Option<&mut Stream>,
    desc: MlpDesc,
    rows: &Rows<N>,
) -> Result<()> {
    let stream = call.stream(stream)?;
    if rows.is_empty() {
        return Ok(());
    }
    let mode = desc.activation.code();
    let rt = call.operands[0].1.runtime();
    let prepared = rt.prepare(&Desc::Mlp(desc))?;
    let plan = &prepared.plan;
    let args = MapArgs { mode, ..map_args(plan, rows, [0, N - 2, N - 1]) };
    let (inputs, outputs) = call.operands.split_at(N - 1);
    let inputs: smallvec::SmallVec<[&Tensor; 3]> = inputs.iter().map(|o| o.1).collect();
    Launch { op: call.op, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
        stream,
        &inputs,
        &[outputs[0].1],
    )
}
