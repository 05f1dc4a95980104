//! Normalisation of rows.

use super::RmsNormDesc;
use super::check::{Call, Launch, Rows};
use crate::args::RmsNormArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::Tensor;

const OP: &str = "rms_norm";

/// `y = x * rsqrt(mean(x^2) + eps) * (weight + offset)` over the last axis.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[.., n]` | f32, f16, bf16 |
/// | weight | `[n]` | x's, or f32 |
/// | y | x's | x's |
///
/// Sums accumulate in f32, so 16-bit inputs do not overflow; an f32 row whose sum of squares passes the range of f32
/// gives 0, as the formula in f32 does. The last stride of every operand is 1; other strides are free. y may be exactly
/// x. A NaN in a row makes the whole row NaN.
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
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an RmsNorm does nothing until run() or run_on()"]
pub struct RmsNorm<'a> {
    x: &'a Tensor,
    weight: &'a Tensor,
    y: &'a Tensor,
    eps: f32,
    offset: f32,
}

impl<'a> RmsNorm<'a> {
    /// `eps` is 1e-6 and the weight offset 0.
    pub fn new(x: &'a Tensor, weight: &'a Tensor, y: &'a Tensor) -> Self {
        RmsNorm { x, weight, y, eps: 1e-6, offset: 0.0 }
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

    /// Encodes the operation on the default stream.
    ///
    /// # Errors
    /// `Shape`, `Layout`, `DType`, `Overlap`, `WrongRuntime`, `Expired`, `Scalar` or `TooLarge` for arguments that do not
    /// fit; nothing is encoded then.
    pub fn run(&self) -> Result<()> {
        self.encode(None)
    }

    /// Encodes the operation on `stream`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_on(&self, stream: &mut Stream) -> Result<()> {
        self.encode(Some(stream))
    }

    /// The problem as data.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn desc(&self) -> Result<RmsNormDesc> {
        Ok(self.check()?.1)
    }

    fn check(&self) -> Result<(Call<'a, 3>, RmsNormDesc, Rows<2>)> {
        let (x, w, y) = (self.x, self.weight, self.y);
        let call = Call::new(OP, [("x", x), ("weight", w), ("y", y)])?;
        call.float(0)?;
        let dtype = x.dtype();
        call.dtype(1, &[dtype, DType::F32], "f32 or the dtype of `x`")?;
        call.dtype(2, &[dtype], "the dtype of `x`")?;
        let Some((&n, _)) = x.shape().split_last() else {
            return Err(Error::shape(OP, "x", "a scalar", "it must have rows along its last axis"));
        };
        if w.shape() != [n] {
            let expected = format!("it must be [{n}] (the last axis of `x` {:?})", x.shape());
            return Err(Error::shape(OP, "weight", format_args!("{:?}", w.shape()), expected));
        }
        call.same_shape(2, 0)?;
        (0..3).try_for_each(|i| call.unit_stride(i))?;
        call.output(2, &[0])?;
        if !(self.eps >= 0.0 && self.eps.is_finite()) {
            let expected = "finite and not negative";
            return Err(Error::Scalar { op: OP, name: "eps", value: self.eps.into(), expected });
        }
        if !self.offset.is_finite() {
            let value = self.offset.into();
            return Err(Error::Scalar { op: OP, name: "weight_offset", value, expected: "finite" });
        }
        let rows = Rows::new(OP, [("x", x), ("y", y)])?;
        let align = rows.align(0, x).min(rows.align(1, y)).min(w.alignment([]));
        let desc = RmsNormDesc { rows: rows.count, n: rows.n, dtype, weight: w.dtype(), align };
        Ok((call, desc, rows))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, rows) = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() {
            return Ok(());
        }
        let rt = self.x.runtime();
        let prepared = rt.prepare(&Desc::RmsNorm(desc))?;
        let plan = &prepared.plan;
        let ([x_s0, x_s1, x_s2], [y_s0, y_s1, y_s2]) = (rows.strides(0), rows.strides(1));
        let [r1, r2] = rows.splits();
        let args = RmsNormArgs {
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
            weight_offset: self.offset,
        };
        Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &[self.x, self.weight],
            &[self.y],
        )
    }
}
