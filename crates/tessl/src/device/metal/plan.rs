//! Plans for Metal: matmul2d where there are matrix units, one simdgroup_matrix tile elsewhere; kernels that walk rows are
//! in `nn.rs`.

use super::nn;
use super::tables::{GemmRow, gemm_rows};
use crate::device::{DeviceProfile, simt};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{Bias, GemmBackend, GemmDesc, Layout, Precision};
use crate::plan::{Desc, KernelKey, Plan};

/// log2 of the bytes on which operands of matmul2d start, rows included; less is nowhere promised to work.
const OPERAND_ALIGN: u8 = 4;

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
        Desc::Experts(desc) => nn::experts(desc, profile),
        Desc::TopK(desc) => nn::top_k(desc, profile),
        Desc::Sample(desc) => nn::sample(desc, profile),
        Desc::Quant(desc) => nn::quant(desc, profile),
        Desc::NormQkvRope(desc) => nn::norm_qkv_rope(desc, profile),
        Desc::QuantEmbed(desc) => nn::quant_embed(desc, profile),
        Desc::Attention(desc) => simt::attention(desc, profile),
        Desc::Combine(desc) => simt::combine(desc, profile),
        Desc::Cache(desc) => nn::cache(desc, profile),
    }
}

/// The row for a problem, and why the matrix units were passed over where they were.
fn row(desc: &GemmDesc, profile: &DeviceProfile) -> Option<(&'static GemmRow, Option<&'static str>)> {
    let wanted = profile.tensor_ops && desc.backend == GemmBackend::TensorOps;
    let aligned = desc.a_align >= OPERAND_ALIGN && desc.b_align >= OPERAND_ALIGN;
    let fits = |r: &&GemmRow| {
        let types = r.input == desc.input && r.output == desc.output;
        types && (!r.tensor_ops || (wanted && aligned))
    };
    let note = (wanted && !aligned).then_some("not on matrix units: an operand does not lie on 16 bytes");
    gemm_rows().iter().find(fits).map(|row| (row, note))
}

fn gemm(desc: &GemmDesc, profile: &DeviceProfile) -> Result<Plan> {
    if simt::is_fused(desc) {
        return simt::gemm(desc, profile);
    }
    let (row, note) = row(desc, profile).ok_or_else(|| {
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
    let mut kernel = KernelKey::builtin(row.module, row.kernel).constant("BIAS_F32", u32::from(bias_f32));
    let mut precision = Precision::Exact;
    if row.tensor_ops {
        let relaxed = desc.input == DType::F32 && desc.precision == Precision::Relaxed;
        let transposed = |layout| u32::from(layout == Layout::ColMajor);
        kernel = kernel.constant("TRANS_A", transposed(desc.a)).constant("TRANS_B", transposed(desc.b));
        kernel = kernel.constant("RELAXED", u32::from(relaxed));
        if relaxed {
            precision = Precision::Relaxed;
        }
    }
    Ok(Plan {
        kernel,
        tile: row.tile,
        tiles,
        grid: [grid, 1, 1],
        threads: row.threads,
        stages: 1,
        split: 1,
        shared_bytes: 0,
        scratch_bytes: 0,
        precision,
        reason: row.reason,
        note,
    })
}
