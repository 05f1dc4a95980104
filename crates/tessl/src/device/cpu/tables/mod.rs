//! What plans are made from, as data.

mod gemm;
mod profiles;

pub use gemm::{Axis, GemmRow, Kernel, Threshold};
pub(super) use gemm::ROWS;
pub use profiles::PROFILES;
