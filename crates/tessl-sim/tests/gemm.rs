//! The simdgroup GEMM on the simulator: layouts, batches, edges, epilogues.

mod common;

use common::args::GemmArgs;
use common::gemm::{Case, PLAIN, check};
use common::{Buf, Elem, Target, block, schedules, skipped};
use half::{bf16, f16};
use tessl_sim::{Launch, Schedule};

fn expect<T: Elem, O: Elem>(case: &Case, schedule: Schedule) {
    check::<T, O>(Target::Linked, case, schedule).unwrap_or_else(|e| panic!("{e}"));
}

fn all<T: Elem, O: Elem>() {
    if skipped(&format!("gemm_simd_{}_{}", T::NAME, O::NAME)) {
        return;
    }
    let sizes = [(1, 1, 1), (63, 65, 17), (64, 64, 16), (65, 63, 15), (33, 70, 40), (130, 5, 3), (2, 129, 31)];
    for schedule in schedules() {
        for (m, n, k) in sizes {
            for transposed in [[false, false], [false, true], [true, false], [true, true]] {
                expect::<T, O>(&Case { m, n, k, transposed, ..PLAIN }, schedule);
            }
        }
        let small = Case { m: 67, n: 35, k: 18, batch: 3, ..PLAIN };
        for broadcast in [false, true] {
            expect::<T, O>(&Case { broadcast, transposed: [true, false], ..small }, schedule);
        }
        for (bias, bias_f32) in [(0, true), (1, true), (2, true), (1, false), (2, false)] {
            for beta in [0.0, 1.0, -2.0] {
                expect::<T, O>(&Case { alpha: 2.0, beta, bias, bias_f32, activation: 1, ..small }, schedule);
                expect::<T, O>(&Case { k: 0, beta, bias, bias_f32, ..small }, schedule);
            }
        }
        for activation in [2, 3, 4] {
            expect::<T, O>(&Case { alpha: 0.125, bias: 1, activation, ..small }, schedule);
            expect::<T, O>(&Case { alpha: 16.0, activation, ..small }, schedule);
        }
    }
}

#[test]
fn gemm_simd_f32_f32() {
    all::<f32, f32>();
}

#[test]
fn gemm_simd_bf16_f32() {
    all::<bf16, f32>();
}

#[test]
fn gemm_simd_bf16_bf16() {
    all::<bf16, bf16>();
}

#[test]
fn gemm_simd_f16_f32() {
    all::<f16, f32>();
}

#[test]
fn gemm_simd_f16_f16() {
    all::<f16, f16>();
}

/// Activations at the edges of f32: k = 0 and beta = 1 pass C straight into the activation.
#[test]
fn activation_extremes() {
    if skipped("activation_extremes") {
        return;
    }
    let inf = f64::INFINITY;
    // Input, then relu, silu, gelu, gelu_tanh.
    let table = [
        (f64::NAN, [f64::NAN; 4]),
        (inf, [inf; 4]),
        (-inf, [0.0; 4]),
        (1e30, [1e30f32.into(); 4]),
        (-1e30, [0.0; 4]),
        (200.0, [200.0; 4]),
        (-200.0, [0.0; 4]),
        (60.0, [60.0; 4]),
        (0.0, [0.0; 4]),
    ];
    for activation in 1..=4 {
        let mut c = Buf::<f32>::filled(table.len(), 0, |i| table[i].0);
        let n = u32::try_from(table.len()).unwrap();
        let args = GemmArgs {
            c_rs: n.into(),
            m: 1,
            n,
            batch: 1,
            tiles_m: 1,
            tiles_n: 1,
            activation,
            beta: 1.0,
            ..GemmArgs::default()
        };
        let none = std::ptr::null_mut();
        let l = Launch {
            kernel: "gemm_simd_f32_f32",
            constants: &[("BIAS_F32", 1.0)],
            grid: [1, 1, 1],
            threads: 128,
            args: &[none, none, c.ptr(), none, block(&args)],
            schedule: Schedule::Forward,
        };
        // SAFETY: k and bias are 0, so only C is touched, and it has n elements.
        unsafe { tessl_sim::launch(&l) }.unwrap();
        for (i, (x, want)) in table.iter().enumerate() {
            let (got, want) = (c.get(i).f64(), want[activation as usize - 1]);
            assert!(got == want || got.is_nan() && want.is_nan(), "activation {activation} of {x}: {got}, want {want}");
        }
    }
}
