//! The constants ring: argument blocks of batches in flight, in chunks that batches take and give back.

use super::objects::Obj;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResourceOptions};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const BYTES: usize = 16 << 20;
const CHUNK: usize = 64 << 10;
/// Blocks start at multiples of this, which is enough for the `constant` address space of every Apple GPU.
const ALIGN: usize = 64;

/// One mapped buffer, cut into chunks. A chunk belongs to one batch until the device has finished with it.
pub(super) struct Arena {
    buffer: Obj<dyn MTLBuffer>,
    device: u64,
    host: *mut u8,
    free: Mutex<Vec<usize>>,
    returned: Condvar,
}

// SAFETY: the buffer is neither resized nor replaced; a chunk's bytes are written by its holder only.
unsafe impl Send for Arena {}
// SAFETY: as for Send.
unsafe impl Sync for Arena {}

/// Chunks of one batch, filled from the front.
#[derive(Default)]
pub(super) struct Chunks {
    taken: Vec<usize>,
    used: usize,
}

/// A place in the arena.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) device: u64,
    pub(super) host: *mut u8,
}

impl Arena {
    /// `None` when the device has no room.
    pub(super) fn new(device: &objc2::runtime::ProtocolObject<dyn MTLDevice>) -> Option<Self> {
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        let buffer = device.newBufferWithLength_options(BYTES, options)?;
        let (address, host) = (buffer.gpuAddress(), buffer.contents().as_ptr().cast());
        let free = Mutex::new((0..BYTES / CHUNK).rev().collect());
        Some(Arena { buffer, device: address, host, free, returned: Condvar::new() })
    }

    pub(super) fn buffer(&self) -> &Obj<dyn MTLBuffer> {
        &self.buffer
    }

    /// Where a place is in the buffer.
    pub(super) fn offset(&self, place: Place) -> usize {
        usize::try_from(place.device - self.device).expect("INVARIANT: a place is inside the buffer")
    }

    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for `bytes` (a chunk at most); `None` when all chunks are in use.
    pub(super) fn reserve(&self, chunks: &mut Chunks, bytes: usize) -> Option<Place> {
        debug_assert!(bytes <= CHUNK);
        if chunks.taken.is_empty() || chunks.used + bytes > CHUNK {
            chunks.taken.push(self.free().pop()?);
            chunks.used = 0;
        }
        let at = chunks.taken.last()? * CHUNK + chunks.used;
        chunks.used = (chunks.used + bytes).next_multiple_of(ALIGN);
        Some(Place { device: self.device + at as u64, host: self.host.wrapping_add(at) })
    }

    /// Copies `data` in and returns its address.
    pub(super) fn push(&self, chunks: &mut Chunks, data: &[u8]) -> Option<u64> {
        let place = self.reserve(chunks, data.len())?;
        // SAFETY: the place is `data.len()` bytes of a chunk that this batch holds and the device does not yet read.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), place.host, data.len()) };
        Some(place.device)
    }

    /// Takes chunks back from a batch that has finished.
    pub(super) fn put_back(&self, chunks: &mut Chunks) {
        if !chunks.taken.is_empty() {
            self.free().append(&mut chunks.taken);
            self.returned.notify_all();
        }
        chunks.used = 0;
    }

    /// Waits a while for a chunk; whether there is one now.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        let free = self.free();
        if !free.is_empty() {
            return true;
        }
        let (free, _) = self.returned.wait_timeout(free, patience).unwrap_or_else(PoisonError::into_inner);
        !free.is_empty()
    }
}
