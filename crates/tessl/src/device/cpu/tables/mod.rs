//! What plans are made from, as data.

mod gemm;
mod profiles;

pub(super) use gemm::ROWS;
pub use gemm::{Axis, GemmRow, Kernel, Threshold};
pub use profiles::PROFILES;
