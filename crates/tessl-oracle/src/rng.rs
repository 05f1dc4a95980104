//! A small deterministic generator.

/// SplitMix64 (Steele, Lea, Flood 2014): one 64-bit state, passes BigCrush, any seed is good.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator that gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..n` (0 when `n` is 0). The bias is below n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        let wide = u128::from(self.bits()) * n as u128;
        usize::try_from(wide >> 64).expect("INVARIANT: below n")
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True once in `n` calls, on average.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `items`.
    ///
    /// # Panics
    /// When there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A whole number in `low..=high`, as f64.
    pub fn integer(&mut self, low: i32, high: i32) -> f64 {
        let span = usize::try_from(high.abs_diff(low)).expect("INVARIANT: usize has 32 bits or more");
        f64::from(low) + self.below(span + 1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn known_values_and_ranges() {
        // First outputs of the reference implementation for seed 1234567.
        let mut rng = Rng::new(1_234_567);
        assert_eq!([rng.bits(), rng.bits()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        let (mut sum, mut square, mut seen) = (0.0, 0.0, [0u32; 5]);
        for _ in 0..100_000 {
            let x = rng.normal();
            sum += x;
            square += x * x;
            seen[rng.below(5)] += 1;
            assert!((-2.0..=3.0).contains(&rng.integer(-2, 3)));
        }
        assert!((sum / 1e5).abs() < 0.02 && (square / 1e5 - 1.0).abs() < 0.03);
        assert!(seen.iter().all(|&n| (19_000..21_000).contains(&n)));
    }
}
