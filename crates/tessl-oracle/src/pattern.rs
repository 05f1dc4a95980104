//! Integer patterns whose products are exact in every accumulating format.

/// `A(i, k) = ((131 i + 71 k + i k) mod 7) - 1`, values -1..5.
pub fn pa(i: usize, k: usize) -> f64 {
    ((131 * i + 71 * k + i * k) % 7) as f64 - 1.0
}

/// `B(k, j) = ((57 k + 101 j + k j) mod 5) - 1`, values -1..3.
pub fn pb(k: usize, j: usize) -> f64 {
    ((57 * k + 101 * j + k * j) % 5) as f64 - 1.0
}

/// The weight of element (i, j) in [`weighted_sum`].
pub fn weight(i: usize, j: usize) -> f64 {
    ((31 * i + 17 * j) % 101) as f64
}

/// `sum_ij C(i, j) * ((31 i + 17 j) mod 101)`: catches outputs that are permuted or shifted.
pub fn weighted_sum(m: usize, n: usize, c: impl Fn(usize, usize) -> f64) -> f64 {
    (0..m).map(|i| (0..n).map(|j| c(i, j) * weight(i, j)).sum::<f64>()).sum()
}

/// The product PA PB for one K: entry (i, j) depends on `i mod 7` and `j mod 5` alone.
#[derive(Clone, Debug)]
pub struct PatternProduct([[f64; 5]; 7]);

impl PatternProduct {
    /// The product over `k` terms.
    pub fn new(k: usize) -> Self {
        let mut table = [[0.0; 5]; 7];
        for (i, row) in table.iter_mut().enumerate() {
            for (j, entry) in row.iter_mut().enumerate() {
                *entry = (0..k).map(|p| pa(i, p) * pb(p, j)).sum();
            }
        }
        PatternProduct(table)
    }

    /// C(i, j).
    pub fn at(&self, i: usize, j: usize) -> f64 {
        self.0[i % 7][j % 5]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_checked_instance() {
        let want = [[10., 5., 10., 10.], [8., 5., 22., 24.], [6., 12., 13., 24.]];
        let c = PatternProduct::new(5);
        for (i, row) in want.iter().enumerate() {
            for (j, &entry) in row.iter().enumerate() {
                assert_eq!(c.at(i, j), entry);
            }
        }
        assert_eq!([pa(0, 0), pa(1, 0), pa(2, 3)], [-1.0, 4.0, 4.0]);
    }

    #[test]
    fn table_is_the_product() {
        let (m, n, k) = (30, 23, 41);
        let direct = crate::gemm(m, n, k, pa, pb);
        let table = PatternProduct::new(k);
        assert!((0..m * n).all(|at| direct.sum[at] == table.at(at / n, at % n)));
    }

    /// burn#5626 and mlx#3797 as published.
    #[test]
    fn published_sums() {
        for (m, n, k, sum, weighted) in [
            (4096, 208, 104, 195_475_895.0, 9_773_712_717.0),
            (16, 16, 104, 58_730.0, 2_998_955.0),
            (17, 33, 65, 81_040.0, 4_081_648.0),
        ] {
            let c = PatternProduct::new(k);
            let total: f64 = (0..m * n).map(|at| c.at(at / n, at % n)).sum();
            assert_eq!((total, weighted_sum(m, n, |i, j| c.at(i, j))), (sum, weighted));
        }
    }
}
