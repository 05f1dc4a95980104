//! Reductions of rows: softmax, log-softmax, sum, mean, maximum and the index of the maximum.

use super::check::{Call, Launch, Rows};
use super::{ReduceDesc, ReduceOp};
use crate::args::ReduceArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// What softmax and log-softmax share.
#[derive(Clone, Debug)]
struct Scores<'a> {
    op: ReduceOp,
    x: &'a Tensor,
    y: &'a Tensor,
    mask: Option<&'a Tensor>,
    scale: f32,
    softcap: Option<f32>,
}

/// Declares a builder on [`Scores`].
macro_rules! of_scores {
    ($(#[$doc:meta])* $name:ident, $unused:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[must_use = $unused]
        pub struct $name<'a> {
            scores: Scores<'a>,
        }

        impl<'a> $name<'a> {
            /// Without mask and softcap, at scale 1.
            pub fn new(x: &'a Tensor, y: &'a Tensor) -> Self {
                $name { scores: Scores { op: ReduceOp::$name, x, y, mask: None, scale: 1.0, softcap: None } }
            }

            /// Multiplies x.
            pub fn scale(mut self, scale: f32) -> Self {
                self.scores.scale = scale;
                self
            }

            /// Bends scores into `-softcap..softcap` by `softcap * tanh(t / softcap)`, before the mask.
            pub fn softcap(mut self, softcap: f32) -> Self {
                self.scores.softcap = Some(softcap);
                self
            }

            /// Hides elements (u8, where 0) or is added to the scores (f32, f16, bf16).
            pub fn mask(mut self, mask: &'a Tensor) -> Self {
                self.scores.mask = Some(mask);
                self
            }

            fn check(&self) -> Result<Checked<'a, 3>> {
                self.scores.check()
            }

            fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
                self.scores.encode(stream)
            }
        }

        operation!($name, ReduceDesc, |checked| checked.desc);
    };
}

of_scores! {
    /// `y = softmax(t)` over the last axis, `t = softcap * tanh(scale * x / softcap)`, masked.
    ///
    /// | operand | shape | dtypes |
    /// | --- | --- | --- |
    /// | x | `[.., n]` | f32, f16, bf16 |
    /// | mask | x's, or broadcast to it | u8 (0 hides), or f32, f16, bf16 (added to t) |
    /// | y | x's | x's |
    ///
    /// `y_i = exp(t_i - max t) / sum_j exp(t_j - max t)`, in f32, rounded once. The last stride of every operand is 1; up to
    /// three other axes may be strided on their own. y may be exactly x.
    ///
    /// NaN in a row makes the whole row NaN, and so does +infinity. What a u8 mask hides is not looked at, NaN included. A
    /// row of -infinity alone is uniform; with a mask operand such a row, fully masked, is 0.
    ///
    /// ```
    /// use tessl::{nn::Softmax, Device, GpuRuntime};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let x = rt.from_slice(&[0.0f32, 0.0, 5.0, 1.0, 2.0, 3.0], &[2, 3])?;
    /// let mask = rt.from_slice(&[1u8, 1, 0, 0, 0, 0], &[2, 3])?;
    /// Softmax::new(&x, &x).mask(&mask).run()?;
    /// assert_eq!(x.read::<f32>()?, [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    Softmax, "a Softmax does nothing until run() or run_on()"
}

of_scores! {
    /// `y = log(softmax(t))` over the last axis, as `(t_i - max t) - ln(sum_j exp(t_j - max t))`: far below the maximum the
    /// result is finite where the logarithm of a softmax would be -infinity.
    ///
    /// Operands and options are those of [`Softmax`]. NaN in a row makes the whole row NaN, and so does +infinity. A row of
    /// -infinity alone gives `-ln(n)`; with a mask operand such a row, fully masked, is -infinity.
    ///
    /// ```
    /// use tessl::{nn::LogSoftmax, Device, GpuRuntime};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let x = rt.from_slice(&[0.0f32, 100.0, -250.0], &[1, 3])?;
    /// LogSoftmax::new(&x, &x).run()?;
    /// assert_eq!(x.read::<f32>()?, [-100.0, 0.0, -350.0]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    LogSoftmax, "a LogSoftmax does nothing until run() or run_on()"
}

/// A call that has passed all checks.
struct Checked<'a, const N: usize> {
    call: Call<'a, N>,
    desc: ReduceDesc,
    rows: Rows<N>,
}

