//! One opened device: memory, kernels, queues.

use super::arena::Arena;
use super::graph;
use super::indirect;
use super::objects::Obj;
use super::probe::Options;
use super::queue::MetalQueue;
use super::registry::Registry;
use super::residency::{Residency, made};
use super::track::Track;
use crate::device::cache::Cache;
use crate::device::{Backend, DeviceInfo, DeviceProfile, MemoryUse, PipelineId, Queue, RawMemory};
use crate::error::{Error, Result};
use crate::library::Library;
use crate::plan::KernelKey;
use crate::stream::Batch;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResourceOptions};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Memory that Metal wraps without a copy starts and ends on pages of this size.
const PAGE: usize = 16 << 10;

/// What the queues of a device share.
pub(super) struct Gpu {
    pub(super) device: Obj<dyn MTLDevice>,
    pub(super) residency: Residency,
    pub(super) arena: Arena,
    pub(super) options: Options,
    /// Work was given up that the device may still be doing: nothing that it could touch is freed any more.
    pub(super) lost: AtomicBool,
    pub(super) tracks: Mutex<Vec<Weak<Track>>>,
    /// Graphs are kept in indirect command buffers, which have been seen to work.
    pub(super) indirect: AtomicBool,
}

impl Gpu {
    /// Progress of every queue that is alive.
    pub(super) fn tracks(&self) -> Vec<Arc<Track>> {
        let mut tracks = self.tracks.lock().unwrap_or_else(PoisonError::into_inner);
        tracks.retain(|t| t.strong_count() > 0);
        tracks.iter().filter_map(Weak::upgrade).collect()
    }
}

/// An Apple GPU.
pub(super) struct MetalBackend {
    info: DeviceInfo,
    profile: DeviceProfile,
    gpu: Arc<Gpu>,
    registry: Arc<Registry>,
    in_use: AtomicU64,
}

impl MetalBackend {
    pub(super) fn open(
        device: Obj<dyn MTLDevice>,
        info: DeviceInfo,
        profile: DeviceProfile,
        options: Options,
    ) -> Result<Self> {
        let wanted = options.graphs.indirect == Some(true);
        let cache = options.cache.as_deref().and_then(Cache::open);
        let registry = Arc::new(Registry::new(&device, cache, wanted)?);
        let residency = Residency::new(&device)?;
        let arena = made("newBuffer", Arena::new(&device))?;
        residency.add(ProtocolObject::from_ref(&**arena.buffer()));
        let [lost, indirect] = [(); 2].map(|()| AtomicBool::new(false));
        let gpu = Arc::new(Gpu { device, residency, arena, options, lost, tracks: Mutex::default(), indirect });
        if wanted {
            indirect::try_out(&gpu, &registry);
        }
        Ok(MetalBackend { info, profile, gpu, registry, in_use: AtomicU64::new(0) })
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    fn buffer(&self, bytes: usize, options: MTLResourceOptions) -> Option<Obj<dyn MTLBuffer>> {
        let make = || self.gpu.device.newBufferWithLength_options(bytes, options);
        make().or_else(|| {
            self.gpu.residency.release();
            make()
        })
    }

    /// Describes a buffer; its reference is kept in `token` until [`taken`] turns it back.
    fn raw(&self, buffer: Obj<dyn MTLBuffer>, host: *mut u8, bytes: u64, skipped: usize) -> RawMemory {
        self.gpu.residency.add(ProtocolObject::from_ref(&*buffer));
        let device = buffer.gpuAddress() + skipped as u64;
        RawMemory { device, host, bytes, token: Retained::into_raw(buffer) as usize as u64 }
    }

    fn forget(&self, memory: RawMemory) {
        // SAFETY: `token` is the reference that `raw` gave up; memory is forgotten once.
        let Some(buffer) = (unsafe { taken(memory.token) }) else { return };
        if self.gpu.lost.load(Ordering::Acquire) {
            std::mem::forget(buffer);
        } else {
            let bytes = buffer.length();
            self.gpu.residency.remove(ProtocolObject::from_retained(buffer), bytes);
        }
    }
}

/// # Safety
/// `token` is one that `raw` made, and is not used again.
unsafe fn taken(token: u64) -> Option<Obj<dyn MTLBuffer>> {
    // SAFETY: the caller's promise: the reference was given up by `into_raw`.
    unsafe { Retained::from_raw(usize::try_from(token).ok()? as *mut ProtocolObject<dyn MTLBuffer>) }
}

/// The buffer behind memory of this device.
///
/// # Safety
/// `memory` was allocated or imported by this backend and lives for `'a`.
pub(super) unsafe fn buffer_of<'a>(memory: &RawMemory) -> &'a ProtocolObject<dyn MTLBuffer> {
    // SAFETY: `token` is a reference that `raw` gave up and that `forget` has not taken back.
    unsafe { &*(usize::try_from(memory.token).unwrap_or(0) as *const ProtocolObject<dyn MTLBuffer>) }
}

impl Backend for MetalBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    /// Shared storage where host and GPU share memory: it costs nothing there, and the host maps it. Elsewhere tensors
    /// are in private storage, which the host cannot see.
    fn allocate(&self, bytes: u64, usage: MemoryUse) -> Result<RawMemory> {
        autoreleasepool(|_| {
            let limit = self.info.memory_bytes;
            let out_of_memory =
                || Error::OutOfMemory { requested: bytes, in_use: self.in_use.load(Ordering::Relaxed), limit };
            let before = self.in_use.fetch_add(bytes, Ordering::Relaxed);
            let fits = limit == 0 || before.checked_add(bytes).is_some_and(|total| total <= limit);
            let size = usize::try_from(bytes.max(1)).ok().filter(|s| fits && *s <= self.gpu.device.maxBufferLength());
            let mapped = usage == MemoryUse::Staging || self.info.unified_memory;
            let storage =
                if mapped { MTLResourceOptions::StorageModeShared } else { MTLResourceOptions::StorageModePrivate };
            let made = size.and_then(|s| self.buffer(s, storage | MTLResourceOptions::HazardTrackingModeUntracked));
            let Some(buffer) = made else {
                self.in_use.fetch_sub(bytes, Ordering::Relaxed);
                return Err(out_of_memory());
            };
            let host = if mapped { buffer.contents().as_ptr().cast() } else { std::ptr::null_mut() };
            Ok(self.raw(buffer, host, bytes, 0))
        })
    }

