//! The suite on the CPU device (every instruction set, 1 and 2 threads) and on null devices, coverage, golden plans.

use std::collections::BTreeSet;
use tessl::device::PROFILES;
use tessl::{Device, GpuRuntime, Isa, RuntimeOptions};
use tessl_conformance::rows::{Row, reachable};
use tessl_conformance::skip::skip;
use tessl_conformance::{Env, Report, Suite, golden};

const ISAS: [(Isa, &str); 5] =
    [(Isa::Scalar, "scalar"), (Isa::Neon, "neon"), (Isa::Avx2, "avx2"), (Isa::Avx512, "avx512"), (Isa::Amx, "amx")];

/// A CPU runtime limited to `isa`, where the processor has it.
fn cpu(isa: Isa, threads: usize) -> Option<GpuRuntime> {
    let options = RuntimeOptions::new().device(Device::cpu()).isa(isa).threads(threads);
    GpuRuntime::with_options(&options).ok().filter(|rt| rt.profile().isa == isa)
}

/// Runs the cases that `keep` accepts and panics with all failures.
fn run(env: &Env, keep: impl Fn(&tessl_conformance::Case) -> bool) -> Report {
    let report = Suite::all().filter(keep).run(env, |_, _| {});
    let slow = report.passed.iter().filter(|e| e.millis > 1500).map(|e| format!("{} {} ms", e.name, e.millis));
    println!("{} (profile {}) slow: {:?}", report.summary(), report.profile, slow.collect::<Vec<_>>());
    let failures: Vec<String> = report.failed.iter().map(|e| format!("{}: {}", e.name, e.message)).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), report.device, failures.join("\n"));
    report
}

/// One instruction set: the whole suite on two threads, the quick part on one.
fn on_isa(isa: Isa, name: &str) -> Option<Report> {
    let Some(rt) = cpu(isa, 2) else {
        skip(name, &format!("suite_{name}"), "this processor does not have it");
        return None;
    };
    let report = run(&Env::new(rt), |_| true);
    let one = cpu(isa, 1).expect("opened above");
    run(&Env::new(one), |case| case.is("quick"));
    Some(report)
}

/// Rows that no case ran must be listed in not-run-here.txt, because their device or instruction set is absent.
#[test]
fn cpu_suite_and_coverage() {
    let mut taken = BTreeSet::new();
    for (isa, name) in ISAS {
        let Some(report) = on_isa(isa, name) else { continue };
        assert!(report.uncovered.is_empty(), "{name}: no case ran {:#?}", report.uncovered);
        taken.extend(report.coverage.into_iter().map(|c| c.row));
    }
    let all: BTreeSet<Row> = PROFILES.iter().copied().flatten().flat_map(reachable).collect();
    let listed: BTreeSet<&str> =
        include_str!("../../not-run-here.txt").lines().filter(|l| !l.starts_with('#')).collect();
    let missed: Vec<String> = all.difference(&taken).map(Row::to_string).collect();
    let unlisted: Vec<&String> = missed.iter().filter(|row| !listed.contains(row.as_str())).collect();
    // Rows of instruction sets that other machines have are taken there.
    let here: Vec<&&String> =
        unlisted.iter().filter(|row| !row.starts_with("cpu") || cfg!(target_arch = "x86_64")).collect();
    assert!(
        here.is_empty(),
        "not run and not listed in not-run-here.txt:\n{}",
        here.iter().map(|r| r.as_str()).collect::<Vec<_>>().join("\n")
    );
    let names: BTreeSet<String> = all.iter().map(Row::to_string).collect();
    let stale: Vec<&&str> = listed.iter().filter(|l| !names.contains(**l)).collect();
    assert!(stale.is_empty(), "not-run-here.txt lists rows that no profile has: {stale:#?}");
}

/// Every public call validates and plans without a device as well; nothing is computed there.
#[test]
fn null_devices() {
    for profile in PROFILES.iter().copied().flatten() {
        let rt = GpuRuntime::with_device(&Device::null(profile.name)).expect("a null device opens anywhere");
        run(&Env::new(rt), |case| case.is("plans"));
    }
}

#[test]
fn golden_plans() {
    let profiles = golden::check().unwrap_or_else(|e| panic!("{e}"));
    assert!(profiles >= 8, "{profiles} profiles");
}

#[test]
fn case_names_are_unique_and_reports_are_json() {
    let mut names: Vec<String> = Suite::all().cases.into_iter().map(|c| c.name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
    let env = Env::new(GpuRuntime::with_device(&Device::cpu()).expect("the CPU is everywhere"));
    let report = Suite::op("tensor").run(&env, |_, _| {});
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
    assert_eq!((json["schema"].as_u64(), json["failed"].as_array().map(Vec::len)), (Some(1), Some(0)));
}
