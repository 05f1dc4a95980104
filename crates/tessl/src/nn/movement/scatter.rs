//! Scattering rows.

use crate::args::ScatterArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::check::{Call, Launch, Rows};
use crate::nn::embed::MAX_VOCABULARY;
use crate::nn::{MovementDesc, MovementOp};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// Declares a builder of an operation that takes rows to where ids say.
macro_rules! scatter {
    ($(#[$doc:meta])* $name:ident, $unused:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[must_use = $unused]
        pub struct $name<'a> {
            x: &'a Tensor,
            ids: &'a Tensor,
            y: &'a Tensor,
            weights: Option<&'a Tensor>,
        }

        impl<'a> $name<'a> {
            /// The rows of x go to the rows `ids` of y.
            pub fn new(x: &'a Tensor, ids: &'a Tensor, y: &'a Tensor) -> Self {
                $name { x, ids, y, weights: None }
            }

            fn check(&self) -> Result<(Call<'a, 4>, MovementDesc, Rows<3>)> {
                check(MovementOp::$name, self.x, self.ids, self.y, self.weights)
            }

            fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
                let (call, desc, rows) = self.check()?;
                encode(&call, stream, desc, &rows, self.weights.is_some())
            }
        }

        operation!($name, MovementDesc, |checked| checked.1);
    };
}

scatter! {
    /// `y[ids[..], :] = x[.., :]`: each row of x to the row of y that its id names, of any element type.
    ///
    /// | operand | shape | dtypes |
    /// | --- | --- | --- |
    /// | x | `[.., n]` | any |
    /// | ids | `[..]` | u32, i32 |
    /// | y | `[rows, n]` | x's |
    ///
    /// Bits are copied; rows of y that no id names stay. Of several rows with one id the last one stays, in row-major
    /// order, on every device. The last stride of x and y is 1; other strides are free (ids and x together over at most
    /// three axes). y does not overlap x or ids.
    ///
    /// An id outside of y, or below 0, is found on the device: nothing is written for it, the other rows are, and the next
    /// wait or read of the stream returns [`Error::Fault`] with the position and the value of one such id (on the CPU the
    /// first).
    ///
    /// ```
    /// use tessl::{nn::ScatterRows, Device, GpuRuntime};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let x = rt.from_slice(&[1.0f32, 2.0, 3.0], &[3, 1])?;
    /// let ids = rt.from_slice(&[3u32, 0, 3], &[3])?;
    /// let y = rt.from_slice(&[9.0f32; 4], &[4, 1])?;
    /// ScatterRows::new(&x, &ids, &y).run()?;
    /// assert_eq!(y.read::<f32>()?, [2.0, 9.0, 9.0, 3.0]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    ScatterRows, "a ScatterRows does nothing until run() or run_on()"
}

scatter! {
    /// `y[ids[..], :] += w[..] x[.., :]`: each row of x, times its weight if it has one, is added to the row of y that its id
    /// names: how the answers of experts become one.
    ///
    /// | operand | shape | dtypes |
    /// | --- | --- | --- |
    /// | x | `[.., n]` | f32, f16, bf16 |
    /// | ids | `[..]` | u32, i32 |
    /// | y | `[rows, n]` | x's |
    /// | weights | ids' | f32, x's |
    ///
    /// The old row and then the rows of one id, in row-major order, are added up in f32 (a weight by a fused multiply-add)
    /// and rounded once: the same bits every time, on every device. Rows of y that no id names stay. Strides, and ids outside
    /// of y, are as in [`ScatterRows`]. NaN gives NaN.
    ///
    /// ```
    /// use tessl::{nn::ScatterAdd, Device, GpuRuntime};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let x = rt.from_slice(&[1.0f32, 2.0, 3.0], &[3, 1])?;
    /// let ids = rt.from_slice(&[3u32, 0, 3], &[3])?;
    /// let y = rt.from_slice(&[10.0f32; 4], &[4, 1])?;
    /// ScatterAdd::new(&x, &ids, &y).run()?;
    /// assert_eq!(y.read::<f32>()?, [12.0, 10.0, 10.0, 14.0]);
    /// let w = rt.from_slice(&[0.5f32, 1.0, -1.0], &[3])?;
    /// ScatterAdd::new(&x, &ids, &y).weights(&w).run()?;
    /// assert_eq!(y.read::<f32>()?, [14.0, 10.0, 10.0, 11.5]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    ScatterAdd, "a ScatterAdd does nothing until run() or run_on()"
}

