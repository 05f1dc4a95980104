//! Two streams: the second waits for a point of the first, the host waits once, at the end.
//!
//! tessl orders commands that touch the same memory by itself, also across streams; an event orders anything else, such
//! as work that must not start before some other has finished.

use tessl::{DType, Gemm, GpuRuntime};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = GpuRuntime::new()?;
    let x = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    let (y, z) = (rt.alloc_tensor_f32(&[2, 2])?, rt.alloc_tensor_f32(&[2, 2])?);

    let mut first = rt.stream()?;
    let mut second = rt.stream()?;

    Gemm::new(&x, &x, &y).run_on(&mut first)?;
    let ready = first.record();
    second.wait_event(&ready)?;
    Gemm::new(&y, &x, &z).run_on(&mut second)?;

    // Nothing has blocked so far. A ticket waits for what its stream has submitted.
    let ticket = second.commit()?;
    ticket.wait()?;
    assert!(ready.is_done());

    let cube = z.read::<f32>()?;
    println!("x^3 on {}: {cube:?}", rt.device());
    assert_eq!(cube, [37.0, 54.0, 81.0, 118.0]);
    assert_eq!(z.dtype(), DType::F32);
    Ok(())
}