impl<'a> Scores<'a> {
    fn check(&self) -> Result<Checked<'a, 3>> {
        // Without a mask x takes its place, which the kernel then does not read there.
        let mask = self.mask.unwrap_or(self.x);
        let operands = [("x", self.x), ("mask", mask), ("y", self.y)];
        let call = Call::new(self.op.name(), operands)?;
        call.float(0)?;
        has_rows(&call)?;
        if self.mask.is_some() {
            call.dtype(1, &[DType::U8, DType::F32, DType::F16, DType::Bf16], "u8, f32, f16 or bf16")?;
        }
        call.dtype(2, &[self.x.dtype()], "the dtype of `x`")?;
        [1, 2].into_iter().try_for_each(|i| call.same_shape(i, 0))?;
        (0..3).try_for_each(|i| call.unit_stride(i))?;
        call.output(2, if self.mask.is_some() { &[0] } else { &[0, 1] })?;
        let scalar = |name, value: f32, expected| Error::Scalar { op: call.op, name, value: value.into(), expected };
        if !self.scale.is_finite() {
            return Err(scalar("scale", self.scale, "finite"));
        }
        if let Some(softcap) = self.softcap.filter(|c| !(*c > 0.0 && c.is_normal() && c.recip().is_normal())) {
            return Err(scalar("softcap", softcap, "above 0, with a normal number as its inverse"));
        }
        let rows = Rows::new(call.op, operands)?;
        let align = rows.align(0, self.x).min(rows.align(2, self.y));
        let dtype = self.x.dtype();
        let mask = self.mask.map(Tensor::dtype);
        let desc = ReduceDesc { op: self.op, rows: rows.count, n: rows.n, input: dtype, output: dtype, mask, align };
        Ok(Checked { call, desc, rows })
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let Checked { call, desc, rows } = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() {
            return Ok(());
        }
        let mask = match desc.mask {
            None => 0,
            Some(DType::U8) => 1,
            Some(DType::F32) => 2,
            Some(DType::F16) => 3,
            Some(_) => 4,
        };
        let (softcap, inverse_softcap) = self.softcap.map_or((0.0, 0.0), |c| (c, 1.0 / c));
        let args = ReduceArgs { mask, scale: self.scale, softcap, inverse_softcap, ..row_args(&rows, [0, 1, 2]) };
        launch(call.op, stream, desc, args, &[self.x, self.mask.unwrap_or(self.x)], self.y)
    }
}

/// A sum, mean or maximum over the last axis.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[.., n]`, n above 0 | f32, f16, bf16 |
/// | y | `[..]` | x's, or f32 |
///
/// Sums accumulate in f32 and round once; the mean is the sum times `1 / n`. The last stride of x is 1; up to three other
/// axes may be strided on their own, in y too. NaN in a row gives NaN, also as the maximum.
///
/// ```
/// use tessl::{nn::{Reduce, Reduction}, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[1.0f32, 2.0, 6.0, -1.0, -2.0, -6.0], &[2, 3])?;
/// let y = rt.alloc_tensor_f32(&[2])?;
/// Reduce::new(&x, &y, Reduction::Mean).run()?;
/// assert_eq!(y.read::<f32>()?, [3.0, -3.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a Reduce does nothing until run() or run_on()"]
pub struct Reduce<'a> {
    x: &'a Tensor,
    y: &'a Tensor,
    reduction: Reduction,
}

/// What a row becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reduction {
    /// The sum of its elements.
    Sum,
    /// Their mean.
    Mean,
    /// The largest.
    Max,
}

impl Reduction {
    /// Every reduction.
    pub const ALL: [Reduction; 3] = [Reduction::Sum, Reduction::Mean, Reduction::Max];
}

impl<'a> Reduce<'a> {
    /// `y = reduction(x)`.
    pub fn new(x: &'a Tensor, y: &'a Tensor, reduction: Reduction) -> Self {
        Reduce { x, y, reduction }
    }

    fn check(&self) -> Result<Checked<'a, 2>> {
        let op = match self.reduction {
            Reduction::Sum => ReduceOp::Sum,
            Reduction::Mean => ReduceOp::Mean,
            Reduction::Max => ReduceOp::Max,
        };
        let accepted = [self.x.dtype(), DType::F32];
        check_column(op, self.x, self.y, &accepted, "f32 or the dtype of `x`")
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let Checked { call, desc, rows } = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() {
            return Ok(());
        }
        #[allow(clippy::cast_precision_loss)] // The rounding of 1 / n is part of the error bound.
        let scale = if desc.op == ReduceOp::Mean { 1.0 / rows.n as f32 } else { 1.0 };
        let args = ReduceArgs { scale, ..row_args(&rows, [0, 0, 1]) };
        launch(call.op, stream, desc, args, &[self.x], self.y)
    }
}

