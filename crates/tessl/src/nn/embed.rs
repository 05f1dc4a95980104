//! Embedding lookup.

use super::check::{Call, Launch, Rows, steps};
use super::quant::factors_code;
use super::{EmbedDesc, QuantEmbedDesc};
use crate::args::{EmbedArgs, QuantEmbedArgs};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Desc;
use crate::qtensor::QTensor;
use crate::stream::Stream;
use crate::tensor::Tensor;

const OP: &str = "embedding";
const QUANTIZED: &str = "quantized_embedding";
/// What a table has to be.
const MATRIX: &str = "it must be [vocabulary, n]";
/// A negative i32, seen as a u32, has to be outside of every table.
pub(super) const MAX_VOCABULARY: usize = i32::MAX as usize;

/// `out[.., :] = scale * table[ids[..], :]`: the rows of a table that ids name.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | table | `[vocabulary, n]` | f32, f16, bf16 |
/// | ids | `[..]` | u32, i32 |
/// | out | `[.., n]` | the table's |
///
/// Without a factor the bits are copied; with one, each element is one product in f32, rounded once. The last stride of
/// table and out is 1; other strides are free (ids and out together over at most three axes).
///
/// An id outside of the table, or below 0, is found on the device: its row of out is not written, the other rows are, and
/// the next wait or read of the stream returns [`Error::Fault`] with the position and the value of one such id (on the CPU
/// the first).
///
/// ```
/// use tessl::{nn::Embedding, Device, Error, FaultKind, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let table = rt.from_slice(&[0.0f32, 1.0, 10.0, 11.0, 20.0, 21.0], &[3, 2])?;
/// let ids = rt.from_slice(&[2u32, 0], &[2])?;
/// let out = rt.alloc_tensor_f32(&[2, 2])?;
/// Embedding::new(&table, &ids, &out).run()?;
/// assert_eq!(out.read::<f32>()?, [20.0, 21.0, 0.0, 1.0]);
///
/// let ids = rt.from_slice(&[1u32, 3], &[2])?;
/// Embedding::new(&table, &ids, &out).run()?;
/// let error = rt.synchronize().unwrap_err();
/// assert!(matches!(error, Error::Fault { kind: FaultKind::IndexOutOfRange, index: 1, value: 3, .. }));
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an Embedding does nothing until run() or run_on()"]
pub struct Embedding<'a> {
    table: &'a Tensor,
    ids: &'a Tensor,
    out: &'a Tensor,
    scale: Option<f32>,
}

impl<'a> Embedding<'a> {
    /// Copies rows.
    pub fn new(table: &'a Tensor, ids: &'a Tensor, out: &'a Tensor) -> Self {
        Embedding { table, ids, out, scale: None }
    }

    /// Multiplies each element, as Gemma does by the root of n.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    fn check(&self) -> Result<(Lookup<'a>, EmbedDesc)> {
        let call = Call::new(OP, [("table", self.table), ("ids", self.ids), ("out", self.out)])?;
        call.float(0)?;
        let lookup = Lookup::new(call, MATRIX)?;
        check_scale(OP, self.scale)?;
        let (rows, n, align) = (lookup.rows.count, lookup.rows.n, lookup.align);
        Ok((lookup, EmbedDesc { rows, n, dtype: self.table.dtype(), align }))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (lookup, desc) = self.check()?;
        lookup.encode(stream, &Desc::Embed(desc), self.scale)
    }
}

operation!(Embedding, EmbedDesc, |checked| checked.1);

/// Rows of a table that ids name: what lookup and gathering share. Operands are table, ids and output.
pub(super) struct Lookup<'a> {
    call: Call<'a, 3>,
    /// Output and ids.
    pub(super) rows: Rows<2>,
    /// Alignment of the rows of table and output.
    pub(super) align: u8,
}

