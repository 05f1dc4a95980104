//! Capture and replay.

use crate::support::{Kernels, cpu, numbers};
use tessl::nn::RmsNorm;
use tessl::{Activation, Buckets, DType, Error, Gemm, GpuRuntime, Graph, GraphSet, PingPong, Stream, Tensor};

/// A small layer: norm, product with bias and activation, product with the old output.
struct Layer {
    x: Tensor,
    norm: Tensor,
    h: Tensor,
    y: Tensor,
    weights: [Tensor; 4],
}

impl Layer {
    fn new(rt: &GpuRuntime) -> Self {
        let t = |shape: &[usize], seed| rt.from_slice(&numbers(shape.iter().product(), seed), shape).unwrap();
        let layer = Layer {
            x: t(&[3, 48], 1),
            norm: t(&[3, 48], 2),
            h: t(&[3, 96], 3),
            y: t(&[3, 48], 4),
            weights: [t(&[48], 5), t(&[48, 96], 6), t(&[96], 7), t(&[96, 48], 8)],
        };
        rt.synchronize().unwrap();
        layer
    }

    fn step(&self, s: &mut Stream) -> tessl::Result<()> {
        let [norm, up, bias, down] = &self.weights;
        RmsNorm::new(&self.x, norm, &self.norm).run_on(s)?;
        Gemm::new(&self.norm, up, &self.h).bias(bias).activation(Activation::Silu).run_on(s)?;
        Gemm::new(&self.h, down, &self.y).alpha(0.5).beta(0.5).run_on(s)?;
        // The output is the next input: every replay depends on the one before.
        RmsNorm::new(&self.y, norm, &self.x).run_on(s)
    }
}

#[test]
fn replay_equals_live_encoding_over_a_thousand_steps() {
    let (live_rt, replay_rt) = (cpu(), cpu());
    let (live, replayed) = (Layer::new(&live_rt), Layer::new(&replay_rt));
    let (mut s, mut t) = (live_rt.stream().unwrap(), replay_rt.stream().unwrap());
    // Scratch is grown before the capture; what it takes is a typed error's number.
    replayed_reserve(&mut t, &replayed);
    let before = replay_rt.dispatch_count();
    let graph = t.capture(|s| replayed.step(s)).unwrap();
    assert_eq!(replay_rt.dispatch_count(), before, "a capture launches nothing");
    assert_eq!((graph.len(), graph.is_empty()), (4, false));
    assert_eq!(graph.barriers(), 3, "each command needs the one before");
    for step in 0..1000 {
        live.step(&mut s).unwrap();
        graph.replay(&mut t).unwrap();
        if step % 100 == 99 {
            let bits = |x: &Tensor| x.read::<f32>().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&live.x), bits(&replayed.x), "step {step}");
            assert_eq!(bits(&live.y), bits(&replayed.y), "step {step}");
        }
    }
    assert_eq!(replay_rt.dispatch_count(), before + 4000);
}

/// Captures until the scratch memory suffices.
fn replayed_reserve(stream: &mut Stream, layer: &Layer) {
    for _ in 0..8 {
        match stream.capture(|s| layer.step(s)) {
            Ok(_) => return,
            Err(Error::Scratch { bytes, .. }) => stream.reserve(bytes).unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("scratch memory never sufficed");
}

/// candle#3729: the position lives on the device, so a captured step follows it.
#[test]
fn candle_3729() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let fresh = || rt.from_slice(&[-1i32; 8], &[4, 2]).unwrap();
    let position = rt.from_slice(&[0i32], &[1]).unwrap();
    let (eager, cache) = (fresh(), fresh());
    let mut s = rt.stream().unwrap();
    for p in 0..4 {
        position.write_on(&[p], &mut s).unwrap();
        k.put_row(&mut s, &position, &eager).unwrap();
    }
    position.write_on(&[0i32], &mut s).unwrap();
    let graph = s.capture(|s| k.put_row(s, &position, &cache)).unwrap();
    assert_eq!(cache.read::<i32>().unwrap(), [-1; 8], "a capture executes nothing");
    for p in 0..4 {
        position.write_on(&[p], &mut s).unwrap();
        graph.replay(&mut s).unwrap();
    }
    assert_eq!(cache.read::<i32>().unwrap(), [0, 0, 1, 1, 2, 2, 3, 3]);
    assert_eq!(eager.read::<i32>().unwrap(), cache.read::<i32>().unwrap());
    // candle#3651: a second capture, then an allocation and more work.
    let second = s.capture(|s| k.put_row(s, &position, &eager)).unwrap();
    let other = rt.alloc_tensor_f32(&[1000]).unwrap();
    assert_eq!(other.read::<f32>().unwrap(), [0.0; 1000]);
    second.replay(&mut s).unwrap().wait().unwrap();
    // The position runs past the cache: reported, not written.
    position.write_on(&[4i32], &mut s).unwrap();
    let ticket = graph.replay(&mut s).unwrap();
    let error = ticket.wait().unwrap_err();
    assert!(matches!(error, Error::Fault { value: 4, .. }), "{error}");
    s.recover().unwrap();
    position.write_on(&[1i32], &mut s).unwrap();
    graph.replay(&mut s).unwrap().wait().unwrap();
}

#[test]
fn graphs_keep_their_memory() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let mut s = rt.stream().unwrap();
    let out = rt.from_slice(&[0u32], &[1]).unwrap();
    let graph: Graph = {
        let temp = rt.from_slice(&[5u32], &[1]).unwrap();
        s.capture(|s| k.mix(s, &temp, &out, 1)).unwrap()
    };
    // The pool must not hand the temporary's memory out again.
    let others: Vec<Tensor> = (100..150u32).map(|v| rt.from_slice(&[v], &[1]).unwrap()).collect();
    graph.replay(&mut s).unwrap();
    assert_eq!(out.read::<u32>().unwrap(), [16]);
    drop(graph);
    drop(others);
}

