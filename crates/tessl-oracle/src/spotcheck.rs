//! Which outputs of a large product are computed again.

use crate::Rng;

/// Products above this many operations are sampled.
pub const SAMPLE_ABOVE_FLOP: u64 = 2_000_000_000;
/// Outputs looked at in a sampled product.
pub const SAMPLES: usize = 4096;

/// Positions (row, column) of an m x n output to check: the corners, the edges of the last tiles, the rest at random.
pub fn positions(m: usize, n: usize, count: usize, seed: u64) -> Vec<(usize, usize)> {
    if m == 0 || n == 0 {
        return Vec::new();
    }
    let mut rng = Rng::new(seed);
    let mut all = vec![(0, 0), (0, n - 1), (m - 1, 0), (m - 1, n - 1)];
    while all.len() < count {
        // One in four lies in the last rows or columns, where tails are.
        let (mut i, mut j) = (rng.below(m), rng.below(n));
        match rng.below(8) {
            0 => i = m - 1 - rng.below(m.min(16)),
            1 => j = n - 1 - rng.below(n.min(16)),
            _ => {}
        }
        all.push((i, j));
    }
    all
}

#[cfg(test)]
mod tests {
    #[test]
    fn positions_are_inside() {
        let all = super::positions(3, 1000, 500, 1);
        assert!(all.len() == 500 && all.iter().all(|&(i, j)| i < 3 && j < 1000));
        assert!(all.contains(&(2, 999)) && super::positions(0, 5, 9, 1).is_empty());
    }
}
