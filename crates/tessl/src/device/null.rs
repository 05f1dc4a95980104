//! The null device: takes commands and computes nothing. For host-overhead benchmarks and golden plans.

use super::{Backend, DeviceInfo, DeviceProfile, FaultRecord, Fence, MemoryUse, PipelineId, Queue, RawMemory, profile};
use crate::error::{Error, Result};
use crate::library::Library;
use crate::plan::KernelKey;
use crate::stream::Batch;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// Addresses handed out start here; nothing ever follows them.
const FIRST_ADDRESS: u64 = 1 << 40;

struct NullDevice {
    info: DeviceInfo,
    profile: &'static DeviceProfile,
    next_address: AtomicU64,
    pipelines: AtomicU32,
}

#[derive(Default)]
struct NullQueue {
    completed: AtomicU64,
}

pub(super) fn info(profile: &str) -> DeviceInfo {
    let kind = profile::by_name(profile).map_or(super::DeviceKind::Cpu, |p| p.kind);
    DeviceInfo {
        id: format!("null:{profile}"),
        kind,
        name: format!("null device with the profile of {profile}"),
        profile: profile.to_owned(),
        memory_bytes: 0,
        unified_memory: false,
        driver: "none".to_owned(),
        missing: None,
        help: None,
    }
}

pub(super) fn open(name: &str) -> Result<Arc<dyn Backend>> {
    let Some(profile) = profile::by_name(name) else {
        return Err(Error::parse("profile", name, "the name of a device profile (see `tessl plan --profiles`)"));
    };
    Ok(Arc::new(NullDevice {
        info: info(name),
        profile,
        next_address: AtomicU64::new(FIRST_ADDRESS),
        pipelines: AtomicU32::new(0),
    }))
}

impl Backend for NullDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn profile(&self) -> &DeviceProfile {
        self.profile
    }

    fn allocate(&self, bytes: u64, usage: MemoryUse) -> Result<RawMemory> {
        let rounded = bytes.next_multiple_of(256);
        let device = self.next_address.fetch_add(rounded, Ordering::Relaxed);
        // Staging memory is written by the host, so it must be real.
        let host = match usage {
            MemoryUse::Device => std::ptr::null_mut(),
            MemoryUse::Staging => {
                let words = usize::try_from(rounded / 8).unwrap_or(usize::MAX);
                Box::into_raw(vec![0u64; words].into_boxed_slice()).cast::<u8>()
            }
        };
        Ok(RawMemory { device, host, bytes, token: rounded })
    }

    unsafe fn free(&self, memory: RawMemory) {
        if !memory.host.is_null() {
            let words = usize::try_from(memory.token / 8).unwrap_or(usize::MAX);
            let slice = std::ptr::slice_from_raw_parts_mut(memory.host.cast::<u64>(), words);
            // SAFETY: made by `Box::into_raw` in `allocate` with this length (kept in `token`), freed once.
            drop(unsafe { Box::from_raw(slice) });
        }
    }

    fn pipeline(&self, _key: &KernelKey) -> Result<PipelineId> {
        Ok(PipelineId(self.pipelines.fetch_add(1, Ordering::Relaxed)))
    }

    fn add_library(&self, _library: Library) -> Result<()> {
        Err(Error::unsupported("add_library", "running kernels", "null"))
    }

    fn queue(&self) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(NullQueue::default()))
    }
}

impl Queue for NullQueue {
    unsafe fn submit(&self, _batch: &Batch, _fences: &[Fence], signal: u64) -> Result<()> {
        self.completed.fetch_max(signal, Ordering::AcqRel);
        Ok(())
    }

    fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    fn wait(&self, _signal: u64, _deadline: Option<Instant>) -> Result<bool> {
        Ok(true)
    }

    fn take_fault(&self) -> Option<FaultRecord> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
