//! Plans for attention: which kernel by the number of queries, and how keys are split.

use super::suffix;
use crate::device::Isa;
use crate::device::cpu::attention::{QUERIES, ROWS};
use crate::device::cpu::tables::{AttentionKernel, AttentionRow, attention_rows};
use crate::error::{Error, Result};
use crate::gemm::Precision;
use crate::nn::{AttentionDesc, CombineDesc};
use crate::plan::{ATTENTION, KernelKey, Plan};

/// Pieces of work that keys are split for: enough for the pool to balance.
const PIECES: u32 = 16;
/// Keys of a part, at least; and parts, at most.
const PART: u32 = 256;
const PARTS: u32 = 64;

pub(super) fn attention(d: &AttentionDesc, isa: Isa) -> Result<Plan> {
    if !d.dtype.is_float() {
        return Err(Error::unsupported("attention", d.dtype.name(), "cpu"));
    }
    let queries = d.queries_each();
    let takes = |r: &&AttentionRow| queries >= r.min_queries && r.only.is_none_or(|only| only == (isa, d.dtype));
    let row = attention_rows().iter().find(takes).expect("INVARIANT: the last row takes any");
    let (tile, wide, heads) = match row.kernel {
        AttentionKernel::Tiles => (QUERIES, 1, d.heads),
        AttentionKernel::Rows => (ROWS, d.group(), d.kv_heads),
    };
    let tile = u32::try_from(tile).expect("INVARIANT: a small constant");
    let pieces = d.pieces(wide, tile);
    let split = match row.kernel {
        AttentionKernel::Tiles => 1,
        AttentionKernel::Rows => d.split(pieces * u64::from(heads), PIECES, PART, PARTS),
    };
    let isa = if row.only.is_some() { isa } else { isa.min(Isa::Avx512) };
    let name = format!("{}_{}_{}", row.kernel.stem(), d.dtype, suffix(isa));
    Ok(plan(name, [tile, d.dim], [narrow(pieces), heads, split], split, d.scratch_bytes(split), row.reason))
}

pub(super) fn combine(d: &CombineDesc, isa: Isa) -> Result<Plan> {
    let name = format!("attention_combine_{}_{}", d.dtype, suffix(isa.min(Isa::Avx512)));
    Ok(plan(name, [16, d.dim], [narrow(d.rows.div_ceil(16)), 1, 1], 1, 0, "rows: 16 a chunk"))
}

fn narrow(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn plan(
    name: String,
    [rows, dim]: [u32; 2],
    tiles: [u32; 3],
    split: u32,
    scratch_bytes: u64,
    reason: &'static str,
) -> Plan {
    Plan {
        kernel: KernelKey::builtin(ATTENTION, name),
        tile: [rows, dim, 1],
        tiles,
        grid: [narrow(tiles.iter().fold(1, |n, &t| n * u64::from(t))), 1, 1],
        threads: 1,
        stages: 1,
        split,
        shared_bytes: 0,
        scratch_bytes,
        precision: Precision::Exact,
        reason,
        note: None,
    }
}
