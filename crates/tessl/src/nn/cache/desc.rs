//! Caches as data.

use crate::dtype::DType;
use serde::Serialize;

/// An operation of the family `cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CacheOp {
    /// New tokens into a cache.
    Store,
    /// A ring in the order of its tokens.
    Densify,
}

impl CacheOp {
    /// Every operation.
    pub const ALL: [CacheOp; 2] = [CacheOp::Store, CacheOp::Densify];

    /// The name of the operation, of its errors and of its kernels.
    pub const fn name(self) -> &'static str {
        match self {
            CacheOp::Store => "kv_store",
            CacheOp::Densify => "ring_densify",
        }
    }
}

/// Copies of `rows` rows of `n` elements into a cache or out of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CacheDesc {
    /// Operation.
    pub op: CacheOp,
    /// Rows: tokens times heads.
    pub rows: u64,
    /// Elements of a row.
    pub n: u32,
    /// Element type of what is stored, or of the ring.
    pub dtype: DType,
    /// The cache keeps i8 codes and a scale for each row.
    pub coded: bool,
    /// Keys and values, instead of one of them.
    pub pair: bool,
    /// log2 of the largest power of two, 128 bytes at most, that divides every operand's address and strides.
    pub align: u8,
}

impl CacheDesc {
    /// The kernel's name, the same on every device; `None` where no kernel has this type.
    pub(crate) fn kernel(&self) -> Option<String> {
        let name = self.op.name();
        match self.op {
            CacheOp::Store if self.coded => self.dtype.is_float().then(|| format!("{name}_coded_{}", self.dtype)),
            CacheOp::Store if !self.dtype.is_float() => None,
            _ => {
                (self.dtype.is_float() || self.dtype == DType::I8).then(|| format!("{name}_{}", 8 * self.dtype.size()))
            }
        }
    }

    /// Vectors of a row, of both operands where there are two.
    pub(crate) fn vectors(&self, width: u32) -> u32 {
        self.n.div_ceil(width) * (1 + u32::from(self.pair))
    }
}
