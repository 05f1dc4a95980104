//! The first half of a decoder layer in one launch: norm, q/k/v projections, rotary embedding, cache.

mod check;
mod desc;

pub use desc::{NormQkvRopeDesc, WeightsDesc};

use super::{RopeFrequencies, RopeStyle, Start};
use crate::args::NormQkvRopeArgs;
use crate::error::Result;
use crate::nn::check::Launch;
use crate::nn::quant::dtype_code;
use crate::plan::Desc;
use crate::qtensor::QTensor;
use crate::stream::Stream;
use crate::tensor::{Scalar, Tensor};
use check::Checked;

const OP: &str = "norm_qkv_rope";

/// A matrix of weights `[N, K]`, as it is or coded.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Weights<'a> {
    /// f32, f16 or bf16, with a unit inner stride.
    Dense(&'a Tensor),
    /// Of any format.
    Quantized(&'a QTensor),
}

impl<'a> From<&'a Tensor> for Weights<'a> {
    fn from(weights: &'a Tensor) -> Self {
        Weights::Dense(weights)
    }
}

impl<'a> From<&'a QTensor> for Weights<'a> {
    fn from(weights: &'a QTensor) -> Self {
        Weights::Quantized(weights)
    }
}

/// Where the keys and values of a [`NormQkvRope`] go.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum KvPlaces<'a> {
    /// Token t to row t of `[B, T, Hkv, D]`.
    #[default]
    Rows,
    /// The token at position p to slot p of a cache `[B, capacity, Hkv, D]`.
    Cache,
    /// The token at position p to slot `p % capacity`.
    Ring,
    /// The token at position p to row `p % page` of page `table[b, p / page]`; the table is `[B, pages]` u32, and the caches are
    /// `[N, 16 | 32 | 64, Hkv, D]`.
    Pages(&'a Tensor),
}

