//! Devices, and the contract that the core has with them.
//!
//! # The contract
//!
//! The core validates every call, plans it, tracks hazards, retains memory and orders submissions. A device receives
//! whole batches of [`Command`](crate::stream::Command)s and executes them. It never validates user input again
//! (`debug_assert` only), and no module outside `device/` knows which device it is.
//!
//! Unsafe functions of [`Backend`] and [`Queue`] are unsafe because the device touches raw memory on the caller's word:
//! 1. every binding lies inside its allocation, and the allocation stays alive until the batch has completed;
//! 2. two commands that conflict are separated by `barrier` on the later one, or by a fence where the queues differ;
//! 3. `submit` calls of one queue do not run at the same time;
//! 4. memory passed to `free` is not used by any batch.

#[cfg(any(feature = "cuda", target_vendor = "apple", tessl_mock))]
mod cache;
pub mod cpu;
pub mod cuda;
mod info;
#[cfg(any(feature = "cuda", target_vendor = "apple", tessl_mock))]
mod labels;
pub mod metal;
pub mod null;
mod profile;
mod simt;

pub use info::{Device, DeviceInfo, DeviceKind};
pub use profile::{DeviceProfile, Isa, PROFILES};

use crate::error::{Error, FaultKind, Result};
use crate::library::Library;
use crate::plan::KernelKey;
use crate::quant::QLayout;
use crate::stream::Batch;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Raw memory of a device.
#[derive(Clone, Copy, Debug)]
pub struct RawMemory {
    /// The address kernels use.
    pub device: u64,
    /// The address the host may use, or null where memory is not mapped.
    pub host: *mut u8,
    /// Size in bytes.
    pub bytes: u64,
    /// The device's own bookkeeping.
    pub token: u64,
}

// SAFETY: an address is a number; who may follow it, and when, is the contract above.
unsafe impl Send for RawMemory {}
// SAFETY: as for Send.
unsafe impl Sync for RawMemory {}

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryUse {
    /// Tensors: fast for kernels.
    Device,
    /// Staging: mapped for the host, reachable by copies.
    Staging,
}

/// A compiled kernel of one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PipelineId(pub u32);

/// The first fault that a stream's kernels reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRecord {
    /// Low 32 bits of the command's sequence number.
    pub seq: u32,
    /// What was found.
    pub kind: FaultKind,
    /// Where.
    pub index: u64,
    /// The value found there.
    pub value: i64,
}

/// 32-bit words of a status block, in which kernels report their first fault.
pub const STATUS_WORDS: usize = 8;

impl FaultRecord {
    /// Reads a status block as the prelude's `gpu_fault` writes it: state, kind, sequence, 0, index and value.
    pub fn decode(words: [u32; STATUS_WORDS]) -> Option<Self> {
        let wide = |i: usize| u64::from(words[i]) | u64::from(words[i + 1]) << 32;
        (words[0] != 0).then(|| FaultRecord {
            seq: words[2],
            kind: FaultKind::from_code(words[1]),
            index: wide(4),
            value: wide(6).cast_signed(),
        })
    }
}

