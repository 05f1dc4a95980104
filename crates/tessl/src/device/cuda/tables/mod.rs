//! Kernel variants and the thresholds that choose them, as rows.

mod access;
mod gemm;

pub(crate) use access::THREADS as ROW_THREADS;
pub use access::{AccessRow, access_rows};
pub use gemm::{GemmKernel, GemmRow, gemm_rows};
