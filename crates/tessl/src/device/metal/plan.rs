//! Plans for Metal: one simdgroup_matrix tile; kernels that walk rows are in `nn.rs`.

use super::nn;
use super::tables::gemm_rows;
use crate::device::{DeviceProfile, simt};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{Bias, GemmDesc, Precision};
use crate::plan::{Desc, KernelKey, Plan};

/// The plan for `desc` on an Apple GPU.
///
/// # Errors
/// `Unsupported` for dtypes without a kernel and tiles that do not fit the device; `TooLarge` for too many tiles.
pub fn plan(desc: &Desc, profile: &DeviceProfile) -> Result<Plan> {
    match desc {
        Desc::Gemm(desc) => gemm(desc, profile),
        Desc::Pack(_) => Err(Error::unsupported("pack_weights", "an order of its own for weights", "metal")),
        Desc::RmsNorm(desc) => nn::rms_norm(desc, profile),
        Desc::LayerNorm(desc) => nn::layer_norm(desc, profile),
        Desc::QkNorm(desc) => nn::qk_norm(desc, profile),
        Desc::Mlp(desc) => Ok(nn::mlp(desc, profile)),
        Desc::Elementwise(desc) => nn::elementwise(desc, profile),
        Desc::Reduce(desc) => nn::reduce(desc, profile),
        Desc::Rope(desc) => nn::rope(desc, profile),
        Desc::Embed(desc) => nn::embed(desc, profile),
        Desc::Movement(desc) => nn::movement(desc, profile),
        Desc::TopK(desc) => nn::top_k(desc, profile),
        Desc::Sample(desc) => nn::sample(desc, profile),
        Desc::Quant(desc) => nn::quant(desc, profile),
        Desc::QuantEmbed(desc) => nn::quant_embed(desc, profile),
        Desc::Attention(desc) => simt::attention(desc, profile),
        Desc::Combine(desc) => simt::combine(desc, profile),
        Desc::Cache(desc) => nn::cache(desc, profile),
    }
}

fn gemm(desc: &GemmDesc, profile: &DeviceProfile) -> Result<Plan> {
    if let Some(part) = desc.extras.first() {
        return Err(Error::unsupported("gemm", part, "metal"));
    }
    let row = gemm_rows().iter().find(|r| r.input == desc.input && r.output == desc.output);
    let row = row.ok_or_else(|| {
        Error::unsupported("gemm", format!("{} inputs with {} output", desc.input, desc.output), "metal")
    })?;
    if row.shared_bytes > profile.shared_bytes {
        let what = format!(
            "{} needs {} bytes of threadgroup memory, `{}` has {}: this tile",
            row.kernel, row.shared_bytes, profile.name, profile.shared_bytes
        );
        return Err(Error::unsupported("gemm", what, "metal"));
    }
    let tiles = [desc.m.div_ceil(row.tile[0]), desc.n.div_ceil(row.tile[1]), desc.batch];
    let total = tiles.iter().map(|&t| u64::from(t)).product::<u64>();
    let limit = u64::from(profile.max_grid);
    let grid = u32::try_from(total).ok().filter(|&t| u64::from(t) <= limit);
    let grid = grid.ok_or(Error::TooLarge { op: "gemm", what: "the number of tiles", value: total, limit })?;
    let bias_f32 = matches!(desc.bias, Bias::Column(DType::F32) | Bias::Row(DType::F32));
    Ok(Plan {
        kernel: KernelKey::builtin(row.module, row.kernel).constant("BIAS_F32", u32::from(bias_f32)),
        tile: row.tile,
        tiles,
        grid: [grid, 1, 1],
        threads: row.threads,
        stages: 1,
        split: 1,
        shared_bytes: 0,
        scratch_bytes: 0,
        precision: Precision::Exact,
        reason: row.reason,
        note: None,
    })
}
