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
        }

        impl<'a> $name<'a> {
            /// The rows of x go to the rows `ids` of y.
            pub fn new(x: &'a Tensor, ids: &'a Tensor, y: &'a Tensor) -> Self {
                $name { x, ids, y }
            }

            fn check(&self) -> Result<(Call<'a, 3>, MovementDesc, Rows<2>)> {
                check(MovementOp::$name, self.x, self.ids, self.y)
            }

            fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
                let (call, desc, rows) = self.check()?;
                encode(&call, stream, desc, &rows)
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
    /// `y[ids[..], :] += x[.., :]`: each row of x is added to the row of y that its id names.
    ///
    /// | operand | shape | dtypes |
    /// | --- | --- | --- |
    /// | x | `[.., n]` | f32, f16, bf16 |
    /// | ids | `[..]` | u32, i32 |
    /// | y | `[rows, n]` | x's |
    ///
    /// The old row and then the rows of one id, in row-major order, are added up in f32 and rounded once: the same bits
    /// every time, on every device. Rows of y that no id names stay. Strides, and ids outside of y, are as in
    /// [`ScatterRows`]. NaN gives NaN.
    ///
    /// ```
    /// use tessl::{nn::ScatterAdd, Device, GpuRuntime};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let x = rt.from_slice(&[1.0f32, 2.0, 3.0], &[3, 1])?;
    /// let ids = rt.from_slice(&[3u32, 0, 3], &[3])?;
    /// let y = rt.from_slice(&[10.0f32; 4], &[4, 1])?;
    /// ScatterAdd::new(&x, &ids, &y).run()?;
    /// assert_eq!(y.read::<f32>()?, [12.0, 10.0, 10.0, 14.0]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    ScatterAdd, "a ScatterAdd does nothing until run() or run_on()"
}

fn check<'a>(
    op: MovementOp,
    x: &'a Tensor,
    ids: &'a Tensor,
    y: &'a Tensor,
) -> Result<(Call<'a, 3>, MovementDesc, Rows<2>)> {
    let call = Call::new(op.name(), [("x", x), ("ids", ids), ("y", y)])?;
    if op == MovementOp::ScatterAdd {
        call.float(0)?;
    }
    call.dtype(1, &[DType::U32, DType::I32], "u32 or i32")?;
    call.dtype(2, &[x.dtype()], "the dtype of `x`")?;
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
    let rows = Rows::strided(call.op, "x", x.shape(), [x.strides(), ids.strides()])?;
    let align = rows.align(0, x).min(y.alignment([y.strides()[0]]));
    let desc = MovementDesc { op, rows: rows.count, m: 1, n: rows.n, dtype: x.dtype(), align };
    Ok((call, desc, rows))
}

fn encode(call: &Call<'_, 3>, stream: Option<&mut Stream>, desc: MovementDesc, rows: &Rows<2>) -> Result<()> {
    let stream = call.stream(stream)?;
    if rows.is_empty() {
        return Ok(());
    }
    let [(_, x), (_, ids), (_, y)] = call.operands;
    let rt = x.runtime();
    let prepared = rt.prepare(&Desc::Movement(desc))?;
    let plan = &prepared.plan;
    let ([x_s0, x_s1, x_s2], [i_s0, i_s1, i_s2]) = (rows.strides(0), rows.strides(1));
    let [r1, r2] = rows.splits();
    let args = ScatterArgs {
        x_s0,
        x_s1,
        x_s2,
        i_s0,
        i_s1,
        i_s2,
        y_s: y.strides()[0] as u64,
        rows: rows.count,
        r1,
        r2,
        n: rows.n,
        targets: u32::try_from(y.shape()[0]).expect("INVARIANT: checked against the limit"),
        is_signed: u32::from(ids.dtype() == DType::I32),
        panels: plan.tiles[1],
        groups: plan.grid[0],
        zero: 0,
    };
    Launch { op: call.op, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
        stream,
        &[x, ids],
        &[y],
    )
}
