//! Kernel variants and the thresholds that choose them, as rows.

mod access;
mod attention;
mod gemm;
mod wgmma;

pub(crate) use access::THREADS as ROW_THREADS;
pub use access::{AccessRow, access_rows};
pub use attention::{AttentionTile, attention_tiles};
pub use gemm::{GemmKernel, GemmRow, gemm_rows};
pub use wgmma::{WgmmaRow, wgmma_rows};
