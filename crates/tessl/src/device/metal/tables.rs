//! Metal profiles and plan rows, as data.

use crate::device::{DeviceKind, DeviceProfile, Isa};
use crate::dtype::DType;

const APPLE: DeviceProfile = DeviceProfile {
    name: "m2",
    kind: DeviceKind::Metal,
    cores: 10,
    max_threads: 1024,
    shared_bytes: 32 << 10,
    max_grid: 1 << 30,
    compute_capability: 0,
    isa: Isa::Scalar,
    l2_bytes: 8 << 20,
    tensor_ops: false,
};

/// Apple GPUs.
pub const PROFILES: &[DeviceProfile] = &[APPLE, DeviceProfile { name: "m5-pro", cores: 20, tensor_ops: true, ..APPLE }];

/// One row of the GEMM table: taken when the dtypes match and the tile fits the device; those on matrix units, which come
/// first, where they are asked for on a device that has them.
#[derive(Clone, Copy, Debug)]
pub struct GemmRow {
    /// Element type of A and B.
    pub input: DType,
    /// Element type of C.
    pub output: DType,
    /// Works on matrix units (MPP TensorOps).
    pub tensor_ops: bool,
    /// Source file stem.
    pub module: &'static str,
    /// Entry point.
    pub kernel: &'static str,
    /// Rows, columns and depth of a tile.
    pub tile: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: u32,
    /// Static threadgroup memory in bytes.
    pub shared_bytes: u32,
    /// Why this row.
    pub reason: &'static str,
}

#[allow(clippy::cast_possible_truncation, reason = "an element has at most four bytes")]
const fn simd(input: DType, output: DType, kernel: &'static str) -> GemmRow {
    let tile = [64, 64, 16];
    // Staged tiles with 16 bytes of padding a row, and one strip of 8 x 32 floats for each of four simdgroups.
    let size = input.size() as u32;
    let pad = 16 / size;
    let shared_bytes = (tile[0] * (tile[2] + pad) + tile[2] * (tile[1] + pad)) * size + 4 * 8 * 32 * 4;
    let reason = "simdgroup_matrix 8x8, one tile for all shapes";
    let module = "gemm_simdgroup";
    GemmRow { input, output, tensor_ops: false, module, kernel, tile, threads: 128, shared_bytes, reason }
}

const fn tensor(input: DType, output: DType, kernel: &'static str) -> GemmRow {
    let (module, tile, reason) = ("matmul_tensorops", [64, 64, 256], "matmul2d, one tile for all shapes");
    GemmRow { input, output, tensor_ops: true, module, kernel, tile, threads: 128, shared_bytes: 0, reason }
}

const GEMM: &[GemmRow] = &[
    tensor(DType::F32, DType::F32, "gemm_mpp_f32_f32"),
    tensor(DType::F32, DType::Bf16, "gemm_mpp_f32_bf16"),
    tensor(DType::F32, DType::F16, "gemm_mpp_f32_f16"),
    tensor(DType::Bf16, DType::F32, "gemm_mpp_bf16_f32"),
    tensor(DType::Bf16, DType::Bf16, "gemm_mpp_bf16_bf16"),
    tensor(DType::Bf16, DType::F16, "gemm_mpp_bf16_f16"),
    tensor(DType::F16, DType::F32, "gemm_mpp_f16_f32"),
    tensor(DType::F16, DType::Bf16, "gemm_mpp_f16_bf16"),
    tensor(DType::F16, DType::F16, "gemm_mpp_f16_f16"),
    simd(DType::F32, DType::F32, "gemm_simd_f32_f32"),
    simd(DType::F32, DType::Bf16, "gemm_simd_f32_bf16"),
    simd(DType::F32, DType::F16, "gemm_simd_f32_f16"),
    simd(DType::Bf16, DType::F32, "gemm_simd_bf16_f32"),
    simd(DType::Bf16, DType::Bf16, "gemm_simd_bf16_bf16"),
    simd(DType::Bf16, DType::F16, "gemm_simd_bf16_f16"),
    simd(DType::F16, DType::F32, "gemm_simd_f16_f32"),
    simd(DType::F16, DType::Bf16, "gemm_simd_f16_bf16"),
    simd(DType::F16, DType::F16, "gemm_simd_f16_f16"),
];

/// Every row of the GEMM table.
pub fn gemm_rows() -> &'static [GemmRow] {
    GEMM
}
