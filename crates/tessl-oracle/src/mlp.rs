//! Gated activations. The functions themselves are [`Activation`].

use crate::Activation;

/// `act(gate) * up`.
pub fn glu(activation: Activation, gate: f64, up: f64) -> f64 {
    activation.apply(gate) * up
}

#[cfg(test)]
mod tests {
    use super::glu;
    use crate::Activation;

    #[test]
    fn hand_worked() {
        assert_eq!(glu(Activation::Relu, 3.0, -2.0), -6.0);
        assert_eq!(glu(Activation::Relu, -3.0, 5.0), 0.0);
        assert_eq!(glu(Activation::None, -3.0, 5.0), -15.0);
        assert!((glu(Activation::Silu, 1.0, 2.0) - 2.0 * 0.731_058_578_630_004_9).abs() < 1e-15);
        assert!(glu(Activation::Relu, f64::NAN, 1.0).is_nan() && glu(Activation::Relu, 1.0, f64::NAN).is_nan());
        assert!(glu(Activation::Relu, -1.0, f64::INFINITY).is_nan());
    }
}
