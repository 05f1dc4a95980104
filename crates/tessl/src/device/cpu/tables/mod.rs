//! What plans are made from, as data.

mod gemm;
mod profiles;
mod quant;

pub(super) use gemm::ROWS;
pub use gemm::{Axis, GemmRow, Kernel, Threshold};
pub use profiles::PROFILES;
pub use quant::{QuantKernel, QuantRow, quant_rows};
