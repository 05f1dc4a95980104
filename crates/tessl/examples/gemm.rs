//! The quickstart. `cargo run --release --example gemm`; `TESSL_DEVICE` picks the device.

use tessl::{GemmBackend, GpuRuntime, gemm};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = GpuRuntime::new()?;

    let a = rt.alloc_tensor_f32(&[4096, 2304])?;
    let b = rt.alloc_tensor_f32(&[2304, 768])?;
    let c = rt.alloc_tensor_f32(&[4096, 768])?;

    gemm(&a, &b, &c, GemmBackend::TensorOps)?; // C = A @ B
    rt.synchronize()?;

    println!("C = A @ B on {} ({}): {:?}", rt.device(), rt.device_name(), c.shape());
    Ok(())
}
