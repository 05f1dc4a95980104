//! Activations on rows of f32, as plain loops that the compiler vectorises.
//!
//! Sums and products round apart, or in `mul_add` together, everywhere alike: all instruction sets give the same bits.

use crate::gemm::Activation;

/// `x = act(x)`. NaN stays NaN.
///
/// Largest errors against f64, over all of f32 (tested below): 4e-7 |x|.
#[inline(always)]
pub(in super::super) fn activate(row: &mut [f32], activation: Activation) {
    // Loops and no `for_each`, which is compiled apart, without the instruction set of the caller.
    match activation {
        Activation::None => {}
        Activation::Relu => {
            for x in row {
                // Written so that a NaN takes the branch that keeps it.
                *x = if *x < 0.0 { 0.0 } else { *x };
            }
        }
        Activation::Silu => {
            for x in row {
                *x = times_sigmoid(*x, *x);
            }
        }
        Activation::Gelu => {
            for x in row {
                *x = gelu(*x);
            }
        }
        // 0.5 (1 + tanh(u)) = sigmoid(2u): no cancellation, and it saturates by itself.
        Activation::GeluTanh => {
            for x in row {
                *x = times_sigmoid(*x, gelu_tanh_argument(*x));
            }
        }
    }
}

#[inline(always)]
fn gelu_tanh_argument(x: f32) -> f32 {
    /// 2 sqrt(2 / pi).
    const SCALE: f32 = 1.595_769;
    SCALE * (x + 0.044715 * x * x * x)
}

/// `x / (1 + exp(-u))` where u has the sign of x.
#[inline(always)]
fn times_sigmoid(x: f32, u: f32) -> f32 {
    let e = exp(-u.abs());
    let y = x * (if u < 0.0 { e } else { 1.0 } / (1.0 + e));
    // -inf * 0 is NaN, and the limit is -0.
    if x == f32::NEG_INFINITY { -0.0 } else { y }
}

/// Where gelu is 0 and x.
const END: f32 = 5.0625;
/// Coefficients of P, where `x P(2 x^2 / END^2 - 1)` is `erf(x / sqrt 2) / 2`: our own fit (smallest largest error on Chebyshev points,
/// exactly 1/2 at the end, rounded to f32).
const P: [f32; 13] = [
    0.139_627_35,
    -0.069_483_906,
    0.051_060_695,
    -0.040_320_292,
    0.031_641_297,
    -0.023_679_443,
    0.016_975_656,
    -0.011_890_755,
    0.006_937_247_2,
    -0.002_797_171_2,
    0.001_862_127_5,
    -0.001_916_555_8,
    0.000_749_177_4,
];

/// `x (1/2 + erf(x / sqrt 2) / 2)`, and 0 or x behind the ends.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    /// 2 / END^2.
    const SCALE: f32 = 0.078_036_88;
    // NaN stays NaN in both.
    let from = if x < -END { -END } else { x };
    let inside = if from > END { END } else { from };
    let s = (inside * inside).mul_add(SCALE, -1.0);
    let mut p = P[12];
    for c in P[..12].iter().rev() {
        p = p.mul_add(s, *c);
    }
    // Rounded apart: exactly 0 and 1 at the ends.
    from * (0.5 + inside * p)
}

/// e^x within 2 ulp for normal results; 0 below the subnormals, infinity above the range.
#[inline(always)]
pub(in super::super) fn exp(x: f32) -> f32 {
    /// Adding and taking away 1.5 * 2^23 rounds to the nearest integer, which then sits in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = if x > 89.0 { 89.0 } else { x };
    // Made apart from the rest: a product that is subnormal takes a hundred clocks, and masks are full of them.
    let none = x < -104.0;
    let x = if none { 0.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5f32] {
        p = p * r + c;
    }
    let y = p * r * r + r + 1.0;
    // 2^n in two factors, so that the subnormals and 2^128 are reached. For NaN the factors are some numbers.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let (low, high) = (n >> 1, n.wrapping_sub(n >> 1));
    let y = y * power_of_two(low) * power_of_two(high);
    if none { 0.0 } else { y }
}

