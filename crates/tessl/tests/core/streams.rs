//! Order within and between streams.

use crate::support::{Kernels, cpu, cpu_with, null, within_a_minute};
use std::time::{Duration, Instant};
use tessl::{Error, Gemm, GemmBackend, gemm};

/// What `mix` steps give when they run one after the other.
fn reference(start: u32, steps: impl IntoIterator<Item = u32>) -> u32 {
    steps.into_iter().fold(start, |x, step| x.wrapping_mul(3).wrapping_add(step))
}

#[test]
fn conflicts_between_streams_are_ordered_without_events() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let x = rt.from_slice(&[1u32], &[1]).unwrap();
    let mut streams: Vec<_> = (0..4).map(|_| rt.stream().unwrap()).collect();
    let mut want = 1;
    for step in 0..1000u32 {
        let which = (step * 7 % 4) as usize;
        k.mix(&mut streams[which], &x, &x, step).unwrap();
        want = reference(want, [step]);
        if step % 97 == 0 {
            streams[(which + 1) % 4].commit().unwrap();
        }
    }
    assert_eq!(x.read::<u32>().unwrap(), [want]);
    rt.synchronize().unwrap();
    assert_eq!(x.read::<u32>().unwrap(), [want]);
}

#[test]
fn both_orders_of_flushing_give_the_order_of_encoding() {
    for second_first in [false, true] {
        let rt = cpu();
        let k = Kernels::new(&rt);
        let [x, y] = [1u32, 2].map(|v| rt.from_slice(&[v], &[1]).unwrap());
        rt.synchronize().unwrap();
        let (mut s, mut t) = (rt.stream().unwrap(), rt.stream().unwrap());
        // s writes y from x, t then overwrites x: a write after a read across streams; then s reads x again.
        k.mix(&mut s, &x, &y, 10).unwrap();
        k.mix(&mut t, &y, &x, 20).unwrap();
        k.mix(&mut s, &x, &y, 30).unwrap();
        if second_first {
            t.synchronize().unwrap();
            s.synchronize().unwrap();
        } else {
            s.synchronize().unwrap();
            t.synchronize().unwrap();
        }
        let y1 = reference(1, [10]);
        let x1 = reference(y1, [20]);
        assert_eq!((x.read::<u32>().unwrap()[0], y.read::<u32>().unwrap()[0]), (x1, reference(x1, [30])));
    }
}

/// Each kind of conflict by itself, the later command's stream flushed first.
#[test]
fn each_kind_of_conflict_is_ordered() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let tensor = |v: u32| rt.from_slice(&[v], &[1]).unwrap();
    let value = |t: &tessl::Tensor| t.read::<u32>().unwrap()[0];
    for _ in 0..20 {
        let (mut s, mut t) = (rt.stream().unwrap(), rt.stream().unwrap());
        // Write after read.
        let (x, y, z) = (tensor(1), tensor(2), tensor(3));
        rt.synchronize().unwrap();
        k.mix(&mut s, &x, &y, 10).unwrap();
        k.mix(&mut t, &z, &x, 20).unwrap();
        t.synchronize().unwrap();
        s.synchronize().unwrap();
        assert_eq!((value(&y), value(&x)), (13, 29), "write after read");
        // Read after write.
        let (x, y, z) = (tensor(1), tensor(2), tensor(3));
        rt.synchronize().unwrap();
        k.mix(&mut s, &z, &x, 10).unwrap();
        k.mix(&mut t, &x, &y, 20).unwrap();
        t.synchronize().unwrap();
        s.synchronize().unwrap();
        assert_eq!((value(&x), value(&y)), (19, 77), "read after write");
        // Write after write.
        let (x, y, z) = (tensor(1), tensor(2), tensor(3));
        rt.synchronize().unwrap();
        k.mix(&mut s, &y, &x, 10).unwrap();
        k.mix(&mut t, &z, &x, 20).unwrap();
        t.synchronize().unwrap();
        s.synchronize().unwrap();
        assert_eq!(value(&x), 29, "write after write");
    }
}

