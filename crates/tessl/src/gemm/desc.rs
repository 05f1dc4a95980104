//! A matrix product as data.

use super::{Activation, GemmBackend, Precision};
use crate::dtype::DType;
use serde::Serialize;

/// Which index of a matrix operand is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Rows are contiguous (N in BLAS terms for a row-major matrix).
    RowMajor,
    /// Columns are contiguous (a transposed view).
    ColMajor,
}

/// The class of a factor; its value travels in the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Factor {
    /// 0.
    Zero,
    /// 1.
    One,
    /// Any other value.
    Any,
}

impl Factor {
    /// The class of `value`.
    pub fn of(value: f32) -> Self {
        match value {
            0.0 => Factor::Zero,
            1.0 => Factor::One,
            _ => Factor::Any,
        }
    }
}

/// Which axis of C a bias runs along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bias {
    /// No bias.
    None,
    /// One value per column.
    Column(DType),
    /// One value per row.
    Row(DType),
}

impl Bias {
    /// The number kernels know this class by.
    pub fn code(self) -> u32 {
        match self {
            Bias::None => 0,
            Bias::Column(_) => 1,
            Bias::Row(_) => 2,
        }
    }
}

/// `C = act(alpha * A B + beta * C + bias)` and what [`GemmExtras`] adds, with A [m, k], B [k, n] and row-major C [m, n], `batch` times.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GemmDesc {
    /// Rows of C.
    pub m: u32,
    /// Columns of C.
    pub n: u32,
    /// Length of the sums.
    pub k: u32,
    /// Number of matrices.
    pub batch: u32,
    /// Element type of A and B.
    pub input: DType,
    /// Element type of C.
    pub output: DType,
    /// Contiguous index of A.
    pub a: Layout,
    /// Contiguous index of B.
    pub b: Layout,
    /// B is the same matrix for the whole batch.
    pub b_shared: bool,
    /// log2 of the largest power of two, 128 bytes at most, that divides A's address, leading and batch stride.
    pub a_align: u8,
    /// The same for B.
    pub b_align: u8,
    /// The same for C.
    pub c_align: u8,
    /// Class of alpha.
    pub alpha: Factor,
    /// Class of beta.
    pub beta: Factor,
    /// Bias.
    pub bias: Bias,
    /// Activation.
    pub activation: Activation,
    /// How exact the products are.
    pub precision: Precision,
    /// Matrix units or the portable path.
    pub backend: GemmBackend,
    /// What goes beyond the plain product.
    #[serde(skip_serializing_if = "GemmExtras::is_plain")]
    pub extras: GemmExtras,
}

impl GemmDesc {
    /// Element type of B.
    pub fn input_b(&self) -> DType {
        self.extras.other_b.unwrap_or(self.input)
    }
}

/// Parts of a product that most problems do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct GemmExtras {
    /// Element type of B where it is not that of A: types of 8 bits mix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_b: Option<DType>,
    /// B is in the device's own order ([`PackedWeights`](crate::PackedWeights)).
    pub packed: bool,
    /// `C = act(gate) * up`, with two matrices in B's place.
    pub gated: bool,
    /// A matrix is added last.
    pub residual: bool,
    /// Element type of the scales of rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_scale: Option<DType>,
    /// Element type of the scales of columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub col_scale: Option<DType>,
    /// A and B have a scale for each 128 steps along k.
    pub block_scales: bool,
    /// Groups of rows with a matrix of B each, their bounds read on the device; 0 for a plain product.
    pub groups: u32,
}

impl GemmExtras {
    /// Whether there is nothing beyond the plain product.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// The first part in words, for devices that have no kernel for it.
    pub fn first(&self) -> Option<&'static str> {
        let parts = [
            (self.other_b.is_some(), "a B of another type than A"),
            (self.packed, "packed weights"),
            (self.gated, "a gated product"),
            (self.residual, "a residual"),
            (self.row_scale.is_some(), "scales of rows"),
            (self.col_scale.is_some(), "scales of columns"),
            (self.block_scales, "scales of blocks"),
            (self.groups > 0, "groups of rows"),
        ];
        parts.into_iter().find(|(used, _)| *used).map(|(_, name)| name)
    }
}
