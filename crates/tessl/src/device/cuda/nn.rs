//! Plans for kernels that walk rows: normalisation, activations and the like.

use super::plan::{DEVICE, too_large};
use super::tables::{AccessRow, ROW_THREADS, access_rows};
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

pub(super) fn rms_norm(desc: &RmsNormDesc, profile: &DeviceProfile) -> Result<Plan> {
    norm("rms_norm", desc.kernel(), [desc.dtype, desc.weight], (desc.rows, desc.n), desc.align, profile)
}

pub(super) fn layer_norm(desc: &LayerNormDesc, profile: &DeviceProfile) -> Result<Plan> {
    norm("layer_norm", desc.kernel(), [desc.dtype, desc.weight], (desc.rows, desc.n), desc.align, profile)
}

/// A simdgroup a head.
pub(super) fn qk_norm(desc: &QkNormDesc, profile: &DeviceProfile) -> Result<Plan> {
    let plan = norm("qk_norm", desc.kernel(), [desc.dtype, desc.weight], (desc.rows, desc.n), desc.align, profile)?;
    let groups = plan.tiles[0].div_ceil(ROW_THREADS / 32);
    Ok(Plan {
        tile: [ROW_THREADS / 32, desc.n, 1],
        tiles: [groups, 1, 1],
        grid: [plan.grid[0].min(groups), 1, 1],
        ..plan
    })
}

fn norm(
    op: &'static str,
    kernel: Option<String>,
    [dtype, weight]: [DType; 2],
    (rows, n): (u64, u32),
    align: u8,
    profile: &DeviceProfile,
) -> Result<Plan> {
    let name = kernel.ok_or_else(|| Error::unsupported(op, norm_types(dtype, weight), DEVICE))?;
    let rows = rows_of(op, rows, profile)?;
    let row = access(align);
    Ok(plan(KernelKey::builtin("norm", name).constant("VEC16", row.vec16), [1, n, 1], rows, row, profile))
}

pub(super) fn reduce(desc: &ReduceDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = desc.op.name();
    let name = desc.kernel().ok_or_else(|| Error::unsupported(op, desc.types(), DEVICE))?;
    let rows = rows_of(op, desc.rows, profile)?;
    let row = access(desc.align);
    let kernel = KernelKey::builtin("reduce", name).constant("VEC16", row.vec16);
    Ok(plan(kernel, [1, desc.n, 1], rows, row, profile))
}

pub(super) fn mlp(desc: &MlpDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = desc.op.name();
    if !desc.dtype.is_float() {
        return Err(Error::unsupported(op, format!("{}", desc.dtype), DEVICE));
    }
    let kernel = KernelKey::builtin("mlp", format!("{op}_{}", desc.dtype));
    map(op, kernel, [desc.rows, desc.n.into()], desc.dtype.size(), desc.align, profile)
}

pub(super) fn elementwise(desc: &ElementwiseDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = desc.op.name();
    let name = desc.kernel().ok_or_else(|| Error::unsupported(op, desc.types(), DEVICE))?;
    let size = desc.input.size().min(desc.output.size());
    let kernel = KernelKey::builtin("elementwise", name);
    map(op, kernel, [desc.rows, desc.n.into()], size, desc.align, profile)
}

pub(super) fn rope(desc: &RopeDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported("rope", desc.dtype.name(), DEVICE))?;
    let vectors = |width| desc.vectors(width).into();
    vectors_of("rope", KernelKey::builtin("rope", name), desc.rows, vectors, desc.dtype.size(), desc.align, profile)
}

pub(super) fn embed(desc: &EmbedDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported("embedding", desc.dtype.name(), DEVICE))?;
    let kernel = KernelKey::builtin("embed", name);
    map("embedding", kernel, [desc.rows, desc.n.into()], desc.dtype.size(), desc.align, profile)
}

