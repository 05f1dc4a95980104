//! Attention, one row of the result at a time.

use crate::reduce::score;

/// A key that a query sees, its value, and what a mask adds to its score.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// The key.
    pub k: &'a [f64],
    /// Its value.
    pub v: &'a [f64],
    /// The mask's part of the score.
    pub added: f64,
}

/// How scores are made.
#[derive(Clone, Copy, Debug)]
pub struct Scores {
    /// Factor of products.
    pub scale: f64,
    /// Bound of scores.
    pub softcap: Option<f64>,
    /// A logit in the denominator.
    pub sink: Option<f64>,
}

impl Scores {
    /// The scores of `q` and its keys.
    pub fn of(&self, q: &[f64], keys: &[Key<'_>]) -> Vec<f64> {
        let product = |key: &Key<'_>| q.iter().zip(key.k).map(|(q, k)| q * k).sum::<f64>();
        keys.iter().map(|key| score(product(key), self.scale, self.softcap) + key.added).collect()
    }

    /// The weights of these scores, which sum to one together with the sink's; 0 for scores of -infinity alone.
    pub fn weights(&self, scores: &[f64]) -> Vec<f64> {
        let seen = crate::row_max(scores);
        if seen == f64::NEG_INFINITY {
            return vec![0.0; scores.len()];
        }
        let sink = self.sink.unwrap_or(f64::NEG_INFINITY);
        let most = crate::row_max(&[seen, sink]);
        let powers: Vec<f64> = scores.iter().map(|t| (t - most).exp()).collect();
        let sum: f64 = powers.iter().sum::<f64>() + (sink - most).exp();
        powers.iter().map(|p| p / sum).collect()
    }
}

/// The result of query `q` over the keys it sees: `dim` elements, 0 without keys.
pub fn attention(q: &[f64], keys: &[Key<'_>], scores: Scores, dim: usize) -> Vec<f64> {
    let weights = scores.weights(&scores.of(q, keys));
    (0..dim).map(|d| weights.iter().zip(keys).map(|(w, key)| w * key.v[d]).sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Scores = Scores { scale: 0.5, softcap: None, sink: None };

    /// pytorch/pytorch#156707 and the formula with a sink, worked by hand.
    #[test]
    fn hand_worked() {
        let (e0, e1) = ([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]);
        let (v0, v1) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
        let keys = [Key { k: &e0, v: &v0, added: 0.0 }, Key { k: &e1, v: &v1, added: 0.0 }];
        let y = attention(&e1, &keys, PLAIN, 4);
        for (y, want) in y.iter().zip([3.489_837_3, 4.489_837_3, 5.489_837_3, 6.489_837_3]) {
            assert!((y - want).abs() < 1e-7, "{y}");
        }
        assert_eq!(attention(&e1, &[], PLAIN, 4), [0.0; 4]);
        let zero = [0.0; 4];
        let sink = Scores { sink: Some(0.0), ..PLAIN };
        for (y, want) in attention(&zero, &keys, sink, 2).iter().zip([2.0, 8.0 / 3.0]) {
            assert!((y - want).abs() < 1e-15, "{y}");
        }
        let hidden = [Key { added: f64::NEG_INFINITY, ..keys[0] }];
        assert_eq!(attention(&e1, &hidden, PLAIN, 1), [0.0]);
        let nan = [Key { added: f64::NAN, ..keys[0] }, keys[1]];
        assert!(attention(&e1, &nan, PLAIN, 1)[0].is_nan());
    }
}
