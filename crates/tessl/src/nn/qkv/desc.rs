//! Queries, keys and values of a few tokens as data.

use crate::dtype::DType;
use crate::nn::RopeStyle;
use crate::quant::{QFormat, QLayout};
use serde::Serialize;

/// How the matrices of a projection are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WeightsDesc {
    /// As they are.
    Dense(DType),
    /// Coded.
    Quantized {
        /// How weights are coded.
        format: QFormat,
        /// The order of their bytes.
        layout: QLayout,
        /// Element type of scales and biases that lie beside the codes.
        factors: Option<DType>,
    },
}

impl WeightsDesc {
    /// The number in kernels: that of the format, then dense f32, f16 and bf16, then formats with sixteen rows side by side.
    pub(crate) fn number(self) -> u32 {
        match self {
            WeightsDesc::Dense(dtype) => 12 + crate::nn::quant::dtype_code(dtype),
            WeightsDesc::Quantized { format, layout: QLayout::Rows, .. } => format.number(),
            WeightsDesc::Quantized { format, layout: QLayout::Rows16, .. } => 16 + format.number(),
        }
    }

    /// Bytes that divide each row, and weights that a row is a multiple of.
    pub(crate) fn row_bytes(self, k: usize) -> usize {
        match self {
            WeightsDesc::Dense(dtype) => k * dtype.size(),
            WeightsDesc::Quantized { format, .. } => format.row_bytes(k),
        }
    }
}

/// Queries, keys and values of `m` rows: norm, projections, norm of heads, rotary embedding, and the store into caches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct NormQkvRopeDesc {
    /// Rows of x.
    pub m: u32,
    /// Length of the sums.
    pub k: u32,
    /// Heads of q.
    pub heads: u32,
    /// Heads of k, and of v.
    pub kv_heads: u32,
    /// Elements of a head.
    pub dim: u32,
    /// Elements of a head that are turned.
    pub dims: u32,
    /// Which elements make a pair.
    pub style: RopeStyle,
    /// The matrices.
    pub weights: WeightsDesc,
    /// Element type of x and the outputs.
    pub dtype: DType,
    /// Element type of the weights of norms.
    pub norm: DType,
    /// log2 of the largest power of two, 128 bytes at most, that divides the address and row strides of x, of dense weights
    /// and of the weights of norms.
    pub align: u8,
}

impl NormQkvRopeDesc {
    /// The types, for the error where there is no kernel.
    pub(crate) fn types(&self) -> String {
        format!("{} x {:?} -> {} with {} norms", self.dtype, self.weights, self.dtype, self.norm)
    }

    /// Whether there is a kernel for these types, on a device that reads this format with sixteen rows side by side or not.
    pub(crate) fn has_kernel(&self, rows16: bool) -> bool {
        let weights = match self.weights {
            WeightsDesc::Dense(dtype) => dtype.is_float(),
            WeightsDesc::Quantized { layout, .. } => layout == QLayout::Rows || rows16,
        };
        weights && self.dtype.is_float() && (self.norm == DType::F32 || self.norm == self.dtype)
    }

    /// Columns of all three products.
    pub(crate) fn columns(&self) -> u64 {
        (u64::from(self.heads) + 2 * u64::from(self.kv_heads)) * u64::from(self.dim)
    }
}
