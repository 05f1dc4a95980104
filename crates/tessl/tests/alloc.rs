//! Host cost of a call on the null device: heap allocations, counted, and time, printed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;
use tessl::nn::RmsNorm;
use tessl::{Activation, Device, Epilogue, Gemm, GemmBackend, GpuRuntime, gemm, gemm_epilogue};

struct Counting;

thread_local! {
    /// Allocations of this thread: other tests run beside this one.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: forwards to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: forwarded.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: forwarded.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations and nanoseconds of one call, over many calls after many others.
fn cost(name: &str, mut call: impl FnMut()) -> u64 {
    // Batches in flight and their spares have to have been filled once.
    (0..60_000).for_each(|_| call());
    let (calls, before, start) = (50_000u32, ALLOCATIONS.get(), Instant::now());
    (0..calls).for_each(|_| call());
    let time = start.elapsed() / calls;
    let allocations = ALLOCATIONS.get() - before;
    println!("{name}: {} ns a call, {allocations} allocations in {calls} calls", time.as_nanos());
    allocations
}

/// Steady-state encoding does not touch the heap, on the default stream, on another one, and in replays.
#[test]
fn a_call_allocates_nothing() {
    let rt = GpuRuntime::with_device(&Device::null("h200")).unwrap();
    let t = |shape: &[usize]| rt.alloc_tensor_bf16(shape).unwrap();
    let (a, b, c, bias, row) = (t(&[64, 256]), t(&[256, 128]), t(&[64, 128]), t(&[128]), t(&[256]));
    let mut counts = vec![
        ("gemm", cost("gemm", || gemm(&a, &b, &c, GemmBackend::TensorOps).unwrap())),
        ("gemm_epilogue", {
            let e = Epilogue { alpha: 0.5, beta: 1.0, bias: Some(&bias), activation: Activation::Silu };
            cost("gemm_epilogue", || gemm_epilogue(&a, &b, &c, GemmBackend::TensorOps, e).unwrap())
        }),
        ("rms_norm", cost("rms_norm", || RmsNorm::new(&a, &row, &a).run().unwrap())),
    ];
    let mut stream = rt.stream().unwrap();
    counts.push(("run_on", cost("run_on", || Gemm::new(&a, &b, &c).run_on(&mut stream).unwrap())));
    let changing = cost("gemm of changing rows", {
        let mut m = 0;
        let views: Vec<_> = (1..=64).map(|m| (a.narrow(0, 0, m).unwrap(), c.narrow(0, 0, m).unwrap())).collect();
        let (rt, b) = (rt.clone(), b.clone());
        move || {
            m = (m + 1) % 64;
            let (a, c) = &views[m];
            gemm(a, &b, c, GemmBackend::TensorOps).unwrap();
            let _ = &rt;
        }
    });
    counts.push(("changing rows", changing));
    for (name, allocations) in counts {
        assert_eq!(allocations, 0, "{name}");
    }
}

/// 100,000 calls with temporaries: what the runtime holds stays flat.
#[test]
fn memory_is_flat_over_many_calls() {
    let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
    let (a, b) = (rt.alloc_tensor_f32(&[2, 8]).unwrap(), rt.alloc_tensor_f32(&[8, 4]).unwrap());
    let round = || {
        for _ in 0..10_000 {
            let c = rt.uninit(tessl::DType::F32, &[2, 4], tessl::BufferKind::Cold).unwrap();
            gemm(&a, &b, &c, GemmBackend::TensorOps).unwrap();
        }
        rt.synchronize().unwrap();
        let stats = rt.memory_stats();
        (stats.live, stats.live + stats.cached, stats.device_allocations)
    };
    let first = round();
    for _ in 0..9 {
        assert_eq!(round(), first);
    }
}

/// Resident memory of this process, in bytes.
#[cfg(target_os = "linux")]
fn resident() -> i64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<i64>().unwrap() * 4096
}

/// A hundred thousand calls with fresh operands, results read back: what the process holds does not grow.
#[test]
#[cfg(target_os = "linux")]
fn resident_memory_stays_flat() {
    let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
    let data = vec![1.0f32; 256];
    let step = || {
        let (a, c) = (rt.from_slice(&data, &[16, 16]).unwrap(), rt.alloc_tensor_f32(&[16, 16]).unwrap());
        (0..10).for_each(|_| gemm(&a, &a, &c, GemmBackend::TensorOps).unwrap());
        assert_eq!(c.read::<f32>().unwrap()[0], 16.0);
    };
    (0..1000).for_each(|_| step());
    let before = resident();
    (0..10_000).for_each(|_| step());
    let grown = resident() - before;
    assert!(grown < 4 << 20, "{grown} bytes more after 100,000 calls");
    let stats = rt.memory_stats();
    assert!(stats.live < 1 << 20 && stats.cached < 1 << 20, "{stats:?}");
}
