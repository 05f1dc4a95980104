//! Neural-network operations as data.

mod experts;
mod movement;
mod norm;
mod sample;

pub use experts::{ExpertsDesc, ExpertsOp};
pub use movement::{MovementDesc, MovementOp};
pub(crate) use norm::norm_types;
pub use norm::{LayerNormDesc, NormResidual, QkNormDesc, RmsNormDesc};
pub use sample::{SampleDesc, TopKDesc};

use crate::dtype::DType;
use crate::gemm::Activation;
use serde::Serialize;

/// An operation of the family `mlp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MlpOp {
    /// `y = act(x)`.
    Activate,
    /// `y = act(gate) * up`.
    Glu,
}

impl MlpOp {
    /// Every operation.
    pub const ALL: [MlpOp; 2] = [MlpOp::Activate, MlpOp::Glu];

    /// The name of the operation, of its errors and of its kernels.
    pub const fn name(self) -> &'static str {
        match self {
            MlpOp::Activate => "activate",
            MlpOp::Glu => "glu",
        }
    }
}

/// Activations, plain or gated, of `rows` rows of `n` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct MlpDesc {
    /// Operation.
    pub op: MlpOp,
    /// Rows, after axes that lie side by side have become longer rows.
    pub rows: u64,
    /// Elements of a row.
    pub n: u32,
    /// Element type of every operand.
    pub dtype: DType,
    /// The function.
    pub activation: Activation,
    /// log2 of the largest power of two, 128 bytes at most, that divides every operand's address and row strides.
    pub align: u8,
}

/// An operation of the family `elementwise`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ElementwiseOp {
    /// `y = a + b`.
    Add,
    /// `y = a * b`.
    Mul,
    /// `y = factor * x`.
    Scale,
    /// `y = x` with the elements of y's type.
    Cast,
}

impl ElementwiseOp {
    /// Every operation.
    pub const ALL: [ElementwiseOp; 4] =
        [ElementwiseOp::Add, ElementwiseOp::Mul, ElementwiseOp::Scale, ElementwiseOp::Cast];

    /// The name of the operation, and of its errors.
    pub const fn name(self) -> &'static str {
        match self {
            ElementwiseOp::Add => "add",
            ElementwiseOp::Mul => "mul",
            ElementwiseOp::Scale => "scale",
            ElementwiseOp::Cast => "cast",
        }
    }
}

/// Element-wise arithmetic of `rows` rows of `n` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ElementwiseDesc {
    /// Operation.
    pub op: ElementwiseOp,
    /// Rows, after axes that lie side by side have become longer rows.
    pub rows: u64,
    /// Elements of a row.
    pub n: u32,
    /// Element type of the inputs.
    pub input: DType,
    /// Element type of the output.
    pub output: DType,
    /// log2 of the largest power of two, 128 bytes at most, that divides every operand's address and row strides.
    pub align: u8,
}

impl ElementwiseDesc {
    /// The kernel's name, the same on every device; `None` where no kernel has these types.
    pub(crate) fn kernel(&self) -> Option<String> {
        let (op, input, output) = (self.op.name(), self.input, self.output);
        match self.op {
            ElementwiseOp::Cast if input == output => Some(format!("copy_{}", 8 * input.size())),
            ElementwiseOp::Cast if input.is_float() && output.is_float() => Some(format!("{op}_{input}_{output}")),
            ElementwiseOp::Cast => None,
            _ => (input == output && input.is_float()).then(|| format!("{op}_{input}")),
        }
    }

    /// The types, for the error where there is no kernel.
    pub(crate) fn types(&self) -> String {
        format!("{} to {}", self.input, self.output)
    }
}

/// An operation of the family `reduce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReduceOp {
    /// Exponentials over their sum.
    Softmax,
    /// The logarithm of that.
    LogSoftmax,
    /// The sum of a row.
    Sum,
    /// The mean of a row.
    Mean,
    /// The largest element of a row.
    Max,
    /// The index of the largest element.
    ArgMax,
}

impl ReduceOp {
    /// Every operation.
    pub const ALL: [ReduceOp; 6] =
        [ReduceOp::Softmax, ReduceOp::LogSoftmax, ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::ArgMax];

