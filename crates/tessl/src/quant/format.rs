//! The formats as data.

use crate::dtype::DType;
use crate::error::{Error, Result};
use serde::Serialize;

/// How the weights of a [`QTensor`](crate::QTensor) are coded.
///
/// Names, as [`Display`](std::fmt::Display) writes and [`FromStr`](std::str::FromStr) reads them: `affine4-g64`,
/// `affine8-g32`, `signed4-g128`, `q8-g32`, `q4_0`, `q4_1`, `q5_0`, `q5_1`, `q8_0`, `q4_k`, `q5_k`, `q6_k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QFormat {
    /// `w = scale * q + bias` with unsigned q, as MLX stores it: u32 words of codes, the lowest bits first, and one scale and
    /// one bias a group, in arrays of their own (f32, f16 or bf16).
    Affine {
        /// Bits of a code: 4 or 8.
        bits: u8,
        /// Weights that share a scale: 32, 64, 128, 256 or 512.
        group: u16,
    },
    /// `w = scale * q` with q in -8..=7 as two's complement nibbles, the lowest bits first, and one scale a group.
    Signed4 {
        /// Weights that share a scale: 32, 64, 128, 256 or 512.
        group: u16,
    },
    /// `w = scale * q` with an i8 q and one scale a group.
    Q8 {
        /// Weights that share a scale: 32, 64, 128, 256 or 512.
        group: u16,
    },
    /// GGUF: 32 weights in 18 bytes, `w = d * (q - 8)`.
    #[serde(rename = "q4_0")]
    Q4_0,
    /// GGUF: 32 weights in 20 bytes, `w = d * q + m`.
    #[serde(rename = "q4_1")]
    Q4_1,
    /// GGUF: 32 weights in 22 bytes, `w = d * (q - 16)`.
    #[serde(rename = "q5_0")]
    Q5_0,
    /// GGUF: 32 weights in 24 bytes, `w = d * q + m`.
    #[serde(rename = "q5_1")]
    Q5_1,
    /// GGUF: 32 weights in 34 bytes, `w = d * q`.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// GGUF: 256 weights in 144 bytes, eight scales and minima of 6 bits.
    #[serde(rename = "q4_k")]
    Q4K,
    /// GGUF: 256 weights in 176 bytes, eight scales and minima of 6 bits.
    #[serde(rename = "q5_k")]
    Q5K,
    /// GGUF: 256 weights in 210 bytes, sixteen scales of 8 bits.
    #[serde(rename = "q6_k")]
    Q6K,
}

/// The order of a quantised tensor's bytes in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QLayout {
    /// As files have them: one row of the matrix after the other.
    #[default]
    Rows,
    /// Sixteen rows side by side, block by block: for CPUs with AVX-512 VNNI, whose products then need no sums across lanes.
    /// Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 of whole sixteens of rows.
    Rows16,
}

impl QLayout {
    /// The name in errors and plans.
    pub const fn name(self) -> &'static str {
        match self {
            QLayout::Rows => "rows",
            QLayout::Rows16 => "rows16",
        }
    }
}

const GROUPS: [u16; 5] = [32, 64, 128, 256, 512];

impl QFormat {
    /// Every GGUF block format.
    pub const BLOCKS: [QFormat; 8] = [
        QFormat::Q4_0,
        QFormat::Q4_1,
        QFormat::Q5_0,
        QFormat::Q5_1,
        QFormat::Q8_0,
        QFormat::Q4K,
        QFormat::Q5K,
        QFormat::Q6K,
    ];

    /// Every format.
    pub fn all() -> impl Iterator<Item = QFormat> {
        let grouped = GROUPS.into_iter().flat_map(|group| {
            [
                QFormat::Affine { bits: 4, group },
                QFormat::Affine { bits: 8, group },
                QFormat::Signed4 { group },
                QFormat::Q8 { group },
            ]
        });
        grouped.chain(Self::BLOCKS)
    }