impl<'a> Lookup<'a> {
    /// All checks that do not depend on the element type.
    pub(super) fn new(call: Call<'a, 3>, matrix: &'static str) -> Result<Self> {
        let (op, operands) = (call.op, call.operands);
        let [(first, table), (_, ids), (last, out)] = operands;
        call.dtype(1, &[DType::U32, DType::I32], "u32 or i32")?;
        let expected = if first == "table" { "the dtype of `table`" } else { "the dtype of `x`" };
        call.dtype(2, &[table.dtype()], expected)?;
        check_shapes(op, (first, table.shape(), matrix), ids, (last, out))?;
        [0, 2].into_iter().try_for_each(|i| call.unit_stride(i))?;
        call.output(2, &[])?;
        let rows = Rows::strided(op, last, out.shape(), [out.strides(), ids.strides()])?;
        let align = rows.align(0, out).min(table.alignment([table.strides()[0]]));
        Ok(Lookup { call, rows, align })
    }

    /// Encodes the lookup that `desc` describes.
    pub(super) fn encode(&self, stream: Option<&mut Stream>, desc: &Desc, scale: Option<f32>) -> Result<()> {
        let (stream, rows) = (self.call.stream(stream)?, &self.rows);
        if rows.is_empty() {
            return Ok(());
        }
        let [(_, table), (_, ids), (_, out)] = self.call.operands;
        let rt = table.runtime();
        let prepared = rt.prepare(desc)?;
        let plan = &prepared.plan;
        let vectors = rows.n.div_ceil(plan.tile[1]);
        let ([y_s0, y_s1, y_s2], [i_s0, i_s1, i_s2]) = (rows.strides(0), rows.strides(1));
        let ([r1, r2], [step_rows, step_vectors]) = (rows.splits(), steps(plan, vectors));
        let args = EmbedArgs {
            y_s0,
            y_s1,
            y_s2,
            i_s0,
            i_s1,
            i_s2,
            t_s: table.strides()[0] as u64,
            rows: rows.count,
            r1,
            r2,
            n: rows.n,
            vectors,
            step_rows,
            step_vectors,
            vocabulary: u32::try_from(table.shape()[0]).expect("INVARIANT: checked against the limit"),
            is_signed: u32::from(ids.dtype() == DType::I32),
            scaled: u32::from(scale.is_some()),
            scale: scale.unwrap_or(1.0),
        };
        let (op, pipeline) = (self.call.op, prepared.pipeline);
        Launch { op, rt, plan, pipeline, args: bytemuck::bytes_of(&args) }.run(stream, &[table, ids], &[out])
    }
}

/// `out[.., :] = scale * table[ids[..], :]` for a quantised table: the named rows, decoded.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | table | `[vocabulary, n]` | every [`QFormat`](crate::QFormat) |
/// | ids | `[..]` | u32, i32 |
/// | out | `[.., n]` | f32, f16, bf16 |
///
/// Weights and products are f32, rounded once to the output. Ids outside of the table are found on the device as for
/// [`Embedding`]: their rows are not written, and the next wait returns [`Error::Fault`].
///
/// ```
/// use tessl::{nn::QuantizedEmbedding, Device, GpuRuntime, QFormat, QTensor};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let table = rt.from_slice(&(0..64).map(|i| (i / 32) as f32 - 8.0).collect::<Vec<_>>(), &[2, 32])?;
/// let table = QTensor::quantize(&table, QFormat::Q4_0)?;
/// let ids = rt.from_slice(&[1u32], &[1])?;
/// let out = rt.alloc_tensor_f32(&[1, 32])?;
/// QuantizedEmbedding::new(&table, &ids, &out).scale(2.0).run()?;
/// assert_eq!(out.read::<f32>()?, [-14.0; 32]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a QuantizedEmbedding does nothing until run() or run_on()"]
pub struct QuantizedEmbedding<'a> {
    table: &'a QTensor,
    ids: &'a Tensor,
    out: &'a Tensor,
    scale: Option<f32>,
}

impl<'a> QuantizedEmbedding<'a> {
    /// Decodes rows.
    pub fn new(table: &'a QTensor, ids: &'a Tensor, out: &'a Tensor) -> Self {
        QuantizedEmbedding { table, ids, out, scale: None }
    }

    /// Multiplies each element, as Gemma does by the root of n.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Encodes the operation on the default stream.
    ///
    /// # Errors
    /// `Shape`, `Layout`, `DType`, `Overlap`, `WrongRuntime`, `Expired`, `TooLarge` or `Unsupported` for arguments that do
    /// not fit; nothing is encoded then.
    pub fn run(&self) -> Result<()> {
        self.encode(None)
    }

