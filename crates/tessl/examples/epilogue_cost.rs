//! What a fused epilogue costs: the product alone, the product with bias and gelu fused, and the product followed by one
//! more pass over C, which is what not fusing means at least.
//!
//! With an argument, the figures go to that file as JSON too. Each line is the middle of interleaved rounds. The pass is an `rms_norm` over C: it reads and writes each element
//! once, as a separate kernel for bias and activation would.

use std::time::Instant;
use tessl::nn::RmsNorm;
use tessl::{Activation, BufferKind, DType, Gemm, GpuRuntime, Result, Tensor, bf16};

const SHAPES: [[usize; 3]; 3] = [[256, 256, 256], [512, 1024, 256], [1024, 1024, 1024]];
const ROUNDS: usize = 9;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let rt = GpuRuntime::new()?;
    println!("device: {} ({})", rt.device(), rt.device_name());
    println!(
        "{:<24} {:>10} {:>10} {:>14} {:>12} {:>12}",
        "m x n x k", "gemm us", "fused us", "gemm + pass us", "fusing adds", "a pass adds"
    );
    let mut rows = Vec::new();
    for ([m, n, k], dtype) in SHAPES.into_iter().flat_map(|shape| [DType::F32, DType::Bf16].map(|d| (shape, d))) {
        let filled = |shape: &[usize]| -> Result<Tensor> {
            let values = (0..shape.iter().product()).map(|i: usize| ((i * 37) % 101) as f32 / 50.0 - 1.0);
            if dtype == DType::F32 {
                rt.from_slice(&values.collect::<Vec<_>>(), shape)
            } else {
                rt.from_slice(&values.map(bf16::from_f32).collect::<Vec<_>>(), shape)
            }
        };
        let (a, b, bias) = (filled(&[m, k])?, filled(&[k, n])?, filled(&[n])?);
        let ones = rt.from_slice(&vec![1.0f32; n], &[n])?;
        let c = rt.uninit(dtype, &[m, n], BufferKind::Hot)?;

        let plain = || Gemm::new(&a, &b, &c).run();
        let fused = || Gemm::new(&a, &b, &c).bias(&bias).activation(Activation::Gelu).run();
        let separate = || plain().and_then(|()| RmsNorm::new(&c, &ones, &c).run());
        let ways: [&dyn Fn() -> Result<()>; 3] = [&plain, &fused, &separate];

        let mut times = [const { Vec::new() }; 3];
        for round in 0..=ROUNDS {
            for (way, times) in ways.iter().zip(&mut times) {
                let started = Instant::now();
                way()?;
                rt.synchronize()?;
                // The first round plans and compiles.
                if round > 0 {
                    times.push(started.elapsed().as_secs_f64() * 1e6);
                }
            }
        }
        let [plain, fused, separate] = times.map(|mut t| {
            t.sort_by(f64::total_cmp);
            t[t.len() / 2]
        });
        let over = |us: f64| format!("{:+.0}%", 100.0 * (us / plain - 1.0));
        println!(
            "{:<24} {plain:>10.1} {fused:>10.1} {separate:>14.1} {:>12} {:>12}",
            format!("{m} x {n} x {k} {dtype}"),
            over(fused),
            over(separate)
        );
        rows.push(serde_json::json!({
            "m": m, "n": n, "k": k, "dtype": dtype.name(), "plain_us": plain, "fused_us": fused, "pass_us": separate,
            "fused_percent": 100.0 * (fused / plain - 1.0), "pass_percent": 100.0 * (separate / plain - 1.0),
        }));
    }
    if let Some(path) = std::env::args().nth(1) {
        let report = serde_json::json!({
            "schema": 1, "suite": "epilogue_cost", "device": rt.device_name(), "driver": rt.info().driver,
            "version": env!("CARGO_PKG_VERSION"), "threads": std::env::var("TESSL_THREADS").ok(), "rounds": ROUNDS, "rows": rows,
        });
        std::fs::write(path, format!("{report:#}\n"))?;
    }
    Ok(())
}
