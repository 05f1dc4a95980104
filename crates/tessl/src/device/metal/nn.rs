//! Plans for kernels that walk rows: normalisation, activations and the like.

use crate::device::DeviceProfile;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::Precision;
use crate::nn::{
    CacheDesc, ElementwiseDesc, EmbedDesc, ExpertsDesc, ExpertsOp, LayerNormDesc, MlpDesc, MovementDesc, MovementOp,
    NormQkvRopeDesc, QkNormDesc, QuantDesc, QuantEmbedDesc, ReduceDesc, RmsNormDesc, RopeDesc, SampleDesc, TopKDesc,
    norm_types,
};
use crate::plan::{KernelKey, Plan};

/// Threads of a threadgroup, as in the kernels.
const THREADS: u32 = 256;
/// Threadgroups walk over rows or vectors when there are more than this many.
const MAX_GROUPS: u32 = 1 << 16;
/// log2 of the 16 bytes that vector accesses need.
const VEC_ALIGN: u8 = 4;

pub(super) fn rms_norm(desc: &RmsNormDesc, profile: &DeviceProfile) -> Result<Plan> {
    let kernel = norm("rms_norm", desc.kernel(), [desc.dtype, desc.weight])?;
    Ok(rows(kernel, [desc.rows, desc.n.into()], desc.align, profile))
}

pub(super) fn layer_norm(desc: &LayerNormDesc, profile: &DeviceProfile) -> Result<Plan> {
    let kernel = norm("layer_norm", desc.kernel(), [desc.dtype, desc.weight])?;
    Ok(rows(kernel, [desc.rows, desc.n.into()], desc.align, profile))
}

pub(super) fn qk_norm(desc: &QkNormDesc, profile: &DeviceProfile) -> Result<Plan> {
    let kernel = norm("qk_norm", desc.kernel(), [desc.dtype, desc.weight])?;
    let (heads, vec) = (THREADS / 32, desc.align >= VEC_ALIGN);
    let reason = if vec { "one simdgroup a head, 16-byte accesses" } else { "one simdgroup a head, scalar accesses" };
    Ok(plan(kernel, [heads, desc.n, 1], desc.rows.div_ceil(heads.into()), vec, reason, profile))
}

fn norm(op: &'static str, kernel: Option<String>, [dtype, weight]: [DType; 2]) -> Result<KernelKey> {
    let name = kernel.ok_or_else(|| Error::unsupported(op, norm_types(dtype, weight), "metal"))?;
    Ok(KernelKey::builtin("norm", name))
}

pub(super) fn reduce(desc: &ReduceDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported(desc.op.name(), desc.types(), "metal"))?;
    Ok(rows(KernelKey::builtin("reduce", name), [desc.rows, desc.n.into()], desc.align, profile))
}

pub(super) fn mlp(desc: &MlpDesc, profile: &DeviceProfile) -> Plan {
    let kernel = KernelKey::builtin("mlp", format!("{}_{}", desc.op.name(), desc.dtype));
    map(kernel, [desc.rows, desc.n.into()], desc.dtype.size(), desc.align, profile)
}

pub(super) fn elementwise(desc: &ElementwiseDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported(desc.op.name(), desc.types(), "metal"))?;
    let size = desc.input.size().min(desc.output.size());
    let kernel = KernelKey::builtin("elementwise", name);
    Ok(map(kernel, [desc.rows, desc.n.into()], size, desc.align, profile))
}

pub(super) fn rope(desc: &RopeDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported("rope", desc.dtype.name(), "metal"))?;
    let (kernel, size) = (KernelKey::builtin("rope", name), desc.dtype.size());
    Ok(vectors_of(kernel, desc.rows, |width| desc.vectors(width).into(), size, desc.align, profile))
}

pub(super) fn embed(desc: &EmbedDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported("embedding", desc.dtype.name(), "metal"))?;
    let kernel = KernelKey::builtin("embed", name);
    Ok(map(kernel, [desc.rows, desc.n.into()], desc.dtype.size(), desc.align, profile))
}

