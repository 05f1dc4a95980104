//! Which kernel an attention takes: the first row whose number of queries it has.

use crate::device::Isa;
use crate::dtype::DType;

/// The kernels of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum AttentionKernel {
    /// Tiles of scores, by the micro-kernels of matrix products.
    Tiles,
    /// The keys stream past a few rows.
    Rows,
}

impl AttentionKernel {
    /// Its name before type and instruction set.
    pub(in super::super) const fn stem(self) -> &'static str {
        match self {
            AttentionKernel::Tiles => "attention_tiles",
            AttentionKernel::Rows => "attention_rows",
        }
    }
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct AttentionRow {
    /// What it chooses.
    pub(in super::super) kernel: AttentionKernel,
    /// For this instruction set and element type; else for all of them.
    pub(in super::super) only: Option<(Isa, DType)>,
    /// Queries of a sequence, at least.
    pub(in super::super) min_queries: u32,
    /// What the plan says.
    pub(in super::super) reason: &'static str,
}

/// Every rule, in order of preference.
pub(in super::super) fn attention_rows() -> &'static [AttentionRow] {
    const TILES: AttentionRow = AttentionRow {
        kernel: AttentionKernel::Tiles,
        only: None,
        min_queries: 16,
        reason: "prefill: 192 queries a tile",
    };
    &[
        AttentionRow {
            only: Some((Isa::Amx, DType::Bf16)),
            reason: "prefill on AMX: 192 queries a tile, weights as two bf16",
            ..TILES
        },
        TILES,
        AttentionRow {
            kernel: AttentionKernel::Rows,
            min_queries: 0,
            reason: "decode: 8 rows a pass over the keys",
            ..TILES
        },
    ]
}
