//! Graphs in indirect command buffers: the same numbers as live, few calls, and a way out where one cannot be used.

mod common;

use common::{SCHEDULES, indirect, mock, scenario};
use tessl::nn::{Embedding, RmsNorm};
use tessl::{Error, FaultKind, Gemm, RuntimeOptions, Tensor};
use tessl_metal_mock::{Config, Mock, Support};
use tessl_sim::Schedule;

/// Commands of the scenario's graph.
const COMMANDS: usize = 4;

#[test]
fn replays_are_equal_to_live_in_every_order_and_form() {
    let wanted = scenario(&mock(Schedule::Forward).open(&RuntimeOptions::new()).unwrap().rt).unwrap();
    assert_eq!(wanted.prebuilt, 0);
    for schedule in SCHEDULES {
        for metal in indirect() {
            let mock = mock(schedule);
            let run = mock.open_with(&RuntimeOptions::new(), metal.clone()).unwrap();
            let done = scenario(&run.rt).unwrap();
            assert!(done.numbers == wanted.numbers, "{schedule:?} {:?}", metal.graphs);
            assert_eq!(done.prebuilt, COMMANDS);
            drop(run);
            assert_eq!(mock.findings(), Vec::<String>::new(), "{schedule:?} {:?}", metal.graphs);
        }
    }
}

/// A step whose output is its next input, many times over.
#[test]
fn a_thousand_replays_are_a_thousand_steps() {
    let mut results = Vec::new();
    for metal in [tessl::device::metal::Options::default()].into_iter().chain(indirect()) {
        let live = metal.graphs == tessl::GraphOptions::new();
        let mock = mock(Schedule::Random(3));
        let run = mock.open_with(&RuntimeOptions::new(), metal).unwrap();
        let rt = &run.rt;
        let values: Vec<f32> = (0..64).map(|i| (i % 7) as f32 - 3.0).collect();
        let [a, x] =
            [1.0, 0.5].map(|f| rt.from_slice(&values.iter().map(|v| v * f).collect::<Vec<_>>(), &[8, 8]).unwrap());
        let (w, y) = (rt.from_slice(&[1.0f32; 8], &[8]).unwrap(), rt.alloc_tensor_f32(&[8, 8]).unwrap());
        let mut s = rt.stream().unwrap();
        let step = |s: &mut tessl::Stream| {
            Gemm::new(&x, &a, &y).alpha(0.25).run_on(s)?;
            RmsNorm::new(&y, &w, &x).run_on(s)
        };
        let graph = s.capture(step).unwrap();
        for i in 0..1000 {
            if live {
                step(&mut s).unwrap()
            } else {
                graph.replay(&mut s).map(drop).unwrap()
            }
            if i % 16 == 15 {
                s.synchronize().unwrap();
            }
        }
        results.push(x.read::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>());
        drop((graph, a, x, w, y, s, run));
        assert_eq!(mock.findings(), Vec::<String>::new());
    }
    assert!(results.windows(2).all(|w| w[0] == w[1]));
}

/// Executions, encoder barriers and indirect barriers of one replay of a chain of three and one beside its end.
#[test]
fn an_execution_goes_as_far_as_it_may() {
    for (metal, wanted) in indirect().into_iter().zip([(4, 2, 0), (3, 2, 0), (1, 0, 2)]) {
        let mock = mock(Schedule::Backward);
        let run = mock.open_with(&RuntimeOptions::new(), metal).unwrap();
        let rt = &run.rt;
        let [a, b, c, d, e] = [(); 5].map(|()| rt.alloc_tensor_f32(&[8, 8]).unwrap());
        let mut s = rt.stream().unwrap();
        let chain = |s: &mut tessl::Stream, from: &Tensor, to: &Tensor| Gemm::new(from, &a, to).run_on(s);
        let graph = s.capture(|s| {
            chain(s, &a, &b)?;
            chain(s, &b, &c)?;
            chain(s, &c, &d)?;
            chain(s, &c, &e)
        });
        let graph = graph.unwrap();
        assert_eq!((graph.len(), graph.prebuilt()), (4, 4));
        // The first replay is the one that optimizes.
        for first in [true, false] {
            rt.synchronize().unwrap();
            s.synchronize().unwrap();
            let before = mock.counts();
            graph.replay(&mut s).unwrap();
            s.synchronize().unwrap();
            let after = mock.counts();
            assert_eq!(after.dispatches - before.dispatches, 4);
            let barriers = after.encoder_barriers - before.encoder_barriers - u64::from(first);
            let indirect = after.indirect_barriers - before.indirect_barriers;
            assert_eq!((after.executions - before.executions, barriers, indirect), wanted);
        }
        // Dropped while a replay may still run.
        graph.replay(&mut s).unwrap();
        drop((graph, a, b, c, d, e));
        drop((s, run));
        assert_eq!(mock.findings(), Vec::<String>::new());
    }
}

