//! Plans of attention: the Hopper kernel where it takes the problem, else the shared ones, which then say why.

use super::tables::{AttentionTile, attention_tiles};
use crate::device::{DeviceProfile, simt};
use crate::dtype::DType;
use crate::error::Result;
use crate::gemm::Precision;
use crate::nn::AttentionDesc;
use crate::plan::{KernelKey, Plan};

/// A condition of the kernel, and what the plan says where it does not hold.
type Need = (fn(&AttentionDesc, &DeviceProfile) -> bool, &'static str);

/// log2 of the bytes that the copy engine wants addresses and strides to be multiples of; as many elements are stored at
/// once.
const ALIGN: u8 = 4;
/// Queries of a sequence, at least: fewer are bound by the bytes of the keys, which the other kernel splits.
pub(super) const MIN_QUERIES: u32 = 8;
/// Tiles that kernels can count.
const MAX_TILES: u64 = i32::MAX as u64;

/// Every condition, in the order in which the first that fails is told.
pub(super) const NEEDS: &[Need] = &[
    (|_, profile| profile.tensor_ops, "no wgmma: it needs compute capability 9.0"),
    (|d, _| matches!(d.dtype, DType::Bf16 | DType::F16), "no wgmma: it multiplies bf16 and f16"),
    (|d, _| !d.coded, "no wgmma: keys are in 8 bits"),
    (|d, _| d.queries_each() >= MIN_QUERIES, "no wgmma: too few queries for a tile"),
    (|d, _| d.keys > 0, "no wgmma: there are no keys"),
    (|d, _| d.page == 0, "no wgmma: keys are in pages"),
    (|d, _| d.mask.is_none(), "no wgmma: there is a mask"),
    (|d, _| d.dim % 8 == 0 && d.align >= ALIGN, "no wgmma: a row does not start on 16 bytes or is no multiple of them"),
    (|d, profile| tiles(d, profile).next().is_some(), "no wgmma: no tile holds a head of this size"),
];

/// The rows of the smallest size that holds a head, as far as they fit the device.
fn tiles(d: &AttentionDesc, profile: &DeviceProfile) -> impl Iterator<Item = &'static AttentionTile> {
    let size = attention_tiles().iter().map(|t| t.size).filter(|&size| d.dim <= size).min();
    let (shared_bytes, threads) = (profile.shared_bytes, profile.max_threads);
    let fits = move |t: &&AttentionTile| t.shared_bytes() <= shared_bytes && t.threads() <= threads;
    attention_tiles().iter().filter(move |t| Some(t.size) == size).filter(fits)
}

/// The plan that is chosen.
///
/// # Errors
/// As those of the shared kernels.
pub(super) fn plan(d: &AttentionDesc, profile: &DeviceProfile) -> Result<Plan> {
    let otherwise = match NEEDS.iter().find(|(holds, _)| !holds(d, profile)) {
        Some((_, why)) => why,
        None => match tiles(d, profile).find_map(|tile| plan_of(tile, d, profile)) {
            Some(plan) => return Ok(plan),
            None => "no wgmma: too many tiles",
        },
    };
    Ok(Plan { note: Some(otherwise), ..simt::attention(d, profile)? })
}

/// Every plan that could run the problem, the shared kernels' last.
///
/// # Errors
/// As [`plan`].
pub(super) fn candidates(d: &AttentionDesc, profile: &DeviceProfile) -> Result<Vec<Plan>> {
    let chosen = plan(d, profile)?;
    if chosen.note.is_some() {
        return Ok(vec![chosen]);
    }
    let own = tiles(d, profile).filter_map(|tile| plan_of(tile, d, profile));
    Ok(own.chain([simt::attention(d, profile)?]).collect())
}

/// Blocks stay and walk over tiles; a tile is one query head's.
fn plan_of(tile: &AttentionTile, d: &AttentionDesc, profile: &DeviceProfile) -> Option<Plan> {
    let pieces = d.pieces(1, tile.queries());
    let work = pieces.checked_mul(d.heads.into()).filter(|work| *work <= MAX_TILES)?;
    let kernel = KernelKey::builtin("attention_wgmma", format!("attention_wgmma_{}", d.dtype))
        .constant("SIZE", tile.size)
        .constant("CONSUMERS", tile.consumers)
        .constant("BLOCK", tile.block)
        .constant("STAGES", tile.stages)
        .constant("VEC16", 1)
        .constant("CODED", 0);
    let work = u32::try_from(work).ok()?;
    Some(Plan {
        kernel,
        tile: [tile.queries(), tile.block, tile.size],
        tiles: [u32::try_from(pieces).ok()?, d.heads, 1],
        grid: [work.min(profile.cores).min(profile.max_grid), 1, 1],
        threads: tile.threads(),
        stages: tile.stages,
        split: 1,
        shared_bytes: tile.shared_bytes(),
        scratch_bytes: 0,
        precision: Precision::Exact,
        reason: tile.reason,
        note: None,
    })
}
