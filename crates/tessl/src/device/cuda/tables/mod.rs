//! Kernel variants and the thresholds that choose them, as rows.

mod gemm;
mod norm;
mod wgmma;

pub use gemm::{GemmKernel, GemmRow, gemm_rows};
pub(crate) use norm::THREADS as NORM_THREADS;
pub use norm::{NormRow, norm_rows};
pub use wgmma::{WgmmaRow, wgmma_rows};
