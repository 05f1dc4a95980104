//! Desc -> Plan: a pure function from a problem and a device profile to a kernel and its geometry.

use crate::device::{self, DeviceKind, DeviceProfile};
use crate::error::Result;
use crate::gemm::{GemmDesc, PackDesc, Precision};
use crate::nn::{
    AttentionDesc, CacheDesc, CombineDesc, ElementwiseDesc, EmbedDesc, ExpertsDesc, LayerNormDesc, MlpDesc,
    MovementDesc, NormQkvRopeDesc, QkNormDesc, QuantDesc, QuantEmbedDesc, ReduceDesc, RmsNormDesc, RopeDesc,
    SampleDesc, TopKDesc,
};
use serde::Serialize;
use smallvec::SmallVec;
use std::borrow::Cow;

/// A problem as data: classes, never values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Desc {
    /// Matrix product.
    Gemm(GemmDesc),
    /// Weights packed for matrix products.
    Pack(PackDesc),
    /// Root-mean-square normalisation.
    RmsNorm(RmsNormDesc),
    /// Layer normalisation.
    LayerNorm(LayerNormDesc),
    /// Root-mean-square normalisation of queries and keys.
    QkNorm(QkNormDesc),
    /// Activations, plain or gated.
    Mlp(MlpDesc),
    /// Element-wise arithmetic, conversion and copies.
    Elementwise(ElementwiseDesc),
    /// Reductions of rows.
    Reduce(ReduceDesc),
    /// Rotary position embedding.
    Rope(RopeDesc),
    /// Embedding lookup.
    Embed(EmbedDesc),
    /// Copies, transposition, gathering and scattering.
    Movement(MovementDesc),
    /// Tokens to their experts and back.
    Experts(ExpertsDesc),
    /// The largest elements of rows.
    TopK(TopKDesc),
    /// Tokens from logits.
    Sample(SampleDesc),
    /// Products with quantised weights.
    Quant(QuantDesc),
    /// Queries, keys and values of a few tokens.
    NormQkvRope(NormQkvRopeDesc),
    /// Embedding lookup in a quantised table.
    QuantEmbed(QuantEmbedDesc),
    /// Attention.
    Attention(AttentionDesc),
    /// The second step of an attention whose keys were split.
    Combine(CombineDesc),
    /// Storing tokens in caches and putting rings in order.
    Cache(CacheDesc),
}

/// The module of the kernel that takes every part of the formula of a product.
pub(crate) const FUSED_GEMM: &str = "gemm_fused";

/// The module of the attention kernels that every device has.
pub(crate) const ATTENTION: &str = "attention";

/// A compiled kernel's identity: source file stem, entry point and constants. Never a shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct KernelKey {
    /// File stem of the source (`norm`, `gemm_mma`, ..), or the caller's library.
    pub module: Cow<'static, str>,
    /// Entry point.
    pub name: Cow<'static, str>,
    /// Function constants by name.
    pub constants: SmallVec<[(&'static str, u32); 4]>,
}

impl KernelKey {
    /// A kernel of the library itself.
    pub fn builtin(module: &'static str, name: impl Into<Cow<'static, str>>) -> Self {
        KernelKey { module: Cow::Borrowed(module), name: name.into(), constants: SmallVec::new() }
    }

    /// The same kernel with a function constant set.
    pub fn constant(mut self, name: &'static str, value: u32) -> Self {
        self.constants.push((name, value));
        self
    }
}

/// The chosen kernel, its geometry and the table row that chose it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Kernel variant.
    pub kernel: KernelKey,
    /// Rows, columns and depth of one tile (rows, elements and 1 for row-wise kernels).
    pub tile: [u32; 3],
    /// Tiles (or rows) along each axis, before flattening into the grid.
    pub tiles: [u32; 3],
    /// Threadgroups launched.
    pub grid: [u32; 3],
    /// Threads of one threadgroup (1 on the CPU).
    pub threads: u32,
    /// Buffers in flight along k.
    pub stages: u32,
    /// Parts that k is split into.
    pub split: u32,
    /// Threadgroup memory asked for at launch, in bytes.
    pub shared_bytes: u32,
    /// Scratch memory, in bytes.
    pub scratch_bytes: u64,
    /// How exact f32 products are: at least as exact as asked for, more so where the device has no faster way.
    pub precision: Precision,
    /// The rule that chose this plan.
    pub reason: &'static str,
    /// Why the device's best kernel was passed over, where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
}

/// Chooses the kernel for `desc` on a device with this profile. Pure: same arguments, same plan, on any machine.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) when the device has no kernel for the problem, with the numbers where a limit is in the way.
pub fn plan(desc: &Desc, profile: &DeviceProfile) -> Result<Plan> {
    match profile.kind {
        DeviceKind::Cpu => device::cpu::plan(desc, profile),
        DeviceKind::Cuda => device::cuda::plan(desc, profile),
        DeviceKind::Metal => device::metal::plan(desc, profile),
    }
}

/// Every plan that could run `desc` on a device with this profile, for tuners and tests; see
/// [`Gemm::with_plan`](crate::Gemm::with_plan). The one that [`plan`] chooses is among them.
///
/// # Errors
/// As [`plan`].
pub fn candidates(desc: &Desc, profile: &DeviceProfile) -> Result<Vec<Plan>> {
    match profile.kind {
        DeviceKind::Cuda => device::cuda::candidates(desc, profile),
        DeviceKind::Cpu | DeviceKind::Metal => plan(desc, profile).map(|plan| vec![plan]),
    }
}
