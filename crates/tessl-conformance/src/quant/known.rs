//! Faults that other libraries had.

use super::weights::Matrix;
use crate::env::Env;
use crate::suite::Case;
use tessl::nn::QuantizedMatmul;
use tessl::{DType, QLayout, f16};

fn text(error: tessl::Error) -> String {
    error.to_string()
}

/// ml-explore/mlx#665: few or ragged output rows. `y[n] = 0.5 sum_{k < 8} ((n + k) mod 16) - 16`.
fn mlx_665(env: &Env) -> Result<(), String> {
    let k = 512;
    for n in [1usize, 2, 3, 4, 7, 8, 31, 33, 65] {
        let w = Matrix::affine(4, 64, [n, k], [0.5, -2.0], |n, k| u8::try_from((n + k) % 16).unwrap_or(0));
        let w = w.place(&env.rt, QLayout::Rows)?;
        let x: Vec<f16> = (0..k).map(|k| f16::from_f32(if k < 8 { 1.0 } else { 0.0 })).collect();
        let x = env.rt.from_slice(&x, &[1, k]).map_err(text)?;
        let y = env.rt.zeros(DType::F32, &[1, n], tessl::BufferKind::Cold).map_err(text)?;
        QuantizedMatmul::new(&x, &w, &y).run().map_err(text)?;
        let got = y.read::<f32>().map_err(text)?;
        let want = |n: usize| 0.5 * (0..8).map(|k| ((n + k) % 16) as f32).sum::<f32>() - 16.0;
        if env.computes && !got.iter().enumerate().all(|(n, &y)| y == want(n)) {
            return Err(format!("{n} rows: {got:?}"));
        }
    }
    Ok(())
}

/// ml-explore/mlx#3887, #3444: K that no tile divides. Every element is `sum_k k mod 16`.
fn mlx_3887(env: &Env) -> Result<(), String> {
    for (k, want) in [(32usize, 240.0f32), (64, 480.0), (96, 720.0), (128, 960.0), (160, 1200.0), (544, 4080.0)] {
        for (bits, m) in [4, 8].into_iter().flat_map(|bits| [1usize, 8, 64].map(|m| (bits, m))) {
            let w = Matrix::affine(bits, 32, [9, k], [1.0, 0.0], |_, k| u8::try_from(k % 16).unwrap_or(0));
            let w = w.place(&env.rt, QLayout::Rows)?;
            for dtype in super::FLOATS {
                let x = env.rt.zeros(dtype, &[m, k], tessl::BufferKind::Cold).map_err(text)?;
                crate::data::write_bytes(&x, &crate::data::encode(dtype, std::iter::repeat_n(1.0, m * k)), None)?;
                let y = env.rt.zeros(DType::F32, &[m, 9], tessl::BufferKind::Cold).map_err(text)?;
                QuantizedMatmul::new(&x, &w, &y).run().map_err(text)?;
                let got = y.read::<f32>().map_err(text)?;
                if env.computes && got.iter().any(|&y| y != want) {
                    return Err(format!("{bits} bits, {dtype}, m = {m}, k = {k}: {got:?} instead of {want}"));
                }
            }
        }
    }
    Ok(())
}

/// Every case of this page.
pub(super) fn cases() -> Vec<Case> {
    let op = "quantized_matmul";
    vec![
        Case::fixed("known/mlx_665", op, 80_000, |env| mlx_665(env).into()).tagged(&["quick"]),
        Case::new("known/mlx_3887", op, |env| mlx_3887(env).into()),
    ]
}
