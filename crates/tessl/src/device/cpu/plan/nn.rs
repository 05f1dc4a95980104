//! Plans for kernels that walk rows: chunks of about the same number of elements.

use super::suffix;
use crate::device::Isa;
use crate::device::cpu::{norm, reduce, rope, rows};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::Precision;
use crate::nn::{CacheDesc, ElementwiseDesc, EmbedDesc, MlpDesc, QuantEmbedDesc, ReduceDesc, RmsNormDesc, RopeDesc};
use crate::plan::{KernelKey, Plan};

const ROWS: &str = "rows: chunks of about 16 Ki elements";

pub(super) fn rms_norm(d: &RmsNormDesc, isa: Isa) -> Result<Plan> {
    let weight = d.weight == d.dtype || d.weight == DType::F32;
    if !d.dtype.is_float() || !weight {
        return Err(Error::unsupported("rms_norm", format!("{} with a {} weight", d.dtype, d.weight), "cpu"));
    }
    let rows = norm::rows_of_chunk(d.n);
    let name = format!("rms_norm_{}_{}", d.dtype, d.weight);
    Ok(plan("norm", &name, isa, [rows, d.n.into()], d.rows.div_ceil(rows), ROWS))
}

pub(super) fn reduce(d: &ReduceDesc, isa: Isa) -> Result<Plan> {
    let name = d.kernel().ok_or_else(|| Error::unsupported(d.op.name(), d.types(), "cpu"))?;
    let rows = reduce::rows_of_chunk(d.n);
    Ok(plan("reduce", &name, isa, [rows, d.n.into()], d.rows.div_ceil(rows), ROWS))
}

pub(super) fn rope(d: &RopeDesc, isa: Isa) -> Result<Plan> {
    let name = d.kernel().ok_or_else(|| Error::unsupported("rope", d.dtype.name(), "cpu"))?;
    let rows = rope::rows_of_chunk(d.n);
    Ok(plan("rope", &name, isa, [rows, d.n.into()], d.rows.div_ceil(rows), ROWS))
}

pub(super) fn embed(d: &EmbedDesc, isa: Isa) -> Result<Plan> {
    let name = d.kernel().ok_or_else(|| Error::unsupported("embedding", d.dtype.name(), "cpu"))?;
    Ok(map("embed", &name, isa, d.rows, d.n))
}

pub(super) fn quant_embed(d: &QuantEmbedDesc, isa: Isa) -> Result<Plan> {
    if !d.has_kernel() {
        return Err(Error::unsupported("quantized_embedding", d.types(), "cpu"));
    }
    let name = format!("quantized_embedding_{}_{}", d.format.code(), d.output);
    Ok(map("quant", &name, isa, d.rows, d.n))
}

pub(super) fn cache(d: &CacheDesc, isa: Isa) -> Result<Plan> {
    let name = d.kernel().ok_or_else(|| Error::unsupported(d.op.name(), d.dtype.name(), "cpu"))?;
    Ok(map("cache", &name, isa, d.rows, d.n))
}

pub(super) fn mlp(d: &MlpDesc, isa: Isa) -> Result<Plan> {
    if !d.dtype.is_float() {
        return Err(Error::unsupported(d.op.name(), format!("{}", d.dtype), "cpu"));
    }
    Ok(map("mlp", &format!("{}_{}", d.op.name(), d.dtype), isa, d.rows, d.n))
}

pub(super) fn elementwise(d: &ElementwiseDesc, isa: Isa) -> Result<Plan> {
    let name = d.kernel().ok_or_else(|| Error::unsupported(d.op.name(), d.types(), "cpu"))?;
    Ok(map("elementwise", &name, isa, d.rows, d.n))
}

/// An element-wise kernel.
fn map(module: &'static str, name: &str, isa: Isa, count: u64, n: u32) -> Plan {
    let chunks = rows::chunks(count, n);
    plan(module, name, isa, rows::chunk_of(n), chunks, "elements: chunks of about 16 Ki")
}

fn plan(module: &'static str, name: &str, isa: Isa, chunk: [u64; 2], chunks: u64, reason: &'static str) -> Plan {
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let [rows, columns] = chunk.map(narrow);
    Plan {
        kernel: KernelKey::builtin(module, format!("{name}_{}", suffix(isa.min(Isa::Avx512)))),
        tile: [rows, columns, 1],
        tiles: [narrow(chunks), 1, 1],
        grid: [narrow(chunks), 1, 1],
        threads: 1,
        stages: 1,
        split: 1,
        shared_bytes: 0,
        scratch_bytes: 0,
        precision: Precision::Exact,
        reason,
        note: None,
    }
}
