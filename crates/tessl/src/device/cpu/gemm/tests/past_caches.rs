//! Results that go past the caches, through the public interface: its memory is aligned as their stores need it.

use super::harness::{pa, pb, profiles};
use crate::dtype::Element;
use crate::{BufferKind, Device, Gemm, GpuRuntime, RuntimeOptions};
use half::{bf16, f16};

const K: usize = 8;

/// Runs the product into the middle of poisoned rows, which must stay as they were.
fn check<T: Element + Copy>(rt: &GpuRuntime, [m, n]: [usize; 2], biased: bool, from: fn(f64) -> T, to: fn(T) -> f64) {
    let values = |rows: usize, columns: usize, f: fn(usize, usize) -> f64| -> Vec<bf16> {
        (0..rows * columns).map(|at| bf16::from_f64(f(at / columns, at % columns))).collect()
    };
    let a = rt.from_slice(&values(m, K, pa), &[m, K]).unwrap();
    let b = rt.from_slice(&values(K, n, pb), &[K, n]).unwrap();
    let of_column = |j: usize| (j % 9) as f32;
    let bias = rt.from_slice(&(0..n).map(of_column).collect::<Vec<_>>(), &[n]).unwrap();
    let whole = rt.uninit(T::DTYPE, &[m + 2, n], BufferKind::Hot).unwrap();
    whole.write(&vec![from(f64::NAN); (m + 2) * n]).unwrap();
    let c = whole.narrow(0, 1, m).unwrap();
    let op = Gemm::new(&a, &b, &c);
    if biased { op.bias(&bias) } else { op }.run().unwrap();
    for (at, got) in whole.read::<T>().unwrap().into_iter().map(to).enumerate() {
        let (row, j) = (at / n, at % n);
        if row == 0 || row == m + 1 {
            assert!(got.is_nan(), "{m}x{n}: a row beside C is {got}");
            continue;
        }
        let sum: f64 = (0..K).map(|k| pa(row - 1, k) * pb(k, j)).sum();
        let want = sum + if biased { f64::from(of_column(j)) } else { 0.0 };
        assert_eq!(got, want, "{} {m}x{n}[{}, {j}]", T::DTYPE, row - 1);
    }
}

/// 2^18 elements and more go past the caches, and one row less does not; a row of 520 is not whole lines.
#[test]
fn every_result_is_whole_on_either_side_of_the_threshold() {
    for profile in profiles() {
        let options = RuntimeOptions::new().device(Device::cpu()).isa(profile.isa).threads(2);
        let rt = GpuRuntime::with_options(&options).unwrap();
        for size in [[512, 512], [511, 512], [512, 520], [9, 1 << 15], [600, 544]] {
            for biased in [false, true] {
                #[allow(clippy::cast_possible_truncation, reason = "small whole numbers")]
                let narrow = |x: f64| x as f32;
                check(&rt, size, biased, narrow, f64::from);
                check(&rt, size, biased, f16::from_f64, f16::to_f64);
                check(&rt, size, biased, bf16::from_f64, bf16::to_f64);
            }
        }
    }
}
