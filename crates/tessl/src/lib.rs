//! Matrix multiplication and neural-network kernels behind one typed API, on Apple silicon, NVIDIA GPUs and CPUs.

pub mod args;
pub mod device;
mod dtype;
mod error;
#[cfg(test)]
mod fuzz;
mod gemm;
mod library;
mod memory;
pub mod nn;
mod options;
pub mod plan;
mod process;
mod runtime;
pub mod stream;
mod tensor;
mod transfer;

pub use device::{Device, DeviceInfo, DeviceKind, DeviceProfile, Isa};
pub use dtype::{DType, Element};
pub use error::{DeviceError, Error, ErrorKind, FaultKind, Mismatch, Result, Scope, Unavailable};
pub use float8;
pub use gemm::{
    Activation, BatchStrides, Bias, Epilogue, Factor, Gemm, GemmBackend, GemmDesc, Layout, Precision, gemm,
    gemm_batched, gemm_epilogue,
};
pub use half::{self, bf16, f16};
pub use library::Library;
pub use memory::{Allocation, BufferKind, MemoryStats};
pub use options::{DEFAULT_POOL_CACHE_BYTES, RuntimeOptions};
pub use runtime::{GpuRuntime, Kernel};
pub use stream::{Binder, Event, Graph, PingPong, Stream, Ticket};
pub use tensor::{Scalar, Tensor};
