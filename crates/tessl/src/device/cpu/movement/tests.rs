//! Every kernel against plain loops.
#![allow(clippy::cast_possible_truncation)] // Test values are small.

use super::super::rows::harness::{bound, call, kernels};
use super::*;

/// Sizes around the tiles, on one and on three threads.
#[test]
fn transpositions_of_every_size() {
    for (m, n) in [(8, 8), (9, 11), (63, 64), (64, 65), (68, 260), (130, 300)] {
        let (x_m, y_n) = (n + 3, m + 2);
        let x: Vec<u32> = (0..2 * m * x_m).map(|i| i as u32).collect();
        let args = TransposeArgs {
            x_s2: (m * x_m) as u64,
            y_s2: (n * y_n) as u64,
            x_m: x_m as u64,
            y_n: y_n as u64,
            r1: 1,
            r2: 2,
            m: m as u32,
            n: n as u32,
            matrices: 2,
            ..Default::default()
        };
        for kernel in kernels(BUILTINS, "transpose_32".into()) {
            for threads in [1, 3] {
                let (mut x, mut y) = (x.clone(), vec![u32::MAX; 2 * n * y_n]);
                call(kernel, &args, &[bound(&mut x), bound(&mut y)], threads);
                for (at, &got) in y.iter().enumerate() {
                    let (b, i, j) = (at / y_n / n, at / y_n % n, at % y_n);
                    let want = if j < m { x[(b * m + j) * x_m + i] } else { u32::MAX };
                    assert_eq!(got, want, "{} {m} x {n} at {b} {i} {j}", kernel.name);
                }
            }
        }
    }
}
