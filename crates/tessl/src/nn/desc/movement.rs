//! Moving elements, as data.

use crate::dtype::DType;
use serde::Serialize;

/// An operation of the family `movement`, and how it walks memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MovementOp {
    /// A copy of rows that are contiguous in source and target.
    CopyRows,
    /// A copy whose source is contiguous along one axis and whose target is along another.
    Transpose,
    /// A copy element by element.
    CopyStrided,
    /// Rows that ids name.
    GatherRows,
    /// Rows to where ids say.
    ScatterRows,
    /// Rows added to where ids say.
    ScatterAdd,
}

impl MovementOp {
    /// Every operation.
    pub const ALL: [MovementOp; 6] = [
        MovementOp::CopyRows,
        MovementOp::Transpose,
        MovementOp::CopyStrided,
        MovementOp::GatherRows,
        MovementOp::ScatterRows,
        MovementOp::ScatterAdd,
    ];

    /// The name of the operation, and of its errors.
    pub const fn name(self) -> &'static str {
        match self {
            MovementOp::CopyRows | MovementOp::Transpose | MovementOp::CopyStrided => "copy",
            MovementOp::GatherRows => "gather_rows",
            MovementOp::ScatterRows => "scatter_rows",
            MovementOp::ScatterAdd => "scatter_add",
        }
    }
}

/// Moving `rows` rows of `n` elements, or `rows` matrices of `m` by `n`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct MovementDesc {
    /// Operation.
    pub op: MovementOp,
    /// Rows, or matrices.
    pub rows: u64,
    /// Extent that is contiguous in the target of a transposition; 1 elsewhere.
    pub m: u32,
    /// Elements of a row; of a transposition the extent that is contiguous in the source.
    pub n: u32,
    /// Element type.
    pub dtype: DType,
    /// log2 of the largest power of two, 128 bytes at most, that divides the address and row strides of source and target.
    pub align: u8,
}

impl MovementDesc {
    /// Module and name of the kernel, the same on every device; `None` where no kernel has this type.
    pub(crate) fn kernel(&self) -> Option<(&'static str, String)> {
        let bits = 8 * self.dtype.size();
        Some(match self.op {
            MovementOp::CopyRows => ("elementwise", format!("copy_{bits}")),
            MovementOp::Transpose => ("movement", format!("transpose_{bits}")),
            MovementOp::CopyStrided => ("movement", format!("strided_{bits}")),
            MovementOp::GatherRows => ("embed", format!("gather_{bits}")),
            MovementOp::ScatterRows => ("movement", format!("scatter_{bits}")),
            MovementOp::ScatterAdd if self.dtype.is_float() => ("movement", format!("scatter_add_{}", self.dtype)),
            MovementOp::ScatterAdd => return None,
        })
    }
}