    /// Encodes the operation on `stream`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_on(&self, stream: &mut Stream) -> Result<()> {
        self.encode(Some(stream))
    }

    /// The problem as data.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn desc(&self) -> Result<QuantEmbedDesc> {
        Ok(self.check()?.1)
    }

    fn check(&self) -> Result<(Call<'a, 2>, QuantEmbedDesc, Rows<2>)> {
        let (table, ids, out) = (self.table, self.ids, self.out);
        let call = Call::new(QUANTIZED, [("ids", ids), ("out", out)])?;
        table.check_usable(QUANTIZED, "table", ids.runtime())?;
        call.dtype(0, &[DType::U32, DType::I32], "u32 or i32")?;
        call.float(1)?;
        check_shapes(QUANTIZED, ("table", table.shape(), MATRIX), ids, ("out", out))?;
        call.unit_stride(1)?;
        call.output(1, &[])?;
        if table.parts().any(|part| part.may_overlap(out)) {
            return Err(Error::Overlap { op: QUANTIZED, output: "out", input: "table" });
        }
        check_scale(QUANTIZED, self.scale)?;
        let rows = Rows::strided(QUANTIZED, "out", out.shape(), [out.strides(), ids.strides()])?;
        let desc = QuantEmbedDesc {
            rows: rows.count,
            n: rows.n,
            format: table.format(),
            layout: table.layout(),
            factors: table.factors_dtype(),
            output: out.dtype(),
            align: rows.align(0, out),
        };
        Ok((call, desc, rows))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, rows) = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() {
            return Ok(());
        }
        let rt = self.ids.runtime();
        let (factors, format) = (factors_code(desc.factors), desc.format);
        let prepared = rt.prepare(&Desc::QuantEmbed(desc))?;
        let plan = &prepared.plan;
        let vectors = rows.n.div_ceil(plan.tile[1]);
        let ([y_s0, y_s1, y_s2], [i_s0, i_s1, i_s2]) = (rows.strides(0), rows.strides(1));
        let ([r1, r2], [step_rows, step_vectors]) = (rows.splits(), steps(plan, vectors));
        let args = QuantEmbedArgs {
            y_s0,
            y_s1,
            y_s2,
            i_s0,
            i_s1,
            i_s2,
            rows: rows.count,
            row: format.row_bytes(rows.n as usize) as u64,
            r1,
            r2,
            n: rows.n,
            vectors,
            step_rows,
            step_vectors,
            vocabulary: u32::try_from(self.table.shape()[0]).expect("INVARIANT: checked against the limit"),
            is_signed: u32::from(self.ids.dtype() == DType::I32),
            group: u32::try_from(format.group()).expect("INVARIANT: at most 512"),
            factors,
            scaled: u32::from(self.scale.is_some()),
            scale: self.scale.unwrap_or(1.0),
        };
        let [codes, scales, biases] = self.table.bound();
        Launch { op: QUANTIZED, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &[codes, scales, biases, self.ids],
            &[self.out],
        )
    }
}

/// The table is a matrix, and out has a row of it for each id.
fn check_shapes(
    op: &'static str,
    (table, shape, matrix): (&'static str, &[usize], &'static str),
    ids: &Tensor,
    (name, out): (&'static str, &Tensor),
) -> Result<()> {
    let &[vocabulary, n] = shape else {
        return Err(Error::shape(op, table, format_args!("{shape:?}"), matrix));
    };
    if !out.shape().split_last().is_some_and(|(&last, outer)| last == n && outer == ids.shape()) {
        let expected = format!("it must be the shape of `ids` {:?} and then {n}", ids.shape());
        return Err(Error::shape(op, name, format_args!("{:?}", out.shape()), expected));
    }
    if vocabulary > MAX_VOCABULARY {
        let (value, limit) = (vocabulary as u64, MAX_VOCABULARY as u64);
        return Err(Error::TooLarge { op, what: "the number of rows that ids name", value, limit });
    }
    Ok(())
}

fn check_scale(op: &'static str, scale: Option<f32>) -> Result<()> {
    match scale.filter(|s| !s.is_finite()) {
        Some(scale) => Err(Error::Scalar { op, name: "scale", value: scale.into(), expected: "finite" }),
        None => Ok(()),
    }
}