    unsafe fn free(&self, memory: RawMemory) {
        self.in_use.fetch_sub(memory.bytes, Ordering::Relaxed);
        autoreleasepool(|_| self.forget(memory));
    }

    /// The whole pages that hold the caller's bytes, seen by the GPU where they are.
    unsafe fn import(&self, pointer: *mut u8, bytes: u64) -> Result<RawMemory> {
        autoreleasepool(|_| {
            let refused = || Error::unsupported("import", "memory that Metal cannot map in place", "metal");
            let length = usize::try_from(bytes).map_err(|_| refused())?;
            let skipped = pointer as usize % PAGE;
            let whole = (skipped + length.max(1)).next_multiple_of(PAGE);
            let start = NonNull::new(pointer.wrapping_sub(skipped)).ok_or_else(refused)?;
            let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
            // SAFETY: the pages exist for as long as the caller's bytes do; no deallocator, so Metal never frees them.
            let buffer = unsafe {
                self.gpu.device.newBufferWithBytesNoCopy_length_options_deallocator(start.cast(), whole, options, None)
            };
            Ok(self.raw(buffer.ok_or_else(refused)?, pointer, bytes, skipped))
        })
    }

    unsafe fn end_import(&self, memory: RawMemory) {
        autoreleasepool(|_| {
            self.forget(memory);
            // At once: the caller may unmap the pages right after this.
            self.gpu.residency.release();
        });
    }

    fn pipeline(&self, key: &KernelKey) -> Result<PipelineId> {
        autoreleasepool(|_| self.registry.pipeline(key))
    }

    fn add_library(&self, library: Library) -> Result<()> {
        let refuse = |what: &str| Err(Error::unsupported("add_library", what, "metal"));
        autoreleasepool(|_| match library {
            Library::MetalSource { name, source } => self.registry.add_source(&name, &source),
            Library::Metallib { path } => self.registry.add_metallib(&self.gpu.device, &path),
            Library::Cpu { .. } => refuse("a library of CPU kernels"),
            Library::CudaSource { .. } => refuse("a library of CUDA source"),
        })
    }

    fn queue(&self) -> Result<Arc<dyn Queue>> {
        autoreleasepool(|_| Ok(Arc::new(MetalQueue::new(&self.gpu, &self.registry)?) as Arc<dyn Queue>))
    }

    fn bake(&self, batch: &Batch) -> Result<Option<Arc<dyn Any + Send + Sync>>> {
        autoreleasepool(|_| {
            Ok(Some(Arc::new(graph::bake(&self.gpu, &self.registry, batch)?) as Arc<dyn Any + Send + Sync>))
        })
    }

    fn prebuilt(&self, baked: &(dyn Any + Send + Sync)) -> usize {
        baked.downcast_ref::<graph::Baked>().map_or(0, graph::Baked::prebuilt)
    }
}
