//! What happens to a product before it is stored.

use super::names;
use crate::error::Result;
use crate::tensor::Tensor;
use serde::Serialize;

/// A function applied to each element. One definition each, on every device; NaN stays NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
#[non_exhaustive]
pub enum Activation {
    /// x
    #[default]
    None = 0,
    /// max(x, 0)
    Relu = 1,
    /// x / (1 + e^-x)
    Silu = 2,
    /// x * (1 + erf(x / sqrt 2)) / 2
    Gelu = 3,
    /// x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2
    GeluTanh = 4,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 5] =
        [Activation::None, Activation::Relu, Activation::Silu, Activation::Gelu, Activation::GeluTanh];

    /// The number kernels know this activation by.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The activation with this number.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.code() == code)
    }
}

names!(Activation, "activation", "none, relu, silu, gelu or gelu-tanh", {
    "none" => Activation::None,
    "relu" => Activation::Relu,
    "silu" => Activation::Silu,
    "gelu" => Activation::Gelu,
    "gelu-tanh" => Activation::GeluTanh,
});

/// `C = activation(alpha * A B + beta * C + bias)`.
///
/// These four fields are the whole struct, in every version. More lives in the setters of [`Gemm`](crate::Gemm).
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the old C; 0 does not read it.
    pub beta: f32,
    /// One value per column of C.
    pub bias: Option<&'a Tensor>,
    /// Applied last.
    pub activation: Activation,
}

impl Default for Epilogue<'_> {
    /// `C = A B`.
    fn default() -> Self {
        Epilogue { alpha: 1.0, beta: 0.0, bias: None, activation: Activation::None }
    }
}
