//! What the host code itself costs: the driver takes the commands and does nothing with them.

mod common;

use std::time::Instant;
use tessl::{Gemm, GpuRuntime, Graph, RuntimeOptions, Stream, Tensor};
use tessl_metal_mock::{Config, Mock};
use tessl_sim::Schedule;

const COMMANDS: u32 = 256;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Seconds of each of many replays.
fn replays(graph: &Graph, s: &mut Stream) -> Vec<f64> {
    let replay = || {
        let start = Instant::now();
        graph.replay(s).unwrap();
        let time = start.elapsed().as_secs_f64();
        s.synchronize().unwrap();
        time
    };
    std::iter::repeat_with(replay).take(50).collect()
}

/// Printed, not compared: times belong to no gate. All commands are in the buffer.
#[test]
fn a_replay_from_an_indirect_command_buffer() {
    for metal in common::indirect() {
        let mock = common::mock(Schedule::Forward);
        let rt = GpuRuntime::with_backend(mock.backend(metal.clone()).unwrap(), &RuntimeOptions::new()).unwrap();
        // It has been seen to work; what follows is measured.
        mock.record(false);
        let [a, b, c, d] = [(); 4].map(|()| rt.alloc_tensor_f32(&[64, 64]).unwrap());
        let mut s = rt.stream().unwrap();
        let graph = s.capture(|s| {
            let step = |i| if i % 2 == 0 { (&a, &c) } else { (&c, &d) };
            (0..COMMANDS).map(step).try_for_each(|(from, to)| Gemm::new(from, &b, to).run_on(s))
        });
        let graph = graph.unwrap();
        assert_eq!(graph.prebuilt(), COMMANDS as usize);
        let time = median(replays(&graph, &mut s));
        let per = time / f64::from(COMMANDS) * 1e9;
        println!("{:?}: {:.1} us a replay, {per:.0} ns a command", metal.graphs, time * 1e6);
    }
}

/// Printed, not compared: times belong to no gate. Barriers are counted.
#[test]
fn encoding_is_cheap_and_barriers_are_as_few_as_can_be() {
    let mock = Mock::new(Config { records: false, ..Config::default() });
    let rt = tessl::GpuRuntime::with_backend(
        mock.backend(Default::default()).unwrap(),
        &RuntimeOptions::new().flush_every(4096),
    )
    .unwrap();
    let square = || rt.alloc_tensor_f32(&[64, 64]).unwrap();
    let [a, b, c, d] = [(); 4].map(|()| square());
    let mut s = rt.stream().unwrap();
    let chain = |s: &mut tessl::Stream, from: &Tensor, to: &Tensor| Gemm::new(from, &b, to).run_on(s).unwrap();
    rt.synchronize().unwrap();
    let (mut encode, mut submit) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        let before = mock.counts();
        let start = Instant::now();
        for i in 0..COMMANDS {
            let (from, to) = if i % 2 == 0 { (&a, &c) } else { (&c, &d) };
            chain(&mut s, from, to);
        }
        encode.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        s.commit().unwrap();
        submit.push(start.elapsed().as_secs_f64());
        s.synchronize().unwrap();
        let after = mock.counts();
        assert_eq!(after.dispatches - before.dispatches, u64::from(COMMANDS));
        // Each command needs what the one before wrote, or writes what it reads.
        assert_eq!(after.encoder_barriers - before.encoder_barriers, u64::from(COMMANDS) - 1);
        assert_eq!(after.commits - before.commits, 1);
    }
    let each = |times: Vec<f64>| median(times) / f64::from(COMMANDS) * 1e9;
    let graph = s.capture(|s| {
        (0..COMMANDS).for_each(|i| if i % 2 == 0 { chain(s, &a, &c) } else { chain(s, &c, &d) });
        Ok(())
    });
    let graph = graph.unwrap();
    println!(
        "per dispatch: {:.0} ns to check, plan and record; {:.0} ns to encode for Metal and commit; {:.0} ns in a replay",
        each(encode),
        each(submit),
        each(replays(&graph, &mut s))
    );
    // Independent commands have no barrier between them.
    let outputs: Vec<Tensor> = (0..8).map(|_| square()).collect();
    rt.synchronize().unwrap();
    let before = mock.counts();
    outputs.iter().for_each(|to| chain(&mut s, &a, to));
    s.synchronize().unwrap();
    assert_eq!(mock.counts().encoder_barriers, before.encoder_barriers);
}