#[test]
fn two_graphs_alternate() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let mut s = rt.stream().unwrap();
    let inputs = [0u32, 0].map(|v| rt.from_slice(&[v], &[1]).unwrap());
    let sum = rt.from_slice(&[1u32], &[1]).unwrap();
    let graphs = [(&inputs[0], 7), (&inputs[1], 8)].map(|(input, step)| {
        s.capture(|s| {
            k.mix(s, input, input, 0)?;
            k.mix(s, &sum, &sum, step)
        })
        .unwrap()
    });
    let [first, second] = graphs;
    let mut pair = PingPong::new(first, second);
    let mut want = 1u32;
    for turn in 0..1000u32 {
        let which = pair.next_index();
        assert_eq!(which, turn as usize % 2);
        inputs[which].write_on(&[turn], &mut s).unwrap();
        pair.replay(&mut s).unwrap();
        want = want.wrapping_mul(3).wrapping_add(7 + turn % 2);
        if turn % 200 == 0 {
            assert_eq!(inputs[which].read::<u32>().unwrap(), [turn * 3]);
        }
    }
    assert_eq!(sum.read::<u32>().unwrap(), [want]);
}

#[test]
fn replays_on_two_streams_are_ordered_through_what_they_write() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let x = rt.from_slice(&[1u32], &[1]).unwrap();
    rt.synchronize().unwrap();
    let (mut s, mut t) = (rt.stream().unwrap(), rt.stream().unwrap());
    let graph = s
        .capture(|s| {
            k.mix(s, &x, &x, 1)?;
            k.mix(s, &x, &x, 2)
        })
        .unwrap();
    let mut want = 1u32;
    for turn in 0..500 {
        let stream = if turn % 3 == 0 { &mut t } else { &mut s };
        graph.replay(stream).unwrap();
        want = (want.wrapping_mul(3) + 1).wrapping_mul(3).wrapping_add(2);
    }
    assert_eq!(x.read::<u32>().unwrap(), [want]);
}

