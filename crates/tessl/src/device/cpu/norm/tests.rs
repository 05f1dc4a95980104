//! Every kernel against f64.
#![allow(clippy::cast_possible_truncation)] // Test values are small.

use super::super::{FaultCell, KernelCall, Pool, isa};
use super::BUILTINS;
use crate::args::RmsNormArgs;
use crate::device::cpu::Bound;
use crate::stream::Access;
use half::{bf16, f16};

/// A host type of the kernels.
trait Value: bytemuck::Pod {
    const NAME: &'static str;
    fn from(x: f64) -> Self;
    fn to(self) -> f64;
}

impl Value for f32 {
    const NAME: &'static str = "f32";
    fn from(x: f64) -> Self {
        x as f32
    }
    fn to(self) -> f64 {
        f64::from(self)
    }
}

impl Value for f16 {
    const NAME: &'static str = "f16";
    fn from(x: f64) -> Self {
        f16::from_f64(x)
    }
    fn to(self) -> f64 {
        self.to_f64()
    }
}

impl Value for bf16 {
    const NAME: &'static str = "bf16";
    fn from(x: f64) -> Self {
        bf16::from_f64(x)
    }
    fn to(self) -> f64 {
        self.to_f64()
    }
}

/// Runs every kernel for these types that works here on `rows` rows `ld` apart; `in_place` writes over x.
fn run<X: Value, W: Value>(x: &[X], w: &[W], rows: u64, ld: usize, threads: usize, in_place: bool) -> Vec<Vec<X>> {
    let prefix = format!("rms_norm_{}_{}_", X::NAME, W::NAME);
    let kernels = BUILTINS.iter().copied().flatten().filter(|b| b.name.starts_with(&prefix) && isa::usable(b.isa));
    let outputs = kernels.map(|kernel| {
        let mut x = x.to_vec();
        let mut w = w.to_vec();
        let mut y = vec![X::from(7.0); x.len()];
        let bound = |p: *mut u8, bytes| Bound { ptr: p, bytes, access: Access::Write };
        let bx = bound(x.as_mut_ptr().cast(), size_of_val(&x[..]));
        let bw = bound(w.as_mut_ptr().cast(), size_of_val(&w[..]));
        let by = if in_place { bx } else { bound(y.as_mut_ptr().cast(), size_of_val(&y[..])) };
        let ld = ld as u64;
        let n = u32::try_from(w.len()).expect("small");
        let args = RmsNormArgs {
            // Rows are [rows / 2][1][2] where that is possible, to walk the strides.
            x_s0: if rows.is_multiple_of(2) { 2 * ld } else { ld },
            x_s2: ld,
            y_s0: if rows.is_multiple_of(2) { 2 * ld } else { ld },
            y_s2: ld,
            rows,
            r1: 1,
            r2: if rows.is_multiple_of(2) { 2 } else { 1 },
            n,
            groups: 1,
            eps: 1e-6,
            weight_offset: 1.0,
            ..Default::default()
        };
        let (pool, fault) = (Pool::new(threads), FaultCell::default());
        let call = KernelCall { args: bytemuck::bytes_of(&args), bindings: &[bx, bw, by], pool: &pool, fault: &fault };
        // SAFETY: x and y have `rows` rows of n elements, `ld` apart.
        unsafe { (kernel.function)(&call) };
        if in_place { x } else { y }
    });
    outputs.collect()
}

fn check<X: Value, W: Value>(ulp: f64) {
    for n in [1usize, 2, 15, 16, 17, 127, 128, 129, 255, 256, 257, 1000, 4097] {
        for rows in [1u64, 2, 5, 40] {
            let ld = n + 3;
            let count = usize::try_from(rows).expect("small");
            let x: Vec<X> = (0..count * ld)
                .map(|i| X::from(if i % ld < n { ((i * 7919) % 1000) as f64 / 100.0 - 5.0 } else { f64::NAN }))
                .collect();
            let w: Vec<W> = (0..n).map(|i| W::from((i % 7) as f64 / 4.0 - 1.5)).collect();
            for got in run(&x, &w, rows, ld, 2, false) {
                for r in 0..count {
                    let row = &x[r * ld..][..n];
                    let mean = row.iter().map(|x| x.to().powi(2)).sum::<f64>() / n as f64;
                    for i in 0..n {
                        let want = row[i].to() / (mean + 1e-6).sqrt() * (w[i].to() + 1.0);
                        let y = got[r * ld + i].to();
                        assert!((y - want).abs() <= ulp * want.abs().max(1e-6), "{n} {rows} [{r}, {i}]: {y} {want}");
                    }
                    let slack = &got[r * ld + n..(r + 1) * ld];
                    assert!(slack.iter().all(|y| y.to() == 7.0), "slack of y was written");
                }
            }
            let bytes = |threads, in_place| {
                let out = run(&x, &w, rows, ld, threads, in_place);
                let rows = out.into_iter().flat_map(|y| (0..count).flat_map(move |r| y[r * ld..][..n].to_vec()));
                rows.flat_map(|y| bytemuck::bytes_of(&y).to_vec()).collect::<Vec<u8>>()
            };
            assert!(bytes(1, false) == bytes(3, true), "threads or place changed the result: {n} {rows}");
        }
    }
}

#[test]
fn every_type_against_f64() {
    check::<f32, f32>(5e-7);
    check::<f16, f16>(1.0 / 2048.0 * 1.01);
    check::<f16, f32>(1.0 / 2048.0 * 1.01);
    check::<bf16, bf16>(1.0 / 256.0 * 1.01);
    check::<bf16, f32>(1.0 / 256.0 * 1.01);
}

/// nntrainer/nntrainer#3935, xlite-dev/LeetCUDA#335: sums of squares of f16 in f32.
#[test]
fn nntrainer_3935() {
    for n in [8usize, 512, 4096] {
        for y in run::<f16, f16>(&vec![f16::from_f32(1000.0); n], &vec![f16::ZERO; n], 1, n, 1, false) {
            assert!(y.iter().all(|y| y.to_f32() == 1.0));
        }
    }
    let x = [300.0, -300.0, 600.0, 0.0].map(f16::from_f32);
    for y in run::<f16, f16>(&x, &[f16::ZERO; 4], 1, 4, 1, false) {
        let want = [0.816_496_6, -0.816_496_6, 1.632_993_2, 0.0f32].map(f16::from_f32);
        assert_eq!(y, want);
    }
}

#[test]
fn nan_stays_in_its_row() {
    let x = [1.0, f32::NAN, 3.0, 4.0];
    for y in run::<f32, f32>(&x, &[0.0; 2], 2, 2, 1, false) {
        assert!(y[0].is_nan() && y[1].is_nan() && y[2].is_finite() && y[3].is_finite());
    }
}
