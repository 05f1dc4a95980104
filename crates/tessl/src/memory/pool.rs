//! Allocation with a cap, a cache of Cold memory and counters.

use super::{Allocation, BufferKind, MemoryStats};
use crate::device::{Backend, MemoryUse, RawMemory};
use crate::error::{Error, Result};
use crate::stream::Hazards;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Small requests are rounded up to this, so that every tensor starts on its own cache lines.
const GRANULE: u64 = 256;
/// Up to here sizes are rounded to powers of two; above, to [`PAGE`].
const POWER_OF_TWO_LIMIT: u64 = 1 << 20;
const PAGE: u64 = 64 << 10;
/// A cached piece serves a request of at least this share of its size (in eighths).
const FIT_EIGHTHS: u64 = 7;

/// The memory of one runtime.
pub(crate) struct Memory {
    backend: Arc<dyn Backend>,
    state: Mutex<State>,
    limit: u64,
    /// One identity for everything imported: ranges may overlap in any way, and rectangles tell them apart.
    external: Arc<Mutex<Hazards>>,
    /// Streams that have failed and not been recovered; while there are none, encoding need not look for them.
    failed_streams: AtomicUsize,
}

struct State {
    /// Free Cold memory by capacity.
    cache: BTreeMap<u64, SizeClass>,
    /// Counts releases; classes remember their last one.
    clock: u64,
    /// Live staging memory, in bytes.
    staging: u64,
    stats: MemoryStats,
    cache_bytes: u64,
    cache_count: u64,
}

/// Free pieces of one capacity.
#[derive(Default)]
struct SizeClass {
    pieces: Vec<RawMemory>,
    /// Clock of the last piece put in or taken out.
    used: u64,
}

impl State {
    /// Takes pieces of the sizes that were longest not used out of the cache until `capacity` more bytes fit.
    fn make_room(&mut self, capacity: u64, evicted: &mut Vec<RawMemory>) -> bool {
        if capacity > self.cache_bytes || self.cache_count == 0 {
            return false;
        }
        while self.stats.cached + capacity > self.cache_bytes || self.stats.cached_count >= self.cache_count {
            let oldest = self.cache.iter().min_by_key(|(_, class)| class.used).map(|(&capacity, _)| capacity);
            let Some(oldest) = oldest else { return false };
            evicted.extend(self.take(oldest));
        }
        true
    }

    /// A cached piece of exactly this capacity.
    fn take(&mut self, capacity: u64) -> Option<RawMemory> {
        let class = self.cache.get_mut(&capacity)?;
        let raw = class.pieces.pop();
        if class.pieces.is_empty() {
            self.cache.remove(&capacity);
        }
        if raw.is_some() {
            self.stats.cached -= capacity;
            self.stats.cached_count -= 1;
        }
        raw
    }
}

/// The bytes really taken for a request.
fn capacity_of(bytes: u64) -> Option<u64> {
    if bytes <= POWER_OF_TWO_LIMIT {
        Some(bytes.max(GRANULE).next_power_of_two())
    } else {
        bytes.checked_next_multiple_of(PAGE)
    }
}

