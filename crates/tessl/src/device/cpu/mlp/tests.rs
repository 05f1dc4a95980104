//! Every kernel against f64, with row strides, tails, both places and any number of threads.
#![allow(clippy::cast_possible_truncation)] // Test values are small.

use super::super::rows::harness::{Value, check, operand};
use super::BUILTINS;
use crate::args::MapArgs;
use crate::gemm::Activation;
use half::{bf16, f16};

fn act(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Silu => x / (1.0 + (-x).exp()),
        // Tested against f64 beside the function itself.
        Activation::Gelu => {
            let mut row = [x as f32];
            super::activate(&mut row, activation);
            row[0].into()
        }
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / (1.0 + (-2.0 * u).exp())
        }
    }
}

fn every<T: Value>(ulp: f64) {
    for activation in Activation::ALL {
        let args = MapArgs { mode: activation.code(), ..Default::default() };
        let error = |want: f64| ulp * want.abs() + 4e-6 * f64::from(u8::from(activation != Activation::None));
        check::<T, T>(BUILTINS, "activate", 1, args, |a, _| act(activation, a), error);
        check::<T, T>(BUILTINS, "glu", 2, args, |a, b| act(activation, a) * b, error);
    }
}

#[test]
fn every_type_and_function_against_f64() {
    every::<f32>(1e-6);
    every::<f16>(1.01 / 2048.0);
    every::<bf16>(1.01 / 256.0);
}

#[test]
fn operands_of_the_harness_have_no_pattern_that_hides_a_wrong_index() {
    let values: Vec<f64> = (0..100).map(|i| operand(i, 0)).collect();
    assert!(values.windows(2).all(|w| w[0] != w[1]) && operand(3, 0) != operand(3, 1));
}
