//! Error bounds, derived from formats, the number of terms and the operation.
//!
//! u = 2^-24 is the unit roundoff of f32. Every kernel forms products exactly or with one rounding to f32 and adds them in
//! f32, in an order of its own. For any order (Higham, Accuracy and Stability, section 3.1)
//!
//! ```text
//! |acc - exact| <= gamma_K * sum_k |a_ik| |b_kj|,   gamma_K = K u / (1 - K u)
//! ```
//!
//! Data with random signs cannot reach that. With roundings independent and of mean zero (Higham and Mary, SIAM J. Sci.
//! Computing 41, 2019), K is replaced by `lambda sqrt(K)`; lambda = 6 fails once in 10^7 draws. [`sum`] takes the smaller of
//! the two, so that products of lost precision (TF32) are still seen up to K = 256; larger K are for other faults.
//!
//! The epilogue `alpha * acc + beta * c + bias` has at most four roundings, each of at most u times the magnitudes of the
//! terms; an activation multiplies what came before by its steepest slope and adds its own error; the store rounds once.

use crate::{Epilogue, Format};

const U: f64 = 1.0 / (1u64 << 24) as f64;
const LAMBDA: f64 = 6.0;

/// Relative error of a sum of `k` products, against the sum of magnitudes, for data with random signs.
pub fn sum(k: usize) -> f64 {
    let terms = (k as f64).min(LAMBDA * (k as f64).sqrt());
    terms * U / (1.0 - terms * U)
}

/// Largest error of one element of C before it is rounded to `output`: `acc` the exact sum, `magnitude` the sum of
/// magnitudes of `k` products, `relative` their error (0 for integer patterns, else [`sum`]).
pub fn gemm(relative: f64, acc: f64, magnitude: f64, old: f64, bias: f64, e: &Epilogue) -> f64 {
    let old_term = if e.beta == 0.0 { 0.0 } else { (e.beta * old).abs() };
    let product = (e.alpha * acc).abs();
    let mut roundings = 0.0;
    if e.alpha != 1.0 {
        roundings += product;
    }
    if e.beta != 0.0 {
        roundings += old_term + (product + old_term);
    }
    if bias != 0.0 {
        roundings += product + old_term + bias.abs();
    }
    let linear_error = e.alpha.abs() * relative * magnitude + roundings * U * (1.0 + 8.0 * U);
    let t = e.linear(acc, old, bias);
    e.activation.slope() * linear_error + e.activation.error(t)
}

/// Largest error of one element of rms_norm before it is rounded: `n` elements a row, `y` the exact value.
///
/// The squares are all positive, so the mean square has a relative error of [`sum`]`(n)` plus three roundings (square,
/// division, eps); the reciprocal root halves it and adds 2 ulp (4u); two products and `w + offset` add 4u. Results below
/// the normal range lose what a denormal loses.
pub fn rms_norm(n: usize, y: f64, weight: f64, offset: f64) -> f64 {
    let scale = 0.5 * (sum(n) + 3.0 * U) + 4.0 * U;
    // `w + offset` may cancel: its rounding is relative to the sum, which is what y contains.
    let weight_error = if offset == 0.0 || weight + offset == 0.0 { 0.0 } else { U };
    y.abs() * (scale + 3.0 * U + weight_error) + 2f64.powi(-148)
}

/// Adds the rounding of the store: `y` is the exact value, `error` what is allowed before it.
pub fn stored(error: f64, y: f64, output: Format) -> f64 {
    error + 0.5 * output.spacing(y.abs() + error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation;

    #[test]
    fn random_sums_stay_inside_and_lost_precision_does_not() {
        let mut rng = crate::Rng::new(9);
        let tf32 = Format { bits: 11, ..Format::F32 };
        for k in [3, 64, 256, 1000, 4096] {
            let mut seen = false;
            for _ in 0..16 {
                let (mut exact, mut magnitude, mut single, mut low) = (0.0, 0.0, 0.0, 0.0);
                for _ in 0..k {
                    let (a, b) = (Format::F32.round(rng.normal()), Format::F32.round(rng.normal()));
                    exact += a * b;
                    magnitude += (a * b).abs();
                    single = Format::F32.round(single + Format::F32.round(a * b));
                    low += tf32.round(a) * tf32.round(b);
                }
                let bound = sum(k) * magnitude;
                assert!(f64::abs(single - exact) <= bound, "{k}");
                seen |= f64::abs(low - exact) > bound;
            }
            assert!(seen || k > 256, "{k}: TF32 products must be seen");
        }
    }

    #[test]
    fn plain_integer_products_have_no_slack() {
        assert_eq!(gemm(0.0, 12.0, 12.0, 0.0, 0.0, &Epilogue::NONE), 0.0);
        let e = Epilogue { alpha: 0.7, beta: 1.3, activation: Activation::None };
        let error = gemm(0.0, 100.0, 100.0, 10.0, 1.0, &e);
        assert!(error > 0.0 && error < 300.0 * U);
        assert_eq!(stored(0.0, 1.0, Format::BF16), 2f64.powi(-8));
    }
}
