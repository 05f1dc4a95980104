//! A step captured once and replayed: nothing is validated, planned or encoded again.

use std::time::Instant;
use tessl::nn::RmsNorm;
use tessl::{Activation, Gemm, GpuRuntime};

const WIDTH: usize = 256;
const STEPS: u32 = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = GpuRuntime::new()?;
    let identity: Vec<f32> = (0..WIDTH * WIDTH).map(|i| if i % (WIDTH + 1) == 0 { 0.5 } else { 0.0 }).collect();
    let weight = rt.from_slice(&identity, &[WIDTH, WIDTH])?;
    let norm = rt.from_slice(&vec![1.0f32; WIDTH], &[WIDTH])?;
    // What changes from step to step lives in device memory.
    let x = rt.from_slice(&vec![1.0f32; WIDTH], &[1, WIDTH])?;
    let (h, y) = (rt.alloc_tensor_f32(&[1, WIDTH])?, rt.alloc_tensor_f32(&[1, WIDTH])?);

    let mut stream = rt.stream()?;
    let step = stream.capture(|s| {
        RmsNorm::new(&x, &norm, &h).run_on(s)?;
        Gemm::new(&h, &weight, &y).activation(Activation::Relu).run_on(s)
    })?;
    println!("captured {} commands on {}, {} of them wait for others", step.len(), rt.device(), step.barriers());

    let started = Instant::now();
    for i in 0..STEPS {
        x.write_on(&vec![i as f32 + 1.0; WIDTH], &mut stream)?;
        step.replay(&mut stream)?;
    }
    stream.synchronize()?;
    println!("{STEPS} replays in {:?}", started.elapsed());

    // Normalised, every x is a row of ones; half of it remains.
    let result = y.read::<f32>()?;
    assert!(result.iter().all(|v| (v - 0.5).abs() < 1e-4));
    println!("y[0] = {}", result[0]);
    Ok(())
}
