//! Normalisation of rows.

mod layer;
mod qk;

pub use layer::LayerNorm;
pub use qk::QkNorm;

use super::check::{Call, Launch, Rows};
use super::{NormResidual, RmsNormDesc};
use crate::args::RmsNormArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::{Scalar, Tensor};

const OP: &str = "rms_norm";

/// `y = x * rsqrt(mean(x^2) + eps) * (weight + offset)` over the last axis, with a residual connection before or after.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[.., n]` | f32, f16, bf16 |
/// | weight | `[n]` | x's, or f32 |
/// | residual, h, z | x's | x's |
/// | next_weight | `[n]` | the weight's |
/// | layer_scale | a number, or a tensor of one element | f32 |
/// | y | x's | x's |
///
/// [`residual`](Self::residual) normalises a sum and keeps it: `h = (x + residual) * layer_scale`, `y = norm(h)`, as before
/// each block of Llama; h is rounded first, so y has the bits that [`Add`](super::Add) and an `RmsNorm` of h would give.
/// [`then_add`](Self::then_add) adds what is normalised: `y = (norm(x) + residual) * layer_scale`, as after each block of
/// Gemma, and [`then_norm`](Self::then_norm) normalises that sum again, as before its next block: `z = norm(y)` with a weight
/// of its own, from the rounded y, so that z has the bits of an `RmsNorm` of y.
///
/// Sums accumulate in f32, so 16-bit inputs do not overflow; an f32 row whose sum of squares passes the range of f32
/// gives 0, as the formula in f32 does. The last stride of every operand is 1; up to three other axes may be strided on
/// their own. y may be exactly x or exactly the residual, and so may h and z; outputs do not overlap each other. A NaN in a
/// row makes the whole row NaN. Rows are counted in 32 bits and their elements in 31: more is `TooLarge`.
///
/// ```
/// use tessl::{nn::RmsNorm, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[3.0f32, 4.0], &[1, 2])?;
/// let w = rt.from_slice(&[1.0f32, 2.0], &[2])?;
/// let y = rt.alloc_tensor_f32(&[1, 2])?;
/// RmsNorm::new(&x, &w, &y).eps(0.0).run()?;
/// let rms = 12.5f32.sqrt();
/// let got = y.read::<f32>()?;
/// assert!((got[0] - 3.0 / rms).abs() < 1e-6 && (got[1] - 8.0 / rms).abs() < 1e-6);
///
/// // The residual stream takes x in and is normalised.
/// let stream = rt.from_slice(&[1.0f32, -1.0], &[1, 2])?;
/// RmsNorm::new(&x, &w, &y).residual(&stream, &stream).run()?;
/// assert_eq!(stream.read::<f32>()?, [4.0, 3.0]);
///
/// // What a block answers is normalised, added to the stream, and the stream is normalised for the next block.
/// RmsNorm::new(&x, &w, &stream).then_add(&stream).then_norm(&w, &y).run()?;
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an RmsNorm does nothing until run() or run_on()"]
pub struct RmsNorm<'a> {
    x: &'a Tensor,
    weight: &'a Tensor,
    y: &'a Tensor,
    residual: Residual<'a>,
    /// The weight and the result of a second norm.
    next: Option<(&'a Tensor, &'a Tensor)>,
    layer_scale: Option<Scalar<'a, f32>>,
    eps: f32,
    offset: f32,
}

/// Where a residual is added.
#[derive(Clone, Copy, Debug)]
enum Residual<'a> {
    None,
    Before { residual: &'a Tensor, h: &'a Tensor },
    After { residual: &'a Tensor },
}

/// A call that has passed all checks. Operands that are not there are x or y.
struct Checked<'a> {
    call: Call<'a, 8>,
    desc: RmsNormDesc,
    /// x, residual, the sum, and what is normalised last.
    rows: Rows<4>,
}