operation!(Reduce, ReduceDesc, |checked| checked.desc);

/// The index of the largest element of each row: the first NaN if there is one, else the lowest index among equals.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[.., n]`, n above 0 | f32, f16, bf16 |
/// | y | `[..]` | u32 |
///
/// The last stride of x is 1; up to three other axes may be strided on their own, in y too.
///
/// ```
/// use tessl::{nn::ArgMax, BufferKind, Device, DType, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[1.0f32, 7.0, 7.0, 1.0, f32::NAN, 3.0], &[2, 3])?;
/// let y = rt.zeros(DType::U32, &[2], BufferKind::Cold)?;
/// ArgMax::new(&x, &y).run()?;
/// assert_eq!(y.read::<u32>()?, [1, 1]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an ArgMax does nothing until run() or run_on()"]
pub struct ArgMax<'a> {
    x: &'a Tensor,
    y: &'a Tensor,
}

impl<'a> ArgMax<'a> {
    /// `y = argmax(x)`.
    pub fn new(x: &'a Tensor, y: &'a Tensor) -> Self {
        ArgMax { x, y }
    }

    fn check(&self) -> Result<Checked<'a, 2>> {
        check_column(ReduceOp::ArgMax, self.x, self.y, &[DType::U32], "u32")
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let Checked { call, desc, rows } = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() {
            return Ok(());
        }
        launch(call.op, stream, desc, row_args(&rows, [0, 0, 1]), &[self.x], self.y)
    }
}

operation!(ArgMax, ReduceDesc, |checked| checked.desc);

/// x has a last axis.
fn has_rows<const N: usize>(call: &Call<'_, N>) -> Result<()> {
    if call.operands[0].1.rank() > 0 {
        return Ok(());
    }
    Err(Error::shape(call.op, call.operands[0].0, "a scalar", "it must have rows along its last axis"))
}

/// The checks of a reduction to one element a row.
fn check_column<'a>(
    op: ReduceOp,
    x: &'a Tensor,
    y: &'a Tensor,
    accepted: &[DType],
    expected: &'static str,
) -> Result<Checked<'a, 2>> {
    let operands = [("x", x), ("y", y)];
    let call = Call::new(op.name(), operands)?;
    call.float(0)?;
    has_rows(&call)?;
    call.dtype(1, accepted, expected)?;
    let (n, outer) = x.shape().split_last().map_or((0, &[][..]), |(&n, outer)| (n, outer));
    if y.shape() != outer {
        let expected = format!("it must be {outer:?} (`x` {:?} without its last axis)", x.shape());
        return Err(Error::shape(call.op, "y", format_args!("{:?}", y.shape()), expected));
    }
    if n == 0 && !outer.contains(&0) {
        let actual = format_args!("{:?}", x.shape());
        return Err(Error::shape(call.op, "x", actual, "a row without elements has no value"));
    }
    call.unit_stride(0)?;
    call.output(1, &[])?;
    let rows = Rows::new(call.op, operands)?;
    let align = rows.align(0, x);
    let (input, output) = (x.dtype(), y.dtype());
    let desc = ReduceDesc { op, rows: rows.count, n: rows.n, input, output, mask: None, align };
    Ok(Checked { call, desc, rows })
}

/// The argument block of rows whose operands x, mask and y are these three.
fn row_args<const N: usize>(rows: &Rows<N>, [x, m, y]: [usize; 3]) -> ReduceArgs {
    let ([x_s0, x_s1, x_s2], [m_s0, m_s1, m_s2], [y_s0, y_s1, y_s2]) =
        (rows.strides(x), rows.strides(m), rows.strides(y));
    let [r1, r2] = rows.splits();
    let (rows, n) = (rows.count, rows.n);
    ReduceArgs {
        x_s0,
        x_s1,
        x_s2,
        m_s0,
        m_s1,
        m_s2,
        y_s0,
        y_s1,
        y_s2,
        rows,
        r1,
        r2,
        n,
        groups: 0,
        mask: 0,
        scale: 1.0,
        softcap: 0.0,
        inverse_softcap: 0.0,
    }
}

fn launch(
    op: &'static str,
    stream: Option<&Stream>,
    desc: ReduceDesc,
    args: ReduceArgs,
    inputs: &[&Tensor],
    y: &Tensor,
) -> Result<()> {
    let rt = y.runtime();
    let prepared = rt.prepare(&Desc::Reduce(desc))?;
    let plan = &prepared.plan;
    let args = ReduceArgs { groups: plan.grid[0], ..args };
    Launch { op, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(stream, inputs, &[y])
}
