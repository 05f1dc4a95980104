//! The conformance suite on the simulated device, under three schedules.

use tessl::RuntimeOptions;
use tessl_conformance::skip::skip;
use tessl_conformance::{Case, Env, Report, Suite};
use tessl_sim::Schedule;

/// Multiply-adds of one case: a simulated thread costs about a thousand real ones.
const BUDGET: u64 = 150_000;

/// Runs the cases that `keep` accepts; `None` where the simulator cannot run.
fn run(name: &str, schedule: Schedule, keep: impl Fn(&Case) -> bool) -> Option<Report> {
    let rt = match tessl_sim::open("m2", schedule, &RuntimeOptions::new()) {
        Ok(rt) => rt,
        Err(error) => {
            skip("sim", name, &error.to_string());
            return None;
        }
    };
    let env = Env::new(rt).budget(BUDGET);
    // Both backends take the same kernels on this profile; one of them is enough.
    let report = Suite::all().filter(|case| keep(case) && !case.name.ends_with("/tensorops")).run(&env, |_, _| {});
    let mut slow: Vec<_> = report.passed.iter().map(|e| (e.millis, e.name.clone())).collect();
    slow.sort();
    slow.reverse();
    slow.truncate(8);
    println!("{name}: {}\n  slowest: {slow:?}", report.summary());
    let failures: Vec<String> = report.failed.iter().map(|e| format!("{}: {}", e.name, e.message)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Some(report)
}

#[test]
fn forward() {
    if let Some(report) = run("sim_conformance_forward", Schedule::Forward, |_| true) {
        assert!(report.uncovered.is_empty(), "no case ran {:#?}", report.uncovered);
    }
}

#[test]
fn backward() {
    run("sim_conformance_backward", Schedule::Backward, |case| case.is("quick"));
}

#[test]
fn random() {
    let seed = std::env::var("TESSL_SIM_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    run("sim_conformance_random", Schedule::Random(seed), |case| case.is("quick"));
}
