//! Hopper tiles. The row with the least estimated time is taken, the first of equals.
//!
//! A row knows what a tile costs on one SM: clocks for each 64 of k, and clocks for each tile beside them (first copies,
//! epilogue). The numbers are estimates of an H200 until they are measured; docs/tuning-log.md says which are.

/// One variant and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgmmaRow {
    /// Index of the tile in the kernel's own tables (`TILES_M` ..).
    pub index: u32,
    /// Rows, columns and depth of a tile.
    pub tile: [u32; 3],
    /// Tiles of A and B in shared memory.
    pub stages: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that fit an SM side by side.
    pub resident: u32,
    /// Blocks of a cluster, which share one tile's k.
    pub split: u32,
    /// Of 100 SMs, those that clusters of this size can use.
    pub usable: u32,
    /// Tile rows of a band of the walk.
    pub band: u32,
    /// Clocks of an SM for 64 of k.
    pub step: u32,
    /// Clocks of an SM for a tile beside its steps.
    pub fixed: u32,
    /// What the plan says.
    pub reason: &'static str,
}

/// Depth of one stage.
const DEPTH: u32 = 64;
/// Stages that a block of a split tile has to itself, at least.
const LEAST_STEPS: u32 = 4;

impl WgmmaRow {
    /// Shared memory of a block: stages, two panels of C per multiplying warpgroup, two barriers a stage.
    pub const fn shared_bytes(&self) -> u32 {
        let [m, n, _] = self.tile;
        let panels = if self.split == 1 { 2 * (m / 64) * 8192 } else { 0 };
        self.stages * ((m + n) * DEPTH * 2 + 16) + panels
    }

    /// Estimated clocks for so many tiles with this k on `cores` SMs; `None` where the row does not take the problem.
    pub fn clocks(&self, tiles: u64, k: u32, cores: u32) -> Option<u64> {
        let steps = k.div_ceil(DEPTH);
        if self.split > 1 && steps < self.split * LEAST_STEPS {
            return None;
        }
        let slots = u64::from(cores * self.usable / 100).max(1);
        let waves = tiles.checked_mul(u64::from(self.split))?.div_ceil(slots);
        let work = u64::from(steps.div_ceil(self.split)) * u64::from(self.step);
        // What blocks side by side need beside their steps, they need at the same time.
        waves.checked_mul(work)?.checked_add(waves.div_ceil(u64::from(self.resident)) * u64::from(self.fixed))
    }
}

/// Rows as a table; the reason repeats what was compared.
macro_rules! rows {
    ($($index:literal: $m:literal x $n:literal, $stages:literal stages, $threads:literal threads, $resident:literal an SM,
       split $split:literal ($usable:literal %), band $band:literal, $step:literal + $fixed:literal;)*) => {
        &[$(WgmmaRow {
            index: $index,
            tile: [$m, $n, DEPTH],
            stages: $stages,
            threads: $threads,
            resident: $resident,
            split: $split,
            usable: $usable,
            band: $band,
            step: $step,
            fixed: $fixed,
            reason: concat!(
                "wgmma ", $m, "x", $n, "x64, ", $stages, " stages, k in ", $split, ": least of ", $step, " clocks a step + ",
                $fixed, " a tile"
            ),
        },)*]
    };
}

const ROWS: &[WgmmaRow] = rows! {
    0: 128 x 256, 4 stages, 384 threads, 1 an SM, split 1 (100 %), band 16, 1040 + 3500;
    1: 128 x 192, 4 stages, 384 threads, 1 an SM, split 1 (100 %), band 16, 830 + 2800;
    2: 128 x 128, 6 stages, 384 threads, 1 an SM, split 1 (100 %), band 12, 640 + 2000;
    3: 64 x 128, 8 stages, 256 threads, 1 an SM, split 1 (100 %), band 16, 400 + 1500;
    3: 64 x 128, 4 stages, 256 threads, 2 an SM, split 1 (100 %), band 16, 400 + 1500;
    4: 64 x 64, 12 stages, 256 threads, 1 an SM, split 1 (100 %), band 12, 260 + 1000;
    4: 64 x 64, 6 stages, 256 threads, 2 an SM, split 1 (100 %), band 12, 260 + 1000;
    2: 128 x 128, 7 stages, 384 threads, 1 an SM, split 2 (100 %), band 12, 640 + 4500;
    2: 128 x 128, 7 stages, 384 threads, 1 an SM, split 3 (88 %), band 12, 640 + 4500;
    2: 128 x 128, 7 stages, 384 threads, 1 an SM, split 4 (90 %), band 12, 640 + 4500;
    3: 64 x 128, 4 stages, 256 threads, 2 an SM, split 2 (100 %), band 16, 400 + 3500;
    3: 64 x 128, 4 stages, 256 threads, 2 an SM, split 4 (90 %), band 16, 400 + 3500;
    4: 64 x 64, 12 stages, 256 threads, 1 an SM, split 2 (100 %), band 12, 260 + 3000;
    4: 64 x 64, 7 stages, 256 threads, 2 an SM, split 2 (100 %), band 12, 260 + 3000;
    4: 64 x 64, 7 stages, 256 threads, 2 an SM, split 4 (90 %), band 12, 260 + 3000;
    4: 64 x 64, 7 stages, 256 threads, 2 an SM, split 8 (90 %), band 12, 260 + 3000;
};

/// Every row.
pub fn wgmma_rows() -> &'static [WgmmaRow] {
    ROWS
}
