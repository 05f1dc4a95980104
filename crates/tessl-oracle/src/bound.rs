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

use crate::{Activation, Epilogue, Format, Head, Key, Scores, glu};

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
    let linear_error = linear([relative, 0.0], acc, magnitude, old, bias, e);
    let t = e.linear(acc, old, bias);
    e.activation.slope() * linear_error + e.activation.error(t)
}

/// Largest error of `alpha * acc + beta * old + bias`, where alpha holds the scales too: `relative` is the error of the
/// products against their magnitudes, and the number of roundings of the sum itself (of an i32 to f32, of scales).
pub fn linear([relative, more]: [f64; 2], acc: f64, magnitude: f64, old: f64, bias: f64, e: &Epilogue) -> f64 {
    let old_term = if e.beta == 0.0 { 0.0 } else { (e.beta * old).abs() };
    let product = (e.alpha * acc).abs();
    let mut roundings = more * product;
    if e.alpha != 1.0 {
        roundings += product;
    }
    if e.beta != 0.0 {
        roundings += old_term + (product + old_term);
    }
    if bias != 0.0 {
        roundings += product + old_term + bias.abs();
    }
    e.alpha.abs() * relative * magnitude + roundings * U * (1.0 + 8.0 * U)
}

/// Largest error of `gate * up` from the errors of both: theirs times the other, and one rounding.
pub fn product([gate, up]: [f64; 2], [gate_error, up_error]: [f64; 2]) -> f64 {
    let error = gate.abs() * up_error + up.abs() * gate_error + gate_error * up_error;
    error + U * ((gate * up).abs() + error) + 2f64.powi(-149)
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

/// Largest changes of the elements of `rms_norm(h)` where those of h are off by up to `errors`; `weight` has the offset added.
///
/// `mean((|h| + e)^2) - mean(h^2)` is how far the mean square can move, either way, and with it the reciprocal root.
pub fn rms_norm_of(h: &[f64], errors: &[f64], weight: impl Fn(usize) -> f64, eps: f64) -> Vec<f64> {
    let n = h.len() as f64;
    let mean = h.iter().map(|h| h * h).sum::<f64>() / n;
    let moved = h.iter().zip(errors).map(|(h, e)| (2.0 * h.abs() + e) * e).sum::<f64>() / n;
    let [low, scale, high] = [mean + moved, mean, (mean - moved).max(0.0)].map(|m| 1.0 / (m + eps).sqrt());
    let of =
        |(i, (h, e)): (usize, (&f64, &f64))| weight(i).abs() * (h.abs() * (high - scale).max(scale - low) + e * high);
    h.iter().zip(errors).enumerate().map(of).collect()
}

/// Largest errors of the elements of a row of layer_norm before they are rounded; `y` are the exact values.
///
/// Kernels work on d = x - `x[0]`, rounded once. Their mean m is off by `(sum(n) + 2u) mean|d|`, so e = d - m by
/// E = `u |d| + that + u |e|`. The variance is that of all e: `2 mean|e E| + mean E^2`, and `sum(n) + 3u` of itself; half of
/// it, relative to variance + eps, is that of the reciprocal root, which adds 4u; two products and the bias add 3u.
pub fn layer_norm(x: &[f64], weight: impl Fn(usize) -> f64, y: &[f64], eps: f64) -> Vec<f64> {
    let n = x.len() as f64;
    let (mean, variance) = crate::norm::moments(x);
    let spread = x.iter().map(|v| (v - x[0]).abs()).sum::<f64>() / n;
    let off = (sum(x.len()) + 2.0 * U) * spread + 2f64.powi(-140);
    let distance = |i: usize| U * (x[i] - x[0]).abs() + off + U * (x[i] - mean).abs();
    let first: f64 = (0..x.len()).map(|i| (x[i] - mean).abs() * distance(i)).sum::<f64>() / n;
    let second: f64 = (0..x.len()).map(|i| distance(i).powi(2)).sum::<f64>() / n;
    let of_variance = 2.0 * first + second + (sum(x.len()) + 3.0 * U) * variance;
    let total = variance + eps;
    // Where the variance is lost in its error and eps is small, the root has no correct digit.
    let relative = if of_variance < 0.5 * total { of_variance / total } else { f64::INFINITY };
    let scale = 1.0 / total.sqrt();
    let error = |i: usize| {
        let product = (x[i] - mean).abs() * scale * weight(i).abs();
        let e = weight(i).abs() * scale * distance(i);
        (e + product * (relative + 7.0 * U)) * (1.0 + relative) + U * y[i].abs() + 2f64.powi(-148)
    };
    (0..x.len()).map(error).collect()
}

/// Largest error of `act(gate) * up` before it is rounded: that of the function, times up, and one rounding of the
/// product. Without an error of the function the product of two elements has at most one rounding, that of the store.
pub fn gated(activation: Activation, gate: f64, up: f64) -> f64 {
    let error = activation.error(gate) * up.abs();
    if error == 0.0 { 0.0 } else { error + U * (glu(activation, gate, up).abs() + error) + 2f64.powi(-149) }
}

/// Largest error of `sum_k x_k w_k` with quantised weights `w = product + offset`, before the epilogue: `magnitude` is
/// `sum_k |x_k| (|product_k| + |offset_k|)`. A weight has up to three roundings (the scale of a sub-block, its product, its sum);
/// one more, of relative size `rounded`, where a kernel stores weights in the type of x. Then the sum.
pub fn quant(k: usize, magnitude: f64, rounded: f64) -> f64 {
    magnitude * (sum(k) + 3.0 * U + rounded) + 2f64.powi(-148)
}

/// Largest error of `sum_k x_k w_k` from an x in fixed point with 8 `digits` bits: an element is off by half a step, and the
/// digits reach 127 / 128 of their range, so by 2^(1 - 8 digits) times 1.005 of the largest of its 32. Steps end at 2^-122.
/// `x` and the magnitudes of the weights, in the order of k.
pub fn fixed_point(x: &[f64], magnitudes: impl IntoIterator<Item = f64>, digits: i32) -> f64 {
    let mut magnitudes = magnitudes.into_iter();
    let error = |block: &[f64]| {
        let largest = block.iter().fold(2f64.powi(-100), |m, x| m.max(x.abs()));
        1.005 * 2f64.powi(1 - 8 * digits) * largest * magnitudes.by_ref().take(block.len()).sum::<f64>()
    };
    x.chunks(32).map(error).sum()
}

/// Largest error of one rounding to f32 of a result whose exact value is `y`.
pub fn rounding(y: f64) -> f64 {
    U * y.abs() + 2f64.powi(-150)
}

/// Largest error of a score `softcap * tanh(scale * x / softcap) + mask` in f32: a rounding of the product (none at scale
/// 1), a product with 1 / softcap (two roundings, relative to the argument, where tanh has slope 1 at most), 10u for tanh,
/// two products, and a sum with the mask.
pub fn score(x: f64, scale: f64, softcap: Option<f64>, mask: Option<f64>) -> f64 {
    let product = (x * scale).abs();
    let t = crate::score(x, scale, softcap);
    let mut error = if scale == 1.0 { 0.0 } else { U * product };
    if softcap.is_some() {
        error += 2.0 * U * product + 12.0 * U * t.abs();
    }
    error + mask.map_or(0.0, |m| U * (t + m).abs())
}

/// Largest errors of softmax (or log_softmax) before the store, from scores and their errors.
///
/// With d = t - max: the error of a score and the rounding of d, `U |d|`, are relative errors of its exponential, which has
/// 8u of its own; the sum has the weighted mean of these errors and [`sum`]`(n)`. Softmax multiplies by one over it (2u); log_softmax takes a
/// logarithm (4u), and rounds the two differences. Results below the normal range of f32 may be flushed to 0.
pub fn softmax(scores: &[f64], errors: &[f64], log: bool) -> Vec<f64> {
    let most = crate::row_max(scores);
    let weights = crate::softmax(scores, true);
    let relative =
        |i: usize| if scores[i] == f64::NEG_INFINITY { 0.0 } else { errors[i] + U * (scores[i] - most).abs() };
    let mean: f64 = (0..scores.len()).map(|i| weights[i] * relative(i)).sum();
    let total = mean + 9.0 * U + sum(scores.len());
    let logarithm = scores.iter().map(|t| (t - most).exp()).sum::<f64>().ln().abs();
    let error = |i: usize| match log {
        _ if scores[i] == f64::NEG_INFINITY => 0.0,
        false => weights[i] * (relative(i) + total + 10.0 * U) + 2f64.powi(-126),
        true => relative(i) + total + 4.0 * U * logarithm + U * (2.0 * (scores[i] - most).abs() + logarithm),
    };
    (0..scores.len()).map(error).collect()
}

/// Largest error of an element of a turned pair before the store: sine and cosine within 2u, two products and a sum (2u
/// more), and the angle, whose frequency has a relative error of 2^-51 and is kept to 2^-64 of a turn.
pub fn rope(x0: f64, x1: f64, position: f64, frequency: f64) -> f64 {
    let angle = position.abs() * (frequency * 2f64.powi(-51) + 2f64.powi(-61)) + 2f64.powi(-29);
    (x0.abs() + x1.abs()) * (4.0 * U + angle) + 2f64.powi(-148)
}

/// Largest errors of a head of queries or keys before the store, from sums with these errors.
///
/// The errors of the sums are off by `mean(2 |t| e + e^2)` in the mean square; half of that, relative to it and eps, is an error of
/// the root, beside those of [`rms_norm`] itself. Turning mixes the errors of a pair and adds those of [`rope`].
pub fn head(head: &Head<'_>, sums: &[f64], errors: &[f64]) -> Vec<f64> {
    let (normed, n) = (head.normed(sums), sums.len() as f64);
    let mut error = errors.to_vec();
    if let Some(weights) = head.norm {
        let mean = sums.iter().map(|t| t * t).sum::<f64>() / n + head.eps;
        let off = sums.iter().zip(errors).map(|(t, e)| 2.0 * t.abs() * e + e * e).sum::<f64>() / n;
        let relative = if off < 0.5 * mean { off / mean } else { f64::INFINITY };
        for (i, e) in error.iter_mut().enumerate() {
            let weight = (weights[i] + head.offset).abs() / mean.sqrt();
            *e = (weight * *e + normed[i].abs() * relative) * (1.0 + relative)
                + rms_norm(sums.len(), normed[i], weights[i], head.offset);
        }
    }
    for (i, frequency) in head.frequencies.iter().enumerate() {
        let (a, b) = crate::rope_pair(i, head.frequencies.len(), head.interleaved);
        let (s, c) = (head.position * frequency).sin_cos();
        let (x, y) = (error[a], error[b]);
        let turned = rope(normed[a].abs() + x, normed[b].abs() + y, head.position, *frequency);
        (error[a], error[b]) = (x * c.abs() + y * s.abs() + turned, y * c.abs() + x * s.abs() + turned);
    }
    error
}

/// Largest error of one element of `x W^T` for a row x that a norm has made, whose elements are off by the errors of
/// [`rms_norm`]: `k` elements, `magnitude` as in [`quant`].
pub fn normed_product(k: usize, magnitude: f64) -> f64 {
    quant(k, magnitude, 0.0) + magnitude * (0.5 * (sum(k) + 3.0 * U) + 10.0 * U)
}

/// In what form the weights of an attention are multiplied with the values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weights {
    /// f32.
    Single,
    /// The sum of two bf16 numbers.
    TwoBf16,
    /// Rounded to nearest.
    Rounded(Format),
}

