//! Plans for products with quantised weights: in place for a few rows, else through a dense product.

use super::{gemm, suffix};
use crate::device::Isa;
use crate::device::cpu::qkv;
use crate::device::cpu::quant::{FIXED_MAX_K, dot_tile_n, many, reads_rows16, tile_k, tile_n};
use crate::device::cpu::tables::{QuantKernel, quant_rows};
use crate::error::{Error, Result};
use crate::gemm::Precision;
use crate::nn::{NormQkvRopeDesc, QuantDesc, WeightsDesc};
use crate::plan::{KernelKey, Plan};
use crate::quant::rows16::Parts;
use crate::quant::{QFormat, QLayout};

/// Whether this is the order of sixteen rows, for a format and a processor that have it.
pub(super) fn rows16(layout: QLayout, format: QFormat, isa: Isa) -> bool {
    layout == QLayout::Rows16 && Parts::of(format).is_some() && reads_rows16(isa)
}

/// The format and its order in the names of kernels.
pub(super) fn code(format: QFormat, layout: QLayout) -> String {
    match layout {
        QLayout::Rows => format.code().to_owned(),
        QLayout::Rows16 => format!("{}x16", format.code()),
    }
}

pub(super) fn product(d: &QuantDesc, isa: Isa) -> Result<Plan> {
    let op = d.op.name();
    let side_by_side = rows16(d.layout, d.format, isa) && d.input.is_float() && d.output.is_float();
    if !d.has_kernel() && !side_by_side {
        return Err(Error::unsupported(op, d.types(), "cpu"));
    }
    let name = format!("{}_{}", code(d.format, d.layout), d.input);
    let row = quant_rows().iter().find(|r| r.fits(d, isa)).expect("INVARIANT: the last row takes everything");
    let (prefix, tile, tiles, scratch_bytes) = match row.kernel {
        kernel @ (QuantKernel::Few | QuantKernel::Dot) => {
            let dot = kernel == QuantKernel::Dot;
            let tile = [d.m, if dot { dot_tile_n(d.k) } else { tile_n(d.k) }, tile_k(d.k)];
            let across = d.n.iter().map(|n| n.div_ceil(tile[1])).fold(0, u32::saturating_add);
            (if dot { "dot" } else { "few" }, tile, [1, across, 1], 0)
        }
        QuantKernel::Many => {
            let dense = gemm(&many::dense(d), isa)?;
            let across = d.n.iter().map(|n| n.div_ceil(dense.tile[1])).fold(0, u32::saturating_add);
            let tiles = [d.m.div_ceil(dense.tile[0]), across, 1];
            ("many", dense.tile, tiles, many::scratch_bytes(d, dense.scratch_bytes))
        }
    };
    // Only the dense product has code for AMX.
    let isa = match row.kernel {
        QuantKernel::Many if isa == Isa::Amx && d.input == crate::DType::Bf16 => Isa::Amx,
        _ => isa.min(Isa::Avx512),
    };
    Ok(Plan {
        kernel: KernelKey::builtin("quant", format!("quantized_{prefix}_{name}_{}", suffix(isa))),
        tile,
        tiles,
        grid: [tiles[0].saturating_mul(tiles[1]), 1, 1],
        threads: 1,
        stages: 1,
        split: 1,
        shared_bytes: 0,
        scratch_bytes,
        precision: Precision::Exact,
        reason: row.name,
        note: None,
    })
}

/// Queries, keys and values: the product of few rows of f32 that a quantised product would take.
pub(super) fn norm_qkv_rope(d: &NormQkvRopeDesc, isa: Isa) -> Result<Plan> {
    let sixteen = match d.weights {
        WeightsDesc::Quantized { format, layout, .. } => rows16(layout, format, isa),
        WeightsDesc::Dense(_) => false,
    };
    if !d.has_kernel(sixteen) {
        return Err(Error::unsupported("norm_qkv_rope", d.types(), "cpu"));
    }
    let isa = isa.min(Isa::Avx512);
    let dot = matches!(d.weights, WeightsDesc::Quantized { .. }) && isa == Isa::Avx512 && d.k <= FIXED_MAX_K;
    let tile = [d.m, if dot { dot_tile_n(d.k) } else { tile_n(d.k) }, tile_k(d.k)];
    let across = [d.heads, d.kv_heads, d.kv_heads].iter().map(|h| (h * d.dim).div_ceil(tile[1])).sum();
    let prefix = if dot { "dot" } else { "few" };
    Ok(Plan {
        kernel: KernelKey::builtin("qkv", format!("norm_qkv_rope_{prefix}_{}", suffix(isa))),
        tile,
        tiles: [1, across, 1],
        grid: [across, 1, 1],
        threads: 1,
        stages: 1,
        split: 1,
        shared_bytes: 0,
        scratch_bytes: qkv::scratch_bytes(d.m, d.k, d.dims, d.columns()),
        precision: Precision::Exact,
        reason: if dot {
            "norm, then whole codes times x in fixed point, then heads"
        } else {
            "norm, then weights decoded in place, then heads"
        },
        note: None,
    })
}
