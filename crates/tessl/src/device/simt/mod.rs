//! Plans of kernels whose one text and one geometry cuda and metal share.

mod attention;
mod gemm;
mod tables;
#[cfg(test)]
mod tests;

pub(super) use attention::{attention, combine};
pub(super) use gemm::{gemm, is_fused};