/// Largest errors of one row of attention before the store.
///
/// A product of `dim` elements has the error of [`sum`], its score that of [`score`]. The error of a score, the rounding of
/// its distance from the maximum and 10u of its exponential are relative errors of a weight. While keys pass, the maximum
/// grows up to once in every two keys of each of four groups, and what has been summed is then multiplied by another
/// exponential: a relative error of 10u each time, all of them independent, and the roundings of distances that add up to the
/// range of the scores. The sum of weights has the weighted mean of these errors and [`sum`] of its terms, so has the sum of
/// values; 8u are for the sink, the division and the last product. Weights below the normal range may be flushed to 0.
/// Matrix units take weights in another form, see [`Weights`]: its error is relative to each weight, and below the normal
/// range of that form absolute, for weights whose largest is 1 or above.
pub fn attention(q: &[f64], keys: &[Key<'_>], scores: Scores, form: Weights) -> Vec<f64> {
    let (n, dim) = (keys.len(), q.len());
    let t = scores.of(q, keys);
    let weights = scores.weights(&t);
    let seen = || t.iter().copied().filter(|t| *t > f64::NEG_INFINITY);
    let most = seen().chain(scores.sink).fold(f64::NEG_INFINITY, f64::max);
    let range = seen().map(|t| most - t).fold(0.0, f64::max);
    let steps = 10.0 * sum(n / 8 + 16);
    let relative: Vec<f64> = (0..n)
        .map(|j| {
            let terms = q.iter().zip(keys[j].k).map(|(q, k)| q * k);
            let (product, size) = terms.fold((0.0, 0.0), |(p, s), x| (p + x, s + f64::abs(x)));
            let added = (keys[j].added != 0.0).then_some(keys[j].added).filter(|a| a.is_finite());
            let error = scores.scale.abs() * sum(dim) * size + score(product, scores.scale, scores.softcap, added);
            error + U * ((most - t[j]).abs() + range) + steps + 10.0 * U
        })
        .map(|x| if x.is_finite() { x } else { 0.0 })
        .collect();
    let mean: f64 = weights.iter().zip(&relative).map(|(w, r)| w * r).sum();
    let (rounded, least) = match form {
        Weights::Single => (0.0, 0.0),
        // Each of the two rounds by 2^-9 of what is left.
        Weights::TwoBf16 => (2f64.powi(-17), 0.0),
        Weights::Rounded(format) => (0.5 * format.spacing(1.0), 0.5 * format.spacing(0.0)),
    };
    let common = mean + 2.0 * sum(n) + 8.0 * U + rounded;
    let element = |d: usize| {
        let terms = weights.iter().zip(&relative).zip(keys);
        terms.map(|((w, r), key)| (w * (r + common) + 2f64.powi(-125) + least) * key.v[d].abs()).sum::<f64>()
    };
    (0..keys.first().map_or(0, |key| key.v.len())).map(element).collect()
}

/// What the errors of one row of attention grow by where keys and values are codes times a scale, in f32: that product, or the
/// one with a sum of codes, rounds once. An error of scores changes weights by up to twice as much.
pub fn coded(q: &[f64], keys: &[Key<'_>], scores: Scores) -> Vec<f64> {
    let weights = scores.weights(&scores.of(q, keys));
    let size = |key: &Key<'_>| q.iter().zip(key.k).map(|(q, k)| (q * k).abs()).sum::<f64>();
    let most = keys.iter().map(|key| 2.0 * U * scores.scale.abs() * size(key)).fold(0.0, f64::max);
    let values = |d: usize| weights.iter().zip(keys).map(|(w, key)| w * key.v[d].abs()).sum::<f64>();
    (0..keys.first().map_or(0, |key| key.v.len())).map(|d| (2.0 * most + 3.0 * U) * values(d)).collect()
}

/// Adds the rounding of the store: `y` is the exact value, `error` what is allowed before it.
pub fn stored(error: f64, y: f64, output: Format) -> f64 {
    error + 0.5 * output.spacing(y.abs() + error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation;

    /// The extreme case: one element, whose norm does not move where eps is 0, and a row whose elements all grow.
    #[test]
    fn moved_rows_stay_within_their_bound() {
        let (h, e) = ([3.0, -4.0, 0.5], [0.1, 0.2, 0.05]);
        let bound = rms_norm_of(&h, &e, |_| 2.0, 0.5);
        let norm = |h: &[f64]| crate::rms_norm(h, |_| 2.0, 0.5, 0.0);
        let exact = norm(&h);
        for signs in 0..27 {
            let digit = |i: u32| f64::from(signs / 3i32.pow(i) % 3 - 1);
            let moved: Vec<f64> = (0..3u32).map(|i| h[i as usize] + digit(i) * e[i as usize]).collect();
            for ((y, x), bound) in norm(&moved).iter().zip(&exact).zip(&bound) {
                assert!((y - x).abs() <= *bound, "{moved:?}: {y}, {x}, {bound}");
            }
        }
        assert!(bound.iter().all(|b| *b < 0.3), "{bound:?}");
        assert_eq!(rms_norm_of(&h, &[0.0; 3], |_| 2.0, 0.5), [0.0; 3]);
    }

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
