//! The conformance suite on the Metal device over the mock, under three schedules.

mod common;

use common::mock;
use tessl::device::metal::Options;
use tessl::{GraphOptions, RuntimeOptions};
use tessl_conformance::{Case, Env, Suite};
use tessl_metal_mock::{Config, Mock};
use tessl_sim::Schedule;

/// Multiply-adds of one case: a simulated thread costs about a thousand real ones.
const BUDGET: u64 = 60_000;

/// Without matrix units both backends take the same kernels; one of them is enough.
fn portable(case: &Case) -> bool {
    !case.name.ends_with("/tensorops")
}

/// Runs the quick cases that `keep` accepts; nothing may fail, and nothing may be found wrong.
fn run(mock: &Mock, schedule: Schedule, keep: impl Fn(&Case) -> bool) {
    run_with(mock, Options::default(), schedule, keep);
}

fn run_with(mock: &Mock, metal: Options, schedule: Schedule, keep: impl Fn(&Case) -> bool) {
    // A graph in an indirect command buffer has barriers of its own.
    let own = metal.graphs != GraphOptions::new();
    let run = mock.open_with(&RuntimeOptions::new(), metal).unwrap();
    let env = Env::new(run.rt.clone()).budget(BUDGET);
    let mut findings = Vec::new();
    let suite = Suite::all().filter(|case| case.is("quick") && keep(case));
    let report = suite.run(&env, |case, _| {
        findings.extend(mock.findings().into_iter().map(|text| format!("{}: {text}", case.name)));
    });
    let (needed, replays) = run.needed();
    let counts = mock.counts();
    println!("{schedule:?}: {}; {needed} barriers needed, {replays} replays; {counts:?}", report.summary());
    let failures: Vec<String> = report.failed.iter().map(|e| format!("{}: {}", e.name, e.message)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    assert!(report.passed.len() > if own { 3 } else { 10 }, "{}", report.summary());
    assert!(
        own || counts.encoder_barriers <= needed && counts.queue_barriers <= needed + replays,
        "{needed}: {counts:?}"
    );
    drop((env, run));
    assert_eq!(mock.findings(), Vec::<String>::new());
}

#[test]
fn forward() {
    run(&mock(Schedule::Forward), Schedule::Forward, portable);
}

#[test]
fn backward() {
    run(&mock(Schedule::Backward), Schedule::Backward, portable);
}

#[test]
fn random() {
    let seed = std::env::var("TESSL_SIM_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(11);
    println!("again with TESSL_SIM_SEED={seed}");
    run(&mock(Schedule::Random(seed)), Schedule::Random(seed), portable);
}

/// Cases that capture graphs, in indirect command buffers.
#[test]
fn graphs_in_indirect_command_buffers() {
    let captures = |case: &Case| ["state", "candle_3729"].iter().any(|word| case.name.contains(word));
    for metal in common::indirect() {
        let mock = mock(Schedule::Backward);
        run_with(&mock, metal, Schedule::Backward, |case| captures(case) || case.op == "kv_store");
        assert!(mock.counts().executions > 0);
    }
}

/// A chip with matrix units.
#[test]
fn tensor_ops() {
    let schedule = Schedule::Backward;
    let mock = Mock::new(Config { apple10: true, schedule, ..Config::default() });
    run(&mock, schedule, |case| case.op == "gemm" && !case.name.ends_with("/simdgroup"));
}
