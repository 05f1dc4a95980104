//! Normalisation of rows.

/// `y = x / sqrt(mean(x^2) + eps) * (w + offset)`.
pub fn rms_norm(x: &[f64], weight: impl Fn(usize) -> f64, eps: f64, offset: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter().enumerate().map(|(i, v)| v * scale * (weight(i) + offset)).collect()
}

/// `y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b`.
pub fn layer_norm(x: &[f64], weight: impl Fn(usize) -> f64, bias: impl Fn(usize) -> f64, eps: f64) -> Vec<f64> {
    let (mean, variance) = moments(x);
    let scale = 1.0 / (variance + eps).sqrt();
    x.iter().enumerate().map(|(i, v)| (v - mean) * scale * weight(i) + bias(i)).collect()
}

/// Mean and variance; the mean by way of distances from the first element, which keeps its digits.
pub(crate) fn moments(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x[0] + x.iter().map(|v| v - x[0]).sum::<f64>() / n;
    (mean, x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n)
}

#[cfg(test)]
mod tests {
    use super::{layer_norm, rms_norm};

    #[test]
    fn layer_norm_by_hand() {
        assert_eq!(layer_norm(&[1.0, 3.0], |_| 2.0, |i| i as f64, 0.0), [-2.0, 3.0]);
        assert_eq!(layer_norm(&[5.0; 3], |_| 1.0, |_| 0.5, 1.0), [0.5; 3]);
        assert!(layer_norm(&[1.0, f64::NAN], |_| 1.0, |_| 0.0, 1.0).iter().all(|y| y.is_nan()));
    }

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
