//! Desc -> Plan on the CPU: the first row of a table that fits, then sizes.
//!
//! Nothing here depends on the number of cores: how a product is cut decides the order of its sums.

use super::gemm::geometry;
use super::tables::{GemmRow, Kernel, ROWS};
use super::workspace::{A_BYTES, ACC_BYTES, B_BYTES};
use crate::device::{DeviceProfile, Isa};
use crate::error::{Error, Result};
use crate::gemm::{GemmBackend, GemmDesc, Precision};
use crate::plan::{Desc, KernelKey, Plan};

mod attention;
mod nn;
mod quant;

/// Scratch memory for packed columns of B, at most (one tile is always allowed).
const SCRATCH: u64 = 32 << 20;
/// Chunks that a product is cut into where its size allows: enough for the pool to balance.
const CHUNKS: u32 = 16;
/// Columns below which a tile is not cut: packing its rows of A would cost too much.
const NARROW: u32 = 256;

/// Plans `desc` for the CPU that `profile` describes.
///
/// # Errors
/// `Unsupported` for element types that no kernel takes.
pub fn plan(desc: &Desc, profile: &DeviceProfile) -> Result<Plan> {
    match desc {
        Desc::Gemm(d) => gemm(d, profile.isa),
        Desc::RmsNorm(d) => nn::rms_norm(d, profile.isa),
        Desc::Mlp(d) => nn::mlp(d, profile.isa),
        Desc::Elementwise(d) => nn::elementwise(d, profile.isa),
        Desc::Reduce(d) => nn::reduce(d, profile.isa),
        Desc::Rope(d) => nn::rope(d, profile.isa),
        Desc::Embed(d) => nn::embed(d, profile.isa),
        Desc::Quant(d) => quant::product(d, profile.isa),
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

fn gemm(d: &GemmDesc, isa: Isa) -> Result<Plan> {
    // The portable path is plain vectorised Rust on every processor.
    let isa = if d.backend == GemmBackend::Simdgroup { Isa::Scalar } else { isa };
    let row = ROWS.iter().find(|r| r.fits(d, isa)).filter(|_| d.output.is_float());
    let Some(row) = row else {
        return Err(Error::unsupported("gemm", format!("{} x {} -> {}", d.input, d.input, d.output), "cpu"));
    };
    let g = geometry(row.isa);
    let (prefix, tile, scratch_bytes) = match row.kernel {
        Kernel::FewRows => ("gemm_small", [d.m.max(1), row.tile_n, row.tile_k], 0),
        kernel => {
            let tile = packed_tile(d, row);
            let padded_k = u64::from(d.k).next_multiple_of(u64::from(g.step));
            let panel = padded_k * u64::from(g.cols * g.bytes);
            let whole = u64::from(d.n.div_ceil(g.cols)).saturating_mul(panel);
            let one_tile = u64::from(tile[1] / g.cols) * panel;
            match kernel {
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
    let name = format!("{prefix}_{}_{}_{}", d.input, d.output, suffix(row.isa));
    Ok(Plan {
        kernel: KernelKey::builtin("gemm", name),
        tile,
        tiles,
        grid: [tiles[0].saturating_mul(tiles[1]).saturating_mul(tiles[2]), 1, 1],
        threads: 1,
        stages: 1,
        split: 1,
        shared_bytes: 0,
        scratch_bytes,
        precision: Precision::Exact,
        reason: row.name,
        note: None,
    })
}

/// The tile of the blocked kernel: even parts of each axis, inside the row's limits and the workspace.
fn packed_tile(d: &GemmDesc, row: &GemmRow) -> [u32; 3] {
    let g = geometry(row.isa);
    let tile_m = even(d.m, row.tile_m, g.rows);
    let tile_k = even(d.k, row.tile_k, g.step);
    let mut columns = row.tile_n;
    if row.kernel == Kernel::Packed {
        let wanted = CHUNKS.div_ceil(d.m.div_ceil(tile_m).saturating_mul(d.batch).max(1));
        columns = columns.min(d.n.div_ceil(wanted).max(NARROW).next_multiple_of(g.cols));
        let panel = u64::from(d.k).next_multiple_of(u64::from(g.step)) * u64::from(g.cols * g.bytes);
        columns = columns.min(limit(SCRATCH / panel.max(1), g.cols));
    }
    let bytes_of_a = u64::from(tile_m) * u64::from(d.k) * u64::from(g.bytes);
    if bytes_of_a > (A_BYTES / 2) as u64 {
        // The rows of A may not fit at once; then the sums of the whole tile are kept.
        columns = columns.min(limit((ACC_BYTES / 4) as u64 / u64::from(tile_m * g.cols), g.cols));
    }
    [tile_m, even(d.n, columns, g.cols), tile_k]
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
