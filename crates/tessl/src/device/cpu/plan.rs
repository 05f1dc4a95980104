//! Desc -> Plan on the CPU: the first row of a table that fits, then sizes.
//!
//! Nothing here depends on the number of cores: how a product is cut decides the order of its sums.

use super::gemm::small::MAX_ROWS;
use super::gemm::{Geometry, geometry};
use super::tables::{GemmRow, Kernel, ROWS};
use super::workspace::{A_BYTES, ACC_BYTES, B_BYTES};
use crate::device::{DeviceProfile, Isa};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{GemmBackend, GemmDesc, PackDesc, Precision};
use crate::plan::{Desc, KernelKey, Plan};

mod attention;
mod nn;
mod quant;

/// Scratch memory for packed columns of B, at most (one tile is always allowed).
const SCRATCH: u64 = 32 << 20;
/// Chunks that few rows are cut into where the columns allow: enough for the pool to balance.
const CHUNKS: u32 = 16;

/// Plans `desc` for the CPU that `profile` describes.
///
/// # Errors
/// `Unsupported` for element types that no kernel takes.
pub fn plan(desc: &Desc, profile: &DeviceProfile) -> Result<Plan> {
    match desc {
        Desc::Gemm(d) => gemm(d, profile.isa),
        Desc::Pack(d) => pack(d, profile.isa),
        Desc::RmsNorm(d) => nn::rms_norm(d, profile.isa),
        Desc::LayerNorm(d) => nn::layer_norm(d, profile.isa),
        Desc::QkNorm(d) => nn::qk_norm(d, profile.isa),
        Desc::Mlp(d) => nn::mlp(d, profile.isa),
        Desc::Elementwise(d) => nn::elementwise(d, profile.isa),
        Desc::Reduce(d) => nn::reduce(d, profile.isa),
        Desc::Rope(d) => nn::rope(d, profile.isa),
        Desc::Embed(d) => nn::embed(d, profile.isa),
        Desc::Movement(d) => nn::movement(d, profile.isa),
        Desc::Experts(d) => nn::experts(d, profile.isa),
        Desc::TopK(d) => nn::top_k(d, profile.isa),
        Desc::Sample(d) => nn::sample(d, profile.isa),
        Desc::Quant(d) => quant::product(d, profile.isa),
        Desc::NormQkvRope(d) => quant::norm_qkv_rope(d, profile.isa),
        Desc::QuantEmbed(d) => nn::quant_embed(d, profile.isa),
        Desc::Attention(d) => attention::attention(d, profile.isa),
        Desc::Combine(d) => attention::combine(d, profile.isa),
        Desc::Cache(d) => nn::cache(d, profile.isa),
    }
}

/// The rules for matrix products, for tests that walk their thresholds.
pub fn gemm_rows() -> &'static [GemmRow] {
    ROWS
}

pub(super) const fn suffix(isa: Isa) -> &'static str {
    match isa {
        Isa::Scalar => "scalar",
        Isa::Neon => "neon",
        Isa::Avx2 => "avx2",
        Isa::Avx512 => "avx512",
        Isa::Amx => "amx",
    }
}

/// The name of a type in those of kernels: types of 8 bits share them.
const fn family(dtype: DType) -> &'static str {
    match dtype {
        DType::I8 | DType::U8 => "int8",
        DType::F8E4M3 | DType::F8E5M2 => "fp8",
        other => other.name(),
    }
}

/// The portable path is plain vectorised Rust on every processor.
fn isa_of(backend: GemmBackend, isa: Isa) -> Isa {
    if backend == GemmBackend::Simdgroup { Isa::Scalar } else { isa }
}

fn gemm(d: &GemmDesc, isa: Isa) -> Result<Plan> {
    let isa = isa_of(d.backend, isa);
    let whole = matches!(d.input, DType::I8 | DType::U8);
    let eighths = |dtype: DType| matches!(dtype, DType::F8E4M3 | DType::F8E5M2);
    let own = if whole { d.output == DType::I32 } else { eighths(d.input) && eighths(d.output) };
    let stored = d.output.is_float() || own;
    let row = ROWS.iter().find(|r| r.fits(d, isa)).filter(|_| stored);
    let Some(row) = row else {
        return Err(Error::unsupported("gemm", format!("{} x {} -> {}", d.input, d.input_b(), d.output), "cpu"));
    };
    let g = geometry(row.isa, d.input);
    let (prefix, tile, scratch_bytes) = match row.kernel {
        // The sums of a chunk stay in the first-level cache, and the pieces of B's rows are as long as that allows.
        Kernel::FewRows => {
            ("gemm_small", [d.m.max(1), row.tile_n * 4 / d.m.clamp(4, MAX_ROWS) / 64 * 64, row.tile_k], 0)
        }
        Kernel::Piecewise => {
            let cols = columns(g, d.extras.gated);
            // Pieces of whole lines of B's rows, in enough chunks.
            let wide = d.n.div_ceil(CHUNKS).next_multiple_of(2 * g.cols).clamp(2 * g.cols, row.tile_n);
            ("gemm_piecewise", [d.m.max(1), even(d.n, wide, cols), even(d.k, row.tile_k, g.step)], 0)
        }
        kernel => {
            let (tile, cols) = (packed_tile(d, row), columns(g, d.extras.gated));
            let panel = panel_bytes(d.k, g);
            let whole = u64::from(d.n.div_ceil(cols)).saturating_mul(panel);
            let one_tile = u64::from(tile[1] / cols) * panel;
            match kernel {
                _ if d.extras.packed => ("gemm", tile, 0),
                Kernel::PackedLocal => {
                    debug_assert!(whole <= B_BYTES as u64);
                    ("gemm", tile, 0)
                }
                // A plan with scratch memory always has some: that is how the kernel tells the two apart.
                _ if whole <= SCRATCH => ("gemm", tile, whole.max(64)),
                _ => ("gemm", tile, one_tile * (SCRATCH / one_tile).max(1)),
            }
        }
    };
    let tiles = [d.m.div_ceil(tile[0]), d.n.div_ceil(tile[1]), d.batch];
    let name = format!("{prefix}_{}_{}_{}", family(d.input), family(d.output), suffix(row.isa));
    let grid = [tiles[0].saturating_mul(tiles[1]).saturating_mul(tiles[2]), 1, 1];
    Ok(plan_of(name, tile, tiles, grid, scratch_bytes, row.name))
}

