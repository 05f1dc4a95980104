//! The claim and completion protocol of a region, apart from threads and parking so that loom can explore it.

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Hands out the chunks of one region after another.
///
/// `ticket` holds the region's generation (upper half) and the chunks not yet claimed (lower half). A claim is a
/// compare-exchange on both, so a thread that was away while the region ended cannot claim a chunk of the next one
/// with the old region's pointer.
pub(super) struct Gate<R> {
    ticket: AtomicU64,
    region: AtomicPtr<R>,
    completed: AtomicU32,
}

impl<R> Gate<R> {
    pub(super) fn new() -> Self {
        Gate { ticket: AtomicU64::new(0), region: AtomicPtr::new(std::ptr::null_mut()), completed: AtomicU32::new(0) }
    }

    /// Offers `chunks` chunks. Only one thread opens regions, and only after the last one completed.
    pub(super) fn open(&self, region: &R, chunks: u32) {
        let generation = (self.ticket.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.completed.store(0, Ordering::Relaxed);
        self.region.store(std::ptr::from_ref(region).cast_mut(), Ordering::Relaxed);
        self.ticket.store((generation << 32) | u64::from(chunks), Ordering::SeqCst);
    }

    /// Whether there is a chunk to claim.
    pub(super) fn is_open(&self) -> bool {
        low(self.ticket.load(Ordering::SeqCst)) > 0
    }

    /// Claims a chunk: its region, and how many chunks were unclaimed (this one included). The region is alive until
    /// [`complete`](Gate::complete) is called for this chunk.
    pub(super) fn claim(&self) -> Option<(*const R, u32)> {
        let mut ticket = self.ticket.load(Ordering::Acquire);
        while low(ticket) > 0 {
            let region = self.region.load(Ordering::Relaxed);
            match self.ticket.compare_exchange_weak(ticket, ticket - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((region, low(ticket))),
                Err(now) => ticket = now,
            }
        }
        None
    }

    /// Marks a claimed chunk as done; returns how many are.
    pub(super) fn complete(&self) -> u32 {
        self.completed.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Chunks done.
    pub(super) fn completed(&self) -> u32 {
        self.completed.load(Ordering::SeqCst)
    }
}

#[allow(clippy::cast_possible_truncation)] // The lower half is what is asked for.
fn low(ticket: u64) -> u32 {
    ticket as u32
}

#[cfg(loom)]
#[cfg(test)]
mod loom_tests {
    use super::Gate;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// Two regions in a row on the caller's stack, one worker that may come at any moment: every chunk runs once, with
    /// its own region, and the caller sees what the worker wrote.
    #[test]
    fn chunks_are_claimed_once_and_never_from_a_dead_region() {
        struct Region {
            id: usize,
            cells: [UnsafeCell<usize>; 2],
        }
        fn help(gate: &Gate<Region>) {
            while let Some((region, remaining)) = gate.claim() {
                // SAFETY: claimed and not yet completed.
                let region = unsafe { &*region };
                // SAFETY: the chunk belongs to this thread; loom reports any other access.
                region.cells[2 - remaining as usize].with_mut(|p| unsafe { *p += region.id });
                gate.complete();
            }
        }
        loom::model(|| {
            let gate = Arc::new(Gate::<Region>::new());
            let other = Arc::clone(&gate);
            let worker = thread::spawn(move || help(&other));
            for id in 1..=2 {
                let region = Region { id, cells: [UnsafeCell::new(0), UnsafeCell::new(0)] };
                gate.open(&region, 2);
                help(&gate);
                while gate.completed() < 2 {
                    thread::yield_now();
                }
                for cell in &region.cells {
                    // SAFETY: every chunk is complete.
                    cell.with(|p| assert_eq!(unsafe { *p }, id));
                }
            }
            worker.join().expect("no assertion failed");
        });
    }
}
