//! Runtimes and kernels that tests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tessl::device::cpu::KernelCall;
use tessl::{Device, FaultKind, GpuRuntime, Kernel, Library, RuntimeOptions, Stream, Tensor};

pub(crate) fn cpu() -> GpuRuntime {
    GpuRuntime::with_device(&Device::cpu()).expect("the CPU is everywhere")
}

pub(crate) fn cpu_with(set: impl FnOnce(RuntimeOptions) -> RuntimeOptions) -> GpuRuntime {
    GpuRuntime::with_options(&set(RuntimeOptions::new().device(Device::cpu()))).expect("the CPU is everywhere")
}

pub(crate) fn null() -> GpuRuntime {
    GpuRuntime::with_device(&Device::null("h200")).expect("a null device opens anywhere")
}

/// Deterministic values in -1..1.
pub(crate) fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = tessl_oracle::Rng::new(seed);
    #[allow(clippy::cast_possible_truncation)]
    (0..len).map(|_| (rng.unit() * 2.0 - 1.0) as f32).collect()
}

/// `out[0] = in[0] * 3 + step`, all u32: the order of two such steps shows in the result.
unsafe fn mix(call: &KernelCall<'_>) {
    let step = *call.args::<u32>();
    let (from, to) = (call.binding(0).ptr.cast::<u32>(), call.binding(1).ptr.cast::<u32>());
    // SAFETY: both bindings hold one u32 at least; the caller bound them so.
    unsafe { to.write(from.read().wrapping_mul(3).wrapping_add(step)) };
}

/// `rows[p[0]] = [p[0], p[0]]`, i32, two columns: a position read on the device.
unsafe fn put_row(call: &KernelCall<'_>) {
    let (position, rows) = (call.binding(0).ptr.cast::<i32>(), call.binding(1).ptr.cast::<i32>());
    // SAFETY: one position and as many rows as it counts; the caller bound them so.
    unsafe {
        let p = position.read();
        match usize::try_from(p) {
            Ok(at) if (at + 1) * 8 <= call.binding(1).bytes => {
                rows.add(2 * at).write(p);
                rows.add(2 * at + 1).write(p);
            }
            _ => call.fault(FaultKind::CacheOverflow, 0, i64::from(p)),
        }
    }
}

unsafe fn panics(call: &KernelCall<'_>) {
    let deep = *call.args::<u32>();
    call.pool().run(8, &|chunk| assert!(chunk != 5 || deep == 0, "a kernel's chunk {chunk} panics on purpose"));
    assert!(deep != 0, "a kernel panics on purpose");
}

static SLOW_RUNS: AtomicU64 = AtomicU64::new(0);

unsafe fn slow(_: &KernelCall<'_>) {
    std::thread::sleep(std::time::Duration::from_millis(30));
    SLOW_RUNS.fetch_add(1, Ordering::SeqCst);
}

/// The kernels above, for one runtime.
pub(crate) struct Kernels {
    pub(crate) mix: Kernel,
    pub(crate) put_row: Kernel,
    pub(crate) panics: Kernel,
    pub(crate) slow: Kernel,
}

impl Kernels {
    pub(crate) fn new(rt: &GpuRuntime) -> Arc<Self> {
        let library = Library::cpu("test").kernel("mix", mix).kernel("put_row", put_row).kernel("panics", panics);
        rt.add_library(library.kernel("slow", slow)).expect("a fresh runtime has no such library");
        let get = |name| rt.kernel("test", name).expect("added above");
        Arc::new(Kernels { mix: get("mix"), put_row: get("put_row"), panics: get("panics"), slow: get("slow") })
    }

    pub(crate) fn mix(&self, stream: &mut Stream, from: &Tensor, to: &Tensor, step: u32) -> tessl::Result<()> {
        // SAFETY: the kernel reads and writes one u32 through the bindings declared here.
        unsafe { stream.dispatch(&self.mix, |b| b.input(from).output(to).args(&step)) }
    }

    pub(crate) fn put_row(&self, stream: &mut Stream, position: &Tensor, rows: &Tensor) -> tessl::Result<()> {
        // SAFETY: the kernel checks its position against the bytes of the binding.
        unsafe { stream.dispatch(&self.put_row, |b| b.input(position).output(rows)) }
    }

    pub(crate) fn panic_on(&self, stream: &mut Stream, out: &Tensor, deep: bool) -> tessl::Result<()> {
        // SAFETY: the kernel touches no memory.
        unsafe { stream.dispatch(&self.panics, |b| b.output(out).args(&u32::from(deep))) }
    }

    pub(crate) fn slow(&self, stream: &mut Stream, out: &Tensor) -> tessl::Result<()> {
        // SAFETY: the kernel touches no memory.
        unsafe { stream.dispatch(&self.slow, |b| b.output(out)) }
    }
}

/// Runs `body` on its own thread and fails, instead of hanging, when it takes longer than a minute.
pub(crate) fn within_a_minute<T: Send + 'static>(what: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || send.send(body()));
    match receive.recv_timeout(std::time::Duration::from_secs(60)) {
        Ok(value) => value,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what}: hangs"),
        Err(_) => match thread.join() {
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(_) => panic!("{what}: no result"),
        },
    }
}
