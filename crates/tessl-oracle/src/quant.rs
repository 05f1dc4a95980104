//! Quantised weights, one at a time, straight from the bit positions.

/// A way to code weights. Formats without a group hold their factors in their blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantFormat {
    /// Unsigned codes of 4 or 8 bits, scale and bias a group.
    Affine {
        /// Bits of a code.
        bits: usize,
        /// Weights of a group.
        group: usize,
    },
    /// Two's complement nibbles, scale a group.
    Signed4 {
        /// Weights of a group.
        group: usize,
    },
    /// i8 codes, scale a group.
    Q8 {
        /// Weights of a group.
        group: usize,
    },
    /// GGUF, 18 bytes for 32.
    Q4_0,
    /// GGUF, 20 bytes for 32.
    Q4_1,
    /// GGUF, 22 bytes for 32.
    Q5_0,
    /// GGUF, 24 bytes for 32.
    Q5_1,
    /// GGUF, 34 bytes for 32.
    Q8_0,
    /// GGUF, 144 bytes for 256.
    Q4K,
    /// GGUF, 176 bytes for 256.
    Q5K,
    /// GGUF, 210 bytes for 256.
    Q6K,
}

/// A weight is `product + offset`: what the scale makes of the code, and what is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantWeight {
    /// `scale * q`.
    pub product: f64,
    /// The bias, or minus the minimum.
    pub offset: f64,
}

impl QuantWeight {
    /// The weight.
    pub fn value(self) -> f64 {
        self.product + self.offset
    }

    /// `|product| + |offset|`: what roundings are relative to.
    pub fn magnitude(self) -> f64 {
        self.product.abs() + self.offset.abs()
    }
}

