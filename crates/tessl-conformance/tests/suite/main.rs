//! The suite on the CPU device (every instruction set, 1 and 2 threads) and on null devices, coverage, golden plans.

use std::collections::BTreeSet;
use tessl::device::PROFILES;
use tessl::{Device, DeviceKind, GpuRuntime, Isa, RuntimeOptions};
use tessl_conformance::rows::{Row, reachable};
use tessl_conformance::skip::skip;
use tessl_conformance::{Case, Env, Report, SMALL_BUDGET, Suite, golden};

const ISAS: [(Isa, &str); 5] =
    [(Isa::Scalar, "scalar"), (Isa::Neon, "neon"), (Isa::Avx2, "avx2"), (Isa::Avx512, "avx512"), (Isa::Amx, "amx")];

/// A CPU runtime limited to `isa`, where the processor has it.
fn cpu(isa: Isa, threads: usize) -> Option<GpuRuntime> {
    let options = RuntimeOptions::new().device(Device::cpu()).isa(isa).threads(threads);
    GpuRuntime::with_options(&options).ok().filter(|rt| rt.profile().isa == isa)
}

/// Runs the cases that `keep` accepts and panics with all failures.
fn run(env: &Env, keep: impl Fn(&tessl_conformance::Case) -> bool) -> Report {
    let start = std::time::Instant::now();
    let report = Suite::all().filter(keep).run(env, |_, _| {});
    let time = start.elapsed();
    let slow = report.passed.iter().filter(|e| e.millis > 700).map(|e| format!("{} {} ms", e.name, e.millis));
    println!("{} (profile {}, {time:.1?}) slow: {:?}", report.summary(), report.profile, slow.collect::<Vec<_>>());
    let failures: Vec<String> = report.failed.iter().map(|e| format!("{}: {}", e.name, e.message)).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), report.device, failures.join("\n"));
    report
}

/// One instruction set: its part of the suite on two threads, the quick cases at small sizes on one.
fn on_isa(isa: Isa, name: &str) -> Option<Report> {
    let Some(rt) = cpu(isa, 2) else {
        skip(name, &format!("suite_{name}"), "this processor does not have it");
        return None;
    };
    // The portable path is the same code on every processor, and AMX changes products of bf16 alone: each is run once.
    let own = |case: &Case| match isa {
        Isa::Scalar => true,
        Isa::Amx if case.op.starts_with("quantized") => case.name.ends_with("bf16"),
        Isa::Amx if case.op == "attention" => case.name.ends_with("/bf16"),
        Isa::Amx => case.op == "gemm" && !["/simdgroup", "/f32_", "/f16_"].iter().any(|part| case.name.contains(part)),
        _ => !case.name.ends_with("/simdgroup"),
    };
    let report = run(&Env::new(rt), own);
    let one = cpu(isa, 1).expect("opened above");
    run(&Env::new(one).budget(SMALL_BUDGET / 8), |case| case.is("quick") && own(case));
    Some(report)
}

/// Every row that this machine's profiles can choose is run. Every other row must be listed in not-run-here.txt, or
/// belong to an instruction set that this processor does not have.
#[test]
fn cpu_suite_and_coverage() {
    let mut taken = BTreeSet::new();
    let mut absent = BTreeSet::new();
    // Two at a time: the oracle's part of the work is serial.
    let reports = std::thread::scope(|scope| {
        let half = |isas: &'static [(Isa, &str)]| {
            move || isas.iter().map(|&(isa, name)| (isa, on_isa(isa, name))).collect::<Vec<_>>()
        };
        let (left, right) = (scope.spawn(half(&ISAS[..3])), scope.spawn(half(&ISAS[3..])));
        [left, right].map(|half| half.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    for (isa, report) in reports.into_iter().flatten() {
        match report {
            Some(report) => taken.extend(report.coverage.into_iter().map(|c| c.row)),
            None => {
                let profiles = PROFILES.iter().copied().flatten();
                let mine = profiles.filter(|p| p.kind == DeviceKind::Cpu && p.isa == isa);
                absent.extend(mine.flat_map(reachable));
            }
        }
    }
    let all: BTreeSet<Row> = PROFILES.iter().copied().flatten().flat_map(reachable).collect();
    let missed: Vec<String> = all.difference(&taken).map(Row::to_string).collect();
    if std::env::var_os("TESSL_BLESS").is_some_and(|v| v == "1") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/not-run-here.txt");
        std::fs::write(path, format!("{LIST_HEAD}{}\n", missed.join("\n"))).expect("the list is in the source tree");
        return;
    }
    let list = include_str!("../../not-run-here.txt");
    let listed: BTreeSet<&str> = list.lines().filter(|l| !l.starts_with('#')).collect();
    let absent: BTreeSet<String> = absent.iter().map(Row::to_string).collect();
    let unlisted = missed.iter().filter(|row| !listed.contains(row.as_str()) && !absent.contains(*row));
    let unlisted: Vec<&str> = unlisted.map(String::as_str).collect();
    assert!(unlisted.is_empty(), "not run and not in not-run-here.txt:\n{}", unlisted.join("\n"));
    let names: BTreeSet<String> = all.iter().map(Row::to_string).collect();
    let stale: Vec<&str> = listed.into_iter().filter(|l| !names.contains(*l)).collect();
    assert!(stale.is_empty(), "not-run-here.txt lists rows that no profile has: {stale:#?}");
}

const LIST_HEAD: &str = "\
# Plan rows that no case runs on a Linux x86-64 machine with AMX and without a GPU: device, op, kernel, rule.
# Each is run where its device is: `tessl verify`, a bundle, the simulator. Written by TESSL_BLESS=1; review the change.
";

/// Every public call validates and plans without a device as well; nothing is computed there.
#[test]
fn null_devices() {
    for profile in PROFILES.iter().copied().flatten() {
        let rt = GpuRuntime::with_device(&Device::null(profile.name)).expect("a null device opens anywhere");
        run(&Env::new(rt), |case| case.is("plans"));
    }
}

/// The published sizes of known faults: up to 97 G multiply-adds, and 8 GiB of memory for offsets past 2^32 elements.
#[test]
#[ignore = "needs 9 GiB of memory and minutes; run it before a release"]
fn published_sizes() {
    let env = Env::new(GpuRuntime::with_device(&Device::cpu()).expect("the CPU is everywhere")).budget(u64::MAX);
    let names = ["known/mlx_3797", "known/pt_111634", "known/mlx_3591", "known/burn_5626"];
    let report = run(&env, |case| names.iter().any(|name| case.name.starts_with(name)));
    assert!(report.skipped.is_empty() && report.passed.len() >= 6);
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
    let suite = Suite::op("tensor").filter(|case| !case.is("big"));
    let report = suite.run(&env, |_, _| {});
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
    assert_eq!((json["schema"].as_u64(), json["failed"].as_array().map(Vec::len)), (Some(1), Some(0)));
    // Side by side the same cases pass, in the same order, and each is told of once.
    let open = || Env::new(GpuRuntime::with_device(&Device::cpu()).expect("the CPU is everywhere"));
    let mut told = 0;
    let names = |report: &Report| report.passed.iter().map(|e| e.name.clone()).collect::<Vec<_>>();
    let together = suite.run_in(&[open(), open(), open()], |_, _| told += 1);
    assert_eq!((names(&together), told), (names(&report), suite.cases.len()));
    assert_eq!(together.coverage.len(), report.coverage.len());
}
