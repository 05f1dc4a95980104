//! Matrix products.

use crate::Activation;

/// `C = act(alpha * A B + beta * C + bias)`, without the product.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue {
    /// Factor of the product.
    pub alpha: f64,
    /// Factor of the old C; 0 does not read it.
    pub beta: f64,
    /// Applied last.
    pub activation: Activation,
}

impl Epilogue {
    /// `C = A B`.
    pub const NONE: Epilogue = Epilogue { alpha: 1.0, beta: 0.0, activation: Activation::None };

    /// The argument of the activation.
    pub fn linear(&self, acc: f64, old: f64, bias: f64) -> f64 {
        let old = if self.beta == 0.0 { 0.0 } else { self.beta * old };
        self.alpha * acc + old + bias
    }

    /// The element of C.
    pub fn apply(&self, acc: f64, old: f64, bias: f64) -> f64 {
        self.activation.apply(self.linear(acc, old, bias))
    }
}

/// A product and, for its error bound, the sums of magnitudes.
#[derive(Clone, Debug)]
pub struct Product {
    /// `sum_k a b`, row-major.
    pub sum: Vec<f64>,
    /// `sum_k |a| |b|`, row-major.
    pub magnitude: Vec<f64>,
}

/// A (m x k) times B (k x n).
pub fn gemm(m: usize, n: usize, k: usize, a: impl Fn(usize, usize) -> f64, b: impl Fn(usize, usize) -> f64) -> Product {
    let mut sum = vec![0.0; m * n];
    let mut magnitude = vec![0.0; m * n];
    for p in 0..k {
        let row: Vec<f64> = (0..n).map(|j| b(p, j)).collect();
        for i in 0..m {
            let x = a(i, p);
            let (sums, magnitudes) = (&mut sum[i * n..][..n], &mut magnitude[i * n..][..n]);
            for ((s, t), &y) in sums.iter_mut().zip(magnitudes).zip(&row) {
                let z = x * y;
                *s += z;
                *t += z.abs();
            }
        }
    }
    Product { sum, magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_worked() {
        let product = gemm(2, 2, 3, |i, k| [[1.0, 2.0, 3.0], [4.0, 5.0, -6.0]][i][k], |k, j| (k * 2 + j) as f64);
        assert_eq!(product.sum, [16.0, 22.0, -14.0, -11.0]);
        assert_eq!(product.magnitude, [16.0, 22.0, 34.0, 49.0]);
        assert_eq!(gemm(1, 2, 0, |_, _| 1.0, |_, _| 1.0).sum, [0.0, 0.0]);
        let e = Epilogue { alpha: 0.5, beta: 0.0, activation: Activation::Relu };
        assert_eq!(e.apply(4.0, f64::NAN, 1.0), 3.0);
        assert_eq!(Epilogue { beta: 2.0, ..e }.apply(4.0, -3.0, 1.0), 0.0);
    }
}