pub(super) fn movement(desc: &MovementDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = desc.op.name();
    let (module, name) = desc.kernel().ok_or_else(|| Error::unsupported(op, desc.dtype.name(), "metal"))?;
    let (kernel, size) = (KernelKey::builtin(module, name), desc.dtype.size());
    Ok(match desc.op {
        MovementOp::Transpose => {
            let tiles = [desc.m.div_ceil(TRANSPOSE_TILE), desc.n.div_ceil(TRANSPOSE_TILE)];
            let all = desc.rows.saturating_mul(tiles[0].into()).saturating_mul(tiles[1].into());
            let reason = "tiles of 32 x 32 through threadgroup memory";
            let plan = plan(kernel, [TRANSPOSE_TILE, TRANSPOSE_TILE, 1], all, false, reason, profile);
            Plan { tiles: [tiles[0], tiles[1], narrow(desc.rows)], ..plan }
        }
        MovementOp::CopyStrided => map(kernel, [desc.rows, desc.n.into()], size, 0, profile),
        MovementOp::ScatterRows | MovementOp::ScatterAdd => {
            let vec = desc.align >= VEC_ALIGN;
            let reason = if vec { "one panel a threadgroup, 16-byte accesses" } else { "one panel a threadgroup" };
            let panel = THREADS * if vec { narrow(16 / size as u64) } else { 1 };
            let panels = desc.n.div_ceil(panel);
            let all = desc.rows.saturating_mul(panels.into());
            Plan { tiles: [narrow(desc.rows), panels, 1], ..plan(kernel, [1, panel, 1], all, vec, reason, profile) }
        }
        _ => map(kernel, [desc.rows, desc.n.into()], size, desc.align, profile),
    })
}

pub(super) fn experts(desc: &ExpertsDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported(desc.op.name(), desc.dtype.name(), "metal"))?;
    let kernel = KernelKey::builtin("experts", name);
    Ok(match desc.op {
        ExpertsOp::Sort => {
            let reason = "one threadgroup an expert, and one for what none has";
            plan(kernel, [1, 1, 1], u64::from(desc.n) + 1, false, reason, profile)
        }
        ExpertsOp::Combine => map(kernel, [desc.rows, desc.n.into()], desc.dtype.size(), desc.align, profile),
    })
}

pub(super) fn top_k(desc: &TopKDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported("top_k", desc.dtype.name(), "metal"))?;
    Ok(selection(name, [desc.rows, desc.n.into()], profile))
}

pub(super) fn sample(desc: &SampleDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported("sample", desc.dtype.name(), "metal"))?;
    Ok(Plan { scratch_bytes: desc.scratch_bytes(), ..selection(name, [desc.rows, desc.n.into()], profile) })
}

/// A threadgroup for each row; elements are read one by one.
fn selection(name: String, [rows, n]: [u64; 2], profile: &DeviceProfile) -> Plan {
    let (kernel, reason) = (KernelKey::builtin("sample", name), "one threadgroup a row: limits by histograms");
    let plan = plan(kernel.clone(), [1, narrow(n), 1], rows, false, reason, profile);
    Plan { kernel, ..plan }
}

/// Rows and columns of a tile of a transposition, as in the kernel.
const TRANSPOSE_TILE: u32 = 32;

pub(super) fn quant(desc: &QuantDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = desc.op.name();
    if !desc.has_kernel() {
        return Err(Error::unsupported(op, desc.types(), "metal"));
    }
    let simdgroups = desc.simdgroups();
    if simdgroups > u64::from(u32::MAX >> 1) {
        let (what, limit) = ("the number of simdgroups", u64::from(u32::MAX >> 1));
        return Err(Error::TooLarge { op, what, value: simdgroups, limit });
    }
    let vec = desc.align >= VEC_ALIGN;
    let reason = if vec { "one simdgroup a column, 16-byte accesses of x" } else { "one simdgroup a column" };
    let kernel = KernelKey::builtin("quant", format!("{op}_{}", desc.input)).constant("FORMAT", desc.format.number());
    let groups = simdgroups.div_ceil(u64::from(THREADS / 32));
    Ok(plan(kernel, [QuantDesc::TILE_M, 1, 32], groups, vec, reason, profile))
}

