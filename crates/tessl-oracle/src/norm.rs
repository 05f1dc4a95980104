//! Normalisation of rows.

/// `y = x / sqrt(mean(x^2) + eps) * (w + offset)`.
pub fn rms_norm(x: &[f64], weight: impl Fn(usize) -> f64, eps: f64, offset: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter().enumerate().map(|(i, v)| v * scale * (weight(i) + offset)).collect()
}

#[cfg(test)]
mod tests {
    use super::rms_norm;

    #[test]
    fn hand_worked() {
        let y = rms_norm(&[300.0, -300.0, 600.0, 0.0], |_| 1.0, 1e-6, 0.0);
        for (got, want) in y.iter().zip([0.816_496_6, -0.816_496_6, 1.632_993_2, 0.0]) {
            assert!((got - want).abs() < 1e-7);
        }
        assert_eq!(rms_norm(&[2.0, -2.0], |i| i as f64, 0.0, 1.0), [1.0, -2.0]);
        assert_eq!(rms_norm(&[0.0], |_| 1.0, 1.0, 0.0), [0.0]);
    }
}