fn plan_of(
    name: String,
    tile: [u32; 3],
    tiles: [u32; 3],
    grid: [u32; 3],
    scratch_bytes: u64,
    reason: &'static str,
) -> Plan {
    Plan {
        kernel: KernelKey::builtin("gemm", name),
        tile,
        tiles,
        grid,
        threads: 1,
        stages: 1,
        split: 1,
        shared_bytes: 0,
        scratch_bytes,
        precision: Precision::Exact,
        reason,
        note: None,
    }
}

/// Columns of C that a panel of B is for: gate and up share one.
fn columns(g: Geometry, gated: bool) -> u32 {
    if gated { g.cols / 2 } else { g.cols }
}

/// Bytes of a panel of B.
fn panel_bytes(k: u32, g: Geometry) -> u64 {
    u64::from(k).next_multiple_of(u64::from(g.step)) * u64::from(g.cols * g.bytes)
}

/// The instruction set whose panels products of this input read.
fn panels_of(dtype: DType, backend: GemmBackend, isa: Isa) -> Option<Isa> {
    let isa = isa_of(backend, isa);
    let row = ROWS.iter().find(|r| r.kernel == Kernel::Weights && r.isas.contains(&isa) && r.inputs.contains(&dtype));
    row.map(|r| r.isa)
}

/// Bytes of one matrix of packed weights on `isa`; 0 for types that have no kernel.
pub(crate) fn packed_bytes(d: &PackDesc, isa: Isa) -> u64 {
    panels_of(d.dtype, d.backend, isa).map_or(0, |isa| {
        let g = geometry(isa, d.dtype);
        u64::from(d.n.div_ceil(columns(g, d.gated))).saturating_mul(panel_bytes(d.k, g))
    })
}

fn pack(d: &PackDesc, isa: Isa) -> Result<Plan> {
    let Some(isa) = panels_of(d.dtype, d.backend, isa) else {
        return Err(Error::unsupported("pack_weights", d.dtype.name(), "cpu"));
    };
    let g = geometry(isa, d.dtype);
    let tile = [1, columns(g, d.gated), g.step];
    let tiles = [1, d.n.div_ceil(tile[1]), d.batch];
    let name = format!("pack_{}_{}", family(d.dtype), suffix(isa));
    Ok(plan_of(name, tile, tiles, [tiles[1].saturating_mul(tiles[2]), 1, 1], 0, "panels of the blocked kernel"))
}

/// The tile of the blocked kernel: even parts of each axis, inside the row's limits and the workspace. The kernel cuts it
/// finer where threads would be idle.
fn packed_tile(d: &GemmDesc, row: &GemmRow) -> [u32; 3] {
    let g = geometry(row.isa, d.input);
    let cols = columns(g, d.extras.gated);
    let (most, mut wide) = near(d.k, row, g);
    let tile_m = even(d.m, most, g.rows);
    let tile_k = even(d.k, row.tile_k, g.step);
    if matches!(row.kernel, Kernel::Packed | Kernel::Groups) {
        wide = wide.min(limit(SCRATCH / panel_bytes(d.k, g).max(1), cols));
    }
    let bytes_of_a = u64::from(tile_m) * u64::from(d.k) * u64::from(g.bytes);
    if bytes_of_a > (A_BYTES / 2) as u64 {
        // The rows of A may not fit at once; then the sums of the whole tile are kept.
        wide = wide.min(limit((ACC_BYTES / 4) as u64 / u64::from(tile_m * g.cols), cols));
    }
    [tile_m, even(d.n, wide, cols), tile_k]
}

/// Rows and columns of a tile, at most. AMX tiles wait for B first: short columns are few enough to stay in the second-level
/// cache while one tile after the other passes. Long ones cannot, so tiles are as tall as their rows of A can stay.
fn near(k: u32, row: &GemmRow, g: Geometry) -> (u32, u32) {
    /// What stays of a second-level cache of 2 MiB.
    const BYTES: u32 = 5 << 18;
    if row.isa != Isa::Amx {
        return (row.tile_m, row.tile_n);
    }
    let lanes = BYTES / k.saturating_mul(g.bytes).max(1);
    let (low, wide) = (row.tile_m / 2, row.tile_n / 2);
    if lanes >= wide {
        (low, (lanes / g.cols * g.cols).min(row.tile_n))
    } else {
        ((lanes / g.rows * g.rows).clamp(low, row.tile_m), row.tile_n)
    }
}

/// `panels` whole panels as columns, at least one.
fn limit(panels: u64, cols: u32) -> u32 {
    u32::try_from(panels).unwrap_or(u32::MAX / cols).clamp(1, u32::MAX / cols) * cols
}

/// `size` in the fewest equal parts of at most `most`, each a multiple of `unit`.
fn even(size: u32, most: u32, unit: u32) -> u32 {
    let parts = size.div_ceil(most).max(1);
    size.div_ceil(parts).max(1).next_multiple_of(unit)
}

#[cfg(test)]
mod tests;
