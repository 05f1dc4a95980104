//! Element-wise arithmetic.

/// `a + b`.
pub fn add(a: f64, b: f64) -> f64 {
    a + b
}

/// `a * b`.
pub fn mul(a: f64, b: f64) -> f64 {
    a * b
}

#[cfg(test)]
mod tests {
    use super::{add, mul};

    #[test]
    fn hand_worked() {
        assert_eq!((add(1.5, -2.0), mul(1.5, -2.0)), (-0.5, -3.0));
        assert!(add(f64::NAN, 1.0).is_nan() && mul(0.0, f64::INFINITY).is_nan());
    }
}
