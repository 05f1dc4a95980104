//! Products with quantised weights as data.

use crate::dtype::DType;
use crate::gemm::Activation;
use crate::quant::{QFormat, QLayout};
use serde::Serialize;

/// An operation of the family `quant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuantOp {
    /// `y = act(x W^T + bias) + residual`.
    Matmul,
    /// `y = act(x G^T + gate_bias) * (x U^T + up_bias)`.
    Glu,
    /// `q = x Q^T, k = x K^T, v = x V^T`.
    Qkv,
}

impl QuantOp {
    /// Every operation.
    pub const ALL: [QuantOp; 3] = [QuantOp::Matmul, QuantOp::Glu, QuantOp::Qkv];

    /// The name of the operation, of its errors and of its GPU kernels.
    pub const fn name(self) -> &'static str {
        match self {
            QuantOp::Matmul => "quantized_matmul",
            QuantOp::Glu => "quantized_glu",
            QuantOp::Qkv => "quantized_qkv",
        }
    }

    /// Matrices of weights.
    pub const fn weights(self) -> usize {
        match self {
            QuantOp::Matmul => 1,
            QuantOp::Glu => 2,
            QuantOp::Qkv => 3,
        }
    }
}

/// A product of `m` rows with quantised weights.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct QuantDesc {
    /// Operation.
    pub op: QuantOp,
    /// Rows of x.
    pub m: u32,
    /// Rows of each matrix of weights, 0 where there is none.
    pub n: [u32; 3],
    /// Length of the sums.
    pub k: u32,
    /// How weights are coded.
    pub format: QFormat,
    /// The order of their bytes.
    pub layout: QLayout,
    /// Element type of scales and biases that lie beside the codes.
    pub factors: Option<DType>,
    /// Element type of x.
    pub input: DType,
    /// Element type of the outputs.
    pub output: DType,
    /// The function.
    pub activation: Activation,
    /// A bias is added.
    pub bias: bool,
    /// A residual is added.
    pub residual: bool,
    /// log2 of the largest power of two, 128 bytes at most, that divides x's address and row stride.
    pub align: u8,
}

impl QuantDesc {
    /// Rows of x that a simdgroup of the GPU kernels multiplies with one row of weights.
    pub(crate) const TILE_M: u32 = 4;

    /// Simdgroups of the GPU kernels: one for each column of an output and each tile of rows.
    pub(crate) fn simdgroups(&self) -> u64 {
        let columns: u64 =
            if self.op == QuantOp::Glu { self.n[0].into() } else { self.n.iter().map(|&n| u64::from(n)).sum() };
        columns * u64::from(self.m.div_ceil(Self::TILE_M))
    }

    /// The types, for the error where there is no kernel.
    pub(crate) fn types(&self) -> String {
        format!("{} x {} -> {} in layout {}", self.input, self.format, self.output, self.layout.name())
    }

    /// Whether there is a kernel for these types.
    pub(crate) fn has_kernel(&self) -> bool {
        self.input.is_float() && self.output.is_float() && self.layout == QLayout::Rows
    }
}

/// Embedding lookup in a quantised table: `rows` rows of `n` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct QuantEmbedDesc {
    /// Ids.
    pub rows: u64,
    /// Elements of a row.
    pub n: u32,
    /// How the table is coded.
    pub format: QFormat,
    /// The order of its bytes.
    pub layout: QLayout,
    /// Element type of scales and biases that lie beside the codes.
    pub factors: Option<DType>,
    /// Element type of the output.
    pub output: DType,
    /// log2 of the largest power of two, 128 bytes at most, that divides the output's address and row strides.
    pub align: u8,
}

impl QuantEmbedDesc {
    /// Whether there is a kernel for these types.
    pub(crate) fn has_kernel(&self) -> bool {
        self.output.is_float() && self.layout == QLayout::Rows
    }

    /// The types, for the error where there is no kernel.
    pub(crate) fn types(&self) -> String {
        format!("{} -> {} in layout {}", self.format, self.output, self.layout.name())
    }
}
