//! Sines and cosines over whole turns, and every kernel against f64.
#![allow(clippy::cast_possible_truncation)] // Test values are small.

use super::super::rows::harness::{Value, bound, call, kernels, operand};
use super::{BUILTINS, turn};
use crate::args::RopeArgs;
use half::{bf16, f16};
use std::f64::consts::TAU;

#[test]
fn turns_are_within_their_bound() {
    let step = 0x0000_0123_4567_89abu64;
    for i in 0..2_000_000u64 {
        let angle = i.wrapping_mul(step).wrapping_mul(i | 1) ^ i << 40;
        let exact = angle as f64 / 2f64.powi(64) * TAU;
        let [s, c] = turn(angle);
        let error = (f64::from(s) - exact.sin()).abs().max((f64::from(c) - exact.cos()).abs());
        assert!(error <= 2f64.powi(-23), "{angle:#x}: {error:e}");
    }
    for (quarter, want) in [(0u64, [0.0, 1.0]), (1, [1.0, 0.0]), (2, [0.0, -1.0]), (3, [-1.0, 0.0])] {
        assert_eq!(turn(quarter << 62), want, "{quarter} quarters are exact");
    }
}

fn every<T: Value>(ulp: f64) {
    for (name, interleaved) in [("rope_half", false), ("rope_interleaved", true)] {
        for (dims, n) in [(2usize, 2usize), (4, 7), (64, 64), (128, 130), (96, 96), (1024, 1030)] {
            let (rows, ld) = (6usize, n + 3);
            let frequency = |i: usize| 10_000f64.powf(-2.0 * i as f64 / dims as f64) / TAU;
            let mut table: Vec<u64> = (0..dims / 2).map(|i| (frequency(i) * 2f64.powi(64)) as u64).collect();
            let mut positions = [3u32, 3, 1_000_000, 17, 0, (-5i32).cast_unsigned()];
            let x: Vec<T> = (0..rows * ld).map(|i| T::of(if i % ld < n { operand(i, 7) } else { f64::NAN })).collect();
            let mut first: Option<Vec<u8>> = None;
            for kernel in kernels(BUILTINS, format!("{name}_{}", T::NAME)) {
                for in_place in [false, true] {
                    let (mut data, mut y) = (x.clone(), vec![T::of(7.0); rows * ld]);
                    let bx = bound(&mut data);
                    let by = if in_place { bx } else { bound(&mut y) };
                    let args = RopeArgs {
                        x_s2: ld as u64,
                        y_s2: ld as u64,
                        p_s2: 1,
                        rows: rows as u64,
                        r1: 1,
                        r2: u32::MAX,
                        n: n as u32,
                        dims: dims as u32,
                        mode: 2 + 4,
                        ..Default::default()
                    };
                    call(kernel, &args, &[bx, bound(&mut table), bound(&mut positions), by], 2);
                    let got = if in_place { &data } else { &y };
                    for (r, position) in positions.iter().enumerate() {
                        let row = |i: usize| (x[r * ld + i].f64(), got[r * ld + i].f64());
                        for pair in 0..dims / 2 {
                            let (i, j) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + dims / 2) };
                            let ((x0, y0), (x1, y1)) = (row(i), row(j));
                            let angle = f64::from(position.cast_signed()) * frequency(pair) * TAU;
                            let (s, c) = angle.sin_cos();
                            let error = (x0.abs() + x1.abs()) * (4e-7 + ulp);
                            assert!((y0 - (x0 * c - x1 * s)).abs() <= error, "{} {r} {pair}: {y0}", kernel.name);
                            assert!((y1 - (x1 * c + x0 * s)).abs() <= error, "{} {r} {pair}: {y1}", kernel.name);
                        }
                        assert!((dims..n).all(|i| row(i).0 == row(i).1), "{}: the rest is copied", kernel.name);
                    }
                    let bits = (0..rows).flat_map(|r| bytemuck::cast_slice::<T, u8>(&got[r * ld..][..n]).to_vec());
                    let bits: Vec<u8> = bits.collect();
                    assert!(*first.get_or_insert_with(|| bits.clone()) == bits, "{}: other bits", kernel.name);
                }
            }
        }
    }
}

#[test]
fn every_type_against_f64() {
    every::<f32>(1e-7);
    every::<f16>(1.01 / 2048.0);
    every::<bf16>(1.01 / 256.0);
}