impl<'a> RmsNorm<'a> {
    /// `eps` is 1e-6 and the weight offset 0.
    pub fn new(x: &'a Tensor, weight: &'a Tensor, y: &'a Tensor) -> Self {
        RmsNorm { x, weight, y, residual: Residual::None, next: None, layer_scale: None, eps: 1e-6, offset: 0.0 }
    }

    /// Added to the mean square.
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    /// Added to each weight: 1 for weights stored as differences from 1, as in Gemma.
    pub fn weight_offset(mut self, offset: f32) -> Self {
        self.offset = offset;
        self
    }

    /// Normalises `h = (x + residual) * layer_scale`, and writes h. Takes the place of [`then_add`](Self::then_add).
    pub fn residual(mut self, residual: &'a Tensor, h: &'a Tensor) -> Self {
        self.residual = Residual::Before { residual, h };
        self
    }

    /// Adds to what is normalised: `y = (norm(x) + residual) * layer_scale`. Takes the place of
    /// [`residual`](Self::residual).
    pub fn then_add(mut self, residual: &'a Tensor) -> Self {
        self.residual = Residual::After { residual };
        self
    }

    /// Normalises y, the sum of [`then_add`](Self::then_add), once more, with `weight` and the same eps and weight offset,
    /// and writes z.
    pub fn then_norm(mut self, weight: &'a Tensor, z: &'a Tensor) -> Self {
        self.next = Some((weight, z));
        self
    }

    /// Multiplies the sum with the residual; 1 without.
    pub fn layer_scale(mut self, scale: impl Into<Scalar<'a, f32>>) -> Self {
        self.layer_scale = Some(scale.into());
        self
    }