impl<'a> ScatterAdd<'a> {
    /// Multiplies each row of x with its weight.
    pub fn weights(mut self, weights: &'a Tensor) -> Self {
        self.weights = Some(weights);
        self
    }
}

fn check<'a>(
    op: MovementOp,
    x: &'a Tensor,
    ids: &'a Tensor,
    y: &'a Tensor,
    weights: Option<&'a Tensor>,
) -> Result<(Call<'a, 4>, MovementDesc, Rows<3>)> {
    // Where there are none, ids take their place and are not read there.
    let call = Call::new(op.name(), [("x", x), ("ids", ids), ("y", y), ("weights", weights.unwrap_or(ids))])?;
    if op == MovementOp::ScatterAdd {
        call.float(0)?;
    }
    call.dtype(1, &[DType::U32, DType::I32], "u32 or i32")?;
    call.dtype(2, &[x.dtype()], "the dtype of `x`")?;
    if weights.is_some() {
        call.dtype(3, &[DType::F32, x.dtype()], "f32 or the dtype of `x`")?;
        call.same_shape(3, 1)?;
    }
    let &[targets, n] = y.shape() else {
        return Err(Error::shape(call.op, "y", format_args!("{:?}", y.shape()), "it must be [rows, n]"));
    };
    if !x.shape().split_last().is_some_and(|(&last, outer)| last == n && outer == ids.shape()) {
        let expected = format!("it must be the shape of `ids` {:?} and then {n}", ids.shape());
        return Err(Error::shape(call.op, "x", format_args!("{:?}", x.shape()), expected));
    }
    if targets > MAX_VOCABULARY {
        let (value, limit) = (targets as u64, MAX_VOCABULARY as u64);
        return Err(Error::TooLarge { op: call.op, what: "the number of rows of `y`", value, limit });
    }
    [0, 2].into_iter().try_for_each(|i| call.unit_stride(i))?;
    call.output(2, &[])?;
    let rows = Rows::strided(call.op, "x", x.shape(), [x.strides(), ids.strides(), call.operands[3].1.strides()])?;
    let align = rows.align(0, x).min(y.alignment([y.strides()[0]]));
    let desc = MovementDesc { op, rows: rows.count, m: 1, n: rows.n, dtype: x.dtype(), align };
    Ok((call, desc, rows))
}

fn encode(
    call: &Call<'_, 4>,
    stream: Option<&mut Stream>,
    desc: MovementDesc,
    rows: &Rows<3>,
    weighted: bool,
) -> Result<()> {
    let stream = call.stream(stream)?;
    if rows.is_empty() {
        return Ok(());
    }
    let [(_, x), (_, ids), (_, y), (_, weights)] = call.operands;
    let (rt, sums) = (x.runtime(), desc.op == MovementOp::ScatterAdd);
    let prepared = rt.prepare(&Desc::Movement(desc))?;
    let plan = &prepared.plan;
    let ([x_s0, x_s1, x_s2], [i_s0, i_s1, i_s2], [w_s0, w_s1, w_s2]) =
        (rows.strides(0), rows.strides(1), rows.strides(2));
    let [r1, r2] = rows.splits();
    let args = ScatterArgs {
        x_s0,
        x_s1,
        x_s2,
        i_s0,
        i_s1,
        i_s2,
        w_s0,
        w_s1,
        w_s2,
        y_s: y.strides()[0] as u64,
        rows: rows.count,
        r1,
        r2,
        n: rows.n,
        targets: u32::try_from(y.shape()[0]).expect("INVARIANT: checked against the limit"),
        is_signed: u32::from(ids.dtype() == DType::I32),
        panels: plan.tiles[1],
        groups: plan.grid[0],
        weights: if weighted { 1 + u32::from(weights.dtype() != DType::F32) } else { 0 },
    };
    let inputs = [x, ids, weights];
    let inputs = if sums { &inputs[..] } else { &inputs[..2] };
    Launch { op: call.op, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
        stream,
        inputs,
        &[y],
    )
}