/// The value of an IEEE binary16.
pub fn binary16(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// Weight `k` of a row: its codes (whole blocks for GGUF), and the scales and biases of its groups where they lie apart.
pub fn quant_weight(format: QuantFormat, codes: &[u8], scales: &[f64], biases: &[f64], k: usize) -> QuantWeight {
    let bits = |from: usize, at: usize, count: usize| -> u32 {
        // `count` bits from bit `at` after byte `from`, lowest first.
        (0..count).map(|i| u32::from(codes[from + (at + i) / 8] >> ((at + i) % 8) & 1) << i).sum()
    };
    let half = |at: usize| binary16(u16::from_le_bytes([codes[at], codes[at + 1]]));
    let weight = |product: f64, offset: f64| QuantWeight { product, offset };
    // The place of a nibble in a block of 32: low halves first, then high ones.
    let nibble = |from: usize, i: usize| f64::from(bits(from + i % 16, i / 16 * 4, 4));
    let (b, i) = (k / 32, k % 32);
    match format {
        QuantFormat::Affine { bits: width, group } => {
            weight(scales[k / group] * f64::from(bits(0, k * width, width)), biases[k / group])
        }
        QuantFormat::Signed4 { group } => {
            let q = f64::from(bits(0, 4 * k, 4));
            weight(scales[k / group] * if q > 7.0 { q - 16.0 } else { q }, 0.0)
        }
        QuantFormat::Q8 { group } => weight(scales[k / group] * f64::from(codes[k].cast_signed()), 0.0),
        QuantFormat::Q4_0 => weight(half(18 * b) * (nibble(18 * b + 2, i) - 8.0), 0.0),
        QuantFormat::Q4_1 => weight(half(20 * b) * nibble(20 * b + 4, i), half(20 * b + 2)),
        QuantFormat::Q5_0 => {
            let q = nibble(22 * b + 6, i) + 16.0 * f64::from(bits(22 * b + 2, i, 1));
            weight(half(22 * b) * (q - 16.0), 0.0)
        }
        QuantFormat::Q5_1 => {
            let q = nibble(24 * b + 8, i) + 16.0 * f64::from(bits(24 * b + 4, i, 1));
            weight(half(24 * b) * q, half(24 * b + 2))
        }
        QuantFormat::Q8_0 => weight(half(34 * b) * f64::from(codes[34 * b + 2 + i].cast_signed()), 0.0),
        QuantFormat::Q4K | QuantFormat::Q5K => {
            let size = if format == QuantFormat::Q4K { 144 } else { 176 };
            let (from, at) = (k / 256 * size, k % 256);
            let sub = at / 32;
            // Six bits: in one piece for the first four, four and two for the others.
            let six = |second: usize| {
                let head = from + 4;
                if sub < 4 {
                    return bits(head + sub + 4 * second, 0, 6);
                }
                bits(head + 4 + sub, 4 * second, 4) + 16 * bits(head + sub - 4 + 4 * second, 6, 2)
            };
            let low = if format == QuantFormat::Q4K { from + 16 } else { from + 48 };
            let mut q = bits(low + at / 64 * 32 + at % 32, at / 32 % 2 * 4, 4);
            if format == QuantFormat::Q5K {
                q += 16 * bits(from + 16 + at % 32, sub, 1);
            }
            weight(half(from) * f64::from(six(0)) * f64::from(q), -(half(from + 2) * f64::from(six(1))))
        }
        QuantFormat::Q6K => {
            let (from, at) = (k / 256 * 210, k % 256);
            let (part, p, l) = (at / 128, at % 128 / 32, at % 32);
            let low = bits(from + 64 * part + 32 * (p % 2) + l, p / 2 * 4, 4);
            let high = bits(from + 128 + 32 * part + l, 2 * p, 2);
            let scale = f64::from(codes[from + 192 + at / 16].cast_signed());
            weight(half(from + 208) * scale * (f64::from(low + 16 * high) - 32.0), 0.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary16_known_values() {
        let known =
            [(0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (0x0001, 2f64.powi(-24)), (0x7c00, f64::INFINITY)];
        assert!(known.iter().all(|&(bits, value)| binary16(bits) == value) && binary16(0x7e00).is_nan());
    }

    #[test]
    fn hand_worked() {
        let value = |format, codes: &[u8], k| quant_weight(format, codes, &[0.5], &[-2.0], k).value();
        let affine = QuantFormat::Affine { bits: 4, group: 32 };
        assert_eq!((value(affine, &[0x10, 0x32], 0), value(affine, &[0x10, 0x32], 3)), (-2.0, -0.5));
        assert_eq!(value(QuantFormat::Affine { bits: 8, group: 32 }, &[1, 250], 1), 123.0);
        let signed = QuantFormat::Signed4 { group: 32 };
        assert_eq!((value(signed, &[0x8f], 0), value(signed, &[0x8f], 1)), (-0.5, -4.0));
        assert_eq!(value(QuantFormat::Q8 { group: 32 }, &[0xff], 0), -0.5);
        // d = 1: byte 0 is 0x2f, so weight 0 is 15 - 8 and weight 16 is 2 - 8.
        let mut block = vec![0u8; 256];
        (block[1], block[2]) = (0x3c, 0x2f);
        assert_eq!((value(QuantFormat::Q4_0, &block, 0), value(QuantFormat::Q4_0, &block, 16)), (7.0, -6.0));
        assert_eq!(value(QuantFormat::Q8_0, &block, 0), 47.0);
        // Q5_0: the same byte is the fifth bits of weights 0 to 7.
        assert_eq!((value(QuantFormat::Q5_0, &block, 0), value(QuantFormat::Q5_0, &block, 4)), (0.0, -16.0));
        // Q4_K: d = 1, dmin = 2, pair 5 = (3 + 16, 1 + 32), weight 160 = low half of byte 80.
        let mut block = vec![0u8; 144];
        (block[1], block[3], block[13], block[5], block[9]) = (0x3c, 0x40, 0x13, 1 << 6, 2 << 6);
        block[16 + 64] = 0x70;
        let w = quant_weight(QuantFormat::Q4K, &block, &[], &[], 160);
        assert_eq!((w.product, w.offset), (19.0 * 7.0, -2.0 * 33.0));
    }
}
