//! Neural-network operations as data.

use crate::dtype::DType;
use serde::Serialize;

/// Root-mean-square normalisation of `rows` rows of `n` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RmsNormDesc {
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub n: u32,
    /// Element type of x and y.
    pub dtype: DType,
    /// Element type of the weight.
    pub weight: DType,
    /// log2 of the largest power of two, 128 bytes at most, that divides every operand's address and row strides.
    pub align: u8,
}