#[test]
fn views_beside_each_other_do_not_wait_and_views_over_each_other_do() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let all = rt.from_slice(&[1u32, 2, 3, 4], &[4]).unwrap();
    let part = |at: usize, len: usize| all.narrow(0, at, len).unwrap();
    let mut s = rt.stream().unwrap();
    for round in 0..50 {
        k.mix(&mut s, &part(0, 1), &part(1, 1), round).unwrap();
        k.mix(&mut s, &part(1, 1), &part(0, 1), round).unwrap();
        k.mix(&mut s, &part(2, 1), &part(3, 1), round).unwrap();
    }
    let (mut a, mut b, mut d) = (1u32, 2u32, 4u32);
    for round in 0..50 {
        b = reference(a, [round]);
        a = reference(b, [round]);
        d = reference(3, [round]);
    }
    assert_eq!(all.read::<u32>().unwrap(), [a, b, 3, d]);
}

#[test]
fn events_order_streams_that_share_no_memory() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let (x, y) = (rt.from_slice(&[1u32], &[1]).unwrap(), rt.from_slice(&[1u32], &[1]).unwrap());
    let (mut s, mut t) = (rt.stream().unwrap(), rt.stream().unwrap());
    k.mix(&mut s, &x, &x, 1).unwrap();
    let event = s.record();
    assert!(!event.is_done(), "nothing has been submitted");
    t.wait_event(&event).unwrap();
    k.mix(&mut t, &y, &y, 1).unwrap();
    // Waiting for t submits s as far as the event.
    t.synchronize().unwrap();
    assert!(event.is_done());
    // An event of work that has finished, and of an empty stream, holds nothing up.
    let late = rt.stream().unwrap().record();
    t.wait_event(&event).unwrap();
    t.wait_event(&late).unwrap();
    t.synchronize().unwrap();
}

/// A wait that was asked for survives a call that is refused in between.
#[test]
fn a_refused_call_does_not_lose_an_event() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let [a, bad, c] = [1u32, 2, 3].map(|v| rt.from_slice(&[v], &[1]).unwrap());
    rt.synchronize().unwrap();
    let (mut first, mut failing, mut last) = (rt.stream().unwrap(), rt.stream().unwrap(), rt.stream().unwrap());
    k.mix(&mut first, &a, &a, 1).unwrap();
    let event = first.record();
    k.panic_on(&mut failing, &bad, false).unwrap();
    failing.synchronize().unwrap_err();
    last.wait_event(&event).unwrap();
    let refused = k.mix(&mut last, &bad, &c, 1).unwrap_err();
    assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
    k.mix(&mut last, &c, &c, 1).unwrap();
    last.synchronize().unwrap();
    assert!(event.is_done(), "the event's work must be done before what was encoded after the wait");
}

/// A refused command leaves no access behind that a read would wait for.
#[test]
fn a_refused_call_leaves_no_trace() {
    let read = within_a_minute("a read after a refused call", || {
        let rt = cpu();
        let k = Kernels::new(&rt);
        let [bad, c] = [2u32, 3].map(|v| rt.from_slice(&[v], &[1]).unwrap());
        rt.synchronize().unwrap();
        let (mut failing, mut other) = (rt.stream().unwrap(), rt.stream().unwrap());
        k.panic_on(&mut failing, &bad, false).unwrap();
        failing.synchronize().unwrap_err();
        let before = rt.dispatch_count();
        k.mix(&mut other, &bad, &c, 1).unwrap_err();
        assert_eq!(rt.dispatch_count(), before);
        c.read::<u32>().unwrap()
    });
    assert_eq!(read, [3]);
}

#[test]
fn a_dropped_failed_stream_does_not_hang_readers() {
    let error = within_a_minute("a read of what a dropped stream should have written", || {
        let rt = cpu();
        let k = Kernels::new(&rt);
        let x = rt.from_slice(&[1u32], &[1]).unwrap();
        let mut stream = rt.stream().unwrap();
        k.panic_on(&mut stream, &x, false).unwrap();
        drop(stream);
        x.read::<u32>().unwrap_err()
    });
    assert!(matches!(error, Error::Poisoned { .. } | Error::Panicked { .. }), "{error}");
}

