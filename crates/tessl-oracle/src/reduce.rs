//! Reductions of rows.

/// `softcap * tanh(scale * x / softcap)`, without a softcap `scale * x`.
pub fn score(x: f64, scale: f64, softcap: Option<f64>) -> f64 {
    let t = x * scale;
    softcap.map_or(t, |c| c * (t / c).tanh())
}

/// The largest element; NaN before all numbers.
pub fn row_max(row: &[f64]) -> f64 {
    row.iter().fold(f64::NEG_INFINITY, |most, &x| if x > most || x.is_nan() { x } else { most })
}

/// The index of the largest element: the first NaN, else the lowest index among equals.
pub fn row_argmax(row: &[f64]) -> usize {
    let most = row_max(row);
    row.iter().position(|&x| if most.is_nan() { x.is_nan() } else { x == most }).unwrap_or(0)
}

/// Exponentials of scores over their sum. A row of -infinity alone is uniform, or 0 where `masked`.
pub fn softmax(scores: &[f64], masked: bool) -> Vec<f64> {
    let most = row_max(scores);
    if most == f64::NEG_INFINITY {
        return vec![if masked { 0.0 } else { 1.0 / scores.len() as f64 }; scores.len()];
    }
    let powers: Vec<f64> = scores.iter().map(|t| (t - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|e| e / sum).collect()
}

/// The logarithm of [`softmax`], without forming it.
pub fn log_softmax(scores: &[f64], masked: bool) -> Vec<f64> {
    let most = row_max(scores);
    if most == f64::NEG_INFINITY {
        let value = if masked { f64::NEG_INFINITY } else { -(scores.len() as f64).ln() };
        return vec![value; scores.len()];
    }
    let sum: f64 = scores.iter().map(|t| (t - most).exp()).sum();
    scores.iter().map(|t| (t - most) - sum.ln()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INF: f64 = f64::INFINITY;

    #[test]
    fn hand_worked() {
        assert_eq!(softmax(&[0.0, 0.0], false), [0.5, 0.5]);
        let y = softmax(&[0.0, 0.5], false);
        assert!((y[0] - 0.377_540_7).abs() < 1e-7 && (y[1] - 0.622_459_3).abs() < 1e-7);
        assert_eq!(softmax(&[-INF, 3.0], true), [0.0, 1.0]);
        assert_eq!((softmax(&[-INF; 4], false), softmax(&[-INF; 2], true)), (vec![0.25; 4], vec![0.0; 2]));
        assert!(softmax(&[f64::NAN, 1.0, -INF], false).iter().all(|y| y.is_nan()));
        assert!(softmax(&[INF, 1.0], false).iter().all(|y| y.is_nan()));
        assert_eq!(score(3.0, 2.0, None), 6.0);
        assert!((score(100.0, 1.0, Some(50.0)) - 50.0 * 2f64.tanh()).abs() < 1e-12);
    }

    /// pytorch/pytorch#94043 and mindspore-ai/mindspore#378.
    #[test]
    fn log_softmax_known_values() {
        assert_eq!(log_softmax(&[0.0, 100.0, -250.0], false), [-100.0, 0.0, -350.0]);
        let y = log_softmax(&[-0.066_347_010_4, 0.132_114_097_5, -0.041_013_501_6], false);
        for (y, want) in y.iter().zip([-1.177_171_4, -0.978_710_2, -1.151_837_8]) {
            assert!((y - want).abs() < 1e-7);
        }
        assert_eq!(log_softmax(&[-INF; 2], true), [-INF; 2]);
    }

    /// pytorch/pytorch#130295.
    #[test]
    fn maxima() {
        assert_eq!(row_argmax(&[1.0, f64::NAN, 3.0]), 1);
        assert_eq!((row_argmax(&[f64::NAN; 2]), row_argmax(&[-INF; 2])), (0, 0));
        assert_eq!((row_argmax(&[1.0, 5.0, 5.0]), row_max(&[1.0, 5.0, 5.0])), (1, 5.0));
        assert!(row_max(&[1.0, f64::NAN, 3.0]).is_nan());
    }
}
