//! Products with parts of the formula that the kernels on matrix units do not take, and products of 8-bit types.

use super::attention::narrow;
use crate::device::DeviceProfile;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{GemmDesc, Precision};
use crate::plan::{FUSED_GEMM, KernelKey, Plan};

/// Rows, columns and depth of a tile, as in the kernel.
const TILE: [u32; 3] = [64, 64, 16];
const THREADS: u32 = 256;
/// Three staged tiles, their rows padded by four elements.
const SHARED_BYTES: u32 = 3 * 16 * (64 + 4) * 4;

/// Whether this kernel is for the problem: what the others take is not its business.
pub(crate) fn is_fused(desc: &GemmDesc) -> bool {
    !desc.extras.is_plain() || desc.input.size() == 1
}

pub(crate) fn gemm(desc: &GemmDesc, profile: &DeviceProfile) -> Result<Plan> {
    let device = profile.kind.name();
    if desc.extras.packed {
        return Err(Error::unsupported("gemm", "packed weights", device));
    }
    if SHARED_BYTES > profile.shared_bytes || THREADS > profile.max_threads {
        let what = format!(
            "gemm_fused needs {SHARED_BYTES} bytes of threadgroup memory and {THREADS} threads, `{}` has {} and {}: this tile",
            profile.name, profile.shared_bytes, profile.max_threads
        );
        return Err(Error::unsupported("gemm", what, device));
    }
    let whole = matches!(desc.input, DType::I8 | DType::U8);
    let input = match desc.input {
        DType::I8 | DType::U8 => "i8",
        DType::F8E4M3 | DType::F8E5M2 => "f8",
        other => other.name(),
    };
    if !(desc.output.is_float() || (whole && desc.output == DType::I32)) {
        let what = format!("{} x {} -> {}", desc.input, desc.input_b(), desc.output);
        return Err(Error::unsupported("gemm", what, device));
    }
    // Each group may end with a tile that is not full.
    let tiles_m = desc.m.div_ceil(TILE[0]).saturating_add(desc.extras.groups);
    let tiles = [tiles_m, desc.n.div_ceil(TILE[1]), desc.batch];
    let total = tiles.iter().fold(1, |n: u64, &t| n.saturating_mul(t.into()));
    let limit = u64::from(profile.max_grid);
    if total > limit {
        return Err(Error::TooLarge { op: "gemm", what: "the number of tiles", value: total, limit });
    }
    Ok(Plan {
        kernel: KernelKey::builtin(FUSED_GEMM, format!("{FUSED_GEMM}_{input}_{}", desc.output)),
        tile: TILE,
        tiles,
        grid: [narrow(total), 1, 1],
        threads: THREADS,
        stages: 1,
        split: 1,
        shared_bytes: 0,
        scratch_bytes: 0,
        precision: Precision::Exact,
        reason: "every part of the formula, without matrix units",
        note: desc.extras.first(),
    })
}
