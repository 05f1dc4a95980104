//! Normalisation of rows.

use super::RmsNormDesc;
use crate::args::RmsNormArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Desc;
use crate::stream::{Access, Encoded, Stream, Work};
use crate::tensor::Tensor;
use smallvec::SmallVec;

const OP: &str = "rms_norm";
/// Kernels number rows in 32 bits.
const MAX_ROWS: u64 = u32::MAX as u64;

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

/// Row strides of one operand, outermost first, after axes have been joined.
type Rows = SmallVec<[(usize, usize, usize); 4]>;

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
        Ok(self.check()?.0)
    }

    fn check(&self) -> Result<(RmsNormDesc, Rows)> {
        let (x, w, y) = (self.x, self.weight, self.y);
        for (name, tensor) in [("x", x), ("weight", w), ("y", y)] {
            tensor.check_usable(OP, name, x.runtime())?;
        }
        let dtype = x.dtype();
        if !dtype.is_float() {
            return Err(Error::DType { op: OP, operand: "x", actual: dtype, expected: "f32, f16 or bf16" });
        }
        if w.dtype() != dtype && w.dtype() != DType::F32 {
            return Err(Error::DType {
                op: OP,
                operand: "weight",
                actual: w.dtype(),
                expected: "f32 or the dtype of `x`",
            });
        }
        if y.dtype() != dtype {
            return Err(Error::DType { op: OP, operand: "y", actual: y.dtype(), expected: "the dtype of `x`" });
        }
        let Some((&n, _)) = x.shape().split_last() else {
            return Err(Error::shape(OP, "x", "a scalar", "it must have rows along its last axis"));
        };
        if w.shape() != [n] {
            let expected = format!("it must be [{n}] (the last axis of `x` {:?})", x.shape());
            return Err(Error::shape(OP, "weight", format_args!("{:?}", w.shape()), expected));
        }
        if y.shape() != x.shape() {
            return Err(Error::shape(OP, "y", format_args!("{:?}", y.shape()), format!("`x` is {:?}", x.shape())));
        }
        for (name, tensor) in [("x", x), ("weight", w), ("y", y)] {
            if n > 1 && tensor.strides().last() != Some(&1) {
                let actual = format!("strided {:?}", tensor.strides());
                return Err(Error::layout(OP, name, actual, "its last stride must be 1"));
            }
        }
        if y.repeats_elements() {
            let actual = format!("{:?} with strides {:?}", y.shape(), y.strides());
            return Err(Error::layout(OP, "y", actual, "an output cannot repeat elements"));
        }
        if !x.same_view(y) && x.may_overlap(y) {
            return Err(Error::Overlap { op: OP, output: "y", input: "x" });
        }
        if w.may_overlap(y) {
            return Err(Error::Overlap { op: OP, output: "y", input: "weight" });
        }
        if !(self.eps >= 0.0 && self.eps.is_finite()) {
            let expected = "finite and not negative";
            return Err(Error::Scalar { op: OP, name: "eps", value: self.eps.into(), expected });
        }
        if !self.offset.is_finite() {
            let value = self.offset.into();
            return Err(Error::Scalar { op: OP, name: "weight_offset", value, expected: "finite" });
        }
        let limit = u64::from(u32::MAX >> 1);
        let too_large = |what, value: usize| Error::TooLarge { op: OP, what, value: value as u64, limit };
        let columns = u32::try_from(n).ok().filter(|&n| u64::from(n) <= limit);
        let columns = columns.ok_or_else(|| too_large("the length of a row", n))?;
        // Nothing is walked in an empty view, whatever its other extents.
        let rows = if x.is_empty() { Rows::new() } else { Self::join_axes(x, y) };
        if rows.len() > 3 {
            let actual = format!("{:?} with strides {:?} and {:?}", x.shape(), x.strides(), y.strides());
            return Err(Error::layout(
                OP,
                "x",
                actual,
                "at most three axes before the last may be strided on their own",
            ));
        }
        if let Some(&(extent, ..)) = rows.iter().find(|r| rows.len() > 1 && r.0 as u64 > limit) {
            return Err(too_large("an extent", extent));
        }
        let outer = &x.shape()[..x.rank() - 1];
        // The other extents of an empty view may be too large to multiply.
        let count: u64 = if outer.contains(&0) { 0 } else { outer.iter().map(|&d| d as u64).product() };
        if count > MAX_ROWS {
            return Err(Error::TooLarge { op: OP, what: "the number of rows", value: count, limit: MAX_ROWS });
        }
        let align = |t: &Tensor, which: fn(&(usize, usize, usize)) -> usize| t.alignment(rows.iter().map(which));
        let desc = RmsNormDesc {
            rows: count,
            n: columns,
            dtype,
            weight: w.dtype(),
            align: align(x, |r| r.1).min(align(y, |r| r.2)).min(w.alignment([])),
        };
        Ok((desc, rows))
    }

    /// The axes before the last as (extent, stride in x, stride in y), neighbours joined where both operands allow it.
    fn join_axes(x: &Tensor, y: &Tensor) -> Rows {
        let mut rows = Rows::new();
        let outer = x.rank() - 1;
        for axis in 0..outer {
            let (extent, xs, ys) = (x.shape()[axis], x.strides()[axis], y.strides()[axis]);
            if extent == 1 {
                continue;
            }
            match rows.last_mut() {
                Some(last) if last.1 == xs.saturating_mul(extent) && last.2 == ys.saturating_mul(extent) => {
                    *last = (last.0.saturating_mul(extent), xs, ys);
                }
                _ => rows.push((extent, xs, ys)),
            }
        }
        rows
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let stream = stream.as_deref();
        let (desc, rows) = self.check()?;
        let rt = self.x.runtime();
        if let Some(stream) = stream
            && !rt.is_same(stream.runtime())
        {
            return Err(Error::WrongRuntime { op: OP, operand: "stream" });
        }
        if desc.rows == 0 || desc.n == 0 {
            return Ok(());
        }
        let (count, n) = (desc.rows, desc.n);
        let prepared = rt.prepare(&Desc::RmsNorm(desc))?;
        let plan = &prepared.plan;
        // Missing outer axes have extent 1 and are never stepped along; a single axis may be longer than `limit`.
        let mut axes = [(1usize, 0usize, 0usize); 3];
        axes[3 - rows.len()..].copy_from_slice(&rows);
        let small = |d: usize| u32::try_from(d).expect("INVARIANT: checked against the limit");
        let args = RmsNormArgs {
            x_s0: axes[0].1 as u64,
            x_s1: axes[1].1 as u64,
            x_s2: axes[2].1 as u64,
            y_s0: axes[0].2 as u64,
            y_s1: axes[1].2 as u64,
            y_s2: axes[2].2 as u64,
            rows: count,
            r1: small(axes[1].0),
            r2: if rows.len() == 1 { u32::MAX } else { small(axes[2].0) },
            n,
            groups: plan.grid[0],
            eps: self.eps,
            weight_offset: self.offset,
        };
        let mut bindings = SmallVec::new();
        bindings.push(self.x.binding(Access::Read));
        bindings.push(self.weight.binding(Access::Read));
        bindings.push(self.y.binding(Access::Write));
        let work = Work::Kernel {
            pipeline: prepared.pipeline,
            grid: plan.grid,
            threads: plan.threads,
            shared_bytes: plan.shared_bytes,
        };
        rt.encode_on(stream, Encoded { label: OP, work, args: bytemuck::bytes_of(&args), bindings })
    }
}
