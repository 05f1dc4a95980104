//! Heads of queries and keys: what happens between their projection and the cache.

use crate::{rms_norm, rope};

/// How the products of one head of a token become its query or key.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Weights of the norm, if there is one.
    pub norm: Option<&'a [f64]>,
    /// Added to the mean square.
    pub eps: f64,
    /// Added to each weight.
    pub offset: f64,
    /// Where the token stands.
    pub position: f64,
    /// Radians per position of each pair.
    pub frequencies: &'a [f64],
    /// Pairs are neighbours.
    pub interleaved: bool,
}

impl Head<'_> {
    /// The head after its norm.
    pub fn normed(&self, sums: &[f64]) -> Vec<f64> {
        self.norm.map_or_else(|| sums.to_vec(), |w| rms_norm(sums, |i| w[i], self.eps, self.offset))
    }

    /// The head as it is stored.
    pub fn of(&self, sums: &[f64]) -> Vec<f64> {
        rope(&self.normed(sums), self.position, self.frequencies, self.interleaved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_worked() {
        let quarter = std::f64::consts::FRAC_PI_2;
        let weights = [1.0, 3.0];
        let head = Head {
            norm: Some(&weights),
            eps: 0.0,
            offset: 1.0,
            position: 3.0,
            frequencies: &[quarter],
            interleaved: false,
        };
        // [5, -5] has root mean square 5: [1 * 2, -1 * 4], and three quarter turns take (a, b) to (b, -a).
        let got = head.of(&[5.0, -5.0]);
        assert!((got[0] + 4.0).abs() < 1e-12 && (got[1] + 2.0).abs() < 1e-12, "{got:?}");
        assert_eq!(Head { norm: None, frequencies: &[], ..head }.of(&[5.0, -5.0]), [5.0, -5.0]);
    }
}