#[test]
fn two_threads_with_conflicting_streams_do_not_deadlock() {
    within_a_minute("two threads, two streams, conflicting in both directions", || {
        let rt = cpu_with(|o| o.flush_every(13));
        let k = Kernels::new(&rt);
        let [x, y] = [1u32, 1].map(|v| rt.from_slice(&[v], &[1]).unwrap());
        rt.synchronize().unwrap();
        std::thread::scope(|scope| {
            for (from, to) in [(&x, &y), (&y, &x)] {
                let (rt, k) = (rt.clone(), k.clone());
                scope.spawn(move || {
                    let mut stream = rt.stream().unwrap();
                    for step in 0..10_000 {
                        k.mix(&mut stream, from, to, step).unwrap();
                        if step % 501 == 0 {
                            stream.synchronize().unwrap();
                        }
                    }
                    stream.synchronize().unwrap();
                });
            }
        });
        assert_eq!(rt.dispatch_count(), 20_000);
    });
}

#[test]
fn tickets_and_time_limits() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let x = rt.from_slice(&[1u32], &[1]).unwrap();
    let mut stream = rt.stream().unwrap();
    k.mix(&mut stream, &x, &x, 1).unwrap();
    let ticket = stream.commit().unwrap();
    ticket.wait().unwrap();
    assert!(ticket.is_done());
    // Another thread holds the stream's queue up; the waiter's limit passes first.
    k.slow(&mut stream, &x).unwrap();
    let ticket = std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let ticket = stream.commit().unwrap();
            (ticket, stream)
        });
        worker.join().unwrap().0
    });
    ticket.wait_timeout(Duration::from_secs(10)).unwrap();
}

#[test]
fn packing_is_bounded_and_can_be_turned_off() {
    let rt = cpu_with(|o| o.flush_every(4));
    let k = Kernels::new(&rt);
    let x = rt.from_slice(&[1u32], &[1]).unwrap();
    rt.synchronize().unwrap();
    let mut stream = rt.stream().unwrap();
    for step in 0..3 {
        k.mix(&mut stream, &x, &x, step).unwrap();
    }
    let event = stream.record();
    assert!(!event.is_done());
    k.mix(&mut stream, &x, &x, 3).unwrap();
    assert!(event.is_done(), "the fourth command submits the batch");

    let rt = cpu();
    rt.set_async_encode(false);
    let (a, b, c) = (
        rt.alloc_tensor_f32(&[4, 4]).unwrap(),
        rt.alloc_tensor_f32(&[4, 4]).unwrap(),
        rt.alloc_tensor_f32(&[4, 4]).unwrap(),
    );
    gemm(&a, &b, &c, GemmBackend::TensorOps).unwrap();
    rt.set_async_encode(true);
    gemm(&a, &b, &c, GemmBackend::TensorOps).unwrap();
    rt.synchronize().unwrap();
    assert_eq!(rt.take_dispatch_count(), 2);
    assert_eq!(rt.dispatch_count(), 0);
}

/// Work that is queued and never waited for stays bounded, in memory and in time.
#[test]
fn queue_is_bounded() {
    let rt = null();
    let mut stream = rt.stream().unwrap();
    let (a, b) = (rt.alloc_tensor_f32(&[64, 64]).unwrap(), rt.alloc_tensor_f32(&[64, 64]).unwrap());
    let start = Instant::now();
    for _ in 0..100_000 {
        let c = rt.uninit(tessl::DType::F32, &[64, 64], tessl::BufferKind::Cold).unwrap();
        Gemm::new(&a, &b, &c).run_on(&mut stream).unwrap();
    }
    let stats = rt.memory_stats();
    // 64 batches of 256 commands in flight at most, 16 KiB each.
    assert!(stats.peak <= 65 * 256 * 16384 + (1 << 20), "{stats:?}");
    assert!(start.elapsed() < Duration::from_secs(20));
}
