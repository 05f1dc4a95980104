//! Tiles of the Hopper attention. Those of the smallest head size that holds a head are its candidates; the first of them
//! is taken.
//!
//! Registers of a thread decide: it has BLOCK / 2 scores, BLOCK / 4 weights and SIZE / 2 results of its 64 rows, beside
//! about 50 others. docs/tuning-log.md has the limits of each size and what was measured.

/// One variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionTile {
    /// Elements of a head, at most.
    pub size: u32,
    /// Warpgroups that multiply, of 64 queries each.
    pub consumers: u32,
    /// Keys of a block.
    pub block: u32,
    /// Blocks of keys, and of values, in shared memory.
    pub stages: u32,
    /// What the plan says.
    pub reason: &'static str,
}

impl AttentionTile {
    /// Queries of a tile.
    pub const fn queries(&self) -> u32 {
        64 * self.consumers
    }

    /// Threads of a block: the multiplying warpgroups and one that copies.
    pub const fn threads(&self) -> u32 {
        128 * (self.consumers + 1)
    }

    /// Shared memory of a block: queries, stages of keys and values in panels of 64 elements, barriers.
    pub const fn shared_bytes(&self) -> u32 {
        let row = self.size.div_ceil(64) * 128;
        self.queries() * row + 2 * self.stages * self.block * row + 8 * (2 * self.consumers + 4 * self.stages)
    }
}

/// Rows as a table; the reason repeats them.
macro_rules! rows {
    ($($size:literal: $consumers:literal x 64 queries by $block:literal keys, $stages:literal stages;)*) => {
        &[$(AttentionTile {
            size: $size,
            consumers: $consumers,
            block: $block,
            stages: $stages,
            reason: concat!(
                "prefill on wgmma: heads up to ", $size, ", ", $consumers, " x 64 queries by ", $block, " keys, ", $stages,
                " stages"
            ),
        },)*]
    };
}

const ROWS: &[AttentionTile] = rows! {
    64: 3 x 64 queries by 96 keys, 3 stages;
    64: 2 x 64 queries by 192 keys, 2 stages;
    64: 2 x 64 queries by 128 keys, 3 stages;
    96: 2 x 64 queries by 160 keys, 2 stages;
    96: 2 x 64 queries by 128 keys, 2 stages;
    128: 2 x 64 queries by 128 keys, 2 stages;
    128: 2 x 64 queries by 160 keys, 2 stages;
    128: 3 x 64 queries by 64 keys, 3 stages;
    192: 2 x 64 queries by 112 keys, 2 stages;
    192: 2 x 64 queries by 96 keys, 2 stages;
    256: 2 x 64 queries by 64 keys, 2 stages;
};

/// Every row, those of a size in order of preference.
pub fn attention_tiles() -> &'static [AttentionTile] {
    ROWS
}
