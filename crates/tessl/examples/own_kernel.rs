//! A kernel of one's own on the CPU device: `y = a x + y`, with everything else - order, lifetime, capture - as for the
//! library's kernels.

use bytemuck::{Pod, Zeroable};
use tessl::device::cpu::KernelCall;
use tessl::{Device, GpuRuntime, Library};

/// The argument block.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Axpy {
    factor: f32,
    len: u32,
}

/// Elements of one chunk of the pool.
const CHUNK: usize = 4096;

/// # Safety
/// The first operand is readable and the second writable for `len` elements of f32.
unsafe fn axpy(call: &KernelCall<'_>) {
    let args = call.args::<Axpy>();
    let len = args.len as usize;
    let (x, y) = (call.binding(0), call.binding(1));
    assert!(x.bytes >= 4 * len && y.bytes >= 4 * len, "operands are too short");
    call.pool().run(len.div_ceil(CHUNK), &|chunk| {
        // The whole of both, so that their fields' pointers may be shared among threads.
        let (x, y) = (&x, &y);
        let start = chunk * CHUNK;
        for i in start..len.min(start + CHUNK) {
            // SAFETY: i < len, which both operands have (asserted above); chunks do not overlap.
            unsafe {
                let (x, y) = (x.ptr.cast::<f32>().add(i), y.ptr.cast::<f32>().add(i));
                *y += args.factor * *x;
            }
        }
    });
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A Rust function runs on the CPU; `Library::cuda_source` and `metal_source` are for the others.
    let rt = GpuRuntime::with_device(&Device::cpu())?;
    rt.add_library(Library::cpu("blas").kernel("axpy", axpy))?;
    let kernel = rt.kernel("blas", "axpy")?;

    let x = rt.from_slice(&vec![1.0f32; 10_000], &[10_000])?;
    let y = rt.from_slice(&vec![0.5f32; 10_000], &[10_000])?;
    let mut stream = rt.stream()?;
    // SAFETY: the operands are what `axpy` asks for, in its order, and it touches nothing else.
    unsafe { stream.dispatch(&kernel, |b| b.input(&x).output(&y).args(&Axpy { factor: 2.0, len: 10_000 }))? };
    stream.synchronize()?;

    assert!(y.read::<f32>()?.iter().all(|&v| v == 2.5));
    println!("y = 2 x + y on {}: {}", rt.device(), y.narrow(0, 0, 1)?.read::<f32>()?[0]);
    Ok(())
}
