//! What the driver found wrong, and what it counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Findings are kept up to this many; the rest is counted.
const KEPT: usize = 64;

/// Misuse of Metal by the host code.
#[derive(Default)]
pub struct Report {
    found: Mutex<Vec<String>>,
    total: AtomicU64,
}

impl Report {
    pub fn add(&self, text: String) {
        self.total.fetch_add(1, Ordering::Relaxed);
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.len() < KEPT {
            found.push(text);
        }
    }

    /// Takes all findings.
    pub fn take(&self) -> Vec<String> {
        let mut found = std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner));
        let more = self.total.swap(0, Ordering::Relaxed).saturating_sub(found.len() as u64);
        if more > 0 {
            found.push(format!("and {more} more"));
        }
        found
    }
}

/// For findings that belong to no device.
pub fn note(text: &str) {
    eprintln!("mock: {text}");
    LOOSE.add(text.to_owned());
}

static LOOSE: Report = Report { found: Mutex::new(Vec::new()), total: AtomicU64::new(0) };

/// Findings that belong to no device.
pub fn loose() -> Vec<String> {
    LOOSE.take()
}

/// How often the host code called what costs something.
#[derive(Default)]
pub struct Counters {
    pub dispatches: AtomicU64,
    pub blits: AtomicU64,
    pub executions: AtomicU64,
    pub indirect_barriers: AtomicU64,
    pub encoder_barriers: AtomicU64,
    pub queue_barriers: AtomicU64,
    pub commits: AtomicU64,
    pub residency_commits: AtomicU64,
    pub allocators: AtomicU64,
    pub pipelines: AtomicU64,
    pub archived: AtomicU64,
    pub compiling: AtomicU64,
    pub compiling_peak: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Dispatches encoded.
    pub dispatches: u64,
    /// Copies and fills encoded.
    pub blits: u64,
    /// Executions of indirect command buffers; their commands count as dispatches.
    pub executions: u64,
    /// Barriers of indirect commands that were run.
    pub indirect_barriers: u64,
    /// Barriers inside an encoder.
    pub encoder_barriers: u64,
    /// Barriers against earlier encoders of the queue.
    pub queue_barriers: u64,
    /// Command buffers committed.
    pub commits: u64,
    /// Commits of residency sets.
    pub residency_commits: u64,
    /// Command allocators made.
    pub allocators: u64,
    /// Pipelines compiled.
    pub pipelines: u64,
    /// Pipelines found in archives.
    pub archived: u64,
    /// Pipelines that were compiled at the same time, at most.
    pub compiling_peak: u64,
}

impl Counters {
    pub fn read(&self) -> Counts {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Counts {
            dispatches: load(&self.dispatches),
            blits: load(&self.blits),
            executions: load(&self.executions),
            indirect_barriers: load(&self.indirect_barriers),
            encoder_barriers: load(&self.encoder_barriers),
            queue_barriers: load(&self.queue_barriers),
            commits: load(&self.commits),
            residency_commits: load(&self.residency_commits),
            allocators: load(&self.allocators),
            pipelines: load(&self.pipelines),
            archived: load(&self.archived),
            compiling_peak: load(&self.compiling_peak),
        }
    }
}

/// Counts one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