/// One opened device.
pub trait Backend: Send + Sync + 'static {
    /// What this device is.
    fn info(&self) -> &DeviceInfo;

    /// What plans are made from.
    fn profile(&self) -> &DeviceProfile;

    /// Allocates memory; contents are unspecified.
    ///
    /// # Errors
    /// `OutOfMemory`, after which the device is usable as before.
    fn allocate(&self, bytes: u64, usage: MemoryUse) -> Result<RawMemory>;

    /// Returns memory to the device.
    ///
    /// # Safety
    /// Reason 4 of the contract.
    unsafe fn free(&self, memory: RawMemory);

    /// Compiles or finds a kernel. Thread-safe; called once per variant by the core, which caches the answer.
    ///
    /// # Errors
    /// `Device` with the compiler's text, `Name` for an unknown kernel.
    fn pipeline(&self, key: &KernelKey) -> Result<PipelineId>;

    /// Adds the caller's own kernels. A name that exists already is an error.
    ///
    /// # Errors
    /// `Name`, `Unsupported` for a library made for another device, `Device` with the compiler's text.
    fn add_library(&self, library: Library) -> Result<()>;

    /// Makes a queue.
    ///
    /// # Errors
    /// `Device` or `OutOfMemory`.
    fn queue(&self) -> Result<Arc<dyn Queue>>;

    /// Prepares a captured batch for repeated submission, where the device has a faster way than submitting it again.
    ///
    /// # Errors
    /// `Device`.
    fn bake(&self, _batch: &Batch) -> Result<Option<Arc<dyn Any + Send + Sync>>> {
        Ok(None)
    }

    /// How many commands of a batch that [`bake`](Self::bake) has prepared are run without being encoded again.
    fn prebuilt(&self, _baked: &(dyn Any + Send + Sync)) -> usize {
        0
    }

    /// Makes memory of the caller's usable by kernels, without copying it.
    ///
    /// # Errors
    /// `Unsupported` where the device cannot reach it.
    ///
    /// # Safety
    /// `pointer` points to `bytes` bytes that stay valid until [`end_import`](Self::end_import).
    unsafe fn import(&self, pointer: *mut u8, bytes: u64) -> Result<RawMemory> {
        let host = if self.info().unified_memory { pointer } else { std::ptr::null_mut() };
        Ok(RawMemory { device: pointer as u64, host, bytes, token: 0 })
    }

    /// Forgets memory that [`import`](Self::import) made usable.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    unsafe fn end_import(&self, _memory: RawMemory) {}

    /// How many allocations the device allows at once.
    fn allocation_limit(&self) -> u64 {
        u64::MAX
    }
}

/// A point in a queue that another queue waits for.
pub struct Fence {
    /// The queue waited for.
    pub queue: Arc<dyn Queue>,
    /// Its signal value.
    pub value: u64,
}

/// An in-order queue of batches.
pub trait Queue: Send + Sync + 'static {
    /// Executes `batch` after every fence; `signal` is complete when all its commands are. Values only grow.
    /// A device that executes on the calling thread returns when the batch has finished.
    ///
    /// # Errors
    /// `Device` or `Panicked`; the signal then still completes, so that no waiter hangs.
    ///
    /// # Safety
    /// Reasons 1 to 3 of the contract.
    unsafe fn submit(&self, batch: &Batch, fences: &[Fence], signal: u64) -> Result<()>;

    /// Submits a batch that [`Backend::bake`] has prepared. Everything else is as in `submit`.
    ///
    /// # Errors
    /// As `submit`.
    ///
    /// # Safety
    /// Reasons 1 to 3 of the contract; `baked` was made from `batch` by this queue's backend.
    unsafe fn replay(
        &self,
        _baked: &(dyn Any + Send + Sync),
        batch: &Batch,
        fences: &[Fence],
        signal: u64,
    ) -> Result<()> {
        // SAFETY: as this function.
        unsafe { self.submit(batch, fences, signal) }
    }

    /// The last signal value completed.
    fn completed(&self) -> u64;

    /// Blocks until `signal` has completed (true) or the deadline has passed (false).
    ///
    /// # Errors
    /// `Device` when the device has failed.
    fn wait(&self, signal: u64, deadline: Option<Instant>) -> Result<bool>;

    /// Takes the first fault reported by kernels of completed batches.
    fn take_fault(&self) -> Option<FaultRecord>;

    /// Takes the first error of a batch that failed after `submit` had returned, with the signal it was submitted with.
    fn take_failure(&self) -> Option<(u64, Error)> {
        None
    }

    /// Time the device has spent on the batches that have completed, where it can tell.
    fn device_time(&self) -> Option<Duration> {
        None
    }

    /// For the device itself, to find its own queue behind a [`Fence`].
    fn as_any(&self) -> &dyn Any;
}

/// The order of quantised weights that products read fastest, for formats and shapes that have it.
pub(crate) fn best_layout(profile: &DeviceProfile) -> QLayout {
    if profile.kind == DeviceKind::Cpu && cpu::prefers_rows16(profile.isa) { QLayout::Rows16 } else { QLayout::Rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_block_decodes_to_what_the_prelude_writes() {
        assert_eq!(FaultRecord::decode([0; STATUS_WORDS]), None);
        let record = FaultRecord::decode([1, 1, 77, 0, 5, 1, u32::MAX, u32::MAX]).unwrap();
        let wanted = FaultRecord { seq: 77, kind: FaultKind::IndexOutOfRange, index: (1 << 32) + 5, value: -1 };
        assert_eq!(record, wanted);
    }
}
