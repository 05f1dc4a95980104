//! Normalisations as data.

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
    /// Where a residual is added.
    pub residual: NormResidual,
    /// log2 of the largest power of two, 128 bytes at most, that divides every operand's address and row strides.
    pub align: u8,
}

impl RmsNormDesc {
    /// The kernel's name, the same on every device; `None` where no kernel has these types.
    pub(crate) fn kernel(&self) -> Option<String> {
        norm_kernel(self.residual.kernel(), self.dtype, self.weight)
    }
}

/// `name_{x}_{weight}` for types that the kernels of norms have.
fn norm_kernel(name: &str, dtype: DType, weight: DType) -> Option<String> {
    let exists = dtype.is_float() && (weight == dtype || weight == DType::F32);
    exists.then(|| format!("{name}_{dtype}_{weight}"))
}

/// The types of a norm, for the error where there is no kernel.
pub(crate) fn norm_types(dtype: DType, weight: DType) -> String {
    format!("{dtype} rows with a {weight} weight")
}

/// Where root-mean-square normalisation adds a residual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NormResidual {
    /// Nowhere.
    #[default]
    None,
    /// To x, and the sum is kept.
    Before,
    /// To what is normalised.
    After,
    /// The same, and the sum is normalised again.
    Between,
}

impl NormResidual {
    /// Every place.
    pub const ALL: [NormResidual; 4] =
        [NormResidual::None, NormResidual::Before, NormResidual::After, NormResidual::Between];

    /// The start of the kernel's name.
    pub(crate) const fn kernel(self) -> &'static str {
        match self {
            NormResidual::None => "rms_norm",
            NormResidual::Before => "add_rms_norm",
            NormResidual::After => "rms_norm_add",
            NormResidual::Between => "rms_norm_add_rms_norm",
        }
    }
}

/// Layer normalisation of `rows` rows of `n` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct LayerNormDesc {
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub n: u32,
    /// Element type of x and y.
    pub dtype: DType,
    /// Element type of weight and bias.
    pub weight: DType,
    /// log2 of the largest power of two, 128 bytes at most, that divides every operand's address and row strides.
    pub align: u8,
}

impl LayerNormDesc {
    /// The kernel's name, the same on every device; `None` where no kernel has these types.
    pub(crate) fn kernel(&self) -> Option<String> {
        norm_kernel("layer_norm", self.dtype, self.weight)
    }
}

/// Root-mean-square normalisation of the heads of queries and keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct QkNormDesc {
    /// Heads of all tokens: those of q and those of k.
    pub rows: u64,
    /// Elements of a head.
    pub n: u32,
    /// Element type of q, k and the outputs.
    pub dtype: DType,
    /// Element type of the weights.
    pub weight: DType,
    /// log2 of the largest power of two, 128 bytes at most, that divides every operand's address and row strides.
    pub align: u8,
}

impl QkNormDesc {
    /// The kernel's name, the same on every device; `None` where no kernel has these types.
    pub(crate) fn kernel(&self) -> Option<String> {
        norm_kernel("qk_norm", self.dtype, self.weight)
    }
}
