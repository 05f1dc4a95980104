//! The fork-join pool of the CPU device.
//!
//! General pools cost more than a decode-sized region here: waking a sleeping thread takes tens of microseconds. So
//! workers spin for a short while after each region before they park, chunks are claimed one by one, and the caller
//! takes part: a worker that is absent (parked, or descheduled) costs nothing unless it holds a chunk.
//!
//! INVARIANT: a region allocates nothing and waits only for chunks that another thread has claimed. A region therefore
//! also finishes in a forked child, where the workers do not exist.

mod gate;
#[cfg(test)]
mod tests;

use gate::Gate;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a worker looks for the next region before it parks, and the caller for the last chunk before it parks.
/// Longer than the gap between the regions of one decode step, shorter than the time slice of a shared machine.
const SPIN: Duration = Duration::from_micros(40);

/// Polls between two looks at the clock.
const POLLS: u32 = 64;

/// Threads that share one region's chunks with the caller.
pub struct Pool {
    threads: usize,
    shared: Arc<Shared>,
    workers: OnceLock<Workers>,
}

struct Workers {
    handles: Vec<JoinHandle<()>>,
    process: u32,
}

struct Shared {
    gate: Gate<Region>,
    /// A region is running; others run on their callers alone.
    busy: AtomicBool,
    stop: AtomicBool,
    /// The caller of the running region is parked, or about to be.
    waiting: AtomicBool,
    /// Per worker: it is parked, or about to be.
    parked: Vec<AtomicBool>,
}

/// One region, on the caller's stack. Workers reach it only between claiming a chunk and completing it.
struct Region {
    /// The lifetime is erased: INVARIANT: `run` returns only when every claimed chunk is complete.
    work: *const (dyn Fn(usize) + Sync),
    chunks: usize,
    caller: Thread,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` points to a `Sync` closure that outlives every use (see `Region::work`).
unsafe impl Sync for Region {}

impl Region {
    /// Runs chunk `i`, keeping the first panic.
    fn chunk(&self, i: usize) {
        // SAFETY: the caller of `run` holds the closure until every claimed chunk is complete.
        let work = unsafe { &*self.work };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(i))) {
            self.panic.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(payload);
        }
    }
}

impl Pool {
    /// A pool that uses `threads` threads, the caller included. Workers start with the first parallel region.
    pub fn new(threads: usize) -> Self {
        let threads = threads.max(1);
        let shared = Shared {
            gate: Gate::new(),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            parked: (1..threads).map(|_| AtomicBool::new(false)).collect(),
        };
        Pool { threads, shared: Arc::new(shared), workers: OnceLock::new() }
    }

    /// Threads this pool uses at most, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work(0..chunks)` once each and returns when all are done. The caller takes part; a region that finds the
    /// pool busy, a nested one for instance, runs on its caller alone.
    ///
    /// # Panics
    /// When a chunk panicked: every other chunk still runs, then the first panic goes on here.
    pub fn run(&self, chunks: usize, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes; the region ends before `work` does, as `Region::work` asks.
        let work: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
        let region = Region { work, chunks, caller: thread::current(), panic: Mutex::new(None) };
        match u32::try_from(chunks) {
            Ok(count) if count > 1 && self.threads > 1 && !self.shared.busy.swap(true, Ordering::Acquire) => {
                self.share(&region, count);
                self.shared.busy.store(false, Ordering::Release);
            }
            _ => (0..chunks).for_each(|i| region.chunk(i)),
        }
        if let Some(payload) = region.panic.into_inner().unwrap_or_else(|e| e.into_inner()) {
            resume_unwind(payload);
        }
    }

    fn share(&self, region: &Region, count: u32) {
        let workers = self.workers.get_or_init(|| Workers::start(&self.shared));
        let shared = &*self.shared;
        shared.gate.open(region, count);
        let helpers = region.chunks - 1;
        let parked = workers.handles.iter().zip(&shared.parked).take(helpers);
        // The gate opened before these flags are read, and a worker sets its flag before its last look at the gate
        // (all sequentially consistent), so either it sees the region or it is woken here.
        parked.filter(|(_, p)| p.swap(false, Ordering::SeqCst)).for_each(|(h, _)| h.thread().unpark());
        while let Some((_, remaining)) = shared.gate.claim() {
            region.chunk(region.chunks - remaining as usize);
            shared.gate.complete();
        }
        let done = || shared.gate.completed() == count;
        if !spin_until(&done) {
            shared.waiting.store(true, Ordering::SeqCst);
            while !done() {
                thread::park();
            }
            shared.waiting.store(false, Ordering::SeqCst);
        }
    }
}

/// Polls `ready` for [`SPIN`].
fn spin_until(ready: &dyn Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..POLLS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return false;
        }
    }
}

impl Workers {
    fn start(shared: &Arc<Shared>) -> Self {
        let spawn = |i: usize| {
            let shared = Arc::clone(shared);
            thread::Builder::new().name(format!("tessl-{i}")).spawn(move || worker(&shared, i)).ok()
        };
        // A system that refuses a thread leaves a smaller pool.
        Workers { handles: (0..shared.parked.len()).map_while(spawn).collect(), process: std::process::id() }
    }
}

fn worker(shared: &Shared, index: usize) {
    let parked = &shared.parked[index];
    let wanted = || shared.gate.is_open() || shared.stop.load(Ordering::SeqCst);
    while !shared.stop.load(Ordering::SeqCst) {
        help(shared);
        if spin_until(&wanted) {
            continue;
        }
        parked.store(true, Ordering::SeqCst);
        while !wanted() && parked.load(Ordering::SeqCst) {
            thread::park();
        }
        parked.store(false, Ordering::SeqCst);
    }
}

/// Takes chunks until none is left.
fn help(shared: &Shared) {
    while let Some((region, remaining)) = shared.gate.claim() {
        // SAFETY: a claimed chunk keeps its region alive until `complete`.
        let region = unsafe { &*region };
        let (chunks, caller) = (region.chunks, region.caller.clone());
        region.chunk(chunks - remaining as usize);
        // From here on the region may be gone.
        if shared.gate.complete() as usize == chunks && shared.waiting.load(Ordering::SeqCst) {
            caller.unpark();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let Some(workers) = self.workers.take() else { return };
        if workers.process != std::process::id() {
            // In a forked child the workers do not exist; joining them would wait for ever.
            workers.handles.into_iter().for_each(std::mem::forget);
            return;
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        for handle in workers.handles {
            handle.thread().unpark();
            // A worker catches every panic of its chunks, so it ends normally.
            let _ = handle.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads).finish_non_exhaustive()
    }
}
