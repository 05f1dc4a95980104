//! How long an exact sum of 8-bit products may be.

use crate::dtype::DType;

/// The largest k for which a sum of k products of these types always fits an i32; 0 for types that are not i8 or u8.
///
/// ```
/// use tessl::{DType, max_k_i32};
/// const K: u32 = max_k_i32(DType::I8, DType::I8);
/// assert_eq!(K, i32::MAX as u32 / (128 * 128));
/// assert_eq!(max_k_i32(DType::U8, DType::I8), 65_793);
/// assert_eq!(max_k_i32(DType::U8, DType::U8), 33_025);
/// ```
pub const fn max_k_i32(a: DType, b: DType) -> u32 {
    const fn largest(dtype: DType) -> u32 {
        match dtype {
            DType::I8 => 128,
            DType::U8 => 255,
            _ => 0,
        }
    }
    match largest(a) * largest(b) {
        0 => 0,
        product => i32::MAX.cast_unsigned() / product,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_last_that_fits() {
        for (a, b, x, y) in [
            (DType::I8, DType::I8, -128i64, -128i64),
            (DType::U8, DType::I8, 255, -128),
            (DType::U8, DType::U8, 255, 255),
        ] {
            let k = i64::from(max_k_i32(a, b));
            assert!(i32::try_from(k * x * y).is_ok());
            // With a negative product one more may fit: the bound does not look at signs.
            assert!(((k + 1) * x * y).abs() > i64::from(i32::MAX));
        }
        assert_eq!(max_k_i32(DType::I8, DType::F32), 0);
    }
}