pub(super) fn movement(desc: &MovementDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = desc.op.name();
    let (module, name) = desc.kernel().ok_or_else(|| Error::unsupported(op, desc.dtype.name(), DEVICE))?;
    let (kernel, size) = (KernelKey::builtin(module, name), desc.dtype.size());
    match desc.op {
        MovementOp::Transpose => {
            let tiles = [desc.m.div_ceil(TRANSPOSE_TILE), desc.n.div_ceil(TRANSPOSE_TILE)];
            let matrices = rows_of(op, desc.rows, profile)?;
            let all = u64::from(matrices).saturating_mul(u64::from(tiles[0])).saturating_mul(tiles[1].into());
            let all = u32::try_from(all).unwrap_or(u32::MAX);
            let row = access(0);
            let plan = plan(kernel.constant("VEC16", 0), [TRANSPOSE_TILE, TRANSPOSE_TILE, 1], all, row, profile);
            Ok(Plan { tiles: [tiles[0], tiles[1], matrices], reason: TRANSPOSE_REASON, ..plan })
        }
        MovementOp::CopyStrided => map(op, kernel, [desc.rows, desc.n.into()], size, 0, profile),
        MovementOp::ScatterRows | MovementOp::ScatterAdd => {
            let (row, rows) = (access(desc.align), rows_of(op, desc.rows, profile)?);
            let width = if row.vec16 == 1 { 16 / u32::try_from(size).unwrap_or(16) } else { 1 };
            let panels = desc.n.div_ceil(ROW_THREADS * width);
            let all = u32::try_from(u64::from(rows).saturating_mul(panels.into())).unwrap_or(u32::MAX);
            let plan = plan(kernel.constant("VEC16", row.vec16), [1, ROW_THREADS * width, 1], all, row, profile);
            Ok(Plan { tiles: [rows, panels, 1], ..plan })
        }
        _ => map(op, kernel, [desc.rows, desc.n.into()], size, desc.align, profile),
    }
}

/// Rows and columns of a tile, as in the kernel.
const TRANSPOSE_TILE: u32 = 32;
const TRANSPOSE_REASON: &str = "tiles of 32 x 32 through shared memory";

pub(super) fn experts(desc: &ExpertsDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = desc.op.name();
    let name = desc.kernel().ok_or_else(|| Error::unsupported(op, desc.dtype.name(), DEVICE))?;
    let kernel = KernelKey::builtin("experts", name);
    match desc.op {
        ExpertsOp::Sort => {
            rows_of(op, desc.rows, profile)?;
            let plan = plan(kernel.constant("VEC16", 0), [1, 1, 1], desc.n + 1, access(0), profile);
            Ok(Plan { reason: "one block an expert, and one for what none has", ..plan })
        }
        ExpertsOp::Combine => map(op, kernel, [desc.rows, desc.n.into()], desc.dtype.size(), desc.align, profile),
    }
}

pub(super) fn top_k(desc: &TopKDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported("top_k", desc.dtype.name(), DEVICE))?;
    selection("top_k", name, [desc.rows, desc.n.into()], profile)
}

pub(super) fn sample(desc: &SampleDesc, profile: &DeviceProfile) -> Result<Plan> {
    let name = desc.kernel().ok_or_else(|| Error::unsupported("sample", desc.dtype.name(), DEVICE))?;
    let plan = selection("sample", name, [desc.rows, desc.n.into()], profile)?;
    Ok(Plan { scratch_bytes: desc.scratch_bytes(), ..plan })
}

/// A block for each row; elements are read one by one.
fn selection(op: &'static str, name: String, [rows, n]: [u64; 2], profile: &DeviceProfile) -> Result<Plan> {
    let rows = rows_of(op, rows, profile)?;
    let n = u32::try_from(n).unwrap_or(u32::MAX);
    let plan = plan(KernelKey::builtin("sample", name), [1, n, 1], rows, access(0), profile);
    Ok(Plan { reason: "one block a row: limits by histograms", ..plan })
}

pub(super) fn quant(desc: &QuantDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = desc.op.name();
    if !desc.has_kernel() {
        return Err(Error::unsupported(op, desc.types(), DEVICE));
    }
    let items = desc.simdgroups();
    let simdgroups = rows_of(op, items.saturating_mul(2), profile)? / 2;
    let row = access(desc.align);
    let kernel = KernelKey::builtin("quant", format!("{op}_{}", desc.input)).constant("FORMAT", desc.format.number());
    let kernel = kernel.constant("VEC16", row.vec16);
    let blocks = simdgroups.div_ceil(ROW_THREADS / 32);
    Ok(plan(kernel, [QuantDesc::TILE_M, 1, 32], blocks, row, profile))
}

/// A block a head.
pub(super) fn norm_qkv_rope(desc: &NormQkvRopeDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = "norm_qkv_rope";
    if !desc.has_kernel(false) {
        return Err(Error::unsupported(op, desc.types(), DEVICE));
    }
    let heads = desc.heads + 2 * desc.kv_heads;
    rows_of(op, heads.into(), profile)?;
    let row = access(desc.align);
    let kernel = KernelKey::builtin("qkv", format!("{op}_{}", desc.dtype)).constant("FORMAT", desc.weights.number());
    let plan = plan(kernel.constant("VEC16", row.vec16), [desc.m, desc.dim, 32], heads, row, profile);
    Ok(Plan { reason: "one block a head", ..plan })
}

