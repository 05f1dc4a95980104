//! Buffer kinds, allocations and the pool behind them.

mod pool;

pub(crate) use pool::Memory;

use crate::device::RawMemory;
use crate::stream::Hazards;
use serde::Serialize;
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// How long memory lives and who recycles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferKind {
    /// Weights and state: lives as long as its tensors, returned to the device at once.
    Hot,
    /// Activations: recycled through a pool that is capped in bytes and in count.
    Cold,
    /// One step's temporaries: carved from a slab that the next step reuses. See [`Stream::step`](crate::Stream::step).
    Bump,
    /// Memory of the caller's, imported with [`GpuRuntime::from_external`](crate::GpuRuntime::from_external).
    External,
}

/// Memory in use by a runtime, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryStats {
    /// Held by tensors and by commands the device has not finished.
    pub live: u64,
    /// Largest `live` so far.
    pub peak: u64,
    /// Kept by the pool for reuse.
    pub cached: u64,
    /// Live allocations (a count).
    pub live_count: u64,
    /// Cached allocations (a count).
    pub cached_count: u64,
    /// Requests that the pool answered without the device (a count).
    pub pool_hits: u64,
    /// Requests that went to the device (a count).
    pub device_allocations: u64,
    /// Left to the device because it might still use them when the runtime was dropped.
    pub leaked: u64,
}

/// One piece of device memory: the unit of hazards and of retention.
pub struct Allocation {
    raw: RawMemory,
    kind: BufferKind,
    owner: Owner,
    memory: Arc<Memory>,
    hazards: Arc<Mutex<Hazards>>,
    /// Counts the steps of a Bump slab; a tensor made in an earlier step has expired.
    generation: AtomicU64,
}

enum Owner {
    /// Returned to the pool (Cold) or to the device.
    Pool { capacity: u64, staging: bool },
    /// Kept alive by the caller's object.
    External { _keep_alive: Box<dyn Any + Send + Sync> },
}

impl std::fmt::Debug for Allocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allocation").field("raw", &self.raw).field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Allocation {
    pub(crate) fn pooled(raw: RawMemory, capacity: u64, kind: BufferKind, memory: Arc<Memory>) -> Self {
        Self::owned(raw, Owner::Pool { capacity, staging: false }, kind, memory)
    }

    pub(crate) fn staging(raw: RawMemory, capacity: u64, memory: Arc<Memory>) -> Self {
        Self::owned(raw, Owner::Pool { capacity, staging: true }, BufferKind::Hot, memory)
    }

    fn owned(raw: RawMemory, owner: Owner, kind: BufferKind, memory: Arc<Memory>) -> Self {
        Allocation { raw, kind, owner, memory, hazards: Arc::default(), generation: AtomicU64::new(0) }
    }

    pub(crate) fn external(
        raw: RawMemory,
        keep_alive: Box<dyn Any + Send + Sync>,
        memory: Arc<Memory>,
        hazards: Arc<Mutex<Hazards>>,
    ) -> Self {
        Allocation {
            raw,
            kind: BufferKind::External,
            owner: Owner::External { _keep_alive: keep_alive },
            memory,
            hazards,
            generation: AtomicU64::new(0),
        }
    }

    /// The device's description of this memory.
    pub fn raw(&self) -> &RawMemory {
        &self.raw
    }

    /// Usable bytes.
    pub fn bytes(&self) -> u64 {
        self.raw.bytes
    }

    /// The kind asked for.
    pub fn kind(&self) -> BufferKind {
        self.kind
    }

    pub(crate) fn hazards(&self) -> MutexGuard<'_, Hazards> {
        self.hazards.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether both share one hazard identity: the same allocation, or external ranges that overlap.
    pub(crate) fn same_identity(&self, other: &Allocation) -> bool {
        Arc::ptr_eq(&self.hazards, &other.hazards)
    }

    /// Where this memory starts inside its hazard identity; only external ranges can differ from 0.
    pub(crate) fn identity_offset(&self) -> u64 {
        match self.kind {
            // The host's address where there is one: a device may show the same bytes at several addresses.
            BufferKind::External if !self.raw.host.is_null() => self.raw.host as u64,
            BufferKind::External => self.raw.device,
            _ => 0,
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // The last reference is gone: commands in flight hold one each, so the device has finished.
        match self.owner {
            Owner::Pool { capacity, staging } => {
                if staging {
                    self.memory.release_staging(capacity);
                }
                self.memory.release(self.raw, capacity, self.kind);
            }
            // SAFETY: reason 4 of the contract; `_keep_alive` goes after this.
            Owner::External { .. } => unsafe { self.memory.backend().end_import(self.raw) },
        }
    }
}
