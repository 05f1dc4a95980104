//! The block in which kernels report their first fault: on the device, and its copy on the host.

use super::context::Context;
use super::driver::{CUstream, number};
use crate::device::{FaultRecord, STATUS_WORDS};
use crate::error::Result;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

const BYTES: usize = STATUS_WORDS * 4;

/// Device memory of one block. Cleared before each batch that may report, so a record belongs to its batch.
pub(super) struct StatusBlock {
    context: Arc<Context>,
    /// The address kernels receive.
    pub(super) address: u64,
}

impl StatusBlock {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        context.enter()?;
        let mut address = 0;
        // SAFETY: the context is current and the pointer is valid for one address.
        let code = unsafe { (context.driver.f.memory_allocate)(&mut address, BYTES) };
        context.check(code, "cuMemAlloc")?;
        Ok(StatusBlock { context: context.clone(), address })
    }

    /// Enqueues the reset.
    pub(super) fn clear(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the block is BYTES long and lives until the queue or graph that owns it has drained.
        let code = unsafe { (self.context.driver.f.fill)(self.address, 0, BYTES, stream) };
        self.context.check(code, "cuMemsetD8Async")
    }

    /// Enqueues the copy to the host.
    pub(super) fn fetch(&self, slot: &HostSlot, stream: CUstream) -> Result<()> {
        // SAFETY: both sides are BYTES long; the slot belongs to this batch until its event has passed.
        let code = unsafe { (self.context.driver.f.copy)(slot.0 as u64, self.address, BYTES, stream) };
        self.context.check(code, "cuMemcpyAsync")
    }
}

impl Drop for StatusBlock {
    fn drop(&mut self) {
        if self.context.enter_quietly() {
            // SAFETY: allocated in `new`, freed once; the free waits for the device.
            unsafe { (self.context.driver.f.memory_free)(self.address) };
        }
    }
}

/// Pinned host memory for one copy of a block.
pub(super) struct HostSlot(*mut c_void);

impl HostSlot {
    /// The context must be current.
    pub(super) fn new(context: &Context) -> Result<Self> {
        let mut memory = ptr::null_mut();
        // SAFETY: the caller made the context current; the pointer is valid for one address.
        let code = unsafe { (context.driver.f.host_allocate)(&mut memory, BYTES, number::HOST_PORTABLE_MAPPED) };
        context.check(code, "cuMemHostAlloc")?;
        Ok(HostSlot(memory))
    }

    /// What the kernels of the batch reported. The batch's event must have passed.
    pub(super) fn read(&self) -> Option<FaultRecord> {
        // SAFETY: the slot is STATUS_WORDS words long, aligned to a page, and the device has finished writing it.
        FaultRecord::decode(unsafe { self.0.cast::<[u32; STATUS_WORDS]>().read_volatile() })
    }

    /// Returns the memory. The device must have finished with it.
    pub(super) fn free(self, context: &Context) {
        // SAFETY: allocated in `new`, freed once.
        unsafe { (context.driver.f.host_free)(self.0) };
    }
}