    /// The name of the code, without the group: part of the names of kernels.
    pub const fn code(self) -> &'static str {
        match self {
            QFormat::Affine { bits: 8, .. } => "affine8",
            QFormat::Affine { .. } => "affine4",
            QFormat::Signed4 { .. } => "signed4",
            QFormat::Q8 { .. } => "q8",
            QFormat::Q4_0 => "q4_0",
            QFormat::Q4_1 => "q4_1",
            QFormat::Q5_0 => "q5_0",
            QFormat::Q5_1 => "q5_1",
            QFormat::Q8_0 => "q8_0",
            QFormat::Q4K => "q4_k",
            QFormat::Q5K => "q5_k",
            QFormat::Q6K => "q6_k",
        }
    }

    /// The number that GPU kernels know the code by.
    pub(crate) const fn number(self) -> u32 {
        match self {
            QFormat::Affine { bits: 8, .. } => 1,
            QFormat::Affine { .. } => 0,
            QFormat::Signed4 { .. } => 2,
            QFormat::Q8 { .. } => 3,
            QFormat::Q4_0 => 4,
            QFormat::Q4_1 => 5,
            QFormat::Q5_0 => 6,
            QFormat::Q5_1 => 7,
            QFormat::Q8_0 => 8,
            QFormat::Q4K => 9,
            QFormat::Q5K => 10,
            QFormat::Q6K => 11,
        }
    }

    /// Bytes of the codes of a row of `k` weights, which are whole groups.
    pub(crate) const fn row_bytes(self, k: usize) -> usize {
        k / self.group() * self.group_bytes()
    }

    /// Weights that share factors, or that a block holds: K is a multiple of it.
    pub const fn group(self) -> usize {
        match self {
            QFormat::Affine { group, .. } | QFormat::Signed4 { group } | QFormat::Q8 { group } => group as usize,
            QFormat::Q4_0 | QFormat::Q4_1 | QFormat::Q5_0 | QFormat::Q5_1 | QFormat::Q8_0 => 32,
            QFormat::Q4K | QFormat::Q5K | QFormat::Q6K => 256,
        }
    }

    /// Bytes of the codes of one group: whole blocks, factors included, for GGUF.
    pub const fn group_bytes(self) -> usize {
        match self {
            QFormat::Affine { bits, group } => group as usize * bits as usize / 8,
            QFormat::Signed4 { group } => group as usize / 2,
            QFormat::Q8 { group } => group as usize,
            QFormat::Q4_0 => 18,
            QFormat::Q4_1 => 20,
            QFormat::Q5_0 => 22,
            QFormat::Q5_1 => 24,
            QFormat::Q8_0 => 34,
            QFormat::Q4K => 144,
            QFormat::Q5K => 176,
            QFormat::Q6K => 210,
        }
    }

    /// Arrays of factors beside the codes: scales and biases (2), scales (1), none (0).
    pub const fn factors(self) -> usize {
        match self {
            QFormat::Affine { .. } => 2,
            QFormat::Signed4 { .. } | QFormat::Q8 { .. } => 1,
            _ => 0,
        }
    }

    /// The element type of the codes: what [`QTensor::from_parts`](crate::QTensor::from_parts) takes.
    pub const fn codes_dtype(self) -> DType {
        match self {
            QFormat::Affine { .. } | QFormat::Signed4 { .. } => DType::U32,
            QFormat::Q8 { .. } => DType::I8,
            _ => DType::U8,
        }
    }

    /// Bytes that divide the address of the codes and of each row of them, as kernels need it.
    pub const fn alignment(self) -> usize {
        match self {
            QFormat::Q4_0 | QFormat::Q5_0 | QFormat::Q8_0 | QFormat::Q6K => 2,
            QFormat::Q4_1 | QFormat::Q5_1 => 4,
            _ => 16,
        }
    }

    /// Refuses bit widths and groups that do not exist.
    pub(crate) fn check(self, op: &'static str) -> Result<()> {
        let scalar = |name, value: u16, expected| Err(Error::Scalar { op, name, value: value.into(), expected });
        match self {
            QFormat::Affine { bits, .. } if bits != 4 && bits != 8 => scalar("bits", bits.into(), "4 or 8"),
            QFormat::Affine { group, .. } | QFormat::Signed4 { group } | QFormat::Q8 { group }
                if !GROUPS.contains(&group) =>
            {
                scalar("group", group, "32, 64, 128, 256 or 512")
            }
            _ => Ok(()),
        }
    }

    /// Refuses a K that is not whole groups.
    pub(crate) fn check_k(self, op: &'static str, operand: &'static str, k: usize) -> Result<()> {
        let group = self.group();
        if k.is_multiple_of(group) {
            return Ok(());
        }
        let expected = format!("{self} codes {group} weights together, so K must be a multiple of {group}");
        Err(Error::shape(op, operand, format_args!("K = {k}"), expected))
    }
}

impl std::fmt::Display for QFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            QFormat::Affine { group, .. } | QFormat::Signed4 { group } | QFormat::Q8 { group } => {
                f.pad(&format!("{}-g{group}", self.code()))
            }
            _ => f.pad(self.code()),
        }
    }
}

impl std::str::FromStr for QFormat {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        const EXPECTED: &str = "affine4-gN, affine8-gN, signed4-gN, q8-gN (N = 32, 64, 128, 256 or 512), q4_0, q4_1, q5_0, \
                                q5_1, q8_0, q4_k, q5_k or q6_k";
        QFormat::all().find(|f| f.to_string() == s).ok_or_else(|| Error::parse("format", s, EXPECTED))
    }
}

#[cfg(test)]
mod tests {
    use super::QFormat;

    #[test]
    fn names_are_read_back_and_unique() {
        let all: Vec<QFormat> = QFormat::all().collect();
        for (i, format) in all.iter().enumerate() {
            assert_eq!(format.to_string().parse::<QFormat>().unwrap(), *format);
            assert!(all[..i].iter().all(|f| f.to_string() != format.to_string()));
            assert!(format.check("test").is_ok());
            assert!(format.group_bytes().is_multiple_of(format.alignment()), "{format}: rows keep their alignment");
        }
        assert!("affine4-g48".parse::<QFormat>().unwrap_err().to_string().contains("affine4-gN"));
        for bad in [QFormat::Affine { bits: 5, group: 64 }, QFormat::Q8 { group: 48 }, QFormat::Signed4 { group: 0 }] {
            assert!(bad.check("test").is_err());
        }
    }
}
