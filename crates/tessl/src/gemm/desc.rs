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
    /// One value per row (C was given as a column-major view, so the problem is solved transposed).
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

/// `C = act(alpha * A B + beta * C + bias)` with A [m, k], B [k, n] and row-major C [m, n], `batch` times.
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
}
