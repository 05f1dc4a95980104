//! Command buffers with what they need, and the commit that tells how it went.

use super::arena::Chunks;
use super::backend::Gpu;
use super::objects::{Obj, error};
use super::residency::made;
use super::track::Track;
use crate::error::{DeviceError, Result, Scope};
use block2::RcBlock;
use objc2::msg_send;
use objc2::rc::autoreleasepool;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSError;
use objc2_metal::{
    MTL4CommandAllocator, MTL4CommandBuffer, MTL4CommandQueue, MTL4CommandQueueError, MTL4CommitFeedback,
    MTL4CommitOptions, MTLDevice,
};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// An allocator that has grown beyond this is replaced, because it never shrinks.
const ALLOCATOR_BYTES: u64 = 32 << 20;

/// A command buffer, the memory it is encoded into, and the arguments its commands read.
pub(super) struct Slot {
    allocator: Obj<dyn MTL4CommandAllocator>,
    pub(super) buffer: Obj<dyn MTL4CommandBuffer>,
    pub(super) chunks: Chunks,
}

impl Slot {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let allocator = made("newCommandAllocator", gpu.device.newCommandAllocator())?;
        let buffer = made("newCommandBuffer", gpu.device.newCommandBuffer())?;
        Ok(Slot { allocator, buffer, chunks: Chunks::default() })
    }

    /// Makes a slot whose batch has finished as good as new.
    pub(super) fn reset(&mut self, gpu: &Gpu) {
        gpu.arena.put_back(&mut self.chunks);
        if self.allocator.allocatedSize() > ALLOCATOR_BYTES
            && let Some(fresh) = gpu.device.newCommandAllocator()
        {
            self.allocator = fresh;
        }
        self.allocator.reset();
    }

    pub(super) fn begin(&self) {
        self.buffer.beginCommandBufferWithAllocator(&self.allocator);
    }
}

/// Commits an ended command buffer. `track` hears of its end under `ticket`, and so does its event.
pub(super) fn commit(
    queue: &ProtocolObject<dyn MTL4CommandQueue>,
    buffer: &ProtocolObject<dyn MTL4CommandBuffer>,
    track: &Arc<Track>,
    ticket: u64,
) {
    let options = MTL4CommitOptions::new();
    let listener = Arc::clone(track);
    let handler = RcBlock::new(move |feedback: NonNull<ProtocolObject<dyn MTL4CommitFeedback>>| {
        // SAFETY: Metal passes an object that lives for the length of this call.
        let outcome = autoreleasepool(|_| outcome(unsafe { feedback.as_ref() }));
        listener.hear(ticket, outcome);
    });
    // SAFETY: the block is one of the right type; the options copy it.
    unsafe { options.addFeedbackHandler(RcBlock::as_ptr(&handler)) };
    let mut buffer = NonNull::from(buffer);
    // SAFETY: one valid command buffer, ended and not committed since; the track keeps it and all that it touches until
    // its feedback has come.
    unsafe { queue.commit_count_options(NonNull::from(&mut buffer), 1, &options) };
    queue.signalEvent_value(ProtocolObject::from_ref(&*track.event), ticket);
}

/// The time the GPU took, or what went wrong.
fn outcome(feedback: &ProtocolObject<dyn MTL4CommitFeedback>) -> Result<Duration, DeviceError> {
    if let Some(found) = feedback.error() {
        return Err(error("commit", &found, "", scope(&found)));
    }
    // SAFETY: both are properties of MTL4CommitFeedback, in seconds (CFTimeInterval).
    let (start, end): (f64, f64) = unsafe { (msg_send![feedback, GPUStartTime], msg_send![feedback, GPUEndTime]) };
    Ok(Duration::try_from_secs_f64(end - start).unwrap_or_default())
}

/// Whether the device is gone for this process, or only what was committed.
fn scope(error: &NSError) -> Scope {
    let code = MTL4CommandQueueError(error.code());
    let gone = [
        MTL4CommandQueueError::NotPermitted,
        MTL4CommandQueueError::DeviceRemoved,
        MTL4CommandQueueError::AccessRevoked,
    ];
    if gone.contains(&code) { Scope::Runtime } else { Scope::Stream }
}
