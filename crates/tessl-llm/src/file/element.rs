//! How the numbers of a tensor in a file are stored.

/// A storage form of GGUF or safetensors.
///
/// Block forms cut each row into blocks of [`block`](Self::block) numbers that share scales; the sizes are those of the
/// GGUF specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Element {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 32 numbers in 18 bytes: f16 scale, 4-bit codes.
    Q4_0,
    /// 32 numbers in 20 bytes: f16 scale and minimum, 4-bit codes.
    Q4_1,
    /// 32 numbers in 22 bytes: f16 scale, 5-bit codes.
    Q5_0,
    /// 32 numbers in 24 bytes: f16 scale and minimum, 5-bit codes.
    Q5_1,
    /// 32 numbers in 34 bytes: f16 scale, 8-bit codes.
    Q8_0,
    /// 256 numbers in 144 bytes: 8 sub-blocks, 4-bit codes.
    Q4K,
    /// 256 numbers in 176 bytes: 8 sub-blocks, 5-bit codes.
    Q5K,
    /// 256 numbers in 210 bytes: 16 sub-blocks, 6-bit codes.
    Q6K,
    /// A form that can be skipped over but not used.
    Other {
        /// Its name in the specification.
        name: &'static str,
        /// Numbers of a block.
        block: u32,
        /// Bytes of a block.
        bytes: u32,
    },
}

/// Number in a GGUF file, form.
const GGUF: &[(u32, Element)] = &[
    (0, Element::F32),
    (1, Element::F16),
    (2, Element::Q4_0),
    (3, Element::Q4_1),
    (6, Element::Q5_0),
    (7, Element::Q5_1),
    (8, Element::Q8_0),
    (9, other("Q8_1", 32, 36)),
    (10, other("Q2_K", 256, 84)),
    (11, other("Q3_K", 256, 110)),
    (12, Element::Q4K),
    (13, Element::Q5K),
    (14, Element::Q6K),
    (15, other("Q8_K", 256, 292)),
    (16, other("IQ2_XXS", 256, 66)),
    (17, other("IQ2_XS", 256, 74)),
    (18, other("IQ3_XXS", 256, 98)),
    (19, other("IQ1_S", 256, 50)),
    (20, other("IQ4_NL", 32, 18)),
    (21, other("IQ3_S", 256, 110)),
    (22, other("IQ2_S", 256, 82)),
    (23, other("IQ4_XS", 256, 136)),
    (24, other("I8", 1, 1)),
    (25, other("I16", 1, 2)),
    (26, other("I32", 1, 4)),
    (27, other("I64", 1, 8)),
    (28, other("F64", 1, 8)),
    (29, other("IQ1_M", 256, 56)),
    (30, Element::Bf16),
    (34, other("TQ1_0", 256, 54)),
    (35, other("TQ2_0", 256, 66)),
    (39, other("MXFP4", 32, 17)),
];

const fn other(name: &'static str, block: u32, bytes: u32) -> Element {
    Element::Other { name, block, bytes }
}

impl Element {
    pub(crate) fn from_gguf(number: u32) -> Option<Self> {
        GGUF.iter().find(|(n, _)| *n == number).map(|(_, element)| *element)
    }

    /// Its name, as in the GGUF specification.
    pub fn name(self) -> &'static str {
        match self {
            Element::F32 => "F32",
            Element::F16 => "F16",
            Element::Bf16 => "BF16",
            Element::Q4_0 => "Q4_0",
            Element::Q4_1 => "Q4_1",
            Element::Q5_0 => "Q5_0",
            Element::Q5_1 => "Q5_1",
            Element::Q8_0 => "Q8_0",
            Element::Q4K => "Q4_K",
            Element::Q5K => "Q5_K",
            Element::Q6K => "Q6_K",
            Element::Other { name, .. } => name,
        }
    }

    /// Numbers that are stored together.
    pub fn block(self) -> u32 {
        match self {
            Element::F32 | Element::F16 | Element::Bf16 => 1,
            Element::Q4_0 | Element::Q4_1 | Element::Q5_0 | Element::Q5_1 | Element::Q8_0 => 32,
            Element::Q4K | Element::Q5K | Element::Q6K => 256,
            Element::Other { block, .. } => block,
        }
    }

    /// Bytes of [`block`](Self::block) numbers.
    pub fn block_bytes(self) -> u32 {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
            Element::Q4_0 => 18,
            Element::Q4_1 => 20,
            Element::Q5_0 => 22,
            Element::Q5_1 => 24,
            Element::Q8_0 => 34,
            Element::Q4K => 144,
            Element::Q5K => 176,
            Element::Q6K => 210,
            Element::Other { bytes, .. } => bytes,
        }
    }

    /// Bytes of a tensor of this shape; `None` when blocks do not divide its rows or the size overflows.
    pub fn bytes(self, shape: &[u64]) -> Option<u64> {
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(u64::from(self.block())) {
            return None;
        }
        let rows = shape.iter().rev().skip(1).try_fold(1u64, |n, &d| n.checked_mul(d))?;
        rows.checked_mul(row / u64::from(self.block()))?.checked_mul(u64::from(self.block_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_rows_of_blocks() {
        assert_eq!(Element::F32.bytes(&[]), Some(4));
        assert_eq!(Element::Bf16.bytes(&[3, 5]), Some(30));
        assert_eq!(Element::Q4K.bytes(&[2, 512]), Some(2 * 2 * 144));
        assert_eq!(Element::Q8_0.bytes(&[7, 33]), None, "blocks do not cross rows");
        assert_eq!(Element::F32.bytes(&[u64::MAX, 2]), None);
        assert_eq!(Element::F32.bytes(&[0, 7]), Some(0));
    }

    #[test]
    fn numbers_and_names_are_unique() {
        for (i, (number, element)) in GGUF.iter().enumerate() {
            assert_eq!(Element::from_gguf(*number), Some(*element));
            assert!(GGUF[..i].iter().all(|(n, e)| n != number && e.name() != element.name()), "{}", element.name());
        }
        assert_eq!(Element::from_gguf(4), None, "numbers of forms that were withdrawn stay unknown");
    }
}
