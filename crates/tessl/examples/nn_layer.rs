//! The gated MLP block of a transformer: RMSNorm -> gate and up -> GELU -> down -> residual and the next norm, checked
//! against plain loops. `cargo run --release --example nn_layer`; `TESSL_DEVICE` picks the device.

use tessl::nn::{Glu, RmsNorm};
use tessl::{Activation, GemmBackend, GpuRuntime, gemm};

const TOKENS: usize = 6;
const MODEL: usize = 64;
const HIDDEN: usize = 160;
const EPS: f32 = 1e-6;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = GpuRuntime::new()?;
    // Weights as checkpoints keep them, [out, in]; gate and up in one matrix, so that both are one product.
    let stream = numbers(TOKENS * MODEL, 1, 1.0);
    let (norm, next) = (numbers(MODEL, 2, 0.5), numbers(MODEL, 3, 0.5));
    let gate_up = numbers(2 * HIDDEN * MODEL, 4, 0.2);
    let down = numbers(MODEL * HIDDEN, 5, 0.2);

    let x = rt.from_slice(&stream, &[TOKENS, MODEL])?;
    let (w_norm, w_next) = (rt.from_slice(&norm, &[MODEL])?, rt.from_slice(&next, &[MODEL])?);
    let w_gate_up = rt.from_slice(&gate_up, &[2 * HIDDEN, MODEL])?;
    let w_down = rt.from_slice(&down, &[MODEL, HIDDEN])?;
    let normal = rt.alloc_tensor_f32(&[TOKENS, MODEL])?;
    let both = rt.alloc_tensor_f32(&[TOKENS, 2 * HIDDEN])?;
    let hidden = rt.alloc_tensor_f32(&[TOKENS, HIDDEN])?;
    let delta = rt.alloc_tensor_f32(&[TOKENS, MODEL])?;
    let (gate, up) = (both.narrow(1, 0, HIDDEN)?, both.narrow(1, HIDDEN, HIDDEN)?);

    // Calls encode and return; only `read` waits.
    RmsNorm::new(&x, &w_norm, &normal).eps(EPS).weight_offset(1.0).run()?;
    gemm(&normal, &w_gate_up.t()?, &both, GemmBackend::TensorOps)?;
    Glu::new(&gate, &up, &hidden, Activation::GeluTanh).run()?;
    gemm(&hidden, &w_down.t()?, &delta, GemmBackend::TensorOps)?;
    // The residual stream takes the block's answer in, and the next block gets it normalised, in one pass.
    RmsNorm::new(&delta, &w_next, &normal).eps(EPS).weight_offset(1.0).residual(&x, &x).run()?;

    let (got_stream, got_normal) = (x.read::<f32>()?, normal.read::<f32>()?);
    let mut worst = 0.0f64;
    for (t, row) in stream.chunks(MODEL).enumerate() {
        let (want_stream, want_normal) = plain(row, [&norm, &next], &gate_up, &down);
        for i in 0..MODEL {
            let at = t * MODEL + i;
            worst = worst.max((f64::from(got_stream[at]) - want_stream[i]).abs());
            worst = worst.max((f64::from(got_normal[at]) - want_normal[i]).abs());
        }
    }
    println!("gated MLP block on {} ({}): {TOKENS} tokens, largest error {worst:.1e}", rt.device(), rt.device_name());
    if worst < 1e-4 { Ok(()) } else { Err(format!("an error of {worst}").into()) }
}

/// One token in f64: the residual stream after the block, and its norm.
fn plain(x: &[f32], [norm, next]: [&[f32]; 2], gate_up: &[f32], down: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let x: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    let normal = rms(&x, norm);
    let product = |w: &[f32], x: &[f64]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
    let both: Vec<f64> = gate_up.chunks(MODEL).map(|w| product(w, &normal)).collect();
    let hidden: Vec<f64> = (0..HIDDEN).map(|i| gelu(both[i]) * both[HIDDEN + i]).collect();
    let stream: Vec<f64> = x.iter().zip(down.chunks(HIDDEN)).map(|(x, w)| x + product(w, &hidden)).collect();
    let normal = rms(&stream, next);
    (stream, normal)
}

fn rms(x: &[f64], weight: &[f32]) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * scale * (1.0 + f64::from(*w))).collect()
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// Numbers between -scale and scale, the same on every machine.
fn numbers(count: usize, seed: u32, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / 8_388_608.0 - 1.0) * scale
    };
    (0..count).map(next).collect()
}
