//! Matrix multiplication and neural-network kernels behind one typed API, on Apple silicon, NVIDIA GPUs and CPUs.
//!
//! ```
//! use tessl::{gemm_epilogue, Activation, Epilogue, GemmBackend, GpuRuntime};
//!
//! let rt = GpuRuntime::new()?; // the best device here; TESSL_DEVICE chooses another
//! let x = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
//! let w = rt.from_slice(&[0.5f32, -1.0, 1.0, 0.25], &[2, 2])?; // [out, in]
//! let bias = rt.from_slice(&[0.0f32, 1.0], &[2])?;
//! let y = rt.alloc_tensor_f32(&[2, 2])?;
//! gemm_epilogue(&x, &w.t()?, &y, GemmBackend::TensorOps, Epilogue {
//!     alpha: 1.0,
//!     beta: 0.0,
//!     bias: Some(&bias),
//!     activation: Activation::Relu,
//! })?;
//! assert_eq!(y.read::<f32>()?, [0.0, 2.5, 0.0, 5.0]);
//! # Ok::<(), tessl::Error>(())
//! ```
//!
//! # The map
//!
//! | you want to | look at |
//! | --- | --- |
//! | choose a device | [`Device`], [`RuntimeOptions`], [`GpuRuntime`] |
//! | hold data | [`Tensor`] (strided views), [`BufferKind`] (how long memory lives) |
//! | multiply matrices | [`gemm()`], [`gemm_epilogue`], [`gemm_batched`], and [`Gemm`] for everything at once |
//! | normalise, activate, add, reduce, rotate, look up, move, choose | [`nn`]: one builder an operation |
//! | do norm, q/k/v, rotary embedding and cache in one launch | [`nn::NormQkvRope`] |
//! | use quantised weights | [`QTensor`], [`QFormat`], [`nn::QuantizedMatmul`], [`nn::QuantizedGlu`], [`nn::QuantizedQkv`] |
//! | order work, overlap it, wait for it | [`Stream`], [`Event`], [`Ticket`] |
//! | encode once and run often | [`Stream::capture`], [`Graph`], [`PingPong`], [`GraphSet`] |
//! | run kernels of your own | [`Library`], [`GpuRuntime::add_library`], [`Stream::dispatch`] |
//! | know which kernel runs, and why | [`plan::plan`], [`Gemm::desc`] |
//! | drive a device of your own | [`device`], [`GpuRuntime::with_backend`] |
//!
//! # What to count on
//!
//! - Every call is validated completely before anything is encoded. A wrong call is an [`Error`] that names operation and operand
//!   and changes nothing; nothing panics on what a user passes.
//! - Calls encode and return. Only [`Stream::synchronize`], [`Ticket::wait`], [`GpuRuntime::synchronize`] and [`Tensor::read`] wait.
//! - Buffers stay alive until the device has finished with them, and conflicting commands are ordered, also across streams: safe
//!   code has no data race on the device.
//! - No precision is lowered and no device replaced in silence.
//! - The same call with the same plan on the same device gives the same bits.
//!
//! # Features
//!
//! `cuda` (default): NVIDIA devices. It needs the driver and NVRTC when it runs and nothing when it builds; without a driver the
//! device is reported as missing, never a panic. Metal is chosen by the target.

pub mod args;
pub mod device;
#[cfg(feature = "dlpack")]
pub mod dlpack;
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
mod qtensor;
mod quant;
mod runtime;
pub mod stream;
mod tensor;
mod transfer;
mod warm_up;

pub use device::{Device, DeviceInfo, DeviceKind, DeviceProfile, Isa};
pub use dtype::{DType, Element};
pub use error::{DeviceError, Error, ErrorKind, FaultKind, Mismatch, Result, Scope, Unavailable};
pub use float8;
pub use gemm::{
    Activation, BatchStrides, Bias, Epilogue, Factor, Gemm, GemmBackend, GemmDesc, GemmExtras, Layout, Offsets,
    PackDesc, PackedWeights, Precision, Weights, gemm, gemm_batched, gemm_epilogue, max_k_i32,
};
pub use half::{self, bf16, f16};
pub use library::Library;
pub use memory::{Allocation, BufferKind, MemoryStats};
pub use options::{DEFAULT_POOL_CACHE_BYTES, GraphOptions, RuntimeOptions};
pub use qtensor::QTensor;
pub use quant::{QFormat, QLayout};
pub use runtime::{GpuRuntime, Kernel};
pub use stream::{Binder, Buckets, Event, Graph, GraphSet, GraphStats, PingPong, Stream, Ticket};
pub use tensor::{Scalar, Tensor};
