//! The simulator itself: what it must report, and what it must keep apart.

mod common;

use common::{Buf, SCHEDULES, Target, block, skipped};
use std::ffi::c_void;
use std::sync::OnceLock;
use tessl_sim::{Launch, Module, Schedule};

/// Small kernels, most of them wrong on purpose. One module: a compilation takes about a second.
const TEXT: &str = r"
FCONST(uint, FACTOR, 0);

KERNEL(scale, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  const uint i = gpu_tg.x * 64 + gpu_tid.x;
  if (i < n) y[i] = float(i * FACTOR);
}

KERNEL(divergent_barrier, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  if (gpu_tid.x < n) threadgroup_barrier(mem_flags::mem_threadgroup);
  y[gpu_tid.x] = 1.0f;
}

KERNEL(divergent_sum, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  float v = 1.0f;
  if (gpu_lane < n) v = simd_sum(v);
  y[gpu_tid.x] = v;
}

KERNEL(mixed_operations, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  y[gpu_tid.x] = gpu_lane < n ? simd_sum(1.0f) : simd_max(1.0f);
}

KERNEL(uninitialised, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  TG(float, t, 64);
  if (gpu_tid.x != n) t[gpu_tid.x] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[gpu_tid.x] = t[gpu_tid.x];
}

KERNEL(too_much_memory, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  TG(float, t, 8000);
  TG(float, u, 200);
  t[gpu_tid.x] = u[gpu_tid.x] = float(n);
  y[gpu_tid.x] = t[gpu_tid.x];
}

KERNEL(neighbour, 64, OUT(float, y, 0), ARGS(uint, n, 1)) {
  TG(float, t, 64);
  t[gpu_tid.x] = float(gpu_tid.x);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[gpu_tid.x] = t[(gpu_tid.x + n) % 64] + simd_sum(float(gpu_lane)) + simd_shuffle_xor(float(gpu_lane), 1);
}

KERNEL(bounded, 64, IN(uint, index, 0), OUT(float, y, 1), ARGS(uint, n, 2), STATUS(3)) {
  const uint i = index[gpu_tid.x];
  if (i >= n) {
    FAULT(7, gpu_tid.x, i);
    return;
  }
  y[gpu_tid.x] = float(i);
}

KERNEL(last_arriver, 64, SCRATCH(float, parts, 0), SCRATCH(atomic_uint, count, 1), OUT(float, y, 2), ARGS(uint, n, 3)) {
  TG(uint, last, 1);
  if (gpu_tid.x == 0) {
    parts[gpu_tg.x] = float(gpu_tg.x);
    FENCE_REL;
    last[0] = atomic_fetch_add_explicit(count, 1u, memory_order_relaxed) == n - 1 ? 1 : 0;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (last[0] != 0 && gpu_tid.x == 0) {
    FENCE_ACQ;
    float sum = 0.0f;
    for (uint i = 0; i < n; i++) sum += parts[i];
    y[0] = sum;
  }
}
";

fn module() -> Option<&'static Module> {
    static MODULE: OnceLock<Module> = OnceLock::new();
    if skipped("executor") || tessl_sim::sanitized() {
        return None;
    }
    Some(MODULE.get_or_init(|| Module::compile("executor", TEXT).unwrap_or_else(|e| panic!("{e}"))))
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
    unsafe { Target::Module(module().unwrap()).launch(&l) }
}

/// Runs a kernel of the form (y, n) and returns its result or its error.
fn simple(kernel: &str, n: u32, schedule: Schedule) -> Result<Vec<f32>, String> {
    let mut y = Buf::<f32>::new(64, 0);
    launch(kernel, &[], 1, &[y.ptr(), block(&n)], schedule)?;
    Ok((0..64).map(|i| y.get(i)).collect())
}

#[test]
fn divergence_is_an_error() {
    if module().is_none() {
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
    if module().is_none() {
        return;
    }
    let y = simple("uninitialised", 5, Schedule::Forward).unwrap();
    assert!(y.iter().enumerate().all(|(i, v)| if i == 5 { v.is_nan() } else { *v == 1.0 }));
}

#[test]
fn exchanges_and_memory_mean_the_same_under_each_schedule() {
    if module().is_none() {
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
    if module().is_none() {
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
    if module().is_none() {
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
    if module().is_none() {
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
    if module().is_none() {
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
