//! Attention as data.

use crate::dtype::DType;
use serde::Serialize;

/// Attention: `sequences` times `queries` times `heads` rows over up to `keys` keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AttentionDesc {
    /// Sequences.
    pub sequences: u32,
    /// Queries of each sequence; of all of them where they are packed.
    pub queries: u32,
    /// Keys of each sequence, at most; of all of them where they are packed.
    pub keys: u32,
    /// Heads of queries.
    pub heads: u32,
    /// Heads of keys and values.
    pub kv_heads: u32,
    /// Elements of a head.
    pub dim: u32,
    /// Element type of q and out, and of k and v where they are not coded.
    pub dtype: DType,
    /// k and v are i8 with a scale for each row.
    pub coded: bool,
    /// A query sees keys up to its own place.
    pub causal: bool,
    /// And a limited number of them.
    pub window: bool,
    /// Sequences of different lengths lie one after the other.
    pub packed: bool,
    /// Keys of a page; 0 for none.
    pub page: u32,
    /// Element type of the mask, if any.
    pub mask: Option<DType>,
    /// log2 of the largest power of two, 128 bytes at most, that divides the addresses and strides of q, k, v and out.
    pub align: u8,
}

impl AttentionDesc {
    /// The problem of joining the parts that `split` shares of the keys leave.
    pub fn combine(&self, split: u32) -> CombineDesc {
        CombineDesc { rows: self.rows(), dim: self.dim, split, dtype: self.dtype }
    }

    /// Rows of the result.
    pub(crate) fn rows(&self) -> u64 {
        let sequences = if self.packed { 1 } else { self.sequences };
        u64::from(sequences) * u64::from(self.queries) * u64::from(self.heads)
    }

    /// Query heads that share a key head.
    pub(crate) fn group(&self) -> u32 {
        self.heads / self.kv_heads.max(1)
    }

    /// Queries of one sequence, on average where they are packed.
    pub(crate) fn queries_each(&self) -> u32 {
        if self.packed { self.queries.div_ceil(self.sequences.max(1)) } else { self.queries }
    }

    /// Pieces of up to `tile` rows, with `wide` rows for each query, that the sequences are cut into: exact, or at most.
    pub(crate) fn pieces(&self, wide: u32, tile: u32) -> u64 {
        let (rows, tile, sequences) =
            (u64::from(self.queries) * u64::from(wide), u64::from(tile), u64::from(self.sequences));
        if self.packed { rows / tile + sequences } else { sequences * rows.div_ceil(tile) }
    }

    /// Parts of the keys: enough for about `wanted` pieces of work, none below `least` keys.
    pub(crate) fn split(&self, pieces: u64, wanted: u32, least: u32, most: u32) -> u32 {
        // Packed rows that belong to no sequence would have no parts to join.
        if self.packed {
            return 1;
        }
        let split = u64::from(wanted) / pieces.max(1);
        u32::try_from(split).unwrap_or(u32::MAX).min(self.keys / least).clamp(1, most)
    }

    /// Bytes of the parts of `split` shares of the keys: a maximum, a sum and a row of f32 for each.
    pub(crate) fn scratch_bytes(&self, split: u32) -> u64 {
        if split == 1 { 0 } else { self.rows() * u64::from(split) * (u64::from(self.dim) + 2) * 4 }
    }
}

/// Joins the parts of an attention whose keys were split.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CombineDesc {
    /// Rows of the result.
    pub rows: u64,
    /// Elements of a row.
    pub dim: u32,
    /// Parts.
    pub split: u32,
    /// Element type of the result.
    pub dtype: DType,
}
