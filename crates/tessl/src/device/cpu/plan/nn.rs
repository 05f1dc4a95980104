//! Plans for kernels that walk rows: chunks of about the same number of elements.

use super::{quant, suffix};
use crate::device::Isa;
use crate::device::cpu::{cache, movement, norm, reduce, rope, rows};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::Precision;
use crate::nn::{
    CacheDesc, ElementwiseDesc, EmbedDesc, ExpertsDesc, ExpertsOp, LayerNormDesc, MlpDesc, MovementDesc, MovementOp,
    QkNormDesc, QuantEmbedDesc, ReduceDesc, RmsNormDesc, RopeDesc, SampleDesc, TopKDesc, norm_types,
};
use crate::plan::{KernelKey, Plan};

const ONE_ROW: &str = "rows: one a chunk";
const ROWS: &str = "rows: chunks of about 16 Ki elements";

pub(super) fn rms_norm(d: &RmsNormDesc, isa: Isa) -> Result<Plan> {
    norm("rms_norm", d.kernel(), [d.dtype, d.weight], d.rows, d.n, isa)
}

pub(super) fn layer_norm(d: &LayerNormDesc, isa: Isa) -> Result<Plan> {
    norm("layer_norm", d.kernel(), [d.dtype, d.weight], d.rows, d.n, isa)
}

pub(super) fn qk_norm(d: &QkNormDesc, isa: Isa) -> Result<Plan> {
    norm("qk_norm", d.kernel(), [d.dtype, d.weight], d.rows, d.n, isa)
}

fn norm(
    op: &'static str,
    kernel: Option<String>,
    [dtype, weight]: [DType; 2],
    count: u64,
    n: u32,
    isa: Isa,
) -> Result<Plan> {
    let name = kernel.ok_or_else(|| Error::unsupported(op, norm_types(dtype, weight), "cpu"))?;
    let rows = norm::rows_of_chunk(n);
    Ok(plan("norm", &name, isa, [rows, n.into()], count.div_ceil(rows), ROWS))
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

pub(super) fn movement(d: &MovementDesc, isa: Isa) -> Result<Plan> {
    let (module, name) = d.kernel().ok_or_else(|| Error::unsupported(d.op.name(), d.dtype.name(), "cpu"))?;
    Ok(match d.op {
        MovementOp::Transpose => {
            let [tall, wide] = movement::CHUNK;
            let tiles = [u64::from(d.m.div_ceil(tall)), u64::from(d.n.div_ceil(wide))];
            let chunks = d.rows.saturating_mul(tiles[0]).saturating_mul(tiles[1]);
            plan(module, &name, isa, movement::CHUNK.map(u64::from), chunks, "matrices: chunks of 64 x 256 elements")
        }
        MovementOp::ScatterRows | MovementOp::ScatterAdd => {
            let rows = movement::rows_of_chunk(d.n);
            let chunks = d.rows.div_ceil(rows);
            let plan = plan(module, &name, isa, [rows, d.n.into()], chunks, "rows sorted by id: chunks of about 16 Ki");
            Plan { scratch_bytes: movement::scratch_bytes(d.rows), ..plan }
        }
        _ => map(module, &name, isa, d.rows, d.n),
    })
}

pub(super) fn experts(d: &ExpertsDesc, isa: Isa) -> Result<Plan> {
    let name = d.kernel().ok_or_else(|| Error::unsupported(d.op.name(), d.dtype.name(), "cpu"))?;
    Ok(match d.op {
        ExpertsOp::Sort => {
            let choices = d.rows.saturating_mul(d.each.into());
            plan("experts", &name, isa, [choices, 1], 1, "choices: counted and placed on one thread")
        }
        ExpertsOp::Combine => map("experts", &name, isa, d.rows, d.n),
    })
}

pub(super) fn top_k(d: &TopKDesc, isa: Isa) -> Result<Plan> {
    let name = d.kernel().ok_or_else(|| Error::unsupported("top_k", d.dtype.name(), "cpu"))?;
    Ok(plan("sample", &name, isa, [1, d.n.into()], d.rows, ONE_ROW))
}

pub(super) fn sample(d: &SampleDesc, isa: Isa) -> Result<Plan> {
    let name = d.kernel().ok_or_else(|| Error::unsupported("sample", d.dtype.name(), "cpu"))?;
    let plan = plan("sample", &name, isa, [1, d.n.into()], d.rows, ONE_ROW);
    Ok(Plan { scratch_bytes: d.scratch_bytes(), ..plan })
}

pub(super) fn quant_embed(d: &QuantEmbedDesc, isa: Isa) -> Result<Plan> {
    let able = d.has_kernel() || (quant::rows16(d.layout, d.format, isa) && d.output.is_float());
    if !able {
        return Err(Error::unsupported("quantized_embedding", d.types(), "cpu"));
    }
    let name = format!("quantized_embedding_{}_{}", quant::code(d.format, d.layout), d.output);
    Ok(map("quant", &name, isa, d.rows, d.n))
}

pub(super) fn cache(d: &CacheDesc, isa: Isa) -> Result<Plan> {
    let name = d.kernel().ok_or_else(|| Error::unsupported(d.op.name(), d.dtype.name(), "cpu"))?;
    if d.coded {
        let rows = cache::rows_of_chunk(d.n);
        return Ok(plan("cache", &name, isa, [rows, d.n.into()], d.rows.div_ceil(rows), ROWS));
    }
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
