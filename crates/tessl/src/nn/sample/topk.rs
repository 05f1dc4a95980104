//! The largest elements of rows.

use super::super::TopKDesc;
use super::super::check::{Call, Launch, Rows};
use crate::args::TopKArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::Tensor;

const OP: &str = "top_k";
/// Kernels sort so many with one threadgroup.
const MAX_K: usize = 256;

/// The k largest elements of each row and their indices, the largest first.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[.., n]` | f32, f16, bf16 |
/// | values | `[.., k]`, k at most 256 and n | x's |
/// | indices | `[.., k]` | u32 |
///
/// Of equal elements the one with the lowest index comes first; NaN comes before all numbers; -0 equals 0. The bits of
/// values are those of x. The last stride of every operand is 1; up to three other axes may be strided on their own.
/// Nothing overlaps.
///
/// ```
/// use tessl::{nn::TopK, BufferKind, Device, DType, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[1.0f32, 5.0, 3.0, 5.0], &[1, 4])?;
/// let values = rt.alloc_tensor_f32(&[1, 3])?;
/// let indices = rt.zeros(DType::U32, &[1, 3], BufferKind::Cold)?;
/// TopK::new(&x, &values, &indices).run()?;
/// assert_eq!(values.read::<f32>()?, [5.0, 5.0, 3.0]);
/// assert_eq!(indices.read::<u32>()?, [1, 3, 2]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a TopK does nothing until run() or run_on()"]
pub struct TopK<'a> {
    x: &'a Tensor,
    values: &'a Tensor,
    indices: &'a Tensor,
}

impl<'a> TopK<'a> {
    /// As many as values and indices have room for.
    pub fn new(x: &'a Tensor, values: &'a Tensor, indices: &'a Tensor) -> Self {
        TopK { x, values, indices }
    }

    fn check(&self) -> Result<(Call<'a, 3>, TopKDesc, Rows<3>)> {
        let (x, values, indices) = (self.x, self.values, self.indices);
        let call = Call::new(OP, [("x", x), ("values", values), ("indices", indices)])?;
        call.float(0)?;
        call.dtype(1, &[x.dtype()], "the dtype of `x`")?;
        call.dtype(2, &[DType::U32], "u32")?;
        let Some((&n, outer)) = x.shape().split_last() else {
            return Err(Error::shape(OP, "x", "a scalar", "it must have rows along its last axis"));
        };
        let k = match values.shape().split_last() {
            Some((&k, rows)) if rows == outer && k <= n => k,
            _ => {
                let expected = format!("it must be {outer:?} and then k, at most {n} (`x` is {:?})", x.shape());
                return Err(Error::shape(OP, "values", format_args!("{:?}", values.shape()), expected));
            }
        };
        call.same_shape(2, 1)?;
        if k > MAX_K {
            return Err(Error::TooLarge { op: OP, what: "k", value: k as u64, limit: MAX_K as u64 });
        }
        (0..3).try_for_each(|i| call.unit_stride(i))?;
        [1, 2].into_iter().try_for_each(|i| call.output(i, &[]))?;
        let rows = Rows::strided(OP, "x", x.shape(), [x.strides(), values.strides(), indices.strides()])?;
        let k = u32::try_from(k).expect("INVARIANT: at most 256");
        let desc = TopKDesc { rows: rows.count, n: rows.n, k, dtype: x.dtype() };
        Ok((call, desc, rows))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, rows) = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() || desc.k == 0 {
            return Ok(());
        }
        let (rt, k) = (self.x.runtime(), desc.k);
        let prepared = rt.prepare(&Desc::TopK(desc))?;
        let plan = &prepared.plan;
        let [[x_s0, x_s1, x_s2], [v_s0, v_s1, v_s2], [i_s0, i_s1, i_s2]] = [0, 1, 2].map(|i| rows.strides(i));
        let [r1, r2] = rows.splits();
        let args = TopKArgs {
            x_s0,
            x_s1,
            x_s2,
            v_s0,
            v_s1,
            v_s2,
            i_s0,
            i_s1,
            i_s2,
            rows: rows.count,
            r1,
            r2,
            n: rows.n,
            groups: plan.grid[0],
            k,
            zero: 0,
        };
        Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &[self.x],
            &[self.values, self.indices],
        )
    }
}

operation!(TopK, TopKDesc, |checked| checked.1);
