//! Rotary position embedding.

/// Frequency of pair `i`, in radians per position.
pub fn rope_frequency(i: usize, dims: usize, base: f64) -> f64 {
    base.powf(-2.0 * i as f64 / dims as f64)
}

/// The frequencies of NTK-aware scaling: those of a larger base.
pub fn rope_ntk(dims: usize, base: f64, factor: f64) -> Vec<f64> {
    let base = base * factor.powf(dims as f64 / (dims as f64 - 2.0));
    (0..dims / 2).map(|i| rope_frequency(i, dims, base)).collect()
}

/// The frequencies of YaRN with bounds of 32 turns and 1 turn in a context of `original`.
pub fn rope_yarn(dims: usize, base: f64, factor: f64, original: f64) -> Vec<f64> {
    let pair = |turns: f64| {
        // base^(-2 i / dims) * original = 2 pi turns, solved for i.
        (original / (std::f64::consts::TAU * turns)).log(base) * dims as f64 / 2.0
    };
    let (low, high) = (pair(32.0).floor().max(0.0), pair(1.0).ceil().min(dims as f64 - 1.0));
    let blend = |i: usize| {
        let kept = rope_frequency(i, dims, base);
        let t = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        kept * (1.0 - t) + kept / factor * t
    };
    (0..dims / 2).map(blend).collect()
}

/// Turns the pairs of the first `2 * frequencies.len()` elements of a row; the others are copied.
pub fn rope(row: &[f64], position: f64, frequencies: &[f64], interleaved: bool) -> Vec<f64> {
    let mut out = row.to_vec();
    for (i, frequency) in frequencies.iter().enumerate() {
        let (a, b) = rope_pair(i, frequencies.len(), interleaved);
        let (s, c) = (position * frequency).sin_cos();
        out[a] = row[a] * c - row[b] * s;
        out[b] = row[b] * c + row[a] * s;
    }
    out
}

/// The elements of pair `i` of `pairs`.
pub fn rope_pair(i: usize, pairs: usize, interleaved: bool) -> (usize, usize) {
    if interleaved { (2 * i, 2 * i + 1) } else { (i, i + pairs) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ml-explore/mlx#3494 and huggingface/candle#3520, worked with mpmath.
    #[test]
    fn known_values() {
        let near = |got: &[f64], want: &[f64]| got.iter().zip(want).all(|(g, w)| (g - w).abs() < 5e-7);
        let frequencies = [rope_frequency(0, 4, 1e4), rope_frequency(1, 4, 1e4)];
        let half = rope(&[1.0; 4], 5.0, &frequencies, false);
        assert!(near(&half, &[1.242_586_5, 0.948_771_1, -0.675_262_1, 1.048_729_4]), "{half:?}");
        let woven = rope(&[1.0; 4], 5.0, &frequencies, true);
        assert!(near(&woven, &[1.242_586_5, -0.675_262_1, 0.948_771_1, 1.048_729_4]), "{woven:?}");
        assert!(near(&rope(&[1.0, 0.0], 257.0, &[1.0], false), &[0.819_306, -0.573_357]));
        assert!(near(&rope(&[1.0, 0.0, 7.0], 15_962.0, &[1.0], false), &[-0.908_016, 0.418_936, 7.0]));
    }
}
