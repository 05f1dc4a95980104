//! Activation functions.

use crate::Format;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// A function applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x
    None,
    /// max(x, 0), NaN for NaN
    Relu,
    /// x / (1 + e^-x)
    Silu,
    /// x (1 + erf(x / sqrt 2)) / 2
    Gelu,
    /// x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2
    GeluTanh,
}

impl Activation {
    /// The value; the limit at infinities.
    pub fn apply(self, x: f64) -> f64 {
        if x.is_nan() {
            return x;
        }
        let smooth = |y: f64| if x == f64::NEG_INFINITY { 0.0 } else { y };
        match self {
            Activation::None => x,
            Activation::Relu => x.max(0.0),
            Activation::Silu => smooth(x / (1.0 + (-x).exp())),
            Activation::Gelu => smooth(x * 0.5 * erfc(-x * FRAC_1_SQRT_2)),
            Activation::GeluTanh => smooth(x / (1.0 + (-2.0 * inner(x)).exp())),
        }
    }

    /// Largest slope anywhere: an error of x grows by this factor at most. (Slopes peak at 1.0998 for silu, 1.1290 and
    /// 1.1289 for the GELUs; the test below checks them on a grid.)
    pub fn slope(self) -> f64 {
        match self {
            Activation::None | Activation::Relu => 1.0,
            Activation::Silu => 1.1,
            Activation::Gelu | Activation::GeluTanh => 1.13,
        }
    }

    /// Largest error of an f32 evaluation at exactly `x`: what docs/numerics.md promises.
    ///
    /// With u = 2^-24: silu is one exponential (4u), a sum, a quotient and a product, relative to its value. The tanh form
    /// is the same at 2 sqrt(2/pi) (x + ..), whose 6 roundings the exponential turns into 6u times the argument. The erf
    /// form has the absolute bound 6e-7 |x|. Results below the normal range lose what a denormal loses.
    pub fn error(self, x: f64) -> f64 {
        let u = Format::F32.unit_roundoff();
        let (y, tiny) = (self.apply(x).abs(), x.abs() * 2f64.powi(-148));
        match self {
            Activation::None | Activation::Relu => 0.0,
            Activation::Silu => 8.0 * u * y + tiny,
            Activation::Gelu => 6e-7 * x.abs(),
            // For x > 0 the exponential, whose error grows with its argument, is a small part of the sum.
            Activation::GeluTanh => {
                let part = if x > 0.0 { (-inner(x)).exp() } else { 1.0 };
                (8.0 + 12.0 * inner(x).abs() * part) * u * y + tiny
            }
        }
    }
}

fn inner(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)
}

/// erf, within a few units of the last place of f64.
pub fn erf(x: f64) -> f64 {
    if x.abs() < 2.0 { series(x) } else { (1.0 - erfc(x.abs())).copysign(x) }
}

/// erfc = 1 - erf without cancellation.
pub fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x < 2.0 {
        return if x > -2.0 { 1.0 - series(x) } else { 2.0 - erfc(-x) };
    }
    if x > 27.3 {
        return 0.0;
    }
    // Continued fraction e^(-x^2) / sqrt(pi) / (x + (1/2) / (x + 1 / (x + (3/2) / (x + ..)))), from the inside out.
    let mut tail = x;
    for k in (1..=200).rev() {
        tail = x + f64::from(k) * 0.5 / tail;
    }
    (-x * x).exp() / (PI.sqrt() * tail)
}

/// erf(x) = 2 / sqrt(pi) e^(-x^2) sum 2^n x^(2n+1) / (1 3 5 .. (2n+1)): all terms of one sign.
fn series(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while f64::abs(term) > 1e-18 * f64::abs(sum) {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Abramowitz and Stegun, tables 7.1 and 7.3, and mpmath at 20 digits.
    #[test]
    fn erf_known_values() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (1.99, 0.995_111_415_487_2),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            let tolerance = if x == 1.99 { 5e-7 } else { 2e-15 };
            assert!((erf(x) - want).abs() < tolerance, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        for (x, want) in
            [(2.0, 4.677_734_981_047_266e-3), (5.0, 1.537_459_794_428_034_8e-12), (10.0, 2.088_487_583_762_545e-45)]
        {
            assert!((erfc(x) / want - 1.0).abs() < 1e-13, "erfc({x}) = {:e}", erfc(x));
        }
        assert!((erfc(2.0 - 1e-12) / erfc(2.0) - 1.0).abs() < 1e-10, "the two branches meet");
        assert!((erfc(-3.0) - 1.999_977_909_503_001_4).abs() < 1e-14);
    }

    #[test]
    fn activations_known_values() {
        assert!((Activation::Silu.apply(1.0) - 0.731_058_578_630_004_9).abs() < 1e-15);
        assert!((Activation::Gelu.apply(1.0) - 0.841_344_746_068_542_9).abs() < 1e-15);
        assert!((Activation::Gelu.apply(-1.0) + 0.158_655_253_931_457_05).abs() < 1e-15);
        assert!((Activation::GeluTanh.apply(1.0) - 0.841_191_990_608_276_8).abs() < 1e-14);
        assert_eq!((Activation::Relu.apply(-2.0), Activation::Relu.apply(2.0)), (0.0, 2.0));
        for a in [Activation::None, Activation::Relu, Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            assert!(a.apply(f64::NAN).is_nan() && a.apply(f64::INFINITY) == f64::INFINITY);
        }
        assert_eq!(Activation::Silu.apply(f64::NEG_INFINITY), 0.0);
    }

    #[test]
    fn slopes_are_bounds() {
        for a in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            let slope = |i: i32| {
                let x = f64::from(i) * 1e-3;
                (a.apply(x + 1e-5) - a.apply(x - 1e-5)) / 2e-5
            };
            let steepest = (-20_000..20_000).map(slope).fold(0.0, |m: f64, s| m.max(s.abs()));
            assert!(steepest <= a.slope() && steepest > a.slope() - 0.01, "{a:?}: {steepest}");
        }
    }
}
