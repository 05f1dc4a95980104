//! Hazards: which unfinished accesses of an allocation a new command has to wait for.

use super::{Access, Rect, StreamCore};
use crate::device::Queue;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// How far a stream has come; what other streams and events look at.
pub(crate) struct Progress {
    pub(crate) queue: Arc<dyn Queue>,
    /// Sequence number of the last command handed to the queue.
    pub(crate) submitted: AtomicU64,
    /// A lower bound of what has completed, cheap to read.
    pub(crate) completed: AtomicU64,
    /// Commands from here on have no valid results, until the stream is recovered; `u64::MAX` when all is well.
    pub(crate) failed_from: AtomicU64,
    pub(crate) core: Weak<StreamCore>,
}

impl Progress {
    /// Whether `seq` belongs to a failed part of the stream.
    pub(crate) fn has_failed(&self, seq: u64) -> bool {
        seq >= self.failed_from.load(Ordering::Acquire)
    }

    /// Whether `seq` has completed with a result, going by what is known without asking the queue.
    fn is_settled(&self, seq: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= seq && !self.has_failed(seq)
    }

    /// Whether `seq` has completed, asking the queue if need be.
    pub(crate) fn is_done(&self, seq: u64) -> bool {
        if self.completed.load(Ordering::Acquire) >= seq {
            return true;
        }
        if self.submitted.load(Ordering::Acquire) < seq {
            return false;
        }
        let now = self.queue.completed();
        self.completed.fetch_max(now, Ordering::AcqRel);
        now >= seq
    }
}

/// A point of a stream that a segment waits for.
#[derive(Clone)]
pub(crate) struct Wait {
    pub(crate) progress: Arc<Progress>,
    pub(crate) seq: u64,
}

impl Wait {
    pub(crate) fn is_submitted(&self) -> bool {
        self.progress.submitted.load(Ordering::Acquire) >= self.seq
    }
}

/// The waits a command needs, one per stream.
pub(crate) type Waits = SmallVec<[Wait; 4]>;

pub(crate) fn add_wait(waits: &mut Waits, progress: &Arc<Progress>, seq: u64) {
    match waits.iter_mut().find(|w| Arc::ptr_eq(&w.progress, progress)) {
        Some(wait) => wait.seq = wait.seq.max(seq),
        None => waits.push(Wait { progress: progress.clone(), seq }),
    }
}

struct Entry {
    progress: Arc<Progress>,
    seq: u64,
    access: Access,
    rect: Rect,
}

/// Past this many entries the oldest ones of a stream are merged; conservative, never missing.
const MERGE_AT: usize = 24;

/// The unfinished accesses of one allocation.
#[derive(Default)]
pub(crate) struct Hazards {
    entries: SmallVec<[Entry; 4]>,
}

/// What a new access has to wait for.
#[derive(Default)]
pub(crate) struct Conflicts {
    /// A command of the same stream after its last barrier.
    pub(crate) barrier: bool,
    /// Commands of other streams.
    pub(crate) waits: Waits,
}

impl Hazards {
    /// Whether an access of `rect` meets what a failed command should have written.
    pub(crate) fn needs_failed(&self, rect: Rect) -> bool {
        let failed = |e: &Entry| e.access == Access::Write && e.progress.has_failed(e.seq);
        self.entries.iter().any(|e| failed(e) && e.rect.overlaps(&rect))
    }

    /// Records an access and collects what it conflicts with. `last_barrier` is the last command of this stream that
    /// a barrier has already ordered before everything that follows.
    pub(crate) fn register(
        &mut self,
        progress: &Arc<Progress>,
        seq: u64,
        access: Access,
        rect: Rect,
        last_barrier: u64,
        conflicts: &mut Conflicts,
    ) {
        self.entries.retain(|e| !e.progress.is_settled(e.seq));
        let mut covered = false;
        for entry in &self.entries {
            let same_stream = Arc::ptr_eq(&entry.progress, progress);
            if same_stream && entry.seq == seq {
                covered |= (entry.access == access || entry.access == Access::Write) && entry.rect == rect;
                continue;
            }
            let reads_only = entry.access == Access::Read && access == Access::Read;
            if reads_only || !entry.rect.overlaps(&rect) {
                continue;
            }
            if same_stream {
                conflicts.barrier |= entry.seq > last_barrier;
            } else if !entry.progress.is_done(entry.seq) {
                add_wait(&mut conflicts.waits, &entry.progress, entry.seq);
            }
        }
        if covered {
            return;
        }
        // A later access of the same stream, place and kind stands for the earlier one: streams are in order.
        let same = |e: &&mut Entry| Arc::ptr_eq(&e.progress, progress) && e.access == access && e.rect == rect;
        if let Some(entry) = self.entries.iter_mut().find(same) {
            entry.seq = seq;
            return;
        }
        if self.entries.len() >= MERGE_AT {
            self.merge(progress, access);
        }
        self.entries.push(Entry { progress: progress.clone(), seq, access, rect });
    }

    /// Replaces this stream's entries of one kind by their bounding range at the latest sequence number.
    fn merge(&mut self, progress: &Arc<Progress>, access: Access) {
        let mut bound: Option<(u64, u64, u64)> = None;
        self.entries.retain(|e| {
            let mine = Arc::ptr_eq(&e.progress, progress) && e.access == access;
            if mine {
                let (lo, hi, seq) = bound.unwrap_or((u64::MAX, 0, 0));
                bound = Some((lo.min(e.rect.offset), hi.max(e.rect.end()), seq.max(e.seq)));
            }
            !mine
        });
        if let Some((lo, hi, seq)) = bound {
            self.entries.push(Entry { progress: progress.clone(), seq, access, rect: Rect::linear(lo, hi - lo) });
        }
    }

    /// The unfinished commands that a host access of `rect` must wait for.
    pub(crate) fn host_access(&self, access: Access, rect: Rect) -> Waits {
        let mut waits = Waits::new();
        for entry in &self.entries {
            let reads_only = entry.access == Access::Read && access == Access::Read;
            let settled = entry.progress.is_done(entry.seq) && !entry.progress.has_failed(entry.seq);
            if !reads_only && !settled && entry.rect.overlaps(&rect) {
                add_wait(&mut waits, &entry.progress, entry.seq);
            }
        }
        waits
    }
}