pub(super) fn quant_embed(desc: &QuantEmbedDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = "quantized_embedding";
    if !desc.has_kernel() {
        return Err(Error::unsupported(op, desc.types(), DEVICE));
    }
    let vectors = u64::from(desc.n / 32);
    rows_of(op, desc.rows, profile)?;
    let row = access(desc.align);
    let blocks = u32::try_from(desc.rows.saturating_mul(vectors).div_ceil(ROW_THREADS.into())).unwrap_or(u32::MAX);
    let kernel = KernelKey::builtin("quant", format!("{op}_{}", desc.output)).constant("FORMAT", desc.format.number());
    Ok(plan(kernel.constant("VEC16", row.vec16), [1, 32, 1], blocks, row, profile))
}

pub(super) fn cache(desc: &CacheDesc, profile: &DeviceProfile) -> Result<Plan> {
    let op = desc.op.name();
    let name = desc.kernel().ok_or_else(|| Error::unsupported(op, desc.dtype.name(), DEVICE))?;
    if desc.coded {
        let sides = 1 + u64::from(desc.pair);
        let rows = rows_of(op, desc.rows.saturating_mul(sides), profile)?;
        let each = ROW_THREADS / 32;
        let kernel = KernelKey::builtin("cache", name).constant("VEC16", 0);
        let plan = plan(kernel, [each, desc.n, 1], rows.div_ceil(each), access(0), profile);
        return Ok(Plan { reason: "one simdgroup a row: its largest element, then its codes", ..plan });
    }
    let vectors = |width| desc.vectors(width).into();
    vectors_of(op, KernelKey::builtin("cache", name), desc.rows, vectors, desc.dtype.size(), desc.align, profile)
}

/// An element-wise kernel: a thread does one vector of 16 bytes of the smallest element type, or one element.
fn map(
    op: &'static str,
    kernel: KernelKey,
    [rows, n]: [u64; 2],
    size: usize,
    align: u8,
    profile: &DeviceProfile,
) -> Result<Plan> {
    vectors_of(op, kernel, rows, |width| n.div_ceil(width.into()), size, align, profile)
}

/// A kernel whose threads walk over the vectors of all rows; `vectors` tells how many a row has at this width.
fn vectors_of(
    op: &'static str,
    kernel: KernelKey,
    rows: u64,
    vectors: impl Fn(u32) -> u64,
    size: usize,
    align: u8,
    profile: &DeviceProfile,
) -> Result<Plan> {
    rows_of(op, rows, profile)?;
    let row = access(align);
    let width = if row.vec16 == 1 { 16 / u32::try_from(size).unwrap_or(16) } else { 1 };
    let blocks = rows.saturating_mul(vectors(width)).div_ceil(ROW_THREADS.into());
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    Ok(plan(kernel.constant("VEC16", row.vec16), [1, width, 1], blocks, row, profile))
}

fn access(align: u8) -> &'static AccessRow {
    access_rows().iter().find(|r| align >= r.min_align).expect("INVARIANT: the last row asks for no alignment")
}

/// The rows as kernels number them, on a device that holds their blocks.
fn rows_of(op: &'static str, rows: u64, profile: &DeviceProfile) -> Result<u32> {
    if ROW_THREADS > profile.max_threads {
        return Err(too_large(op, "the threads of a block", ROW_THREADS.into(), profile.max_threads.into()));
    }
    u32::try_from(rows).map_err(|_| too_large(op, "the number of rows", rows, u32::MAX.into()))
}

/// A grid that walks over `tiles`.
fn plan(kernel: KernelKey, tile: [u32; 3], tiles: u32, row: &AccessRow, profile: &DeviceProfile) -> Plan {
    let groups = tiles.min(profile.cores.saturating_mul(row.blocks_per_core)).min(profile.max_grid);
    Plan {
        kernel,
        tile,
        tiles: [tiles, 1, 1],
        grid: [groups, 1, 1],
        threads: ROW_THREADS,
        stages: 1,
        split: 1,
        shared_bytes: 0,
        scratch_bytes: 0,
        precision: Precision::Exact,
        reason: row.reason,
        note: None,
    }
}