/// Everything before the attention of a few tokens, in one launch: `q, k, v = heads of norm(x) W^T + bias`, the norm of each
/// head of q and k where there is one, rotary embedding of q and k, and the store of k and v into their caches.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[B, T, K]`, `B * T <= 8` | f32, f16, bf16 |
/// | norm_weight | `[K]` | f32, x's |
/// | weights | `[Hq * D, K]`, `[Hkv * D, K]`, `[Hkv * D, K]` | all dense f32, f16 or bf16, or all of one [`QFormat`](crate::QFormat) |
/// | q | `[B, T, Hq, D]`, D at most 512 | x's |
/// | k, v | by [`kv`](Self::kv): `[B, T, Hkv, D]`, or caches | x's |
/// | start | a number, one element, or `[B]`: token t stands at `start + t` | u32 |
/// | biases | `[Hq * D]`, `[Hkv * D]`, `[Hkv * D]` | f32, x's |
/// | q_weight, k_weight of [`head_norms`](Self::head_norms) | `[D]` | norm_weight's |
/// | added, sum of [`residual`](Self::residual) | x's | x's |
///
/// `norm(x) = x * rsqrt(mean(x^2) + eps) * (norm_weight + offset)`. Sums accumulate in f32, and nothing is rounded before the
/// outputs are stored (x is, by [`residual`](Self::residual)); what [`RmsNorm`](super::RmsNorm), [`QuantizedQkv`](super::QuantizedQkv),
/// [`QkNorm`](super::QkNorm), [`Rope`](super::Rope) and [`KvStore`](super::KvStore) compute one after the other rounds between them. K is a multiple
/// of 32 with dense weights, whose rows are evenly spaced, all three by the same distance. Last strides are 1, others free.
/// NaN in a row of x makes the row's q, k and v NaN. On the CPU a call needs scratch memory
/// ([`Stream::reserve`](crate::Stream::reserve) before a capture).
///
/// A token beyond the capacity is an error where the host knows the position. Where the device does, its keys and values are
/// not written, and the next wait returns [`Error::Fault`](crate::Error::Fault), as for [`KvStore`](super::KvStore).
///
/// ```
/// use tessl::{nn::{KvPlaces, NormQkvRope, RopeFrequencies, RopeScaling}, BufferKind, Device, DType, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[2.0f32; 32], &[1, 1, 32])?;
/// let ones = rt.from_slice(&[1.0f32; 32], &[32])?;
/// // One head of two elements each; row i of the weights sums norm(x), which is all ones.
/// let w = rt.from_slice(&[1.0f32; 64], &[2, 32])?;
/// let frequencies = RopeFrequencies::new(&rt, 2, 10_000.0, RopeScaling::None)?;
/// let q = rt.alloc_tensor_f32(&[1, 1, 1, 2])?;
/// let (k, v) = (rt.zeros(DType::F32, &[1, 4, 1, 2], BufferKind::Hot)?, rt.zeros(DType::F32, &[1, 4, 1, 2], BufferKind::Hot)?);
/// NormQkvRope::new(&x, &ones, [&w, &w, &w], &frequencies, 3, [&q, &k, &v]).eps(0.0).kv(KvPlaces::Cache).run()?;
/// assert_eq!(v.read::<f32>()?, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 32.0, 32.0]);
/// let (c, s) = (3f32.cos(), 3f32.sin());
/// assert!(q.read::<f32>()?.iter().zip([32.0 * (c - s), 32.0 * (c + s)]).all(|(a, b)| (a - b).abs() < 1e-4));
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a NormQkvRope does nothing until run() or run_on()"]
pub struct NormQkvRope<'a> {
    x: &'a Tensor,
    norm_weight: &'a Tensor,
    weights: [Weights<'a>; 3],
    frequencies: &'a RopeFrequencies,
    start: Start<'a>,
    outputs: [&'a Tensor; 3],
    eps: f32,
    offset: f32,
    head_norms: Option<[&'a Tensor; 2]>,
    biases: Option<[&'a Tensor; 3]>,
    style: RopeStyle,
    kv: KvPlaces<'a>,
    residual: Option<[&'a Tensor; 3]>,
}

impl NormQkvRope<'_> {
    /// Tokens of all sequences, at most.
    pub const MAX_TOKENS: usize = 8;
    /// Elements of a head, at most: those of all tokens fit threadgroup memory.
    pub const MAX_HEAD_DIM: usize = 512;
    /// K is a multiple of this many with dense weights.
    pub const DENSE_COLUMNS: usize = 32;
}

impl<'a> NormQkvRope<'a> {
    /// Weights and outputs are those of q, k and v. `eps` is 1e-6, the weight offset 0, pairs are half-split, and keys and
    /// values go to [`KvPlaces::Rows`].
    pub fn new<W: Into<Weights<'a>>>(
        x: &'a Tensor,
        norm_weight: &'a Tensor,
        weights: [W; 3],
        frequencies: &'a RopeFrequencies,
        start: impl Into<Start<'a>>,
        outputs: [&'a Tensor; 3],
    ) -> Self {
        NormQkvRope {
            x,
            norm_weight,
            weights: weights.map(Into::into),
            frequencies,
            start: start.into(),
            outputs,
            eps: 1e-6,
            offset: 0.0,
            head_norms: None,
            biases: None,
            style: RopeStyle::HalfSplit,
            kv: KvPlaces::Rows,
            residual: None,
        }
    }

    /// Added to the mean squares of every norm.
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    /// Added to the weights of every norm: 1 in Gemma.
    pub fn weight_offset(mut self, offset: f32) -> Self {
        self.offset = offset;
        self
    }

    /// Normalises each head of q and of k with these weights before it is turned, as [`QkNorm`](super::QkNorm) does.
    pub fn head_norms(mut self, q_weight: &'a Tensor, k_weight: &'a Tensor) -> Self {
        self.head_norms = Some([q_weight, k_weight]);
        self
    }

    /// Adds one value per column of each product.
    pub fn biases(mut self, [q, k, v]: [&'a Tensor; 3]) -> Self {
        self.biases = Some([q, k, v]);
        self
    }

    /// Which elements make a pair.
    pub fn style(mut self, style: RopeStyle) -> Self {
        self.style = style;
        self
    }

    /// Where keys and values go.
    pub fn kv(mut self, places: KvPlaces<'a>) -> Self {
        self.kv = places;
        self
    }

    /// Takes `sum = x + norm(added)`, rounded and stored, in the place of x, as between the layers of Gemma: `added` is
    /// what the layer before computed, `weight` that of the norm behind it. `sum` is other memory than `x` and `added`.
    pub fn residual(mut self, added: &'a Tensor, weight: &'a Tensor, sum: &'a Tensor) -> Self {
        self.residual = Some([added, weight, sum]);
        self
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let Checked { call, desc, places } = self.check()?;
        let stream = call.stream(stream)?;
        if desc.m == 0 {
            return Ok(());
        }
        let rt = self.x.runtime();
        let prepared = rt.prepare(&Desc::NormQkvRope(desc.clone()))?;
        let plan = &prepared.plan;
        let stride = |t: &Tensor, axis: usize| t.strides()[axis] as u64;
        let [q, k, v] = self.outputs;
        let (added, sum) = self.residual.map_or((self.x, self.x), |[added, _, sum]| (added, sum));
        let factors = match desc.weights {
            WeightsDesc::Quantized { factors, .. } => factors,
            WeightsDesc::Dense(_) => None,
        };
        let group = match desc.weights {
            WeightsDesc::Quantized { format, .. } => format.group(),
            WeightsDesc::Dense(_) => 32,
        };
        let args = NormQkvRopeArgs {
            x_b: stride(self.x, 0),
            x_t: stride(self.x, 1),
            a_b: stride(added, 0),
            a_t: stride(added, 1),
            s_b: stride(sum, 0),
            s_t: stride(sum, 1),
            q_b: stride(q, 0),
            q_t: stride(q, 1),
            q_h: stride(q, 2),
            k_b: stride(k, 0),
            k_t: stride(k, 1),
            k_h: stride(k, 2),
            v_b: stride(v, 0),
            v_t: stride(v, 1),
            v_h: stride(v, 2),
            row: places.row as u64,
            table_s: places.table_stride,
            start_s: places.start_stride,
            start: if let Start::At(Scalar::Host(start)) = self.start { start.into() } else { 0 },
            m: desc.m,
            tokens: check::narrow(self.x.shape()[1]),
            k: desc.k,
            heads: desc.heads,
            kv_heads: desc.kv_heads,
            dim: desc.dim,
            dims: desc.dims,
            group: check::narrow(group),
            factors: factors.map_or(0, dtype_code),
            weights: desc.weights.number(),
            x_type: dtype_code(desc.dtype),
            norm_type: dtype_code(desc.norm),
            bias: self.biases.map_or(0, |[bias, ..]| 1 + dtype_code(bias.dtype())),
            residual: u32::from(self.residual.is_some()),
            head_norm: u32::from(self.head_norms.is_some()),
            interleaved: u32::from(self.style == RopeStyle::Interleaved),
            cached: u32::from(!matches!(self.kv, KvPlaces::Rows)),
            ring: u32::from(matches!(self.kv, KvPlaces::Ring)),
            capacity: places.capacity,
            page: places.page,
            pages: places.pages,
            width: places.width,
            start_known: u32::from(self.start.tensor().is_none()),
            groups: plan.grid[0],
            tile_n: plan.tile[1],
            tile_k: plan.tile[2],
            eps: self.eps,
            weight_offset: self.offset,
        };
        let tensors = call.operands.map(|(_, tensor)| tensor);
        let (inputs, outputs) = tensors.split_at(check::Q);
        let launch = Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) };
        launch.run(stream, inputs, outputs)
    }
}

operation!(NormQkvRope, NormQkvRopeDesc, |checked| checked.desc);
