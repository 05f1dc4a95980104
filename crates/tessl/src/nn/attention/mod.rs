//! Attention: prefill and decode, over caches, pages and sequences of different lengths.

mod check;
mod desc;
mod encode;

pub use desc::{AttentionDesc, CombineDesc};

use super::cache::Start;
use crate::error::Result;
use crate::plan::Plan;
use crate::stream::Stream;
use crate::tensor::Tensor;

pub(crate) const OP: &str = "attention";
/// Elements of a head, at most: kernels keep a row of the result in registers or in a core's cache.
const MAX_DIM: usize = 512;
/// Keys in a page.
const PAGES: [usize; 3] = [16, 32, 64];

/// `out = softmax(scale * q k^T, masked) v`, for each head.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | q, out | `[B, Tq, Hq, D]` | f32, f16, bf16 |
/// | k, v | `[B, Tkv, Hkv, D]`, or pages `[N, 16 \| 32 \| 64, Hkv, D]` | q's, or i8 with scales |
/// | k_scales, v_scales | k's without D | f32 |
/// | lengths | `[B]`: keys of each sequence | u32 |
/// | table | `[B, pages]`: the pages of each sequence | u32 |
/// | mask | broadcast to `[B, Hq, Tq, Tkv]` | u8 (0 hides), or f32, f16, bf16 (added) |
/// | sinks | `[Hq]` | f32 |
///
/// Query head h reads key head `h / (Hq / Hkv)`. With `t = scale * (q . k)`, bent by the softcap, plus an additive mask:
/// `out = sum_j exp(t_j - m) v_j / (sum_j exp(t_j - m) + exp(sink - m))` over the visible keys j, m their largest score
/// or the sink. Products and sums are f32, online (never Tq x Tkv memory), and round once to the output. Matrix units take
/// weights of bf16 or f16, rounded from f32 (on the CPU as the sum of two); sums of weights are of the f32 ones.
///
/// Views need a unit stride along D alone: q, k and v may be parts of one fused buffer, k and v a cache
/// `[B, capacity, Hkv, D]` of which [`kv_lengths`](Self::kv_lengths) names the used part. With
/// [`varlen`](Self::varlen) q and out are `[total, Hq, D]` (and k, v `[total, Hkv, D]`).
///
/// With [`kv_scales`](Self::kv_scales) k and v are i8 codes, as [`KvStore`](super::KvStore) makes them with scales: each row
/// is its codes times its scale. Codes are exact in every type, and scales multiply scores and weights in f32.
///
/// A key is hidden by a length, by [`causal`](Self::causal) and [`window`](Self::window), by 0 in a u8 mask and by
/// -infinity in an additive one. What is hidden is not looked at, NaN in k and v included. NaN in what is visible makes the
/// row NaN, and so does a score of +infinity. A row without a visible key is 0.
///
/// Lengths, cumulative lengths and page numbers are read on the device. One above its capacity is a fault: rows of that
/// sequence are not written, and the next wait returns [`Error::Fault`](crate::Error::Fault) (`BadLength`, or
/// `IndexOutOfRange` for a page, with its place in lengths or table).
///
/// ```
/// use tessl::{nn::Attention, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// // One sequence of two tokens, one head of two elements; all scores are 0.
/// let q = rt.alloc_tensor_f32(&[1, 2, 1, 2])?;
/// let k = rt.alloc_tensor_f32(&[1, 2, 1, 2])?;
/// let v = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 2, 1, 2])?;
/// let out = rt.alloc_tensor_f32(&[1, 2, 1, 2])?;
/// Attention::new(&q, &k, &v, &out).causal(0).run()?;
/// assert_eq!(out.read::<f32>()?, [1.0, 2.0, 2.0, 3.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an Attention does nothing until run() or run_on()"]
pub struct Attention<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    v: &'a Tensor,
    out: &'a Tensor,
    causal: Option<Causal<'a>>,
    window: Option<u32>,
    lengths: Option<&'a Tensor>,
    cu_q: Option<&'a Tensor>,
    cu_k: Option<&'a Tensor>,
    table: Option<&'a Tensor>,
    mask: Option<&'a Tensor>,
    sinks: Option<&'a Tensor>,
    scale: Option<f32>,
    softcap: Option<f32>,
    scales: Option<[&'a Tensor; 2]>,
    plan: Option<&'a Plan>,
}

/// Where the first query of a sequence stands.
#[derive(Clone, Copy, Debug)]
enum Causal<'a> {
    At(Start<'a>),
    End,
}