#[test]
fn a_capture_that_needs_more_scratch_says_how_much() {
    let rt = cpu();
    let n = 700;
    let a = rt.zeros(DType::F32, &[n, n], tessl::BufferKind::Hot).unwrap();
    let (b, c) = (a.clone(), rt.zeros(DType::F32, &[n, n], tessl::BufferKind::Hot).unwrap());
    let mut s = rt.stream().unwrap();
    let capture = |s: &mut Stream| s.capture(|s| Gemm::new(&a, &b, &c).run_on(s));
    match capture(&mut s) {
        Err(Error::Scratch { bytes, op }) => {
            assert_eq!(op, "gemm");
            s.reserve(bytes).unwrap();
            capture(&mut s).unwrap().replay(&mut s).unwrap().wait().unwrap();
        }
        Ok(graph) => graph.replay(&mut s).unwrap().wait().unwrap(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn commands_that_share_nothing_get_a_barrier_only_when_asked() {
    let rt = cpu();
    let t = |seed| rt.from_slice(&numbers(64, seed), &[8, 8]).unwrap();
    let (x, w) = (t(1), rt.from_slice(&numbers(8, 2), &[8]).unwrap());
    let (a, b, c) = (t(3), t(4), t(5));
    let mut stream = rt.stream().unwrap();
    let norm = |s: &mut Stream, y: &Tensor| RmsNorm::new(&x, &w, y).run_on(s);
    let free = stream.capture(|s| [&a, &b, &c].into_iter().try_for_each(|y| norm(s, y))).unwrap();
    assert_eq!((free.len(), free.barriers()), (3, 0));
    let ordered = stream.capture(|s| {
        [&a, &b, &c].into_iter().try_for_each(|y| {
            s.barrier();
            norm(s, y)
        })
    });
    assert_eq!(ordered.unwrap().barriers(), 3);
    // Asked for once, it holds once, and outside a capture too.
    stream.barrier();
    norm(&mut stream, &a).unwrap();
    stream.synchronize().unwrap();
    let after = stream.capture(|s| norm(s, &a).and_then(|()| norm(s, &b))).unwrap();
    assert_eq!(after.barriers(), 0);
}

#[test]
fn a_set_captures_each_form_once() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let mut s = rt.stream().unwrap();
    let sum = rt.from_slice(&[1u32], &[1]).unwrap();
    let mut set = GraphSet::new(2);
    let mut want = 1u32;
    let mut run = |set: &mut GraphSet<u32>, key: u32| {
        let mut encoded = 0;
        let encode = |s: &mut Stream| {
            encoded += 1;
            k.mix(s, &sum, &sum, key)
        };
        set.run(&mut s, key, encode).unwrap();
        want = want.wrapping_mul(3).wrapping_add(key);
        assert_eq!(sum.read::<u32>().unwrap(), [want]);
        encoded
    };
    // Two forms that alternate are captured twice in all.
    let encoded: i32 = (0..1000).map(|turn| run(&mut set, turn % 2)).sum();
    let stats = set.stats();
    assert_eq!((encoded, stats.captures, stats.replays, stats.fallbacks, stats.evictions), (2, 2, 1000, 0, 0));
    // A third one takes the place of the one that was not run for longest.
    assert_eq!((run(&mut set, 7), run(&mut set, 1), run(&mut set, 0)), (1, 0, 1));
    assert_eq!((set.stats().captures, set.stats().evictions), (4, 2));
    set.clear();
    assert_eq!(run(&mut set, 0), 1);
}

#[test]
fn a_set_grows_scratch_and_passes_errors_on() {
    let rt = cpu();
    let (want, layer) = (Layer::new(&rt), Layer::new(&rt));
    let (mut s, mut set) = (rt.stream().unwrap(), GraphSet::new(4));
    for _ in 0..3 {
        want.step(&mut s).unwrap();
        set.run(&mut s, (), |s| layer.step(s)).unwrap().wait().unwrap();
    }
    assert_eq!(layer.x.read::<f32>().unwrap(), want.x.read::<f32>().unwrap());
    // A step that is refused leaves no graph, no command and no count; the next one is as if nothing had been.
    let (before, stats) = (rt.dispatch_count(), set.stats());
    let mut other = GraphSet::new(4);
    let refused = other.run(&mut s, 1, |s| {
        layer.step(s)?;
        Gemm::new(&layer.x, &layer.x, &layer.y).run_on(s)
    });
    assert!(matches!(refused, Err(Error::Shape { .. })), "{refused:?}");
    assert_eq!((rt.dispatch_count(), other.stats()), (before, tessl::GraphStats::default()));
    set.run(&mut s, (), |_| panic!("it has a graph")).unwrap();
    assert_eq!(set.stats().replays, stats.replays + 1);
    // What a device cannot capture is encoded live, and counted.
    let mut calls = 0;
    let live = other.run(&mut s, 2, |s| {
        calls += 1;
        if calls == 1 { Err(Error::unsupported("graph", "capture", "test")) } else { layer.step(s) }
    });
    live.unwrap().wait().unwrap();
    assert_eq!((other.stats().fallbacks, other.stats().captures, rt.dispatch_count()), (1, 0, before + 8));
}

#[test]
fn buckets_cover_every_length() {
    for (least, most) in [(1, 1), (256, 100), (100, 1000), (256, 4096), (1, usize::MAX)] {
        let buckets = Buckets::new(least, most);
        for length in [0, 1, 2, 99, 100, 101, 127, 128, 129, 255, 256, 257, 999, 1000, 1001, 4096, usize::MAX] {
            let bucket = buckets.of(length);
            assert_eq!(bucket.is_some(), length <= most, "{least} {most} {length}");
            assert!(bucket.is_none_or(|b| b >= length && b <= most && b >= least.min(most)), "{least} {most} {length}");
        }
    }
}
