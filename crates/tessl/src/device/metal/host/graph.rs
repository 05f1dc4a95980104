//! Captured batches: their arguments are written once, into a buffer of their own; a replay encodes the rest again.

use super::backend::Gpu;
use super::objects::{Obj, Own};
use super::residency::made;
use crate::error::Result;
use crate::stream::Batch;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResourceOptions};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The argument blocks of a captured batch.
pub(super) struct Baked {
    gpu: Arc<Gpu>,
    args: Option<Own<Obj<dyn MTLBuffer>>>,
    /// Address of the first block.
    pub(super) base: u64,
}

// SAFETY: the buffer is written once, by `bake`, and released by `drop`; in between only its address is used.
unsafe impl Sync for Baked {}

pub(super) fn bake(gpu: &Arc<Gpu>, batch: &Batch) -> Result<Baked> {
    let bytes = batch.all_args();
    let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
    let buffer = made("newBuffer", gpu.device.newBufferWithLength_options(bytes.len().max(1), options))?;
    // SAFETY: the buffer is at least as long as the blocks, mapped, and not yet known to the device.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.contents().as_ptr().cast(), bytes.len()) };
    gpu.residency.add(&buffer);
    let base = buffer.gpuAddress();
    Ok(Baked { gpu: gpu.clone(), args: Some(Own(buffer)), base })
}

impl Baked {
    /// Whether it was made for this device.
    pub(super) fn belongs_to(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }
}

impl Drop for Baked {
    fn drop(&mut self) {
        let Some(Own(buffer)) = self.args.take() else { return };
        if self.gpu.lost.load(Ordering::Acquire) {
            std::mem::forget(buffer);
        } else {
            self.gpu.residency.remove(buffer);
        }
    }
}
