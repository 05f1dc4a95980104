//! The simulator itself: what it must report, and what it must keep apart.

mod common;

use common::{Buf, SCHEDULES, Target, block, cannot_compile};
use std::ffi::c_void;
use std::sync::OnceLock;
use tessl_sim::{Launch, Module, Schedule};

/// Small kernels, most of them wrong on purpose. One module: a compilation takes about a second.
const TEXT: &str = include_str!("vocabulary.metal");

fn module() -> &'static Module {
    static MODULE: OnceLock<Module> = OnceLock::new();
    MODULE.get_or_init(|| Module::compile("executor", TEXT).unwrap_or_else(|e| panic!("{e}")))
}

fn launch(
    kernel: &str,
    constants: &[(&str, f64)],
    grid: u32,
    args: &[*mut c_void],
    schedule: Schedule,
) -> Result<(), String> {
    let l = Launch { kernel, constants, grid: [grid, 1, 1], threads: 64, args, schedule };
    // SAFETY: each test passes buffers of at least the 64 elements that its kernel touches.
    unsafe { Target::Module(module()).launch(&l) }
}

/// Runs a kernel of the form (y, n) and returns its result or its error.
fn simple(kernel: &str, n: u32, schedule: Schedule) -> Result<Vec<f32>, String> {
    let mut y = Buf::<f32>::new(64, 0);
    launch(kernel, &[], 1, &[y.ptr(), block(&n)], schedule)?;
    Ok((0..64).map(|i| y.get(i)).collect())
}

#[test]
fn divergence_is_an_error() {
    if cannot_compile("divergence_is_an_error") {
        return;
    }
    for schedule in SCHEDULES {
        for (kernel, n, message) in [
            ("divergent_barrier", 32, "32 threads wait at a threadgroup_barrier, 32 returned"),
            ("divergent_sum", 16, "waits at line"),
            ("mixed_operations", 16, "divergent simdgroup operation"),
            ("too_much_memory", 0, "threadgroup memory over 32 KiB"),
        ] {
            let error = simple(kernel, n, schedule).expect_err(kernel);
            assert!(error.starts_with(kernel) && error.contains(message), "{error}");
        }
        assert!(simple("divergent_barrier", 64, schedule).is_ok());
        assert!(simple("divergent_sum", 32, schedule).unwrap().iter().all(|v| *v == 32.0));
    }
}

#[test]
fn threadgroup_memory_starts_as_nan() {
    if cannot_compile("threadgroup_memory_starts_as_nan") {
        return;
    }
    let y = simple("uninitialised", 5, Schedule::Forward).unwrap();
    assert!(y.iter().enumerate().all(|(i, v)| if i == 5 { v.is_nan() } else { *v == 1.0 }));
}

#[test]
fn exchanges_and_memory_mean_the_same_under_each_schedule() {
    if cannot_compile("exchanges_and_memory_mean_the_same_under_each_schedule") {
        return;
    }
    for schedule in SCHEDULES {
        let y = simple("neighbour", 33, schedule).unwrap();
        for (i, v) in (0u16..).zip(y) {
            assert_eq!(v, f32::from((i + 33) % 64 + 496 + ((i % 32) ^ 1)), "{i} {schedule:?}");
        }
    }
}

#[test]
fn wrong_launches_are_errors() {
    if cannot_compile("wrong_launches_are_errors") {
        return;
    }
    let mut y = Buf::<f32>::new(64, 0);
    let n = 64u32;
    let args = [y.ptr(), block(&n)];
    let message = |r: Result<(), String>| r.unwrap_err();
    assert!(message(launch("nothing", &[], 1, &args, Schedule::Forward)).contains("no such kernel"));
    assert!(message(launch("scale", &[], 1, &args[..1], Schedule::Forward)).contains("takes 2 arguments"));
    assert!(message(launch("scale", &[], 1, &args, Schedule::Forward)).contains("constant is not set"));
    let unknown = launch("scale", &[("FACTOR", 1.0), ("FACTR", 1.0)], 1, &args, Schedule::Forward);
    assert!(message(unknown).contains("no function constant is named FACTR"));
}

#[test]
fn constants_belong_to_a_launch_and_threads_may_launch_at_once() {
    if cannot_compile("constants_belong_to_a_launch_and_threads_may_launch_at_once") {
        return;
    }
    std::thread::scope(|scope| {
        for factor in 1u16..=8 {
            scope.spawn(move || {
                for round in 0..50 {
                    let mut y = Buf::<f32>::new(256, 0);
                    let n = 250u32;
                    let schedule = SCHEDULES[round % 3];
                    let constants = [("FACTOR", f64::from(factor))];
                    launch("scale", &constants, 4, &[y.ptr(), block(&n)], schedule).unwrap();
                    for i in 0u16..250 {
                        assert_eq!(y.get(i.into()), f32::from(i) * f32::from(factor));
                    }
                    y.untouched("y", |i| i < 250).unwrap();
                }
            });
        }
    });
}

/// The first fault is kept, later ones and later launches do not overwrite it, and the store is skipped.
#[test]
fn a_fault_is_recorded_once() {
    if cannot_compile("a_fault_is_recorded_once") {
        return;
    }
    for schedule in SCHEDULES {
        let mut index: Vec<u32> = (0..64).collect();
        (index[9], index[40]) = (1000, 2000);
        let mut y = Buf::<f32>::new(64, 0);
        let mut status = [0u32; 8];
        let n = 64u32;
        for seq in [41u32, 42] {
            let args =
                [index.as_mut_ptr().cast(), y.ptr(), block(&n), status.as_mut_ptr().cast::<c_void>(), block(&seq)];
            launch("bounded", &[], 1, &args, schedule).unwrap();
        }
        assert!(status == [1, 7, 41, 0, 9, 0, 1000, 0] || status == [1, 7, 41, 0, 40, 0, 2000, 0], "{status:?}");
        y.untouched("y", |i| i != 9 && i != 40).unwrap();
        assert_eq!(y.get(8), 8.0);
    }
}

#[test]
fn the_last_threadgroup_sees_all_parts() {
    if cannot_compile("the_last_threadgroup_sees_all_parts") {
        return;
    }
    for schedule in SCHEDULES {
        let (mut parts, mut y) = (Buf::<f32>::new(64, 0), Buf::<f32>::new(64, 0));
        let (mut count, n) = (0u32, 20u32);
        let args = [parts.ptr(), (&raw mut count).cast(), y.ptr(), block(&n)];
        launch("last_arriver", &[], n, &args, schedule).unwrap();
        assert_eq!(y.get(0), 190.0);
    }
}
