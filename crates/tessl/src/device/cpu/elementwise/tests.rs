//! Every kernel against f64, with row strides, tails, places and any number of threads.

use super::super::rows::harness::{Value, bound, call, check, kernels, operand};
use super::{BUILTINS, COPIES};
use crate::args::MapArgs;
use half::{bf16, f16};

fn arithmetic<T: Value>(ulp: f64) {
    let args = MapArgs { scale: -1.5, ..Default::default() };
    let error = |want: f64| ulp * want.abs();
    check::<T, T>(BUILTINS, "add", 2, args, |a, b| a + b, error);
    check::<T, T>(BUILTINS, "mul", 2, args, |a, b| a * b, error);
}

#[test]
fn arithmetic_against_f64() {
    arithmetic::<f32>(1.01 / f64::from(1 << 24));
    arithmetic::<f16>(1.01 / 2048.0);
    arithmetic::<bf16>(1.01 / 256.0);
}

#[test]
fn conversions_round_once() {
    fn exact<X: Value, Y: Value>() {
        check::<X, Y>(BUILTINS, "cast", 1, MapArgs::default(), |x, _| Y::of(x).f64(), |_| 0.0);
    }
    exact::<f32, f16>();
    exact::<f32, bf16>();
    exact::<f16, f32>();
    exact::<f16, bf16>();
    exact::<bf16, f32>();
    exact::<bf16, f16>();
}

#[test]
fn factors_from_arguments_and_from_memory() {
    for kernel in kernels(BUILTINS, "scale_f32".into()) {
        for mode in [0, 1] {
            let mut x: Vec<f32> = (0..100u8).map(f32::from).collect();
            let mut factor = [if mode == 1 { 2.0f32 } else { f32::NAN }];
            let mut y = vec![0.0f32; 100];
            let args = MapArgs { rows: 1, r1: 1, r2: u32::MAX, n: 100, mode, scale: 2.0, ..Default::default() };
            call(kernel, &args, &[bound(&mut x), bound(&mut factor), bound(&mut y)], 1);
            assert!(y.iter().zip(&x).all(|(y, x)| *y == 2.0 * x), "{}", kernel.name);
        }
    }
}

#[test]
fn copies_keep_every_bit() {
    fn copied<T: Copy + PartialEq + std::fmt::Debug>(bits: usize, value: impl Fn(usize) -> T) {
        for kernel in kernels(COPIES, format!("copy_{bits}")) {
            let (mut x, mut y): (Vec<T>, Vec<T>) = ((0..70_000).map(&value).collect(), vec![value(3); 70_000]);
            let args = MapArgs { a_s2: 7, y_s2: 9, rows: 5000, r1: 1, r2: u32::MAX, n: 6, ..Default::default() };
            call(kernel, &args, &[bound(&mut x), bound(&mut y)], 2);
            for (i, y) in y.iter().enumerate() {
                let inside = i / 9 < 5000 && i % 9 < 6;
                assert_eq!(*y, if inside { x[i / 9 * 7 + i % 9] } else { value(3) }, "{} [{i}]", kernel.name);
            }
        }
    }
    // Signalling NaNs among them.
    copied(32, |i| 0x7f80_0001u32.wrapping_add(u32::try_from(i).unwrap()));
    copied(16, |i| 0x7f81u16.wrapping_add(u16::try_from(i % 60_000).unwrap()));
    copied(8, |i| u8::try_from(i % 251).unwrap());
    assert_ne!(operand(1, 0), operand(2, 0));
}
