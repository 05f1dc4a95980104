//! How kernels that walk rows access memory: the first row whose alignment the operands have is taken.

/// One variant and when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRow {
    /// Value of the function constant `VEC16`.
    pub vec16: u32,
    /// log2 of the alignment, in bytes, that every operand has.
    pub min_align: u8,
    /// Blocks per SM, at most; a block walks over rows or vectors.
    pub blocks_per_core: u32,
    /// What the plan says.
    pub reason: &'static str,
}

/// Threads of a block, as in the kernels.
pub(crate) const THREADS: u32 = 256;

const WIDE: AccessRow =
    AccessRow { vec16: 1, min_align: 4, blocks_per_core: 8, reason: "16-byte accesses: every row starts on 16 bytes" };
const SINGLE: AccessRow = AccessRow {
    vec16: 0,
    min_align: 0,
    blocks_per_core: 8,
    reason: "single elements: a row is not aligned to 16 bytes",
};

/// Every row, in order of preference.
pub fn access_rows() -> &'static [AccessRow] {
    &[WIDE, SINGLE]
}
