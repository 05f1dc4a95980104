//! Binary floating-point formats and rounding to them.

/// A binary format: significant bits (the hidden one included) and the exponents of its normal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Significant bits.
    pub bits: i32,
    /// Exponent of the smallest normal number.
    pub min_exponent: i32,
    /// Exponent of the largest number.
    pub max_exponent: i32,
    /// The largest number, where what lies past it, infinity too, is stored as it; elsewhere that becomes infinity.
    pub saturates_at: Option<u32>,
}

impl Format {
    /// IEEE binary32.
    pub const F32: Format = Format { bits: 24, min_exponent: -126, max_exponent: 127, saturates_at: None };
    /// IEEE binary16.
    pub const F16: Format = Format { bits: 11, min_exponent: -14, max_exponent: 15, saturates_at: None };
    /// bfloat16.
    pub const BF16: Format = Format { bits: 8, min_exponent: -126, max_exponent: 127, saturates_at: None };
    /// OCP fp8 e4m3: the encoding after its largest number is NaN.
    pub const F8E4M3: Format = Format { bits: 4, min_exponent: -6, max_exponent: 8, saturates_at: Some(448) };
    /// OCP fp8 e5m2.
    pub const F8E5M2: Format = Format { bits: 3, min_exponent: -14, max_exponent: 15, saturates_at: Some(57344) };

    /// Half the distance between 1 and the next number: the largest relative error of one rounding.
    pub fn unit_roundoff(self) -> f64 {
        2f64.powi(-self.bits)
    }

    /// Distance between neighbours around `x`.
    pub fn spacing(self, x: f64) -> f64 {
        let exponent = exponent_of(x).clamp(self.min_exponent, self.max_exponent);
        2f64.powi(exponent + 1 - self.bits)
    }

    /// Largest finite number.
    pub fn max(self) -> f64 {
        self.saturates_at.map_or((2.0 - 2f64.powi(1 - self.bits)) * 2f64.powi(self.max_exponent), f64::from)
    }

    /// What is stored of `x` before it is rounded: in formats that saturate, a number of their range or NaN.
    pub fn saturated(self, x: f64) -> f64 {
        if self.saturates_at.is_some() { x.clamp(-self.max(), self.max()) } else { x }
    }

    /// `x` to the nearest number of this format, ties to even; past the range infinity, or the largest number.
    pub fn round(self, x: f64) -> f64 {
        let x = self.saturated(x);
        if x == 0.0 || !x.is_finite() {
            return x;
        }
        let step = self.spacing(x);
        // Exact: a division by a power of two, then a rounding to whole numbers.
        let rounded = (x / step).round_ties_even() * step;
        if rounded.abs() > self.max() { f64::INFINITY.copysign(x) } else { rounded }
    }
}

/// floor(log2 |x|) of a finite number that is not 0.
fn exponent_of(x: f64) -> i32 {
    let field = (x.to_bits() >> 52) & 0x7ff;
    if field == 0 {
        // Subnormal f64: below every format here.
        return -1023;
    }
    i32::try_from(field).expect("INVARIANT: 11 bits") - 1023
}

#[cfg(test)]
mod tests {
    use super::Format;

    #[test]
    fn f32_agrees_with_the_hardware() {
        let mut rng = crate::Rng::new(5);
        for _ in 0..200_000 {
            let x = f64::from_bits(rng.bits());
            #[allow(clippy::cast_possible_truncation)] // The conversion under test.
            let want = f64::from(x as f32);
            let scaled = rng.normal() * 2f64.powi(-140);
            #[allow(clippy::cast_possible_truncation)]
            let want_small = f64::from(scaled as f32);
            assert!(Format::F32.round(x) == want || x.is_nan(), "{x:e}");
            assert_eq!(Format::F32.round(scaled), want_small, "{scaled:e}");
        }
    }

    #[test]
    fn known_values_of_the_short_formats() {
        let h = Format::F16;
        assert_eq!(h.max(), 65504.0);
        assert_eq!((h.round(65519.0), h.round(65520.0)), (65504.0, f64::INFINITY));
        assert_eq!((h.round(2049.0), h.round(2051.0)), (2048.0, 2052.0));
        assert_eq!(h.round(2f64.powi(-25)), 0.0);
        for (f, max, least) in [(Format::F8E4M3, 448.0, 2f64.powi(-9)), (Format::F8E5M2, 57344.0, 2f64.powi(-16))] {
            assert_eq!([f.round(max), f.round(max * 1.2), f.round(-f64::INFINITY)], [max, max, -max]);
            assert_eq!([f.round(least), f.round(least * 0.5), f.round(least * 0.51)], [least, 0.0, least]);
            assert!(f.round(f64::NAN).is_nan());
        }
        assert_eq!(h.round(1.5 * 2f64.powi(-24)), 2f64.powi(-23));
        let b = Format::BF16;
        assert_eq!((b.round(257.0), b.round(259.0)), (256.0, 260.0));
        assert_eq!(b.round(-1.0 - 2f64.powi(-9)), -1.0);
        assert_eq!(b.unit_roundoff(), 2f64.powi(-8));
        assert_eq!((b.spacing(1.0), b.spacing(0.0)), (2f64.powi(-7), 2f64.powi(-133)));
    }
}
