//! Regions under every disturbance.

use super::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

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