impl Memory {
    pub(crate) fn new(backend: Arc<dyn Backend>, limit: Option<u64>, cache_bytes: u64, cache_count: u64) -> Arc<Self> {
        let state = State {
            cache: BTreeMap::new(),
            clock: 0,
            staging: 0,
            stats: MemoryStats::default(),
            cache_bytes,
            cache_count,
        };
        Arc::new(Memory {
            backend,
            state: Mutex::new(state),
            limit: limit.unwrap_or(u64::MAX),
            external: Arc::default(),
            failed_streams: AtomicUsize::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Allocates `bytes`; contents are unspecified.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64, kind: BufferKind) -> Result<Arc<Allocation>> {
        let capacity = capacity_of(bytes).ok_or(Error::TooLarge {
            op: "allocate",
            what: "the size in bytes",
            value: bytes,
            limit: u64::MAX - PAGE,
        })?;
        let raw = match self.take_cached(capacity, kind) {
            Some(found) => found,
            None => (self.allocate_raw(capacity, MemoryUse::Device)?, capacity),
        };
        let (mut raw, capacity) = raw;
        raw.bytes = bytes;
        Ok(Arc::new(Allocation::pooled(raw, capacity, kind, self.clone())))
    }

    /// Allocates host-mapped staging memory.
    pub(crate) fn allocate_staging(self: &Arc<Self>, bytes: u64) -> Result<Arc<Allocation>> {
        let capacity = bytes.max(GRANULE);
        let raw = self.allocate_raw(capacity, MemoryUse::Staging)?;
        self.state().staging += capacity;
        Ok(Arc::new(Allocation::staging(raw, capacity, self.clone())))
    }

    fn take_cached(&self, capacity: u64, kind: BufferKind) -> Option<(RawMemory, u64)> {
        if kind != BufferKind::Cold {
            return None;
        }
        let mut state = self.state();
        let largest = capacity.saturating_mul(8) / FIT_EIGHTHS;
        let (&found, _) = state.cache.range(capacity..=largest).next()?;
        state.clock += 1;
        let clock = state.clock;
        if let Some(class) = state.cache.get_mut(&found) {
            class.used = clock;
        }
        let raw = state.take(found)?;
        let stats = &mut state.stats;
        stats.pool_hits += 1;
        stats.live += found;
        stats.live_count += 1;
        stats.peak = stats.peak.max(stats.live);
        Some((raw, found))
    }

    /// Asks the device; trims the cache once when the device or the limit says no.
    fn allocate_raw(&self, capacity: u64, usage: MemoryUse) -> Result<RawMemory> {
        for attempt in 0..2 {
            let reserved = {
                let mut state = self.state();
                let held = state.stats.live + state.stats.cached;
                let fits = held.checked_add(capacity).is_some_and(|total| total <= self.limit)
                    && state.stats.live_count + state.stats.cached_count < self.backend.allocation_limit();
                if fits {
                    state.stats.live += capacity;
                    state.stats.live_count += 1;
                }
                fits
            };
            if reserved {
                match self.backend.allocate(capacity, usage) {
                    Ok(raw) => {
                        let mut state = self.state();
                        state.stats.device_allocations += 1;
                        state.stats.peak = state.stats.peak.max(state.stats.live);
                        return Ok(raw);
                    }
                    Err(error) => {
                        let mut state = self.state();
                        state.stats.live -= capacity;
                        state.stats.live_count -= 1;
                        if !matches!(error, Error::OutOfMemory { .. }) {
                            return Err(error);
                        }
                    }
                }
            }
            if attempt == 0 {
                self.trim();
            }
        }
        let state = self.state();
        let in_use = state.stats.live + state.stats.cached;
        let device = self.backend.info().memory_bytes;
        let limit = if self.limit != u64::MAX || device == 0 { self.limit } else { device };
        Err(Error::OutOfMemory { requested: capacity, in_use, limit })
    }

    pub(crate) fn release(&self, mut raw: RawMemory, capacity: u64, kind: BufferKind) {
        raw.bytes = capacity;
        let mut evicted = Vec::new();
        {
            let mut state = self.state();
            state.stats.live -= capacity;
            state.stats.live_count -= 1;
            if kind == BufferKind::Cold && state.make_room(capacity, &mut evicted) {
                state.clock += 1;
                let clock = state.clock;
                state.stats.cached += capacity;
                state.stats.cached_count += 1;
                let class = state.cache.entry(capacity).or_default();
                class.pieces.push(raw);
                class.used = clock;
            } else {
                evicted.push(raw);
            }
        }
        for raw in evicted {
            // SAFETY: reason 4 of the contract: the last reference is gone, so no batch uses this memory.
            unsafe { self.backend.free(raw) };
        }
    }

    /// Staging memory in use, in bytes.
    pub(crate) fn staging_bytes(&self) -> u64 {
        self.state().staging
    }

    pub(crate) fn release_staging(&self, capacity: u64) {
        self.state().staging -= capacity;
    }

    pub(crate) fn has_failed_streams(&self) -> bool {
        self.failed_streams.load(Ordering::Acquire) > 0
    }

    /// A stream has failed (true) or been recovered.
    pub(crate) fn count_failed_stream(&self, failed: bool) {
        if failed {
            self.failed_streams.fetch_add(1, Ordering::AcqRel);
        } else {
            self.failed_streams.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Counts memory that is left to the device for good.
    pub(crate) fn count_leak(&self, bytes: u64) {
        self.state().stats.leaked += bytes;
    }

    /// Imports memory of the caller's; all of it shares one hazard identity.
    pub(crate) fn import(self: &Arc<Self>, raw: RawMemory, keep_alive: Box<dyn Any + Send + Sync>) -> Arc<Allocation> {
        Arc::new(Allocation::external(raw, keep_alive, self.clone(), self.external.clone()))
    }

    /// Gives all cached memory back to the device.
    pub(crate) fn trim(&self) {
        let cache = {
            let mut state = self.state();
            state.stats.cached = 0;
            state.stats.cached_count = 0;
            std::mem::take(&mut state.cache)
        };
        for raw in cache.into_values().flat_map(|class| class.pieces) {
            // SAFETY: reason 4 of the contract: cached memory belongs to no tensor and no batch.
            unsafe { self.backend.free(raw) };
        }
    }

    pub(crate) fn set_cache_limit(&self, bytes: u64) {
        let over = {
            let mut state = self.state();
            state.cache_bytes = bytes;
            state.stats.cached > bytes
        };
        if over {
            self.trim();
        }
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.state().stats
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.trim();
    }
}

#[cfg(test)]
mod tests {
    use super::capacity_of;

    #[test]
    fn rounding_wastes_little_above_a_mebibyte() {
        assert_eq!(capacity_of(0), Some(256));
        assert_eq!(capacity_of(257), Some(512));
        assert_eq!(capacity_of(1 << 20), Some(1 << 20));
        assert_eq!(capacity_of((1 << 20) + 1), Some((1 << 20) + (64 << 10)));
        assert_eq!(capacity_of(u64::MAX), None);
    }
}
