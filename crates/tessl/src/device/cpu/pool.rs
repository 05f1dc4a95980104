//! Fork-join pool (placeholder signature; see `Pool::run`).

/// Threads that share one region's chunks with the caller.
#[derive(Debug)]
pub struct Pool {}

impl Pool {
    /// A pool that uses `threads` threads, the caller included.
    pub fn new(_threads: usize) -> Self {
        Pool {}
    }

    /// Runs `f(0..chunks)` once each and returns when all are done. The caller takes part.
    pub fn run(&self, chunks: usize, f: &(dyn Fn(usize) + Sync)) {
        (0..chunks).for_each(f);
    }
}
