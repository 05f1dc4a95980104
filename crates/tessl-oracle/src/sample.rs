//! Choosing: the largest elements, and tokens from logits.

/// Indices of the k largest elements, largest first: NaN before all numbers, of equal ones the lowest index first.
pub fn top_k(row: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    // NaN is above everything here, and all NaN are equal; the sort is stable.
    order.sort_by(|&a, &b| match (row[a].is_nan(), row[b].is_nan()) {
        (false, false) => row[b].partial_cmp(&row[a]).expect("numbers"),
        (a, b) => b.cmp(&a),
    });
    order.truncate(k);
    order
}

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011).
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = counter.map(u64::from);
    for round in 0..10u64 {
        let weyl = |k: u32, step: u64| (u64::from(k) + round * step) & 0xFFFF_FFFF;
        let (first, second) = (a * 0xD251_1F53, c * 0xCD9E_8D57);
        (a, b) = (second >> 32 ^ b ^ weyl(key[0], 0x9E37_79B9), second & 0xFFFF_FFFF);
        (c, d) = (first >> 32 ^ d ^ weyl(key[1], 0xBB67_AE85), first & 0xFFFF_FFFF);
    }
    [a, b, c, d].map(|word| u32::try_from(word).expect("INVARIANT: 32 bits"))
}

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Bound of the scores.
    pub softcap: Option<f64>,
    /// Divides the scores; 0 takes the largest.
    pub temperature: f64,
    /// How many are kept; 0 for all.
    pub top_k: usize,
    /// Probability that is kept.
    pub top_p: f64,
    /// Part of the largest probability that is kept.
    pub min_p: f64,
    /// What makes previous tokens less probable.
    pub penalty: f64,
}

/// What is kept, in order of indices, with weights relative to the largest.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept(pub Vec<(usize, f64)>);

impl Sampling {
    /// The scores that the logits become.
    pub fn scores(&self, logits: &[f64], previous: &[usize]) -> Vec<f64> {
        let score = |(i, &x): (usize, &f64)| {
            let t = self.softcap.map_or(x, |c| c * (x / c).tanh());
            let t = match previous.contains(&i) {
                true if t > 0.0 => t / self.penalty,
                true => t * self.penalty,
                false => t,
            };
            if self.temperature > 0.0 { t / self.temperature } else { t }
        };
        logits.iter().enumerate().map(score).collect()
    }

    /// What is kept of these scores; `slack` moves the bound of top_p, as rounding may.
    pub fn kept(&self, scores: &[f64], slack: f64) -> Kept {
        let mut order = top_k(scores, if self.top_k == 0 { scores.len() } else { self.top_k });
        let most = scores[order[0]];
        let weight = |i: usize| if scores[i] == most { 1.0 } else { (scores[i] - most).exp() };
        let total: f64 = order.iter().map(|&i| weight(i)).sum();
        let (mut sum, mut count) = (0.0, 0);
        while count < order.len() && (count == 0 || self.top_p >= 1.0 || sum < (self.top_p + slack) * total) {
            sum += weight(order[count]);
            count += 1;
        }
        order.truncate(count);
        order.retain(|&i| weight(i) >= self.min_p);
        order.sort_unstable();
        Kept(order.into_iter().map(|i| (i, weight(i))).collect())
    }
}

impl Kept {
    /// The token that a number in [0, 1) names; a number outside names the first or the last.
    pub fn token(&self, u: f64) -> usize {
        let target = u * self.0.iter().map(|(_, w)| w).sum::<f64>();
        let mut sum = 0.0;
        let found = self.0.iter().find(|(_, w)| {
            sum += w;
            sum > target
        });
        found.or(self.0.last()).map_or(0, |(i, _)| *i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that come with Random123.
    #[test]
    fn philox_known_answers() {
        let zero = [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8];
        let ones = [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD];
        assert_eq!((philox([0; 4], [0; 2]), philox([u32::MAX; 4], [u32::MAX; 2])), (zero, ones));
        let pi = philox([0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344], [0xA409_3822, 0x299F_31D0]);
        assert_eq!(pi, [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1]);
    }

    #[test]
    fn hand_worked() {
        assert_eq!(top_k(&[1.0, f64::NAN, 3.0, 3.0, f64::NAN], 4), [1, 4, 2, 3]);
        let plain = Sampling { softcap: None, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, penalty: 1.0 };
        let third = 1f64 / 3.0;
        let scores = [third.ln(), 0.0, third.ln()];
        let indices = |s: Sampling| s.kept(&scores, 0.0).0.into_iter().map(|(i, _)| i).collect::<Vec<_>>();
        assert_eq!(indices(plain), [0, 1, 2]);
        assert_eq!(indices(Sampling { top_k: 2, ..plain }), [0, 1]);
        assert_eq!(indices(Sampling { top_p: 0.5, ..plain }), [1]);
        assert_eq!(indices(Sampling { top_p: 0.7, ..plain }), [0, 1]);
        assert_eq!(indices(Sampling { min_p: 0.4, ..plain }), [1]);
        assert_eq!(plain.kept(&scores, 0.0).token(0.1), 0);
        assert_eq!(plain.kept(&scores, 0.0).token(0.5), 1);
        let warm = Sampling { temperature: 2.0, penalty: 4.0, ..plain };
        assert_eq!(warm.scores(&[8.0, -1.0, 6.0], &[0, 1]), [1.0, -2.0, 3.0]);
    }
}
