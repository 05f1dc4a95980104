//! What plans are made from, as data.

mod attention;
mod gemm;
mod profiles;
mod quant;

pub(super) use attention::{AttentionKernel, AttentionRow, attention_rows};
pub(super) use gemm::ROWS;
pub use gemm::{Axis, GemmRow, Kernel, Threshold};
pub use profiles::PROFILES;
pub use quant::{QuantKernel, QuantRow, quant_rows};
