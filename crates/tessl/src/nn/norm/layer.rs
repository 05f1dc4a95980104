//! Layer normalisation.

use super::super::LayerNormDesc;
use super::super::check::{Call, Launch, Rows};
use super::{check_scalars, weight_shape};
use crate::args::LayerNormArgs;
use crate::dtype::DType;
use crate::error::Result;
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::Tensor;

const OP: &str = "layer_norm";

/// `y = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias` over the last axis.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[.., n]` | f32, f16, bf16 |
/// | weight | `[n]` | x's, or f32 |
/// | bias | `[n]`, or none | the weight's |
/// | y | x's | x's |
///
/// The variance is `mean((x - mean(x))^2)`. The first element of a row is subtracted before anything is added up, and the
/// variance takes a pass of its own: rows of large numbers that lie close together keep their digits. Sums accumulate in
/// f32; an f32 row whose squares pass the range of f32 gives the bias. The last stride of every operand is 1; up to three
/// other axes may be strided on their own. y may be exactly x. NaN or infinity in a row makes the whole row NaN.
///
/// ```
/// use tessl::{nn::LayerNorm, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[1.0f32, 3.0], &[1, 2])?;
/// let (w, b) = (rt.from_slice(&[1.0f32, 1.0], &[2])?, rt.from_slice(&[0.0f32, 10.0], &[2])?);
/// LayerNorm::new(&x, &w, &x).bias(&b).eps(0.0).run()?;
/// assert_eq!(x.read::<f32>()?, [-1.0, 11.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a LayerNorm does nothing until run() or run_on()"]
pub struct LayerNorm<'a> {
    x: &'a Tensor,
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
    y: &'a Tensor,
    eps: f32,
}

impl<'a> LayerNorm<'a> {
    /// Without bias; `eps` is 1e-5.
    pub fn new(x: &'a Tensor, weight: &'a Tensor, y: &'a Tensor) -> Self {
        LayerNorm { x, weight, bias: None, y, eps: 1e-5 }
    }

    /// Added at the end.
    pub fn bias(mut self, bias: &'a Tensor) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Added to the variance.
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    fn check(&self) -> Result<(Call<'a, 4>, LayerNormDesc, Rows<2>)> {
        let (x, w, y) = (self.x, self.weight, self.y);
        // Without a bias the weight takes its place, which the kernel then does not read there.
        let bias = self.bias.unwrap_or(w);
        let call = Call::new(OP, [("x", x), ("weight", w), ("bias", bias), ("y", y)])?;
        call.float(0)?;
        call.dtype(1, &[x.dtype(), DType::F32], "f32 or the dtype of `x`")?;
        call.dtype(2, &[w.dtype()], "the dtype of `weight`")?;
        call.dtype(3, &[x.dtype()], "the dtype of `x`")?;
        [1, 2].into_iter().try_for_each(|i| weight_shape(&call, i))?;
        call.same_shape(3, 0)?;
        (0..4).try_for_each(|i| call.unit_stride(i))?;
        call.output(3, &[0])?;
        check_scalars(OP, self.eps, 0.0)?;
        let rows = Rows::new(OP, [("x", x), ("y", y)])?;
        let align = [rows.align(0, x), rows.align(1, y), w.alignment([]), bias.alignment([])];
        let align = align.into_iter().min().unwrap_or_default();
        let desc = LayerNormDesc { rows: rows.count, n: rows.n, dtype: x.dtype(), weight: w.dtype(), align };
        Ok((call, desc, rows))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, rows) = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() {
            return Ok(());
        }
        let rt = self.x.runtime();
        let prepared = rt.prepare(&Desc::LayerNorm(desc))?;
        let plan = &prepared.plan;
        let ([x_s0, x_s1, x_s2], [y_s0, y_s1, y_s2]) = (rows.strides(0), rows.strides(1));
        let [r1, r2] = rows.splits();
        let args = LayerNormArgs {
            x_s0,
            x_s1,
            x_s2,
            y_s0,
            y_s1,
            y_s2,
            rows: rows.count,
            r1,
            r2,
            n: rows.n,
            groups: plan.grid[0],
            eps: self.eps,
            bias: u32::from(self.bias.is_some()),
        };
        let [x, w, bias, y] = call.operands.map(|(_, tensor)| tensor);
        Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &[x, w, bias],
            &[y],
        )
    }
}

operation!(LayerNorm, LayerNormDesc, |checked| checked.1);
