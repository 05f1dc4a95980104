//! Every kernel against f64 around the length that is held, and the same bits on every instruction set.
#![allow(clippy::cast_possible_truncation)] // Test values are small.

use super::super::rows::harness::{Value, bound, call, kernels, operand};
use super::{BUILTINS, HELD};
use crate::args::ReduceArgs;
use half::{bf16, f16};

fn args(rows: usize, n: usize, ld: usize) -> ReduceArgs {
    let (x_s2, y_s2) = (ld as u64, ld as u64);
    let base = ReduceArgs { rows: rows as u64, r1: 1, r2: u32::MAX, n: n as u32, scale: 1.0, ..Default::default() };
    ReduceArgs { x_s2, y_s2, ..base }
}

/// Softmax and its logarithm in f64.
fn exact(x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|x| (x - most).exp()).sum();
    (x.iter().map(|x| (x - most).exp() / sum).collect(), x.iter().map(|x| x - most - sum.ln()).collect())
}

fn softmaxes<T: Value>(ulp: f64) {
    for (name, log) in [("softmax", false), ("log_softmax", true)] {
        for n in [1usize, 2, 15, 16, 17, 1000, HELD - 1, HELD, HELD + 1, 3 * HELD + 5] {
            let ld = n + 3;
            let x: Vec<T> = (0..3 * ld).map(|i| T::of(if i % ld < n { operand(i, 3) } else { f64::NAN })).collect();
            let mut first: Option<Vec<u8>> = None;
            for kernel in kernels(BUILTINS, format!("{name}_{}", T::NAME)) {
                for (in_place, threads) in [(false, 1), (true, 3)] {
                    let (mut data, mut y) = (x.clone(), vec![T::of(7.0); 3 * ld]);
                    let bx = bound(&mut data);
                    let by = if in_place { bx } else { bound(&mut y) };
                    call(kernel, &args(3, n, ld), &[bx, bx, by], threads);
                    let got = if in_place { &data } else { &y };
                    for r in 0..3 {
                        let row: Vec<f64> = x[r * ld..][..n].iter().map(|x| x.f64()).collect();
                        let want = if log { exact(&row).1 } else { exact(&row).0 };
                        for (i, want) in want.into_iter().enumerate() {
                            let error = (got[r * ld + i].f64() - want).abs();
                            let allowed = ulp * want.abs() + 3e-5 * if log { 1.0 } else { want };
                            assert!(error <= allowed + 3e-8, "{} n = {n} [{r}, {i}]: {error:e}", kernel.name);
                        }
                        assert!(in_place || y[r * ld + n..][..3].iter().all(|y| y.f64() == 7.0), "{}", kernel.name);
                    }
                    let rows = (0..3).flat_map(|r| bytemuck::cast_slice::<T, u8>(&got[r * ld..][..n]).to_vec());
                    let bits: Vec<u8> = rows.collect();
                    assert!(*first.get_or_insert_with(|| bits.clone()) == bits, "{} n = {n}: other bits", kernel.name);
                }
            }
        }
    }
}

#[test]
fn softmax_against_f64() {
    softmaxes::<f32>(1e-6);
    softmaxes::<f16>(1.01 / 2048.0);
    softmaxes::<bf16>(1.01 / 256.0);
}

#[test]
fn sums_and_maxima_of_long_rows() {
    for n in [1, 31, HELD, 2 * HELD + 7] {
        let x: Vec<f32> = (0..n).map(|i| operand(i, 1) as f32).collect();
        let (sum, most) = (x.iter().map(|x| f64::from(*x)).sum::<f64>(), x.iter().copied().fold(f32::MIN, f32::max));
        let place = x.iter().position(|x| *x == most).expect("not empty");
        let mut data = x.clone();
        for (name, want) in [("row_sum_f32_f32", sum), ("row_max_f32_f32", most.into())] {
            for kernel in kernels(BUILTINS, name.into()) {
                let mut y = [0.0f32; 2];
                call(kernel, &args(1, n, n), &[bound(&mut data), bound(&mut y)], 1);
                assert!((f64::from(y[0]) - want).abs() <= 1e-6 * n as f64 && y[1] == 0.0, "{} {n}", kernel.name);
            }
        }
        for kernel in kernels(BUILTINS, "row_argmax_f32".into()) {
            let mut y = [7u32; 2];
            call(kernel, &args(1, n, n), &[bound(&mut data), bound(&mut y)], 1);
            assert_eq!(y, [place as u32, 7], "{} {n}", kernel.name);
        }
    }
}
