//! Regions under every disturbance.

use super::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn every_chunk_runs_once() {
    for threads in 1..=4 {
        let pool = Pool::new(threads);
        for chunks in [0usize, 1, 2, 3, 7, 64, 1000] {
            for _ in 0..50 {
                let hits: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(chunks, &|i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{threads} threads, {chunks} chunks");
            }
        }
    }
}

#[test]
fn workers_start_with_the_first_parallel_region_and_wake_after_parking() {
    let pool = Pool::new(3);
    pool.run(1, &|_| {});
    assert!(pool.workers.get().is_none());
    for _ in 0..20 {
        let sum = AtomicUsize::new(0);
        pool.run(100, &|i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 4950);
        std::thread::sleep(super::SPIN * 3);
    }
    assert_eq!(pool.workers.get().map(|w| w.handles.len()), Some(2));
}

#[test]
fn a_busy_pool_leaves_the_region_to_its_caller() {
    let pool = Pool::new(2);
    let sum = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    // Nested regions find the pool busy too.
                    pool.run(4, &|_| {
                        pool.run(3, &|_| {
                            sum.fetch_add(1, Ordering::Relaxed);
                        })
                    });
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), 4 * 200 * 12);
}

#[test]
fn a_panic_reaches_the_caller_after_the_region_has_finished() {
    for threads in [1, 4] {
        let pool = Pool::new(threads);
        for chunks in [1, 9] {
            let done = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(chunks, &|i| {
                    done.fetch_add(1, Ordering::Relaxed);
                    assert!(i != chunks / 2, "chunk {i}");
                });
            }));
            let payload = outcome.expect_err("a chunk panicked");
            assert_eq!(payload.downcast_ref::<String>(), Some(&format!("chunk {}", chunks / 2)));
            assert_eq!(done.into_inner(), chunks);
        }
        pool.run(8, &|_| {});
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_forked_child_finishes_its_regions() {
    let pool = Pool::new(3);
    pool.run(64, &|_| {});
    // SAFETY: the child runs no code that another thread of the parent could hold a lock of (the region allocates
    // nothing), and leaves with `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let sum = AtomicUsize::new(0);
        pool.run(64, &|i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(sum.into_inner() != 2016)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's regions did not finish correctly");
}

/// A chain of multiplications that nothing shortens.
fn toil(steps: u32) {
    let product =
        (0..steps).fold(1u64, |x, i| std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005) ^ u64::from(i)));
    std::hint::black_box(product);
}

/// The middle of the times of both, taken in turn.
fn medians(rounds: usize, ways: [&dyn Fn(); 2]) -> [Duration; 2] {
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..rounds {
        for (way, times) in ways.iter().zip(&mut times) {
            let started = Instant::now();
            way();
            times.push(started.elapsed());
        }
    }
    times.map(|mut t| {
        t.sort();
        t[t.len() / 2]
    })
}

/// With as many busy threads as cores, workers come late or not at all: a region then costs its caller what the work costs,
/// and no waiting. Other programs may take the cores in any one attempt; a pool that waits fails in all of them.
#[test]
fn under_load_a_region_takes_no_longer_than_its_caller_alone() {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let (pool, stop) = (Pool::new(cores.max(2)), AtomicBool::new(false));
    let serial = || (0..16).for_each(|_| toil(20_000));
    let shared = || pool.run(16, &|_| toil(20_000));
    let attempts = std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    toil(1000);
                }
            });
        }
        let mut attempts: Vec<[Duration; 2]> = Vec::new();
        while attempts.len() < 8 && attempts.last().is_none_or(|[alone, together]| *together > *alone * 11 / 10) {
            attempts.push(medians(41, [&serial, &shared]));
        }
        stop.store(true, Ordering::Relaxed);
        attempts
    });
    let [alone, together] = attempts.last().expect("there was one");
    assert!(*together <= *alone * 11 / 10, "alone and together: {attempts:?}");
}

/// What a region costs beyond its work while the workers still spin: `cargo test --release -- --ignored --nocapture fork_join`.
#[test]
#[ignore = "a measurement: it needs a quiet machine"]
fn fork_join_cost() {
    let pool = Pool::new(2);
    for steps in [0, 4000, 10_000] {
        let halves = || pool.run(2, &|_| toil(steps));
        (0..1000).for_each(|_| halves());
        let [one, both] = medians(2001, [&|| toil(steps), &halves]);
        println!("a half of {one:?}, two halves on two threads {both:?}");
    }
}