/// tanh with a relative error below 10 * 2^-24; saturates to +-1. Below 0.625 x + x^3 P(x^2), P our own fit (smallest
/// largest error on Chebyshev points, coefficients rounded to f32).
#[inline(always)]
pub(in super::super) fn tanh(x: f32) -> f32 {
    const P: [f32; 5] = [-0.333_332_84, 0.133_314_91, -0.053_743_497, 0.020_650_58, -0.005_717_038_6];
    let s = x * x;
    let mut p = P[4];
    for c in P[..4].iter().rev() {
        p = p * s + c;
    }
    let e = exp(-2.0 * x.abs());
    let large = (1.0 - e) / (1.0 + e);
    if s < 0.390_625 { x + x * s * p } else { large.copysign(x) }
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23).cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 8009th bit pattern.
    fn samples() -> impl Iterator<Item = f32> {
        (0..u32::MAX).step_by(8009).map(f32::from_bits).filter(|x| x.is_finite())
    }

    fn one(x: f32, activation: Activation) -> f32 {
        let mut row = [x];
        activate(&mut row, activation);
        row[0]
    }

    /// Series and continued fraction; f64 accurate to 1e-13.
    fn erfc64(z: f64) -> f64 {
        if z.abs() < 2.5 {
            let (mut term, mut sum) = (z, z);
            for n in 1..80 {
                term *= -z * z / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            return 1.0 - 2.0 / std::f64::consts::PI.sqrt() * sum;
        }
        if z < 0.0 {
            return 2.0 - erfc64(-z);
        }
        let fraction = (1..120).rev().fold(0.0, |f, k| f64::from(k) / 2.0 / (z + f));
        (-z * z).exp() / std::f64::consts::PI.sqrt() / (z + fraction)
    }

    #[test]
    fn exp_is_within_its_bound() {
        for x in samples() {
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            if want > f64::from(f32::MAX) {
                assert!(got >= f64::from(f32::MAX), "{x}");
            } else {
                assert!((got - want).abs() <= want * 2.4e-7 + 3e-45, "exp({x}) = {got}, not {want}");
            }
        }
    }

    #[test]
    fn tanh_is_within_its_bound() {
        for x in samples() {
            let (got, want) = (f64::from(tanh(x)), f64::from(x).tanh());
            let bound = 10.0 / f64::from(1 << 24) * want.abs() + 2e-45;
            assert!((got - want).abs() <= bound, "tanh({x:e}) = {got:e}, not {want:e}");
        }
        assert!(tanh(f32::NAN).is_nan() && tanh(f32::INFINITY) == 1.0 && tanh(-1e30) == -1.0);
        assert_eq!(tanh(9.1), 1.0);
    }

    #[test]
    fn activations_are_within_their_bounds() {
        for x in samples() {
            let w = f64::from(x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (w + 0.044715 * w * w * w);
            let cases = [
                (Activation::Silu, w / (1.0 + (-w).exp()), 4e-7),
                (Activation::GeluTanh, 0.5 * w * (1.0 + u.tanh()), 4e-7),
                (Activation::Gelu, 0.5 * w * erfc64(-w / 2f64.sqrt()), 4e-7),
            ];
            for (activation, want, bound) in cases {
                let got = f64::from(one(x, activation));
                assert!((got - want).abs() <= bound * w.abs() + 2e-45, "{activation:?}({x:e}) = {got:e}, not {want:e}");
            }
        }
    }

    #[test]
    fn edges() {
        for activation in [Activation::Relu, Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            assert!(one(f32::NAN, activation).is_nan(), "{activation:?}");
            assert_eq!(one(f32::NEG_INFINITY, activation), 0.0, "{activation:?}");
            assert_eq!(one(f32::INFINITY, activation), f32::INFINITY, "{activation:?}");
            assert_eq!(one(0.0, activation), 0.0);
            // apache/tvm#16438, huggingface/candle#2475: saturation, not NaN.
            for x in [20.0f32, 44.0, 45.0, 88.8, 100.0, 1e4, 1e30] {
                assert_eq!(one(x, activation), x, "{activation:?}");
                assert!(one(-x, activation).abs() < 2e-3, "{activation:?}");
            }
        }
    }
}