#[test]
fn what_cannot_be_indirect_is_encoded_and_counted() {
    let wanted = scenario(&mock(Schedule::Forward).open(&RuntimeOptions::new()).unwrap().rt).unwrap();
    // A system that refuses the kernels of the trial gets no indirect command buffer at all.
    for (kernels, prebuilt) in [("gemm", 2), ("rms_norm", 3), ("copy_rows_4", 0)] {
        for metal in indirect() {
            let mock = mock(Schedule::Backward);
            mock.inject(|f| f.no_indirect = Some(kernels.to_owned()));
            let run = mock.open_with(&RuntimeOptions::new(), metal).unwrap();
            let done = scenario(&run.rt).unwrap();
            assert!(done.numbers == wanted.numbers, "{kernels}");
            assert_eq!(done.prebuilt, prebuilt, "{kernels}");
            drop(run);
            assert_eq!(mock.findings(), Vec::<String>::new(), "{kernels}");
        }
    }
}

/// As on virtual GPUs.
#[test]
fn a_system_where_they_do_not_work_does_without() {
    let wanted = scenario(&mock(Schedule::Forward).open(&RuntimeOptions::new()).unwrap().rt).unwrap();
    for kind in [Support::Refused, Support::Ignored] {
        for metal in indirect() {
            let mock = Mock::new(Config { indirect: kind, schedule: Schedule::Backward, ..Config::default() });
            let run = mock.open_with(&RuntimeOptions::new(), metal).unwrap();
            let done = scenario(&run.rt).unwrap();
            assert!(done.numbers == wanted.numbers && done.prebuilt == 0, "{kind:?}");
            drop(run);
            assert_eq!(mock.findings(), Vec::<String>::new(), "{kind:?}");
        }
    }
}

/// The status block of a graph is cleared before each replay and read after it, also when several are in flight.
#[test]
fn a_fault_belongs_to_the_replay_that_met_it() {
    for schedule in SCHEDULES {
        for metal in indirect() {
            let mock = mock(schedule);
            let run = mock.open_with(&RuntimeOptions::new(), metal).unwrap();
            let rt = &run.rt;
            let table = rt.from_slice(&(0..32).map(|i| i as f32).collect::<Vec<_>>(), &[4, 8]).unwrap();
            let weight = rt.from_slice(&[1.0f32; 8], &[8]).unwrap();
            let ids = rt.from_slice(&[1u32, 3], &[2]).unwrap();
            let [rows, normed] = [(); 2].map(|()| rt.alloc_tensor_f32(&[2, 8]).unwrap());
            let mut s = rt.stream().unwrap();
            let graph = s.capture(|s| {
                Embedding::new(&table, &ids, &rows).run_on(s)?;
                RmsNorm::new(&rows, &weight, &normed).run_on(s)
            });
            let graph = graph.unwrap();
            assert_eq!(graph.prebuilt(), 2);
            for _ in 0..3 {
                graph.replay(&mut s).unwrap();
            }
            s.synchronize().unwrap();
            let good = normed.read::<f32>().unwrap();
            ids.write_on(&[1u32, 9], &mut s).unwrap();
            graph.replay(&mut s).unwrap();
            let error = s.synchronize().unwrap_err();
            assert!(matches!(error, Error::Fault { kind: FaultKind::IndexOutOfRange, .. }), "{error}");
            s.recover().unwrap();
            ids.write_on(&[1u32, 3], &mut s).unwrap();
            graph.replay(&mut s).unwrap();
            graph.replay(&mut s).unwrap();
            s.synchronize().unwrap();
            assert_eq!(normed.read::<f32>().unwrap(), good, "{schedule:?}");
            drop((graph, table, weight, ids, rows, normed, s, run));
            assert_eq!(mock.findings(), Vec::<String>::new(), "{schedule:?}");
        }
    }
}
