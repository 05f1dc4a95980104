//! Mixtures of experts, as data.

use crate::dtype::DType;
use serde::Serialize;

/// An operation of the family `experts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExpertsOp {
    /// Choices in the order of their experts.
    Sort,
    /// Weighted rows of experts back to their tokens.
    Combine,
}

impl ExpertsOp {
    /// Every operation.
    pub const ALL: [ExpertsOp; 2] = [ExpertsOp::Sort, ExpertsOp::Combine];

    /// The name of the operation, of its errors and of its kernels.
    pub const fn name(self) -> &'static str {
        match self {
            ExpertsOp::Sort => "sort_by_expert",
            ExpertsOp::Combine => "combine_experts",
        }
    }
}

/// `rows` tokens, each with `each` experts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExpertsDesc {
    /// Operation.
    pub op: ExpertsOp,
    /// Tokens.
    pub rows: u64,
    /// Experts of a token.
    pub each: u32,
    /// Of a sort, experts; else elements of a row.
    pub n: u32,
    /// Of a sort, the type of the choices; else of the rows.
    pub dtype: DType,
    /// log2 of the largest power of two, 128 bytes at most, that divides the address and row strides of all rows.
    pub align: u8,
}

impl ExpertsDesc {
    /// The kernel's name, the same on every device; `None` where no kernel has this type.
    pub(crate) fn kernel(&self) -> Option<String> {
        let name = self.op.name();
        match self.op {
            ExpertsOp::Sort => Some(name.into()),
            ExpertsOp::Combine => self.dtype.is_float().then(|| format!("{name}_{}", self.dtype)),
        }
    }
}