    /// The name of the operation, and of its errors.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Softmax => "softmax",
            ReduceOp::LogSoftmax => "log_softmax",
            ReduceOp::Sum => "row_sum",
            ReduceOp::Mean => "row_mean",
            ReduceOp::Max => "row_max",
            ReduceOp::ArgMax => "row_argmax",
        }
    }
}

/// A reduction of `rows` rows of `n` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ReduceDesc {
    /// Operation.
    pub op: ReduceOp,
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub n: u32,
    /// Element type of x.
    pub input: DType,
    /// Element type of y.
    pub output: DType,
    /// Element type of the mask, if any.
    pub mask: Option<DType>,
    /// log2 of the largest power of two, 128 bytes at most, that divides the address and row strides of what is accessed
    /// in vectors: x, and y where it has whole rows.
    pub align: u8,
}

impl ReduceDesc {
    /// The kernel's name, the same on every device; `None` where no kernel has these types.
    pub(crate) fn kernel(&self) -> Option<String> {
        let (op, input, output) = (self.op.name(), self.input, self.output);
        let column = output == input || output == DType::F32;
        let exists = input.is_float()
            && match self.op {
                ReduceOp::Softmax | ReduceOp::LogSoftmax => output == input,
                ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Max => column,
                ReduceOp::ArgMax => output == DType::U32,
            };
        exists.then(|| match self.op {
            ReduceOp::Softmax | ReduceOp::LogSoftmax | ReduceOp::ArgMax => format!("{op}_{input}"),
            ReduceOp::Max => format!("{op}_{input}_{output}"),
            // The mean is a sum with a factor.
            ReduceOp::Sum | ReduceOp::Mean => format!("{}_{input}_{output}", ReduceOp::Sum.name()),
        })
    }

    /// The types, for the error where there is no kernel.
    pub(crate) fn types(&self) -> String {
        format!("{} to {}", self.input, self.output)
    }
}

/// Which elements of a row make a pair in rotary embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RopeStyle {
    /// Element i and element i + dims / 2, as in GPT-NeoX and Llama checkpoints of Hugging Face.
    #[default]
    HalfSplit,
    /// Elements 2 i and 2 i + 1, as in GPT-J and Meta's own Llama checkpoints.
    Interleaved,
}

impl RopeStyle {
    /// Every style.
    pub const ALL: [RopeStyle; 2] = [RopeStyle::HalfSplit, RopeStyle::Interleaved];

    /// The name in kernels.
    pub const fn name(self) -> &'static str {
        match self {
            RopeStyle::HalfSplit => "half",
            RopeStyle::Interleaved => "interleaved",
        }
    }
}

/// Rotary embedding of `rows` rows of `n` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RopeDesc {
    /// Rows: tokens times heads.
    pub rows: u64,
    /// Elements of a row.
    pub n: u32,
    /// Elements that are turned; the others are copied.
    pub dims: u32,
    /// Which elements make a pair.
    pub style: RopeStyle,
    /// Element type of x and y.
    pub dtype: DType,
    /// log2 of the largest power of two, 128 bytes at most, that divides the address and row strides of x and y, and the
    /// distance between the elements of a pair where that is half of `dims`.
    pub align: u8,
}

impl RopeDesc {
    /// The kernel's name, the same on every device; `None` where no kernel has this type.
    pub(crate) fn kernel(&self) -> Option<String> {
        self.dtype.is_float().then(|| format!("rope_{}_{}", self.style.name(), self.dtype))
    }

    /// Vectors of a row for a kernel whose vectors have `width` elements: pairs first, then copies.
    pub(crate) fn vectors(&self, width: u32) -> u32 {
        let pairs = if self.style == RopeStyle::Interleaved { (width / 2).max(1) } else { width };
        (self.dims / 2).div_ceil(pairs) + (self.n - self.dims).div_ceil(width)
    }
}

/// Embedding lookup: `rows` rows of `n` elements out of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct EmbedDesc {
    /// Ids.
    pub rows: u64,
    /// Elements of a row.
    pub n: u32,
    /// Element type of table and output.
    pub dtype: DType,
    /// log2 of the largest power of two, 128 bytes at most, that divides the address and row strides of table and output.
    pub align: u8,
}

impl EmbedDesc {
    /// The kernel's name, the same on every device; `None` where no kernel has this type.
    pub(crate) fn kernel(&self) -> Option<String> {
        self.dtype.is_float().then(|| format!("embedding_{}", self.dtype))
    }
}
