//! The CPU device.
//!
//! Kernels are Rust functions ([`KernelFn`]), concrete per instruction set and element types, listed in one registry.
//! `plan.rs` chooses among them by the tables of `tables/`; the queue runs batches on the thread that submits them, and
//! kernels share their work with the [`Pool`].

mod attention;
mod backend;
mod cache;
mod call;
mod convert;
mod elementwise;
mod embed;
mod experts;
mod gemm;
mod isa;
mod memory;
mod mlp;
mod movement;
mod norm;
mod plan;
mod pool;
mod qkv;
mod quant;
mod queue;
mod reduce;
mod registry;
mod rope;
mod rows;
mod sample;
mod simd;
mod tables;
mod workspace;

pub(crate) use backend::{info, open_with};
pub use call::{Bound, FaultCell, KernelCall, KernelFn};
pub(crate) use plan::packed_bytes;
pub use plan::{gemm_rows, plan};
pub use pool::Pool;
pub(super) use quant::prefers_rows16;
pub use tables::{Axis, GemmRow, Kernel, PROFILES, QuantKernel, QuantRow, Threshold, quant_rows};
