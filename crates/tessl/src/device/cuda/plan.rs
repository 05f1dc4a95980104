//! Plans for NVIDIA devices: rows of `tables/`, filtered by the device's limits.

use super::tables::{GemmKernel, GemmRow, gemm_rows};
use super::wgmma;
use super::{attention, nn};
use crate::device::{DeviceProfile, simt};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{Bias, GemmDesc, Layout, Precision};
use crate::plan::{Desc, KernelKey, Plan};

pub(super) const DEVICE: &str = "cuda";

/// Rows and columns that kernels can count in 32 bits with a tile to spare.
const MAX_EXTENT: u32 = u32::MAX - 511;

/// Chooses the kernel for `desc`. Pure.
///
/// # Errors
/// `Unsupported` for a problem without a kernel, `TooLarge` with the numbers where a limit of the device is in the way.
pub fn plan(desc: &Desc, profile: &DeviceProfile) -> Result<Plan> {
    match desc {
        Desc::Gemm(gemm) => plan_gemm(gemm, profile),
        Desc::Pack(_) => Err(Error::unsupported("pack_weights", "an order of its own for weights", DEVICE)),
        Desc::RmsNorm(desc) => nn::rms_norm(desc, profile),
        Desc::LayerNorm(desc) => nn::layer_norm(desc, profile),
        Desc::QkNorm(desc) => nn::qk_norm(desc, profile),
        Desc::Mlp(desc) => nn::mlp(desc, profile),
        Desc::Elementwise(desc) => nn::elementwise(desc, profile),
        Desc::Reduce(desc) => nn::reduce(desc, profile),
        Desc::Rope(desc) => nn::rope(desc, profile),
        Desc::Embed(desc) => nn::embed(desc, profile),
        Desc::Movement(desc) => nn::movement(desc, profile),
        Desc::Experts(desc) => nn::experts(desc, profile),
        Desc::TopK(desc) => nn::top_k(desc, profile),
        Desc::Sample(desc) => nn::sample(desc, profile),
        Desc::Quant(desc) => nn::quant(desc, profile),
        Desc::NormQkvRope(desc) => nn::norm_qkv_rope(desc, profile),
        Desc::QuantEmbed(desc) => nn::quant_embed(desc, profile),
        Desc::Attention(desc) => attention::plan(desc, profile),
        Desc::Combine(desc) => simt::combine(desc, profile),
        Desc::Cache(desc) => nn::cache(desc, profile),
    }
}

fn kernel_for(desc: &GemmDesc, profile: &DeviceProfile) -> Result<GemmKernel> {
    let unsupported = |what: String| Err(Error::unsupported("gemm", what, DEVICE));
    let (input, output) = (desc.input, desc.output);
    if let Bias::Column(bias) | Bias::Row(bias) = desc.bias
        && bias != DType::F32
        && bias != output
    {
        return unsupported(format!("a {bias} bias on a {output} result"));
    }
    match input {
        DType::Bf16 | DType::F16 if output.is_float() => {
            if profile.compute_capability < 80 {
                let (major, minor) = (profile.compute_capability / 10, profile.compute_capability % 10);
                return unsupported(format!("{input} at compute capability {major}.{minor} (8.0 is needed)"));
            }
            Ok(GemmKernel::Mma)
        }
        DType::F32 if output.is_float() => Ok(GemmKernel::Simt),
        _ => unsupported(format!("{input} x {input} -> {output}")),
    }
}

/// Every plan that could run `desc`.
///
/// # Errors
/// As [`plan`].
pub fn candidates(desc: &Desc, profile: &DeviceProfile) -> Result<Vec<Plan>> {
    let chosen = plan(desc, profile)?;
    let gemm = match desc {
        Desc::Gemm(gemm) => gemm,
        Desc::Attention(desc) => return attention::candidates(desc, profile),
        _ => return Ok(vec![chosen]),
    };
    if simt::is_fused(gemm) {
        return Ok(vec![chosen]);
    }
    let kernel = kernel_for(gemm, profile)?;
    let mut all: Vec<Plan> = Vec::new();
    if kernel == GemmKernel::Mma {
        all.extend(wgmma::possible(gemm, profile).map(|(_, plan)| plan));
    }
    let rows = gemm_rows().iter().filter(|r| r.kernel == kernel && fits(r, profile));
    all.extend(rows.filter_map(|row| plan_row(row, gemm, profile, chosen.note).ok()));
    Ok(all)
}

