//! Which kernel an attention takes: the first row whose number of queries it has.

/// One kernel and when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionRow {
    /// Its name before type and head size.
    pub(crate) stem: &'static str,
    /// Queries of a sequence, at least.
    pub(crate) min_queries: u32,
    /// Rows (queries times heads that share a key head) of a tile, for each head size of `SIZES`.
    pub(crate) tile: [u32; 3],
    /// Threadgroup memory in bytes, for each head size.
    pub(crate) shared_bytes: [u32; 3],
    /// Keys may be split.
    pub(crate) splits: bool,
    /// What the plan says.
    pub(crate) reason: &'static str,
}

/// Elements of a head that kernels are made for; a smaller head takes the next one.
pub(super) const SIZES: [u32; 3] = [128, 256, 512];

/// Threads of a threadgroup, as in the kernels.
pub(super) const THREADS: u32 = 128;

const TILES: AttentionRow = AttentionRow {
    stem: "attention_tiles",
    min_queries: 8,
    tile: [64, 32, 16],
    // Weights of rows by 32 keys (padded to 33), and a stage for 16 elements of rows and keys or 1024 of values.
    shared_bytes: [4 * (64 * 33 + 16 * (65 + 33)), 4 * (32 * 33 + 16 * (33 + 33)), 4 * (16 * 33 + 1024)],
    splits: false,
    reason: "prefill: tiles of rows by 32 keys",
};
const ROWS: AttentionRow = AttentionRow {
    stem: "attention_rows",
    min_queries: 0,
    tile: [4, 4, 4],
    // Four rows of results on their way between simdgroups, and their maxima and sums.
    shared_bytes: [4 * 4 * 128 + 64, 4 * 4 * 256 + 64, 4 * 4 * 512 + 64],
    splits: true,
    reason: "decode: 4 rows a pass over the keys, which are split",
};

/// Every row, in order of preference.
pub(crate) fn attention_rows() -> &'static [AttentionRow] {
    &[TILES, ROWS]
}
