//! Plans of the Hopper kernel: what it needs, and which tile costs least.

use super::tables::{WgmmaRow, wgmma_rows};
use crate::device::DeviceProfile;
use crate::gemm::{GemmBackend, GemmDesc, Layout, Precision};
use crate::plan::{KernelKey, Plan};

/// A condition of the kernel, and what the plan says where it does not hold.
type Need = (fn(&GemmDesc, &DeviceProfile) -> bool, &'static str);

/// log2 of the bytes that the copy engine wants addresses and strides to be multiples of.
const ALIGN: u8 = 4;

/// Every condition, in the order in which the first that fails is told.
pub(super) const NEEDS: &[Need] = &[
    (|_, profile| profile.tensor_ops, "no wgmma: it needs compute capability 9.0"),
    (|desc, _| desc.backend == GemmBackend::TensorOps, "no wgmma: the portable path was asked for"),
    (|desc, _| desc.k > 0, "no wgmma: there are no products to add up"),
    (|desc, _| desc.a_align >= ALIGN, "no wgmma: A's address or a stride of A is no multiple of 16 bytes"),
    (|desc, _| desc.b_align >= ALIGN, "no wgmma: B's address or a stride of B is no multiple of 16 bytes"),
    (|_, profile| wgmma_rows().iter().any(|r| fits(r, profile)), "no wgmma: no tile fits the device"),
];

/// Tiles that kernels can count.
const MAX_TILES: u64 = i32::MAX as u64;

fn fits(row: &WgmmaRow, profile: &DeviceProfile) -> bool {
    row.shared_bytes() <= profile.shared_bytes && row.threads <= profile.max_threads
}

/// The plan with the least estimated time.
///
/// # Errors
/// Why this kernel cannot take the problem.
pub(super) fn plan(desc: &GemmDesc, profile: &DeviceProfile) -> Result<Plan, &'static str> {
    if let Some((_, otherwise)) = NEEDS.iter().find(|(holds, _)| !holds(desc, profile)) {
        return Err(otherwise);
    }
    let cost = |plan: &(u64, Plan)| plan.0;
    possible(desc, profile).min_by_key(cost).map(|(_, plan)| plan).ok_or("no wgmma: too many tiles")
}

/// Every row that takes the problem, with its estimated clocks.
pub(super) fn possible(desc: &GemmDesc, profile: &DeviceProfile) -> impl Iterator<Item = (u64, Plan)> {
    let able = NEEDS.iter().all(|(holds, _)| holds(desc, profile));
    let rows = wgmma_rows().iter().filter(move |r| able && fits(r, profile));
    rows.filter_map(|row| Some((row.clocks(tiles(row, desc)?, desc.k, profile.cores)?, plan_of(row, desc, profile)?)))
}

fn tiles(row: &WgmmaRow, desc: &GemmDesc) -> Option<u64> {
    let [m, n, _] = row.tile;
    let tiles = u64::from(desc.m.div_ceil(m)).checked_mul(u64::from(desc.n.div_ceil(n)))?;
    tiles.checked_mul(u64::from(desc.batch)).filter(|tiles| *tiles <= MAX_TILES)
}

/// Whether the copy engine can store C. It clips rows to whole chunks of 16 bytes, not to elements (seen on an H200), so
/// a row that ends inside a chunk would spoil what lies behind it.
fn stores_whole_chunks(desc: &GemmDesc) -> bool {
    desc.c_align >= ALIGN && (u64::from(desc.n) * desc.output.size() as u64).is_multiple_of(1 << ALIGN)
}

fn plan_of(row: &WgmmaRow, desc: &GemmDesc, profile: &DeviceProfile) -> Option<Plan> {
    let [m, n, _] = row.tile;
    let tiles = u32::try_from(tiles(row, desc)?).ok()?;
    // Blocks stay and walk over tiles; a cluster has one tile, because its sums take the place of the stages.
    let blocks = if row.split == 1 { tiles.min(profile.cores * row.resident) } else { tiles.checked_mul(row.split)? };
    let rows = |layout: Layout| u32::from(layout == Layout::RowMajor);
    let name = format!("gemm_wgmma_{}_{}", desc.input, desc.output);
    let kernel = KernelKey::builtin("gemm_wgmma", name)
        .constant("TILE", row.index)
        .constant("STAGES", row.stages)
        .constant("A_ROWS", rows(desc.a))
        .constant("B_ROWS", rows(desc.b))
        .constant("C_WIDE", u32::from(stores_whole_chunks(desc)))
        .constant("SPLIT", row.split)
        .constant("BAND", row.band);
    (blocks <= profile.max_grid).then(|| Plan {
        kernel,
        tile: row.tile,
        tiles: [desc.m.div_ceil(m), desc.n.div_ceil(n), desc.batch],
        grid: [blocks, 1, 1],
        threads: row.threads,
        stages: row.stages,
        split: row.split,
        shared_bytes: row.shared_bytes(),
        scratch_bytes: 0,
        precision: Precision::Exact,
        reason: row.reason,
        note: None,
    })
}
