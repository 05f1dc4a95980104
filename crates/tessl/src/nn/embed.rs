//! Embedding lookup.

use super::EmbedDesc;
use super::check::{Call, Launch, Rows, steps};
use crate::args::EmbedArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::Tensor;

const OP: &str = "embedding";
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
        let lookup = Lookup::new(call, "it must be [vocabulary, n]")?;
        if let Some(scale) = self.scale.filter(|s| !s.is_finite()) {
            return Err(Error::Scalar { op: OP, name: "scale", value: scale.into(), expected: "finite" });
        }
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
        let &[vocabulary, n] = table.shape() else {
            return Err(Error::shape(op, first, format_args!("{:?}", table.shape()), matrix));
        };
        let right = out.shape().split_last().is_some_and(|(&last, outer)| last == n && outer == ids.shape());
        if !right {
            let expected = format!("it must be the shape of `ids` {:?} and then {n}", ids.shape());
            return Err(Error::shape(op, last, format_args!("{:?}", out.shape()), expected));
        }
        if vocabulary > MAX_VOCABULARY {
            let (value, limit) = (vocabulary as u64, MAX_VOCABULARY as u64);
            return Err(Error::TooLarge { op, what: "the number of rows that ids name", value, limit });
        }
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
