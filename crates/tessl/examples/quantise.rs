//! Quantises a layer in every format and says what it costs: bytes, error of the weights, error of the products.
//!
//!     cargo run --release --example quantise

use tessl::{GpuRuntime, QFormat, QTensor, nn::QuantizedMatmul};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = GpuRuntime::new()?;
    println!("device: {}", rt.device());
    let (n, k) = (64, 512);
    // Weights as in a trained layer: a bell around zero, from a small generator (sums of uniform numbers).
    let mut state = 1u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let weights: Vec<f32> = (0..n * k).map(|_| (0..6).map(|_| uniform()).sum::<f32>() * 0.05).collect();
    let x: Vec<f32> = (0..k).map(|_| uniform()).collect();
    let exact: Vec<f32> = weights.chunks(k).map(|row| row.iter().zip(&x).map(|(w, x)| w * x).sum()).collect();

    let dense = rt.from_slice(&weights, &[n, k])?;
    let row = rt.from_slice(&x, &[1, k])?;
    let y = rt.alloc_tensor_f32(&[1, n])?;
    println!("{:<14} {:>12} {:>16} {:>16}", "format", "bits/weight", "weights, rms", "products, rms");
    for format in QFormat::all().filter(|f| f.group() <= 64 || f.factors() == 0) {
        let w = QTensor::quantize(&dense, format)?;
        QuantizedMatmul::new(&row, &w, &y).run()?;
        let bits = 8.0 * w.storage_len() as f64 / (n * k) as f64;
        let weights_error = relative(&w.dequantize()?.read::<f32>()?, &weights);
        let products_error = relative(&y.read::<f32>()?, &exact);
        println!("{format:<14} {bits:>12.3} {weights_error:>16.5} {products_error:>16.5}");
        assert!(weights_error < 0.15 && products_error < 0.15, "{format} lost the weights");
    }
    Ok(())
}

/// Root of the mean square error over that of the mean square value.
fn relative(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(g - w)).sum();
    let size: f64 = want.iter().map(|&w| square(w)).sum();
    (error / size).sqrt()
}
