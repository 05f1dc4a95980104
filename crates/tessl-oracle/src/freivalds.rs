//! Freivalds' check of a whole product in O(mk + kn + mn).

use crate::Rng;

/// Compares `C x` with `A (B x)` for a random vector of +-1. Returns the largest ratio of a row's difference to what is
/// allowed: at most 1 when every element of C is within `bound(i, j)`.
///
/// The signs are independent of the errors e_j, so by Hoeffding |sum x_j e_j| passes 6 sqrt(sum e_j^2) once in 3e7 rows;
/// that is what is allowed. An error that is larger than that cancels against others with a chance of one half at most.
#[allow(clippy::too_many_arguments)] // A product has three sizes and three matrices.
pub fn freivalds(
    m: usize,
    n: usize,
    k: usize,
    a: impl Fn(usize, usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
    c: impl Fn(usize, usize) -> f64,
    bound: impl Fn(usize, usize) -> f64,
    seed: u64,
) -> f64 {
    let mut rng = Rng::new(seed);
    let x: Vec<f64> = (0..n).map(|_| if rng.one_in(2) { 1.0 } else { -1.0 }).collect();
    let bx: Vec<f64> = (0..k).map(|p| (0..n).map(|j| b(p, j) * x[j]).sum()).collect();
    let mut worst = 0.0f64;
    for i in 0..m {
        let abx: f64 = (0..k).map(|p| a(i, p) * bx[p]).sum();
        let cx: f64 = (0..n).map(|j| c(i, j) * x[j]).sum();
        let squares: f64 = (0..n).map(|j| bound(i, j).powi(2)).sum();
        let allowed = 6.0 * squares.sqrt() + 1e-12 * (abx.abs() + cx.abs());
        let difference = (abx - cx).abs();
        // NaN must not pass.
        worst = if difference <= allowed { worst.max(difference / allowed.max(1e-300)) } else { f64::INFINITY };
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::freivalds;
    use crate::pattern::{PatternProduct, pa, pb};

    #[test]
    fn accepts_the_product_and_sees_one_wrong_element() {
        let (m, n, k) = (20, 30, 40);
        let right = PatternProduct::new(k);
        let check = |wrong: f64, seed| {
            freivalds(
                m,
                n,
                k,
                pa,
                pb,
                |i, j| right.at(i, j) + if (i, j) == (7, 11) { wrong } else { 0.0 },
                |_, _| 1e-9,
                seed,
            )
        };
        assert!(check(0.0, 1) <= 1.0);
        assert!(check(1.0, 1) > 1.0 && check(f64::NAN, 1) > 1.0);
    }
}