    fn check(&self) -> Result<Checked<'a>> {
        let (x, w, y) = (self.x, self.weight, self.y);
        let (residual, h, kind) = match (self.residual, self.next) {
            (Residual::None, _) => (x, y, NormResidual::None),
            (Residual::Before { residual, h }, _) => (residual, h, NormResidual::Before),
            (Residual::After { residual }, None) => (residual, y, NormResidual::After),
            (Residual::After { residual }, Some(_)) => (residual, y, NormResidual::Between),
        };
        let scale = match self.layer_scale {
            Some(Scalar::Device(scale)) => scale,
            _ => x,
        };
        let (next_weight, z) = self.next.unwrap_or((w, y));
        let operands = [
            ("x", x),
            ("weight", w),
            ("residual", residual),
            ("layer_scale", scale),
            ("y", y),
            ("h", h),
            ("next_weight", next_weight),
            ("z", z),
        ];
        let call = Call::new(OP, operands)?;
        call.float(0)?;
        let dtype = x.dtype();
        call.dtype(1, &[dtype, DType::F32], "f32 or the dtype of `x`")?;
        [2, 4, 5, 7].into_iter().try_for_each(|i| call.dtype(i, &[dtype], "the dtype of `x`"))?;
        call.dtype(6, &[w.dtype()], "the dtype of `weight`")?;
        [1, 6].into_iter().try_for_each(|i| weight_shape(&call, i))?;
        [2, 4, 5, 7].into_iter().try_for_each(|i| call.same_shape(i, 0))?;
        [0, 1, 2, 4, 5, 6, 7].into_iter().try_for_each(|i| call.unit_stride(i))?;
        if self.next.is_some() && kind != NormResidual::Between {
            return Err(Error::shape(OP, "next_weight", "given without a sum before it", "it comes with then_add()"));
        }
        match self.layer_scale {
            Some(_) if kind == NormResidual::None => {
                let expected = "it comes with residual() or then_add()";
                return Err(Error::shape(OP, "layer_scale", "given without a residual", expected));
            }
            Some(Scalar::Host(value)) if !value.is_finite() => {
                let (name, value) = ("layer_scale", value.into());
                return Err(Error::Scalar { op: OP, name, value, expected: "finite" });
            }
            Some(Scalar::Device(_)) => call.one_number(3)?,
            _ => {}
        }
        // A scale in memory has another shape, or is x itself: as an operand it is never exactly an output.
        match kind {
            NormResidual::Before => {
                call.output(4, &[0, 2, 3, 7])?;
                call.output(5, &[0, 2, 3])?;
            }
            NormResidual::Between => {
                call.output(4, &[0, 2, 3, 5])?;
                call.output(7, &[0, 2, 3])?;
            }
            NormResidual::None | NormResidual::After => call.output(4, &[0, 2, 3, 5, 7])?,
        }
        // What is written last.
        let last = if kind == NormResidual::Between { ("z", z) } else { ("y", y) };
        check_scalars(OP, self.eps, self.offset)?;
        let rows = Rows::new(OP, [("x", x), ("residual", residual), ("h", h), last])?;
        let views = [x, residual, h, last.1];
        let weights = w.alignment([]).min(next_weight.alignment([]));
        let align = (0..4).map(|i| rows.align(i, views[i])).min().unwrap_or_default().min(weights);
        let desc = RmsNormDesc { rows: rows.count, n: rows.n, dtype, weight: w.dtype(), residual: kind, align };
        Ok(Checked { call, desc, rows })
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let Checked { call, desc, rows } = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() {
            return Ok(());
        }
        let rt = self.x.runtime();
        let residual = desc.residual;
        let prepared = rt.prepare(&Desc::RmsNorm(desc))?;
        let plan = &prepared.plan;
        let [[x_s0, x_s1, x_s2], [r_s0, r_s1, r_s2], [h_s0, h_s1, h_s2], [y_s0, y_s1, y_s2]] =
            [0, 1, 2, 3].map(|i| rows.strides(i));
        let [r1, r2] = rows.splits();
        let (scale_from_memory, scale) = match self.layer_scale {
            Some(Scalar::Device(_)) => (1, 1.0),
            Some(Scalar::Host(scale)) => (0, scale),
            None => (0, 1.0),
        };
        let args = RmsNormArgs {
            x_s0,
            x_s1,
            x_s2,
            r_s0,
            r_s1,
            r_s2,
            h_s0,
            h_s1,
            h_s2,
            y_s0,
            y_s1,
            y_s2,
            rows: rows.count,
            r1,
            r2,
            n: rows.n,
            groups: plan.grid[0],
            eps: self.eps,
            weight_offset: self.offset,
            scale_from_memory,
            scale,
        };
        let launch = Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) };
        let [x, w, r, s, y, h, next_weight, z] = call.operands.map(|(_, tensor)| tensor);
        match residual {
            NormResidual::None => launch.run(stream, &[x, w], &[y]),
            NormResidual::Before => launch.run(stream, &[x, w, r, s], &[h, y]),
            NormResidual::After => launch.run(stream, &[x, w, r, s], &[y]),
            NormResidual::Between => launch.run(stream, &[x, w, r, s, next_weight], &[y, z]),
        }
    }
}

operation!(RmsNorm, RmsNormDesc, |checked| checked.desc);

/// Operand `i` has one element for each of a row of operand 0.
fn weight_shape<const N: usize>(call: &Call<'_, N>, i: usize) -> Result<()> {
    let ((name, weight), (first, x)) = (call.operands[i], call.operands[0]);
    let Some((&n, _)) = x.shape().split_last() else {
        return Err(Error::shape(call.op, first, "a scalar", "it must have rows along its last axis"));
    };
    if weight.shape() == [n] {
        return Ok(());
    }
    let expected = format!("it must be [{n}] (the last axis of `{first}` {:?})", x.shape());
    Err(Error::shape(call.op, name, format_args!("{:?}", weight.shape()), expected))
}

pub(super) fn check_scalars(op: &'static str, eps: f32, offset: f32) -> Result<()> {
    if !(eps >= 0.0 && eps.is_finite()) {
        return Err(Error::Scalar { op, name: "eps", value: eps.into(), expected: "finite and not negative" });
    }
    if !offset.is_finite() {
        return Err(Error::Scalar { op, name: "weight_offset", value: offset.into(), expected: "finite" });
    }
    Ok(())
}
