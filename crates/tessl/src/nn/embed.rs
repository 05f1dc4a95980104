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
const MAX_VOCABULARY: usize = i32::MAX as usize;

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

    /// Encodes the operation on the default stream.
    ///
    /// # Errors
    /// `Shape`, `Layout`, `DType`, `Overlap`, `WrongRuntime`, `Expired` or `TooLarge` for arguments that do not fit;
    /// nothing is encoded then.
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
    pub fn desc(&self) -> Result<EmbedDesc> {
        Ok(self.check()?.1)
    }

    fn check(&self) -> Result<(Call<'a, 3>, EmbedDesc, Rows<2>)> {
        let (table, ids, out) = (self.table, self.ids, self.out);
        let call = Call::new(OP, [("table", table), ("ids", ids), ("out", out)])?;
        call.float(0)?;
        call.dtype(1, &[DType::U32, DType::I32], "u32 or i32")?;
        call.dtype(2, &[table.dtype()], "the dtype of `table`")?;
        let &[vocabulary, n] = table.shape() else {
            let actual = format_args!("{:?}", table.shape());
            return Err(Error::shape(OP, "table", actual, "it must be [vocabulary, n]"));
        };
        let right = out.shape().split_last().is_some_and(|(&last, outer)| last == n && outer == ids.shape());
        if !right {
            let expected = format!("it must be the shape of `ids` {:?} and then {n}", ids.shape());
            return Err(Error::shape(OP, "out", format_args!("{:?}", out.shape()), expected));
        }
        if vocabulary > MAX_VOCABULARY {
            let (value, limit) = (vocabulary as u64, MAX_VOCABULARY as u64);
            return Err(Error::TooLarge { op: OP, what: "the vocabulary", value, limit });
        }
        [0, 2].into_iter().try_for_each(|i| call.unit_stride(i))?;
        call.output(2, &[])?;
        if let Some(scale) = self.scale.filter(|s| !s.is_finite()) {
            return Err(Error::Scalar { op: OP, name: "scale", value: scale.into(), expected: "finite" });
        }
        let rows = Rows::strided(OP, "out", out.shape(), [out.strides(), ids.strides()])?;
        let align = rows.align(0, out).min(table.alignment([table.strides()[0]]));
        let desc = EmbedDesc { rows: rows.count, n: rows.n, dtype: table.dtype(), align };
        Ok((call, desc, rows))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, rows) = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() {
            return Ok(());
        }
        let rt = self.table.runtime();
        let prepared = rt.prepare(&Desc::Embed(desc))?;
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
            t_s: self.table.strides()[0] as u64,
            rows: rows.count,
            r1,
            r2,
            n: rows.n,
            vectors,
            step_rows,
            step_vectors,
            vocabulary: u32::try_from(self.table.shape()[0]).expect("INVARIANT: checked against the limit"),
            is_signed: u32::from(self.ids.dtype() == DType::I32),
            scaled: u32::from(self.scale.is_some()),
            scale: self.scale.unwrap_or(1.0),
        };
        Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &[self.table, self.ids],
            &[self.out],
        )
    }
}
