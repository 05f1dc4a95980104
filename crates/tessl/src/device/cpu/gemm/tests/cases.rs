use super::super::geometry;
use super::harness::*;
use crate::device::Isa;
use crate::device::cpu::plan;
use crate::dtype::DType;
use crate::gemm::{Activation, GemmBackend};
use crate::plan::Desc;

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

fn check(case: &Case) {
    for profile in profiles() {
        let outcome = run(case, profile, 2, &|z, i, k| pa(i + z, k), &|z, k, j| pb(k, j + z));
        assert_equal(case, &outcome);
    }
}

#[test]
fn sizes_around_every_tile_edge() {
    for profile in profiles() {
        for input in [DType::F32, DType::Bf16] {
            let isa = if input == DType::F32 { profile.isa.min(Isa::Avx512) } else { profile.isa };
            let g = geometry(isa, input);
            let around = |x: u32| (x as usize).saturating_sub(2).max(1)..=x as usize + 2;
            let edges = |unit: u32, other: u32| around(unit).chain(around(2 * unit)).chain(around(other));
            for m in edges(g.rows, 17) {
                for (n, k) in edges(g.cols, 3).zip(edges(g.step, 67)) {
                    let case = Case::new(m, n, k, input, DType::F32);
                    let outcome = run(&case, profile, 2, &|_, i, k| pa(i, k), &|_, k, j| pb(k, j));
                    assert_equal(&case, &outcome);
                }
            }
        }
    }
}

#[test]
fn every_layout_and_type() {
    for a in [Strides::Row, Strides::Col, Strides::Wide] {
        for b in [Strides::Row, Strides::Col, Strides::Wide] {
            for input in FLOATS {
                for output in FLOATS {
                    // The few-rows kernel takes a B with a unit stride only, as every desc promises.
                    for m in if b == Strides::Wide { vec![37] } else { vec![3, 37] } {
                        check(&Case { a, b, ..Case::new(m, 70, 41, input, output) });
                    }
                }
            }
        }
    }
}

#[test]
fn few_rows() {
    for m in 1..=16 {
        for b in [Strides::Row, Strides::Col] {
            for input in FLOATS {
                check(&Case { b, ..Case::new(m, 261, 83, input, input) });
                check(&Case { b, ..Case::new(m, 5, 1027, input, DType::F32) });
            }
        }
    }
}

#[test]
fn epilogues() {
    let activations = [Activation::None, Activation::Relu];
    for m in [4, 40] {
        for (alpha, beta) in [(1.0, 0.0), (2.0, 0.0), (1.0, 1.0), (0.5, -2.0), (0.0, 1.0)] {
            for (bias, same) in [(0, false), (1, false), (1, true), (2, false), (2, true)] {
                for activation in activations {
                    for output in FLOATS {
                        let bias_dtype = if same { output } else { DType::F32 };
                        let case = Case::new(m, 45, 19, DType::F32, output);
                        check(&Case { alpha, beta, bias, bias_dtype, activation, ..case });
                    }
                }
            }
        }
    }
}

#[test]
fn smooth_activations() {
    for activation in [Activation::Silu, Activation::GeluTanh] {
        for m in [3, 33] {
            let case = Case { activation, alpha: 0.125, bias: 1, ..Case::new(m, 40, 24, DType::F32, DType::F32) };
            for profile in profiles() {
                let outcome = run(&case, profile, 1, &|_, i, k| pa(i, k), &|_, k, j| pb(k, j));
                for (got, want) in outcome.got.iter().zip(&outcome.want) {
                    assert!((got - want).abs() <= 2e-6 * want.abs().max(1.0), "{got} {want} {case:?}");
                }
            }
        }
    }
}

#[test]
fn empty_sums_and_empty_outputs() {
    for m in [3, 40] {
        for input in [DType::F32, DType::Bf16] {
            check(&Case { bias: 1, activation: Activation::Relu, ..Case::new(m, 7, 0, input, DType::F32) });
            check(&Case { beta: 1.0, alpha: f32::NAN, ..Case::new(m, 7, 0, input, DType::F32) });
            check(&Case::new(m, 7, 0, input, DType::F32));
            check(&Case::new(m, 0, 4, input, DType::F32));
            check(&Case::new(0, 7, 4, input, DType::F32));
            check(&Case { batch: 0, ..Case::new(m, 7, 4, input, DType::F32) });
        }
    }
}

#[test]
fn batches() {
    for (m, n, k) in [(3, 40, 20), (20, 33, 40), (70, 130, 90)] {
        for batch in [2, 9] {
            for b_shared in [false, true] {
                for input in [DType::F32, DType::Bf16] {
                    check(&Case { batch, b_shared, ..Case::new(m, n, k, input, DType::F32) });
                }
            }
        }
    }
}