fn plan_gemm(desc: &GemmDesc, profile: &DeviceProfile) -> Result<Plan> {
    if simt::is_fused(desc) {
        return simt::gemm(desc, profile);
    }
    let kernel = kernel_for(desc, profile)?;
    for (what, extent) in [("m", desc.m), ("n", desc.n)] {
        if extent > MAX_EXTENT {
            return Err(too_large("gemm", what, extent.into(), MAX_EXTENT.into()));
        }
    }
    let mut note = None;
    if kernel == GemmKernel::Mma {
        match wgmma::plan(desc, profile) {
            Ok(plan) => return Ok(plan),
            Err(why) => note = Some(why),
        }
    }
    let rows = || gemm_rows().iter().filter(move |r| r.kernel == kernel);
    match rows().filter(|r| fits(r, profile)).find(|r| takes(r, desc, profile)) {
        Some(row) => plan_row(row, desc, profile, note),
        None => Err(no_fit(rows(), profile)),
    }
}

fn fits(row: &GemmRow, profile: &DeviceProfile) -> bool {
    row.shared_bytes() <= profile.shared_bytes && row.threads <= profile.max_threads
}

fn plan_row(row: &GemmRow, desc: &GemmDesc, profile: &DeviceProfile, note: Option<&'static str>) -> Result<Plan> {
    let kernel = row.kernel;
    let tiles = [desc.m.div_ceil(row.tile[0]), desc.n.div_ceil(row.tile[1]), desc.batch];
    let blocks = blocks(tiles);
    let Some(grid) = u32::try_from(blocks).ok().filter(|g| *g <= profile.max_grid) else {
        return Err(too_large("gemm", "the number of tiles", blocks, profile.max_grid.into()));
    };
    let name = format!("{}_{}_{}", kernel.stem(), desc.input, desc.output);
    let mut key = KernelKey::builtin(kernel.stem(), name).constant("TILE", row.index);
    if kernel == GemmKernel::Mma {
        key = key.constant("STAGES", row.stages);
    }
    let key = key
        .constant("A_ROWS", u32::from(desc.a == Layout::RowMajor))
        .constant("B_ROWS", u32::from(desc.b == Layout::RowMajor))
        .constant("VEC_A", copy_bytes(kernel, desc.a_align))
        .constant("VEC_B", copy_bytes(kernel, desc.b_align));
    Ok(Plan {
        kernel: key,
        tile: row.tile,
        tiles,
        grid: [grid, 1, 1],
        threads: row.threads,
        stages: row.stages,
        split: 1,
        shared_bytes: row.shared_bytes(),
        scratch_bytes: 0,
        precision: Precision::Exact,
        reason: row.reason,
        note,
    })
}

/// Whether the problem fills the row's tiles and the device.
fn takes(row: &GemmRow, desc: &GemmDesc, profile: &DeviceProfile) -> bool {
    let tiles = [desc.m.div_ceil(row.tile[0]), desc.n.div_ceil(row.tile[1]), desc.batch];
    let wanted = u64::from(profile.cores) * u64::from(row.fill);
    desc.m >= row.min[0] && desc.n >= row.min[1] && blocks(tiles).saturating_mul(100) >= wanted
}

fn blocks(tiles: [u32; 3]) -> u64 {
    tiles.iter().fold(1, |n: u64, t| n.saturating_mul(u64::from(*t)))
}

/// Bytes that one copy of an operand may move: what its alignment allows, between one element and 16.
fn copy_bytes(kernel: GemmKernel, align: u8) -> u32 {
    match kernel {
        GemmKernel::Mma => 1 << align.clamp(1, 4),
        GemmKernel::Simt if align >= 4 => 16,
        GemmKernel::Simt => 4,
    }
}

fn no_fit<'a>(rows: impl Iterator<Item = &'a GemmRow> + Clone, profile: &DeviceProfile) -> Error {
    let shared = rows.clone().map(GemmRow::shared_bytes).min().unwrap_or_default();
    if shared > profile.shared_bytes {
        return too_large("gemm", "the shared memory of the smallest tile", shared.into(), profile.shared_bytes.into());
    }
    let threads = rows.map(|r| r.threads).min().unwrap_or_default();
    too_large("gemm", "the threads of the smallest tile", threads.into(), profile.max_threads.into())
}

pub(super) fn too_large(op: &'static str, what: &'static str, value: u64, limit: u64) -> Error {
    Error::TooLarge { op, what, value, limit }
}
