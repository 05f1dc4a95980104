//! The conformance suite on the Metal device over the mock, under three schedules.

mod common;

use common::mock;
use tessl::RuntimeOptions;
use tessl_conformance::{Case, Env, Suite};
use tessl_sim::Schedule;

/// Multiply-adds of one case: a simulated thread costs about a thousand real ones.
const BUDGET: u64 = 60_000;

/// Runs the quick cases that `keep` accepts; nothing may fail, and nothing may be found wrong.
fn run(schedule: Schedule, keep: impl Fn(&Case) -> bool) {
    let mock = mock(schedule);
    let run = mock.open(&RuntimeOptions::new()).unwrap();
    let env = Env::new(run.rt.clone()).budget(BUDGET);
    let mut findings = Vec::new();
    let suite = Suite::all().filter(|case| case.is("quick") && keep(case) && !case.name.ends_with("/tensorops"));
    let report = suite.run(&env, |case, _| {
        findings.extend(mock.findings().into_iter().map(|text| format!("{}: {text}", case.name)));
    });
    let (needed, replays) = run.needed();
    let counts = mock.counts();
    println!("{schedule:?}: {}; {needed} barriers needed, {replays} replays; {counts:?}", report.summary());
    let failures: Vec<String> = report.failed.iter().map(|e| format!("{}: {}", e.name, e.message)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    assert!(report.passed.len() > 20, "{}", report.summary());
    assert!(counts.encoder_barriers <= needed && counts.queue_barriers <= needed + replays, "{needed}: {counts:?}");
    drop((env, run));
    assert_eq!(mock.findings(), Vec::<String>::new());
}

#[test]
fn forward() {
    run(Schedule::Forward, |_| true);
}

#[test]
fn backward() {
    run(Schedule::Backward, |_| true);
}

#[test]
fn random() {
    let seed = std::env::var("TESSL_SIM_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(11);
    println!("again with TESSL_SIM_SEED={seed}");
    run(Schedule::Random(seed), |_| true);
}
