//! Problem sizes, by name or as `MxNxK`.

use crate::error::{CliError, Result};
use std::fmt;
use std::str::FromStr;

/// Sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of C.
    pub m: u32,
    /// Columns of C.
    pub n: u32,
    /// Length of the sums.
    pub k: u32,
}

/// Largest size along one axis.
const MAX: u32 = 1 << 20;
/// Largest number of elements of one matrix.
const MAX_ELEMENTS: u64 = 1 << 32;

/// The ladder that every comparison uses.
const LADDER: [(&str, [u32; 3]); 8] = [
    ("square_512", [512, 512, 512]),
    ("square_1024", [1024, 1024, 1024]),
    ("square_2048", [2048, 2048, 2048]),
    ("square_4096", [4096, 4096, 4096]),
    ("qkv_proj", [2048, 768, 768]),
    ("mlp_up", [8192, 3072, 768]),
    ("mlp_down", [8192, 768, 3072]),
    ("tall_k1024", [4096, 4096, 1024]),
];

/// What `all` adds: large, few rows, long sums.
const MORE: [(&str, [u32; 3]); 21] = [
    ("square_8192", [8192, 8192, 8192]),
    ("llama_q", [4096, 4096, 4096]),
    ("llama_kv", [4096, 1024, 4096]),
    ("llama_up", [4096, 14336, 4096]),
    ("llama_down", [4096, 4096, 14336]),
    ("rows_1", [1, 4096, 4096]),
    ("rows_2", [2, 4096, 4096]),
    ("rows_4", [4, 4096, 4096]),
    ("rows_8", [8, 4096, 4096]),
    ("rows_16", [16, 4096, 4096]),
    ("rows_32", [32, 4096, 4096]),
    ("rows_64", [64, 4096, 4096]),
    ("wide_1", [1, 28672, 4096]),
    ("wide_2", [2, 28672, 4096]),
    ("wide_4", [4, 28672, 4096]),
    ("wide_8", [8, 28672, 4096]),
    ("wide_16", [16, 28672, 4096]),
    ("wide_32", [32, 28672, 4096]),
    ("wide_64", [64, 28672, 4096]),
    ("long_k_128", [128, 128, 8192]),
    ("long_k_768", [768, 768, 8192]),
];

impl Shape {
    /// Multiplications and additions.
    pub fn flop(&self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n) * f64::from(self.k)
    }

    /// Elements of the three matrices.
    pub fn elements(&self) -> f64 {
        let [m, n, k] = [self.m, self.n, self.k].map(f64::from);
        m * k + k * n + m * n
    }

    /// The ladder's name for this shape, or the sizes.
    pub fn name(&self) -> String {
        let all = LADDER.iter().chain(&MORE);
        let named = all.clone().find(|(_, s)| *s == [self.m, self.n, self.k]);
        named.map_or_else(|| self.to_string(), |(name, _)| (*name).to_owned())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.m, self.n, self.k)
    }
}

impl FromStr for Shape {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Self> {
        let known = LADDER.iter().chain(&MORE).find(|(name, _)| *name == text);
        let parts = || text.split(['x', 'X', '*']).map(|p| p.trim().parse::<u32>().ok()).collect::<Option<Vec<u32>>>();
        let sizes = known.map(|(_, s)| s.to_vec()).or_else(parts).unwrap_or_default();
        let &[m, n, k] = sizes.as_slice() else {
            return Err(CliError::Usage(format!(
                "shape `{text}` is not MxNxK, such as 2048x768x768, or a name of the ladder"
            )));
        };
        let pairs = [(m, k), (k, n), (m, n)];
        let fits = [m, n, k].iter().all(|d| (1..=MAX).contains(d))
            && pairs.iter().all(|&(x, y)| u64::from(x) * u64::from(y) <= MAX_ELEMENTS);
        if !fits {
            return Err(CliError::Usage(format!(
                "shape `{text}`: sizes are 1 to {MAX}, matrices at most 2^32 elements"
            )));
        }
        Ok(Shape { m, n, k })
    }
}

/// A list with commas; `ladder` and `all` stand for the built-in ones.
///
/// # Errors
/// `Usage` for an empty list or an entry that is no shape.
pub fn parse_shapes(text: &str) -> Result<Vec<Shape>> {
    let shape = |&(_, [m, n, k]): &(&str, [u32; 3])| Shape { m, n, k };
    let mut shapes: Vec<Shape> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        match part {
            "ladder" => shapes.extend(LADDER.iter().map(shape)),
            "all" => shapes.extend(LADDER.iter().chain(&MORE).map(shape)),
            part => shapes.push(part.parse()?),
        }
    }
    let mut seen = std::collections::HashSet::new();
    shapes.retain(|s| seen.insert(*s));
    if shapes.is_empty() { Err(CliError::Usage("the list of shapes is empty".to_owned())) } else { Ok(shapes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_and_validated() {
        assert_eq!(parse_shapes("2048x768x768, square_512").unwrap()[1], Shape { m: 512, n: 512, k: 512 });
        assert_eq!(parse_shapes("ladder").unwrap().len(), 8);
        assert_eq!(Shape { m: 2048, n: 768, k: 768 }.name(), "qkv_proj");
        for bad in ["", "1x2", "0x1x1", "1x2x3x4", "axbxc", "-1x2x3", "2000000x1x1", "1048576x1048576x1"] {
            assert!(parse_shapes(bad).is_err(), "{bad}");
        }
    }
}
