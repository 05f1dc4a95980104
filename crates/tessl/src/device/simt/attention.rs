//! Plans for attention on GPUs: which kernel by the number of queries, its head size, and how keys are split.

use super::tables::{SIZES, THREADS, attention_rows};
use crate::device::DeviceProfile;
use crate::error::{Error, Result};
use crate::gemm::Precision;
use crate::nn::{AttentionDesc, CombineDesc};
use crate::plan::{ATTENTION, KernelKey, Plan};

/// log2 of the 16 bytes that vector accesses need.
const VEC_ALIGN: u8 = 4;
/// Threadgroups for each core that keys are split for, and that a grid has at most.
const SPLIT_PER_CORE: u32 = 4;
const GROUPS_PER_CORE: u32 = 16;
/// Keys of a part, at least; and parts, at most.
const PART: u32 = 128;
const PARTS: u32 = 64;
/// Rows that a threadgroup joins at a time, one for each simdgroup.
const JOINED: u32 = THREADS / 32;

pub(crate) fn attention(d: &AttentionDesc, profile: &DeviceProfile) -> Result<Plan> {
    if !d.dtype.is_float() {
        return Err(Error::unsupported("attention", d.dtype.name(), profile.kind.name()));
    }
    let queries = d.queries_each();
    let row = attention_rows().iter().find(|r| queries >= r.min_queries).expect("INVARIANT: the last row takes any");
    let size = SIZES.iter().position(|&n| d.dim <= n).expect("INVARIANT: heads have at most 512 elements");
    if row.shared_bytes[size] > profile.shared_bytes || THREADS > profile.max_threads {
        let what = format!(
            "{} needs {} bytes of threadgroup memory and {THREADS} threads, `{}` has {} and {}: this tile",
            row.stem, row.shared_bytes[size], profile.name, profile.shared_bytes, profile.max_threads
        );
        return Err(Error::unsupported("attention", what, profile.kind.name()));
    }
    let pieces = d.pieces(d.group(), row.tile[size]);
    let all = pieces.saturating_mul(d.kv_heads.into());
    let wanted = profile.cores.saturating_mul(SPLIT_PER_CORE);
    let split = if row.splits { d.split(all, wanted, PART, PARTS) } else { 1 };
    let vec = u32::from(d.align >= VEC_ALIGN);
    let kernel = KernelKey::builtin(ATTENTION, format!("{}_{}_{}", row.stem, d.dtype, SIZES[size]));
    let tiles = [narrow(pieces), d.kv_heads, split];
    let kernel = kernel.constant("VEC16", vec).constant("CODED", u32::from(d.coded));
    let plan = plan(kernel, [row.tile[size], d.dim, 1], tiles, row.reason, profile);
    Ok(Plan { split, scratch_bytes: d.scratch_bytes(split), ..plan })
}

pub(crate) fn combine(d: &CombineDesc, profile: &DeviceProfile) -> Result<Plan> {
    let kernel = KernelKey::builtin(ATTENTION, format!("attention_combine_{}", d.dtype)).constant("VEC16", 0);
    let kernel = kernel.constant("CODED", 0);
    let tiles = [narrow(d.rows.div_ceil(JOINED.into())), 1, 1];
    Ok(plan(kernel, [JOINED, d.dim, 1], tiles, "one simdgroup a row", profile))
}

pub(super) fn narrow(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn plan(kernel: KernelKey, tile: [u32; 3], tiles: [u32; 3], reason: &'static str, profile: &DeviceProfile) -> Plan {
    let work = narrow(tiles.iter().fold(1, |n: u64, &t| n.saturating_mul(t.into())));
    Plan {
        kernel,
        tile,
        tiles,
        grid: [work.min(profile.cores.saturating_mul(GROUPS_PER_CORE)).min(profile.max_grid), 1, 1],
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
