//! The conformance suite on the simulated device, under three schedules.

mod common;

use tessl::RuntimeOptions;
use tessl_conformance::skip::skip;
use tessl_conformance::{Case, Env, Report, Suite};
use tessl_sim::Schedule;

/// Multiply-adds of one case: a simulated thread costs about a thousand real ones.
const BUDGET: u64 = 150_000;

/// Runs the cases that `keep` accepts; `None` where the simulator cannot run.
fn run(name: &str, profile: &str, schedule: Schedule, keep: impl Fn(&Case) -> bool) -> Option<Report> {
    let rt = match tessl_sim::open(profile, schedule, &RuntimeOptions::new()) {
        Ok(rt) => rt,
        Err(error) => {
            skip("sim", name, &error.to_string());
            return None;
        }
    };
    let env = Env::new(rt).budget(BUDGET);
    let part = std::env::var("TESSL_SIM_CASES").unwrap_or_default();
    let report = Suite::all().filter(|case| keep(case) && case.name.contains(&part)).run(&env, |_, _| {});
    let mut slow: Vec<_> = report.passed.iter().map(|e| (e.millis, e.name.clone())).collect();
    slow.sort();
    slow.reverse();
    slow.truncate(8);
    println!("{name}: {}\n  slowest: {slow:?}", report.summary());
    let failures: Vec<String> = report.failed.iter().map(|e| format!("{}: {}", e.name, e.message)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Some(report)
}

/// Runs `quick` cases, or with `Forward` all of them, where `TESSL_SIM_SEED` names no other schedule.
fn under(name: &str, wanted: fn(Schedule) -> bool) {
    for schedule in common::schedules().into_iter().filter(|&s| wanted(s)) {
        let all = schedule == Schedule::Forward;
        // Both backends take the same kernels on a chip without matrix units; one of them is enough.
        let report = run(name, "m2", schedule, |case| (all || case.is("quick")) && !case.name.ends_with("/tensorops"));
        let every = std::env::var_os("TESSL_SIM_CASES").is_none();
        if let Some(report) = report.filter(|_| all && every) {
            assert!(report.uncovered.is_empty(), "no case ran {:#?}", report.uncovered);
        }
    }
}

#[test]
fn forward() {
    under("sim_conformance_forward", |s| s == Schedule::Forward);
}

#[test]
fn backward() {
    under("sim_conformance_backward", |s| s == Schedule::Backward);
}

#[test]
fn random() {
    under("sim_conformance_random", |s| matches!(s, Schedule::Random(_)));
}

/// A chip with matrix units: products on matmul2d, all cases in one order, the quick ones in the others.
#[test]
fn tensor_ops() {
    for schedule in common::schedules() {
        let all = schedule == Schedule::Forward;
        let name = "sim_conformance_tensor_ops";
        let report = run(name, "m5-pro", schedule, |case| {
            case.op == "gemm" && !case.name.ends_with("/simdgroup") && (all || case.is("quick"))
        });
        let every = std::env::var_os("TESSL_SIM_CASES").is_none();
        if let Some(report) = report.filter(|_| all && every) {
            let missed: Vec<_> = report.uncovered.iter().filter(|row| row.to_string().contains("gemm_mpp")).collect();
            assert!(missed.is_empty(), "no case ran {missed:#?}");
        }
    }
}
