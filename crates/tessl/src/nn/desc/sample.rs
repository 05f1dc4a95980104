//! Selection and sampling as data.

use crate::dtype::DType;
use serde::Serialize;

/// The largest elements of `rows` rows of `n` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TopKDesc {
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub n: u32,
    /// How many.
    pub k: u32,
    /// Element type.
    pub dtype: DType,
}

impl TopKDesc {
    /// The kernel's name, the same on every device; `None` where no kernel has this type.
    pub(crate) fn kernel(&self) -> Option<String> {
        self.dtype.is_float().then(|| format!("top_k_{}", self.dtype))
    }
}

/// A token for each of `rows` rows of `n` logits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SampleDesc {
    /// Rows.
    pub rows: u64,
    /// Tokens to choose from.
    pub n: u32,
    /// There are previous tokens.
    pub penalised: bool,
    /// Element type of the logits.
    pub dtype: DType,
}

impl SampleDesc {
    /// The kernel's name, the same on every device; `None` where no kernel has this type.
    pub(crate) fn kernel(&self) -> Option<String> {
        self.dtype.is_float().then(|| format!("sample_{}", self.dtype))
    }

    /// A bit for each token of each row, where previous tokens are marked.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        let words = if self.penalised { self.rows.saturating_mul(self.n.div_ceil(32).into()) } else { 0 };
        words.saturating_mul(4).max(64)
    }
}
