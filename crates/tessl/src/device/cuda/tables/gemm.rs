//! GEMM tiles. Within a kernel the first row that the device can hold and the problem can fill is taken.

/// A kernel file for matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmKernel {
    /// `gemm_mma.cu`: bf16 and f16 on tensor cores.
    Mma,
    /// `gemm_simt.cu`: f32 with IEEE products.
    Simt,
}

impl GemmKernel {
    /// File stem, and prefix of the entry points.
    pub const fn stem(self) -> &'static str {
        match self {
            GemmKernel::Mma => "gemm_mma",
            GemmKernel::Simt => "gemm_simt",
        }
    }
}

/// One variant and when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmRow {
    /// Kernel file.
    pub kernel: GemmKernel,
    /// Index of the tile in the kernel's own tables (`TILES_M` ..).
    pub index: u32,
    /// Rows, columns and depth of a tile.
    pub tile: [u32; 3],
    /// Tiles in shared memory.
    pub stages: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Smallest m and n; below, half of the tile or more would be empty.
    pub min: [u32; 2],
    /// Blocks there must be for every 100 SMs; below, smaller tiles keep more SMs busy.
    pub fill: u32,
    /// What the plan says.
    pub reason: &'static str,
}

impl GemmRow {
    /// Shared memory of one block: the stages, and in their place the tile of sums in the epilogue.
    pub const fn shared_bytes(&self) -> u32 {
        let [m, n, k] = self.tile;
        let (stages, sums) = match self.kernel {
            GemmKernel::Mma => (self.stages * (m + n) * k * 2, m * (n + 8) * 4),
            GemmKernel::Simt => (self.stages * k * (m + n + 8) * 4, m / 2 * (n + 4) * 4),
        };
        if stages > sums { stages } else { sums }
    }
}

const fn mma(index: u32, tile: [u32; 3], stages: u32, threads: u32, fill: u32, reason: &'static str) -> GemmRow {
    GemmRow { kernel: GemmKernel::Mma, index, tile, stages, threads, min: min(tile, fill), fill, reason }
}

const fn simt(index: u32, tile: [u32; 3], threads: u32, fill: u32, reason: &'static str) -> GemmRow {
    GemmRow { kernel: GemmKernel::Simt, index, tile, stages: 2, threads, min: min(tile, fill), fill, reason }
}

/// Rows of last resort (no fill asked for) take every problem.
const fn min(tile: [u32; 3], fill: u32) -> [u32; 2] {
    if fill == 0 { [0, 0] } else { [tile[0] / 2 + 1, tile[1] / 2 + 1] }
}

const ROWS: &[GemmRow] = &[
    mma(0, [128, 256, 64], 4, 256, 90, "mma.sync 128x256x64, 4 stages: at least 0.9 tiles per SM"),
    mma(0, [128, 256, 64], 3, 256, 90, "mma.sync 128x256x64, 3 stages: at least 0.9 tiles per SM, 4 stages do not fit"),
    mma(1, [128, 128, 64], 3, 128, 70, "mma.sync 128x128x64, 3 stages: at least 0.7 tiles per SM"),
    mma(2, [64, 64, 64], 4, 128, 45, "mma.sync 64x64x64, 4 stages: at least 0.45 tiles per SM"),
    mma(2, [64, 64, 64], 3, 128, 45, "mma.sync 64x64x64, 3 stages: at least 0.45 tiles per SM, 4 stages do not fit"),
    mma(3, [32, 32, 64], 4, 128, 0, "mma.sync 32x32x64, 4 stages: too few rows, columns or tiles for larger ones"),
    mma(3, [32, 32, 64], 2, 128, 0, "mma.sync 32x32x64, 2 stages: larger tiles do not fit or are not filled"),
    simt(0, [128, 128, 16], 256, 90, "f32 fma 128x128x16: at least 0.9 tiles per SM"),
    simt(1, [64, 64, 8], 64, 0, "f32 fma 64x64x8: too few rows, columns or tiles for larger ones"),
];

/// Every row, in order of preference.
pub fn gemm_rows() -> &'static [GemmRow] {
    ROWS
}
