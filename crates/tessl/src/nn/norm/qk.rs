//! Root-mean-square normalisation of queries and keys.

use super::super::QkNormDesc;
use super::super::check::{Call, Launch, Rows};
use super::{check_scalars, weight_shape};
use crate::args::QkNormArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::Tensor;

const OP: &str = "qk_norm";

/// [`RmsNorm`](super::RmsNorm) of each head of q and of k, in one call: `q = q * rsqrt(mean(q^2) + eps) * (q_weight +
/// offset)` over the last axis, and so for k.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | q | `[.., D]`, as `[.., Hq, D]` | f32, f16, bf16 |
/// | k | `[.., D]`, as `[.., Hk, D]` | q's |
/// | q_weight, k_weight | `[D]` | q's, or f32 (both the same) |
/// | q_out, k_out | q's, k's | q's |
///
/// q and k are changed in place unless [`into`](Self::into) names other outputs, which may again be exactly q and k. Both
/// may be views of one fused buffer. Sums accumulate in f32. The last stride of every operand is 1; up to three other axes
/// of q and k may be strided on their own. A NaN in a head makes that head NaN.
///
/// ```
/// use tessl::{nn::QkNorm, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// // One token: two query heads and one key head of two elements.
/// let qk = rt.from_slice(&[3.0f32, 3.0, 0.5, -0.5, 7.0, -7.0], &[1, 3, 2])?;
/// let (q, k) = (qk.narrow(1, 0, 2)?, qk.narrow(1, 2, 1)?);
/// let ones = rt.from_slice(&[1.0f32, 1.0], &[2])?;
/// let twos = rt.from_slice(&[2.0f32, 2.0], &[2])?;
/// QkNorm::new(&q, &k, &ones, &twos).eps(0.0).run()?;
/// assert_eq!(qk.read::<f32>()?, [1.0, 1.0, 1.0, -1.0, 2.0, -2.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a QkNorm does nothing until run() or run_on()"]
pub struct QkNorm<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    q_weight: &'a Tensor,
    k_weight: &'a Tensor,
    q_out: &'a Tensor,
    k_out: &'a Tensor,
    eps: f32,
    offset: f32,
}

/// A call that has passed all checks.
struct Checked<'a> {
    call: Call<'a, 6>,
    desc: QkNormDesc,
    /// q and q_out; k and k_out.
    rows: [Rows<2>; 2],
}

impl<'a> QkNorm<'a> {
    /// In place; `eps` is 1e-6 and the weight offset 0.
    pub fn new(q: &'a Tensor, k: &'a Tensor, q_weight: &'a Tensor, k_weight: &'a Tensor) -> Self {
        QkNorm { q, k, q_weight, k_weight, q_out: q, k_out: k, eps: 1e-6, offset: 0.0 }
    }

    /// Writes to these instead of q and k.
    pub fn into(mut self, q_out: &'a Tensor, k_out: &'a Tensor) -> Self {
        (self.q_out, self.k_out) = (q_out, k_out);
        self
    }

    /// Added to the mean square.
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    /// Added to each weight: 1 in Gemma 3.
    pub fn weight_offset(mut self, offset: f32) -> Self {
        self.offset = offset;
        self
    }

    fn check(&self) -> Result<Checked<'a>> {
        let (q, k, q_out, k_out) = (self.q, self.k, self.q_out, self.k_out);
        let weights = [("q_weight", self.q_weight), ("k_weight", self.k_weight)];
        let call = Call::new(OP, [("q", q), ("k", k), weights[0], weights[1], ("q_out", q_out), ("k_out", k_out)])?;
        call.float(0)?;
        let dtype = q.dtype();
        [1, 4, 5].into_iter().try_for_each(|i| call.dtype(i, &[dtype], "the dtype of `q`"))?;
        call.dtype(2, &[dtype, DType::F32], "f32 or the dtype of `q`")?;
        call.dtype(3, &[self.q_weight.dtype()], "the dtype of `q_weight`")?;
        [2, 3].into_iter().try_for_each(|i| weight_shape(&call, i))?;
        let n = self.q_weight.shape()[0];
        if k.shape().last() != Some(&n) {
            let expected = format!("its last axis must be {n}, as that of `q` {:?}", q.shape());
            return Err(Error::shape(OP, "k", format_args!("{:?}", k.shape()), expected));
        }
        call.same_shape(4, 0)?;
        call.same_shape(5, 1)?;
        (0..6).try_for_each(|i| call.unit_stride(i))?;
        // An input that is changed in place is its own output; no other two operands meet.
        call.output(4, &[0])?;
        call.output(5, &[1])?;
        check_scalars(OP, self.eps, self.offset)?;
        let rows = [Rows::new(OP, [("q", q), ("q_out", q_out)])?, Rows::new(OP, [("k", k), ("k_out", k_out)])?];
        let count = rows[0].count + rows[1].count;
        if count > u64::from(u32::MAX) {
            let limit = u32::MAX.into();
            return Err(Error::TooLarge { op: OP, what: "the number of heads of all tokens", value: count, limit });
        }
        let views = [[q, q_out], [k, k_out]];
        let align = (0..4).map(|i| rows[i / 2].align(i % 2, views[i / 2][i % 2]));
        let align = align.chain(weights.map(|(_, w)| w.alignment([]))).min().unwrap_or_default();
        let desc = QkNormDesc { rows: count, n: rows[0].n, dtype, weight: self.q_weight.dtype(), align };
        Ok(Checked { call, desc, rows })
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let Checked { call, desc, rows: [q, k] } = self.check()?;
        let stream = call.stream(stream)?;
        if q.is_empty() && k.is_empty() {
            return Ok(());
        }
        let rt = self.q.runtime();
        let prepared = rt.prepare(&Desc::QkNorm(desc))?;
        let plan = &prepared.plan;
        let [[q_s0, q_s1, q_s2], [o_s0, o_s1, o_s2]] = [0, 1].map(|i| q.strides(i));
        let [[k_s0, k_s1, k_s2], [p_s0, p_s1, p_s2]] = [0, 1].map(|i| k.strides(i));
        let ([q_r1, q_r2], [k_r1, k_r2]) = (q.splits(), k.splits());
        let args = QkNormArgs {
            q_s0,
            q_s1,
            q_s2,
            o_s0,
            o_s1,
            o_s2,
            k_s0,
            k_s1,
            k_s2,
            p_s0,
            p_s1,
            p_s2,
            q_rows: q.count,
            rows: q.count + k.count,
            q_r1,
            q_r2,
            k_r1,
            k_r2,
            n: q.n,
            groups: plan.grid[0],
            eps: self.eps,
            weight_offset: self.offset,
        };
        let [q, k, q_weight, k_weight, q_out, k_out] = call.operands.map(|(_, tensor)| tensor);
        Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &[q, k, q_weight, k_weight],
            &[q_out, k_out],
        )
    }
}

operation!(QkNorm, QkNormDesc, |checked| checked.desc);
