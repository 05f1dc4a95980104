//! Gathering rows.

use crate::error::Result;
use crate::nn::check::Call;
use crate::nn::embed::Lookup;
use crate::nn::{MovementDesc, MovementOp};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// `y[.., :] = x[ids[..], :]`: the rows of x that ids name, of any element type.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[rows, n]` | any |
/// | ids | `[..]` | u32, i32 |
/// | y | `[.., n]` | x's |
///
/// Bits are copied. The last stride of x and y is 1; other strides are free (ids and y together over at most three axes).
/// y does not overlap x.
///
/// An id outside of x, or below 0, is found on the device: its row of y is not written, the other rows are, and the next
/// wait or read of the stream returns [`Error::Fault`](crate::Error::Fault) with the position and the value of one such id
/// (on the CPU the first).
///
/// ```
/// use tessl::{nn::GatherRows, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[0u8, 1, 10, 11, 20, 21], &[3, 2])?;
/// let ids = rt.from_slice(&[2i32, 2, 0], &[3])?;
/// let y = rt.from_slice(&[0u8; 6], &[3, 2])?;
/// GatherRows::new(&x, &ids, &y).run()?;
/// assert_eq!(y.read::<u8>()?, [20, 21, 20, 21, 0, 1]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a GatherRows does nothing until run() or run_on()"]
pub struct GatherRows<'a> {
    x: &'a Tensor,
    ids: &'a Tensor,
    y: &'a Tensor,
}

impl<'a> GatherRows<'a> {
    /// The rows `ids` of x.
    pub fn new(x: &'a Tensor, ids: &'a Tensor, y: &'a Tensor) -> Self {
        GatherRows { x, ids, y }
    }

    fn check(&self) -> Result<(Lookup<'a>, MovementDesc)> {
        let op = MovementOp::GatherRows;
        let call = Call::new(op.name(), [("x", self.x), ("ids", self.ids), ("y", self.y)])?;
        let lookup = Lookup::new(call, "it must be [rows, n]")?;
        let (rows, n, align) = (lookup.rows.count, lookup.rows.n, lookup.align);
        Ok((lookup, MovementDesc { op, rows, m: 1, n, dtype: self.x.dtype(), align }))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (lookup, desc) = self.check()?;
        lookup.encode(stream, &Desc::Movement(desc), None)
    }
}

operation!(GatherRows, MovementDesc, |checked| checked.1);
