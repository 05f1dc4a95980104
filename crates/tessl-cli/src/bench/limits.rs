//! What the machine itself can do, measured: the scale for memory-bound results.

use std::hint::black_box;
use std::time::Instant;

/// Bytes read per pass; well above any private cache.
const BYTES: usize = 256 << 20;
const PASSES: usize = 4;

/// Bytes of the CPU's last cache, where the system tells.
pub(crate) fn last_level_cache() -> Option<u64> {
    let read = |index: u32| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        let kib: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kib << 10)
    };
    (0..8).filter_map(read).max()
}

/// Bytes per second that `threads` threads read together, the best of a few passes.
pub(crate) fn read_rate(threads: usize) -> f64 {
    read_rate_of(threads, BYTES as u64)
}

/// The same for a working set of `bytes` bytes that is read again and again.
pub(crate) fn read_rate_of(threads: usize, bytes: u64) -> f64 {
    let data: Vec<u64> = (0..bytes / 8).collect();
    let part = data.len().div_ceil(threads.max(1));
    let mut best = 0.0f64;
    for _ in 0..PASSES {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for chunk in data.chunks(part) {
                scope.spawn(move || black_box(sum(chunk)));
            }
        });
        #[allow(clippy::cast_precision_loss)]
        let rate = bytes as f64 / started.elapsed().as_secs_f64();
        best = best.max(rate);
    }
    best
}

/// Eight sums side by side, so that adding does not hold up reading.
fn sum(data: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    for group in data.chunks_exact(8) {
        for (s, x) in sums.iter_mut().zip(group) {
            *s = s.wrapping_add(*x);
        }
    }
    sums.iter().fold(0, |s, x| s.wrapping_add(*x))
}