pub(super) fn norm_qkv_rope(desc: &NormQkvRopeDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = "norm_qkv_rope";
    if !desc.has_kernel(false) {
        return Err(Error::unsupported(op, desc.types(), "metal"));
    }
    let kernel = KernelKey::builtin("qkv", format!("{op}_{}", desc.dtype)).constant("FORMAT", desc.weights.number());
    let heads = u64::from(desc.heads + 2 * desc.kv_heads);
    let vec = desc.align >= VEC_ALIGN;
    Ok(plan(kernel, [desc.m, desc.dim, 32], heads, vec, "one threadgroup a head", profile))
}

pub(super) fn quant_embed(desc: &QuantEmbedDesc, profile: &DeviceProfile) -> Result<Plan> {
    if !desc.has_kernel() {
        return Err(Error::unsupported("quantized_embedding", desc.types(), "metal"));
    }
    let kernel = KernelKey::builtin("quant", format!("quantized_embedding_{}", desc.output));
    let kernel = kernel.constant("FORMAT", desc.format.number());
    let vec = desc.align >= VEC_ALIGN;
    let reason = if vec { "32 weights a thread, 16-byte accesses" } else { "32 weights a thread" };
    let groups = desc.rows.saturating_mul(u64::from(desc.n / 32)).div_ceil(THREADS.into());
    Ok(plan(kernel, [1, 32, 1], groups, vec, reason, profile))
}

pub(super) fn cache(desc: &CacheDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported(desc.op.name(), desc.dtype.name(), "metal"))?;
    let (kernel, size) = (KernelKey::builtin("cache", name), desc.dtype.size());
    if desc.coded {
        let (each, rows) = (THREADS / 32, desc.rows.saturating_mul(1 + u64::from(desc.pair)));
        let reason = "one simdgroup a row: its largest element, then its codes";
        return Ok(plan(kernel, [each, desc.n, 1], rows.div_ceil(each.into()), false, reason, profile));
    }
    Ok(vectors_of(kernel, desc.rows, |width| desc.vectors(width).into(), size, desc.align, profile))
}

/// One threadgroup a row.
fn rows(kernel: KernelKey, [count, n]: [u64; 2], align: u8, profile: &DeviceProfile) -> Plan {
    let vec = align >= VEC_ALIGN;
    let reason = if vec { "one threadgroup a row, 16-byte accesses" } else { "one threadgroup a row, scalar accesses" };
    plan(kernel, [1, narrow(n), 1], count, vec, reason, profile)
}

/// An element-wise kernel: a thread does one vector of 16 bytes of the smallest element type, or one element.
fn map(kernel: KernelKey, [rows, n]: [u64; 2], size: usize, align: u8, profile: &DeviceProfile) -> Plan {
    vectors_of(kernel, rows, |width| n.div_ceil(width.into()), size, align, profile)
}

/// A kernel whose threads walk over the vectors of all rows; `vectors` tells how many a row has at this width.
fn vectors_of(
    kernel: KernelKey,
    rows: u64,
    vectors: impl Fn(u32) -> u64,
    size: usize,
    align: u8,
    profile: &DeviceProfile,
) -> Plan {
    let vec = align >= VEC_ALIGN;
    let reason = if vec { "one vector a thread, 16-byte accesses" } else { "one element a thread" };
    let width = if vec { narrow(16 / size as u64) } else { 1 };
    let groups = rows.saturating_mul(vectors(width)).div_ceil(THREADS.into());
    plan(kernel, [1, width, 1], groups, vec, reason, profile)
}

fn plan(
    kernel: KernelKey,
    tile: [u32; 3],
    tiles: u64,
    vec: bool,
    reason: &'static str,
    profile: &DeviceProfile,
) -> Plan {
    let tiles = narrow(tiles);
    Plan {
        kernel: kernel.constant("VEC16", u32::from(vec)),
        tile,
        tiles: [tiles, 1, 1],
        grid: [tiles.min(MAX_GROUPS).min(profile.max_grid), 1, 1],
        threads: THREADS,
        stages: 1,
        split: 1,
        shared_bytes: 0,
        scratch_bytes: 0,
        precision: Precision::Exact,
        reason,
        note: None,
    }
}

fn narrow(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
