//! A ring in the order of its tokens.

use super::{Start, counted, narrow, strides};
use crate::args::CacheArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::check::{Call, Launch, steps};
use crate::nn::{CacheDesc, CacheOp};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::{Scalar, Tensor};

const OP: &str = "ring_densify";

/// `out[b, t] = ring[b, (start + t) % capacity]`: tokens of a ring side by side, from position `start` on.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | ring | `[B, capacity, Hkv, D]` | f32, f16, bf16, i8 |
/// | start | a number, one element, or `[B]` | u32 |
/// | out | `[B, T, Hkv, D]`, T at most the capacity | the ring's |
///
/// Bits are copied; of a ring of codes the scales are a ring with rows of one element (`scales.reshape(&[B, capacity, Hkv,
/// 1])`). The last stride of ring and out is 1, other strides are free. Which positions the ring still holds is
/// the caller's to know: the last `capacity` ones.
///
/// A single query needs no such order: softmax does not depend on it, so `Attention` over the ring itself, with the number
/// of its filled slots as length, gives the same sums in another order.
///
/// ```
/// use tessl::{nn::RingDensify, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// // Tokens 3, 4 and 2, in slots 0, 1 and 2.
/// let ring = rt.from_slice(&[3.0f32, 4.0, 2.0], &[1, 3, 1, 1])?;
/// let out = rt.alloc_tensor_f32(&[1, 3, 1, 1])?;
/// RingDensify::new(&ring, 2, &out).run()?;
/// assert_eq!(out.read::<f32>()?, [2.0, 3.0, 4.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a RingDensify does nothing until run() or run_on()"]
pub struct RingDensify<'a> {
    ring: &'a Tensor,
    start: Start<'a>,
    out: &'a Tensor,
}

impl<'a> RingDensify<'a> {
    /// Copies the tokens from `start` on.
    pub fn new(ring: &'a Tensor, start: impl Into<Start<'a>>, out: &'a Tensor) -> Self {
        RingDensify { ring, start: start.into(), out }
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
    pub fn desc(&self) -> Result<CacheDesc> {
        Ok(self.check()?.1)
    }

    fn check(&self) -> Result<(Call<'a, 3>, CacheDesc, CacheArgs)> {
        let (ring, out) = (self.ring, self.out);
        let start = self.start.tensor().unwrap_or(ring);
        let call = Call::new(OP, [("ring", ring), ("start", start), ("out", out)])?;
        call.dtype(0, &[DType::F32, DType::F16, DType::Bf16, DType::I8], "f32, f16, bf16 or i8")?;
        call.dtype(2, &[ring.dtype()], "the dtype of `ring`")?;
        if self.start.tensor().is_some() {
            call.dtype(1, &[DType::U32], "u32")?;
        }
        let &[sequences, capacity, heads, dim] = ring.shape() else {
            let actual = format_args!("{:?}", ring.shape());
            return Err(Error::shape(OP, "ring", actual, "it must be [B, capacity, Hkv, D]"));
        };
        let tokens = match *out.shape() {
            [n, tokens, h, d] if [n, h, d] == [sequences, heads, dim] && tokens <= capacity => tokens,
            _ => {
                let expected = format!("it must be [{sequences}, at most {capacity}, {heads}, {dim}]");
                return Err(Error::shape(OP, "out", format_args!("{:?}", out.shape()), expected));
            }
        };
        [0, 2].into_iter().try_for_each(|i| call.unit_stride(i))?;
        call.output(2, &[])?;
        let rows = sequences.saturating_mul(tokens).saturating_mul(heads);
        counted(OP, &[("the number of rows", rows), ("the capacity", capacity), ("the elements of a row", dim)])?;
        let start_s = self.start.stride(OP, narrow(sequences.min(super::MAX_COUNT)))?;
        let ([a_b, a_t, a_h], [c_b, c_t, c_h]) = (strides(out), strides(ring));
        let args = CacheArgs {
            a_b,
            a_t,
            a_h,
            c_b,
            c_t,
            c_h,
            start_s,
            start: if let Start::At(Scalar::Host(start)) = self.start { start.into() } else { 0 },
            rows: rows as u64,
            tokens: narrow(tokens),
            heads: narrow(heads),
            n: narrow(dim),
            capacity: narrow(capacity),
            ring: 1,
            start_known: u32::from(self.start.tensor().is_none()),
            ..CacheArgs::default()
        };
        let align = |t: &Tensor| t.alignment(t.strides()[..3].iter().copied());
        let (dtype, align) = (ring.dtype(), align(ring).min(align(out)));
        let desc = CacheDesc {
            op: CacheOp::Densify,
            rows: rows as u64,
            n: narrow(dim),
            dtype,
            coded: false,
            pair: false,
            align,
        };
        Ok((call, desc, args))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, args) = self.check()?;
        let stream = call.stream(stream)?;
        if desc.rows == 0 || desc.n == 0 {
            return Ok(());
        }
        let rt = self.ring.runtime();
        let prepared = rt.prepare(&Desc::Cache(desc.clone()))?;
        let plan = &prepared.plan;
        let vectors = desc.n.div_ceil(plan.tile[1]);
        let [step_rows, step_vectors] = steps(plan, vectors);
        let args = CacheArgs { vectors, vectors_of_one: vectors, step_rows, step_vectors, ..args };
        Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &[self.ring, call.operands[1].1],
            &[self.out],
        )
    }
}
