//! The caller's own kernels.

use crate::device::cpu::KernelFn;
use std::path::PathBuf;

/// Kernels to add to a runtime with [`GpuRuntime::add_library`](crate::GpuRuntime::add_library). Adding only loads
/// them; running one is [`Stream::dispatch`](crate::Stream::dispatch), which is unsafe.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Library {
    /// Rust functions for the CPU device.
    Cpu {
        /// Library name.
        name: String,
        /// Kernels by name.
        kernels: Vec<(String, KernelFn)>,
    },
    /// CUDA C++ compiled at run time; kernels are `extern "C" __global__`, buffers first, the argument block last.
    CudaSource {
        /// Library name.
        name: String,
        /// Source text.
        source: String,
    },
    /// Metal source compiled at run time.
    MetalSource {
        /// Library name.
        name: String,
        /// Source text.
        source: String,
    },
    /// A compiled Metal library.
    Metallib {
        /// The file.
        path: PathBuf,
    },
}

impl Library {
    /// An empty library of CPU kernels.
    pub fn cpu(name: impl Into<String>) -> Self {
        Library::Cpu { name: name.into(), kernels: Vec::new() }
    }

    /// Adds a CPU kernel. On other kinds of library this changes nothing.
    pub fn kernel(mut self, name: impl Into<String>, function: KernelFn) -> Self {
        if let Library::Cpu { kernels, .. } = &mut self {
            kernels.push((name.into(), function));
        }
        self
    }

    /// CUDA C++ source.
    pub fn cuda_source(name: impl Into<String>, source: impl Into<String>) -> Self {
        Library::CudaSource { name: name.into(), source: source.into() }
    }

    /// Metal source.
    pub fn metal_source(name: impl Into<String>, source: impl Into<String>) -> Self {
        Library::MetalSource { name: name.into(), source: source.into() }
    }

    /// A compiled Metal library on disk.
    pub fn metallib(path: impl Into<PathBuf>) -> Self {
        Library::Metallib { path: path.into() }
    }
}
