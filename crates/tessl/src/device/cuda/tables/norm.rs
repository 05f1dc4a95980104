//! Normalisation kernels: the first row whose alignment the operands have is taken.

/// One variant and when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormRow {
    /// Value of the function constant `VEC16`.
    pub vec16: u32,
    /// log2 of the alignment, in bytes, that every operand has.
    pub min_align: u8,
    /// Blocks per SM, at most; a block walks over rows.
    pub blocks_per_core: u32,
    /// What the plan says.
    pub reason: &'static str,
}

/// Threads of a block, as in `norm.metal`.
pub(crate) const THREADS: u32 = 256;

const ROWS: &[NormRow] = &[
    NormRow { vec16: 1, min_align: 4, blocks_per_core: 8, reason: "16-byte accesses: every row starts on 16 bytes" },
    NormRow { vec16: 0, min_align: 0, blocks_per_core: 8, reason: "single elements: a row is not aligned to 16 bytes" },
];

/// Every row, in order of preference.
pub fn norm_rows() -> &'static [NormRow] {
    ROWS
}
