//! One opened device: memory, kernels, queues.

use super::context::Context;
use super::driver::{Driver, OUT_OF_MEMORY, number};
use super::nvrtc::Nvrtc;
use super::queue::CudaQueue;
use super::registry::Registry;
use super::{graph, probe, profiles};
use crate::device::cache::Cache;
use crate::device::{Backend, DeviceInfo, DeviceProfile, MemoryUse, PipelineId, Queue, RawMemory};
use crate::error::{Error, Result};
use crate::library::Library;
use crate::plan::KernelKey;
use crate::stream::Batch;
use std::any::Any;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An NVIDIA device.
pub(super) struct CudaBackend {
    info: DeviceInfo,
    profile: DeviceProfile,
    registry: Arc<Registry>,
    context: Arc<Context>,
    in_use: AtomicU64,
}

impl CudaBackend {
    pub(super) fn open(
        driver: &'static Driver,
        nvrtc: &'static Nvrtc,
        index: u32,
        found: &probe::Found,
        cache: Option<Cache>,
        dependent: bool,
    ) -> Result<Self> {
        let context = Arc::new(Context::new(driver, index)?);
        let profile = profiles::of(&found.limits);
        let (sm, shared) = (profile.compute_capability, profile.shared_bytes);
        let registry = Arc::new(Registry::new(context.clone(), nvrtc, cache, sm, shared, dependent));
        Ok(CudaBackend {
            info: probe::info_of(driver, index, found),
            profile,
            registry,
            context,
            in_use: AtomicU64::new(0),
        })
    }

    fn memory_error(&self, code: u32, op: &'static str, requested: u64) -> Error {
        if code == OUT_OF_MEMORY {
            let in_use = self.in_use.load(Ordering::Relaxed);
            return Error::OutOfMemory { requested, in_use, limit: self.info.memory_bytes };
        }
        self.context.driver.error(code, op, crate::error::Scope::Call, &format!("{requested} bytes"))
    }
}

impl Backend for CudaBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    /// Plain allocations, not stream-ordered ones: the core pools memory and shares it between queues, and what it
    /// takes here is usable on every queue at once.
    fn allocate(&self, bytes: u64, usage: MemoryUse) -> Result<RawMemory> {
        self.context.enter()?;
        let f = &self.context.driver.f;
        // The driver refuses an empty allocation.
        let size = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        let (mut device, mut host) = (0, ptr::null_mut());
        match usage {
            MemoryUse::Device => {
                // SAFETY: the context is current; the pointer is valid for one address.
                let code = unsafe { (f.memory_allocate)(&mut device, size) };
                if code != 0 {
                    return Err(self.memory_error(code, "cuMemAlloc", bytes));
                }
            }
            MemoryUse::Staging => {
                // SAFETY: as above.
                let code = unsafe { (f.host_allocate)(&mut host, size, number::HOST_PORTABLE_MAPPED) };
                if code != 0 {
                    return Err(self.memory_error(code, "cuMemHostAlloc", bytes));
                }
                // SAFETY: the memory was allocated as mapped just above.
                let code = unsafe { (f.host_device_address)(&mut device, host, 0) };
                if code != 0 {
                    // SAFETY: allocated above and given to nobody.
                    unsafe { (f.host_free)(host) };
                    return Err(self.memory_error(code, "cuMemHostGetDevicePointer", bytes));
                }
            }
        }
        self.in_use.fetch_add(bytes, Ordering::Relaxed);
        Ok(RawMemory { device, host: host.cast(), bytes, token: 0 })
    }

    unsafe fn free(&self, memory: RawMemory) {
        self.in_use.fetch_sub(memory.bytes, Ordering::Relaxed);
        if !self.context.enter_quietly() {
            return;
        }
        let f = &self.context.driver.f;
        // SAFETY: the memory came from `allocate` and no batch uses it (reason 4 of the contract).
        let code = unsafe {
            if memory.host.is_null() { (f.memory_free)(memory.device) } else { (f.host_free)(memory.host.cast()) }
        };
        if code != 0 {
            // Frees are where the driver reports what failed earlier; the queue has told it to its owner.
            tracing::debug!(target: "tessl::cuda", "free: {}", self.context.driver.text(code));
        }
    }

    fn pipeline(&self, key: &KernelKey) -> Result<PipelineId> {
        self.registry.pipeline(key)
    }

    fn add_library(&self, library: Library) -> Result<()> {
        let refuse = |what: &str| Err(Error::unsupported("add_library", what, "cuda"));
        match library {
            Library::CudaSource { name, source } => self.registry.add_source(&name, source),
            Library::Cpu { .. } => refuse("a library of CPU kernels"),
            Library::MetalSource { .. } | Library::Metallib { .. } => refuse("a Metal library"),
        }
    }

    fn queue(&self) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(CudaQueue::new(&self.context, &self.registry)?))
    }

    fn bake(&self, batch: &Batch) -> Result<Option<Arc<dyn Any + Send + Sync>>> {
        Ok(Some(Arc::new(graph::bake(&self.context, &self.registry, batch)?)))
    }

    fn prebuilt(&self, baked: &(dyn Any + Send + Sync)) -> usize {
        baked.downcast_ref::<graph::Baked>().map_or(0, |b| b.labels.count)
    }
}