impl<'a> Attention<'a> {
    /// Every query sees every key, at scale `1 / sqrt(D)`.
    pub fn new(q: &'a Tensor, k: &'a Tensor, v: &'a Tensor, out: &'a Tensor) -> Self {
        Attention {
            q,
            k,
            v,
            out,
            causal: None,
            window: None,
            lengths: None,
            cu_q: None,
            cu_k: None,
            table: None,
            mask: None,
            sinks: None,
            scale: None,
            softcap: None,
            scales: None,
            plan: None,
        }
    }

    /// Query t stands at `start + t` and sees keys `0..=start + t`. The start is a number, a device scalar, or a `[B]`
    /// tensor ([`Start`]): 0 for a prefill, the number of keys already in the cache for a chunk or a decode step.
    pub fn causal(mut self, start: impl Into<Start<'a>>) -> Self {
        self.causal = Some(Causal::At(start.into()));
        self
    }

    /// As [`causal`](Self::causal), with the last query at the last key of its sequence.
    pub fn causal_at_end(mut self) -> Self {
        self.causal = Some(Causal::End);
        self
    }

    /// A query sees the last `keys` keys up to its own position, its own included. Needs one of the causal forms.
    pub fn window(mut self, keys: u32) -> Self {
        self.window = Some(keys);
        self
    }

    /// Keys of each sequence, `[B]` u32, read on the device; the others, NaN included, are not looked at.
    pub fn kv_lengths(mut self, lengths: &'a Tensor) -> Self {
        self.lengths = Some(lengths);
        self
    }

    /// Sequences of different lengths one after the other: sequence b has the queries `cu_q[b]..cu_q[b + 1]` and the keys
    /// `cu_k[b]..cu_k[b + 1]`; both are `[B + 1]` u32 and start with 0.
    pub fn varlen(mut self, cu_q: &'a Tensor, cu_k: &'a Tensor) -> Self {
        self.cu_q = Some(cu_q);
        self.cu_k = Some(cu_k);
        self
    }

    /// Queries of different lengths one after the other over a cache or pages with [`kv_lengths`](Self::kv_lengths):
    /// sequence b has the queries `cu_q[b]..cu_q[b + 1]`.
    pub fn varlen_queries(mut self, cu_q: &'a Tensor) -> Self {
        self.cu_q = Some(cu_q);
        self
    }

    /// k and v are pages: key j of sequence b is row `j % page` of page `table[b, j / page]`.
    pub fn table(mut self, table: &'a Tensor) -> Self {
        self.table = Some(table);
        self
    }

    /// Hides keys (u8, where 0) or is added to the scores (f32, f16, bf16; -infinity hides).
    pub fn mask(mut self, mask: &'a Tensor) -> Self {
        self.mask = Some(mask);
        self
    }

    /// A logit for each query head that takes part in the denominator alone.
    pub fn sinks(mut self, sinks: &'a Tensor) -> Self {
        self.sinks = Some(sinks);
        self
    }

    /// Factor of the products, instead of `1 / sqrt(D)`.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Bends scores into `-softcap..softcap` by `softcap * tanh(t / softcap)`, before the mask.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.softcap = Some(softcap);
        self
    }

    /// k and v are i8 codes, each row with a scale of its own.
    pub fn kv_scales(mut self, k_scales: &'a Tensor, v_scales: &'a Tensor) -> Self {
        self.scales = Some([k_scales, v_scales]);
        self
    }

    /// Runs this plan in place of the table's choice: for tuners and tests. It is one of
    /// [`candidates`](crate::plan::candidates) for this problem on this device, or the call is refused.
    pub fn with_plan(mut self, plan: &'a Plan) -> Self {
        self.plan = Some(plan);
        self
    }

    /// Encodes the operation on the default stream.
    ///
    /// # Errors
    /// `Shape`, `Layout`, `DType`, `Scalar`, `Overlap`, `WrongRuntime`, `Expired` or `TooLarge` for arguments that do not
    /// fit, `Scratch` inside a capture for a stream that reserved too little, `Unsupported` for a plan that is not one of
    /// the problem's; nothing is encoded then.
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
    pub fn desc(&self) -> Result<AttentionDesc> {
        Ok(self.check()?.desc)
    }

    /// Bytes of scratch memory that the call needs, for [`Stream::reserve`].
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn scratch_bytes(&self) -> Result<u64> {
        if let Some(plan) = self.plan {
            return Ok(plan.scratch_bytes);
        }
        let desc = crate::plan::Desc::Attention(self.desc()?);
        Ok(crate::plan::plan(&desc, self.q.runtime().profile())?.scratch_bytes)
    }
}