#[test]
fn deep_sums_in_several_blocks() {
    // More steps than one packed strip of A, then more than one block of scratch columns.
    for input in [DType::F32, DType::Bf16] {
        for profile in profiles() {
            for (m, n, k) in [(97, 70, 6001), (270, 33, 2500)] {
                if profile.isa == Isa::Scalar && n > 33 {
                    continue;
                }
                let case = Case::new(m, n, k, input, DType::Bf16);
                let outcome = run(&case, profile, 2, &|_, i, k| pa(i, k), &|_, k, j| pb(k, j));
                assert_equal(&case, &outcome);
            }
        }
    }
}

#[test]
fn scratch_for_part_of_the_columns() {
    for profile in profiles() {
        for (input, batch) in [(DType::F32, 1), (DType::Bf16, 2)] {
            let case = Case { batch, b_shared: batch > 1, ..Case::new(70, 300, 300, input, DType::F32) };
            let mut plan = plan(&Desc::Gemm(case.desc()), profile).expect("a plan");
            let g = geometry(isa_of(&plan), input);
            plan.tile[1] = 2 * g.cols;
            plan.scratch_bytes = u64::from(300u32.next_multiple_of(g.step) * g.cols * g.bytes) * 5;
            let outcome = run_plan(&case, plan, 2, &|z, i, k| pa(i + z, k), &|_, k, j| pb(k, j));
            assert_equal(&case, &outcome);
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    let value = |seed: usize, i: usize, k: usize| {
        let x = (i.wrapping_mul(0x9E37_79B9) ^ k.wrapping_mul(0x85EB_CA6B) ^ seed).wrapping_mul(0xC2B2_AE35) >> 7;
        (x % 4096) as f64 / 2048.0 - 1.0
    };
    for profile in profiles() {
        for (m, n, k) in [(7, 700, 100), (130, 600, 100), (30, 40, 50)] {
            for input in FLOATS {
                let case = Case { batch: 2, check: false, ..Case::new(m, n, k, input, DType::F32) };
                let bytes = |threads| {
                    run(&case, profile, threads, &|z, i, k| value(z, i, k), &|z, k, j| value(z + 7, k, j)).bytes
                };
                let one = bytes(1);
                for threads in [1, 2, 4] {
                    assert!(bytes(threads) == one, "{threads} threads: {case:?} on {}", profile.name);
                }
            }
        }
    }
}

#[test]
fn random_values_are_within_the_bound_of_f32_sums() {
    let value = |i: usize, k: usize| ((i * 7919 + k * 104_729) % 2001) as f64 / 1000.0 - 1.0;
    for profile in profiles() {
        for input in FLOATS {
            let case = Case::new(65, 66, 500, input, DType::F32);
            let outcome = run(&case, profile, 2, &|_, i, k| value(i, k), &|_, k, j| value(k + 3, j));
            for (got, want) in outcome.got.iter().zip(&outcome.want) {
                assert!((got - want).abs() <= 500.0 * 6e-8 * 22.0, "{got} {want} on {}", profile.name);
            }
        }
    }
}

#[test]
fn nan_and_infinity_stay_where_they_belong() {
    for profile in profiles() {
        for (m, input) in [(5, DType::F32), (40, DType::F32), (40, DType::Bf16)] {
            let case = Case { activation: Activation::Relu, ..Case::new(m, 40, 40, input, DType::F32) };
            let a = |_: usize, i: usize, k: usize| if (i, k) == (2, 39) { f64::NAN } else { 1.0 };
            let outcome = run(&case, profile, 1, &a, &|_, _, j| if j == 3 { f64::INFINITY } else { 1.0 });
            for (at, &got) in outcome.got.iter().enumerate() {
                match (at / 40, at % 40) {
                    (2, _) => assert!(got.is_nan(), "relu(NaN) is NaN"),
                    (_, 3) => assert_eq!(got, f64::INFINITY),
                    _ => assert_eq!(got, 40.0),
                }
            }
        }
    }
}

#[test]
fn the_portable_path_is_plain_rust() {
    for profile in profiles() {
        let case = Case { backend: GemmBackend::Simdgroup, ..Case::new(33, 34, 35, DType::Bf16, DType::F32) };
        let outcome = run(&case, profile, 2, &|_, i, k| pa(i, k), &|_, k, j| pb(k, j));
        assert_equal(&case, &outcome);
        assert_eq!(isa_of(&outcome.plan), Isa::Scalar);
    }
}
