//! Moving elements: strided copies, transposition, concatenation, gathering and scattering rows.

mod concat;
mod gather;
mod scatter;

pub use concat::Concat;
pub use gather::GatherRows;
pub use scatter::{ScatterAdd, ScatterRows};

use super::check::{Call, Launch, MAX_EXTENT, MAX_ROWS, Rows, map_args, steps};
use super::{MovementDesc, MovementOp};
use crate::args::{StridedArgs, TransposeArgs};
use crate::error::{Error, Result};
use crate::plan::Desc;
use crate::runtime::Prepared;
use crate::stream::Stream;
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::sync::Arc;

const OP: &str = "copy";
/// Axes that a copy walks one by one.
const MAX_AXES: usize = 5;
/// Shorter axes are not worth a tile.
const MIN_TILE: usize = 8;

/// `y = x`, between any two strided views of one shape: any bits, of any element type.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | any | any |
/// | y | x's | x's |
///
/// All strides are free, also the last ones; x may be broadcast ([`Tensor::broadcast_to`]). After axes that lie side by
/// side in both views have been joined, at most five may be left. Rows that are contiguous in both views move in vectors,
/// transpositions in tiles, everything else element by element. y may be exactly x, and not overlap it otherwise. To
/// convert between types there is [`Cast`](super::Cast).
///
/// ```
/// use tessl::{nn::Copy, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
/// let y = rt.alloc_tensor_f32(&[3, 2])?;
/// Copy::new(&x.t()?, &y).run()?;
/// assert_eq!(y.read::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a Copy does nothing until run() or run_on()"]
pub struct Copy<'a> {
    x: &'a Tensor,
    y: &'a Tensor,
}

impl<'a> Copy<'a> {
    /// `y = x`.
    pub fn new(x: &'a Tensor, y: &'a Tensor) -> Self {
        Copy { x, y }
    }

    fn check(&self) -> Result<Checked<'a>> {
        let call = Call::new(OP, [("x", self.x), ("y", self.y)])?;
        check(call)
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let checked = self.check()?;
        let stream = checked.call.stream(stream)?;
        match checked.prepare()? {
            Some(prepared) => checked.launch(stream, &prepared),
            None => Ok(()),
        }
    }
}

operation!(Copy, MovementDesc, |checked| checked.desc);

/// `y = x` with its axes in another order: the last two exchanged, or any [`order`](Self::order).
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[.., m, n]` | any |
/// | y | `[.., n, m]`, or x's extents in the new order | x's |
///
/// A [`Copy`](struct@Copy) of the permuted view, with all that it says about strides; y does not overlap x.
///
/// ```
/// use tessl::{nn::Transpose, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[1, 2, 3])?;
/// let y = rt.alloc_tensor_f32(&[3, 1, 2])?;
/// Transpose::new(&x, &y).order(&[2, 0, 1]).run()?;
/// assert_eq!(y.read::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a Transpose does nothing until run() or run_on()"]
pub struct Transpose<'a> {
    x: &'a Tensor,
    y: &'a Tensor,
    order: Option<&'a [usize]>,
}

impl<'a> Transpose<'a> {
    /// Exchanges the last two axes.
    pub fn new(x: &'a Tensor, y: &'a Tensor) -> Self {
        Transpose { x, y, order: None }
    }

    /// Axis i of y is axis `order[i]` of x.
    pub fn order(mut self, order: &'a [usize]) -> Self {
        self.order = Some(order);
        self
    }

    fn view(&self) -> Result<Tensor> {
        match self.order {
            Some(order) => self.x.permute(order),
            None => self.x.t(),
        }
    }

    fn check(&self) -> Result<MovementDesc> {
        Copy::new(&self.view()?, self.y).desc()
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        Copy::new(&self.view()?, self.y).encode(stream)
    }
}

operation!(Transpose, MovementDesc, |checked| checked);

/// An axis: its extent, and the strides of x and y.
type Axis = (usize, [usize; 2]);

/// A copy that has passed all checks.
struct Checked<'a> {
    call: Call<'a, 2>,
    desc: MovementDesc,
    /// From the largest stride of y to the smallest. A transposition has its two own axes last: first the one that is
    /// contiguous in x, then that of y.
    axes: SmallVec<[Axis; 6]>,
}

/// The checks of a copy from operand 0 to operand 1.
fn check(call: Call<'_, 2>) -> Result<Checked<'_>> {
    let [(_, x), (name, y)] = call.operands;
    call.dtype(1, &[x.dtype()], "the dtype of `x`")?;
    call.same_shape(1, 0)?;
    call.output(1, &[0])?;
    let mut axes = joined(x, y);
    let empty = x.is_empty();
    if axes.len() > MAX_AXES && !empty {
        let actual = format!("{:?} with strides {:?} and {:?}", x.shape(), x.strides(), y.strides());
        return Err(Error::layout(call.op, name, actual, "at most five axes may be strided on their own"));
    }
    let limit = MAX_EXTENT;
    if let Some(&(extent, _)) = axes.iter().find(|a| a.0 as u64 > limit).filter(|_| !empty) {
        return Err(Error::TooLarge { op: call.op, what: "an extent", value: extent as u64, limit });
    }
    let op = pattern(&mut axes);
    let inner = if op == MovementOp::Transpose { 2 } else { axes.len().min(1) };
    let (outer, own) = axes.split_at(axes.len() - inner);
    let rows = outer.iter().fold(1u64, |product, a| product.saturating_mul(a.0 as u64));
    if rows > MAX_ROWS && !empty {
        return Err(Error::TooLarge { op: call.op, what: "the number of rows", value: rows, limit: MAX_ROWS });
    }
    let narrow = |a: Option<&Axis>| a.map_or(1, |a| u32::try_from(a.0).unwrap_or(0));
    let (n, m) = if op == MovementOp::Transpose { (own.first(), own.last()) } else { (own.last(), None) };
    let (n, m) = (narrow(n), narrow(m));
    let strides = |i: usize| outer.iter().map(move |a| a.1[i]);
    let align = x.alignment(strides(0)).min(y.alignment(strides(1)));
    let rows = if empty { 0 } else { rows };
    let desc = MovementDesc { op, rows, m, n, dtype: x.dtype(), align };
    Ok(Checked { call, desc, axes })
}

/// The axes of both views, ordered by y's strides, joined where they lie side by side in both.
fn joined(x: &Tensor, y: &Tensor) -> SmallVec<[Axis; 6]> {
    let strides = x.strides().iter().zip(y.strides());
    let all = x.shape().iter().zip(strides).filter(|(extent, _)| **extent > 1);
    let mut axes: SmallVec<[Axis; 6]> = all.map(|(&extent, (&x, &y))| (extent, [x, y])).collect();
    axes.sort_by_key(|a| std::cmp::Reverse(a.1[1]));
    let mut out: SmallVec<[Axis; 6]> = SmallVec::new();
    for (extent, strides) in axes {
        match out.last_mut() {
            Some((before, last))
                if last.iter().zip(&strides).all(|(&l, &s)| l == s.saturating_mul(extent))
                    && before.checked_mul(extent).is_some_and(|n| n as u64 <= MAX_EXTENT) =>
            {
                (*before, *last) = (*before * extent, strides);
            }
            _ => out.push((extent, strides)),
        }
    }
    out
}

/// How the elements move. Puts the two axes of a transposition last.
fn pattern(axes: &mut SmallVec<[Axis; 6]>) -> MovementOp {
    let Some(&(extent, [x, y])) = axes.last() else { return MovementOp::CopyRows };
    let most = 4;
    if x == 1 && y == 1 && axes.len() <= most {
        return MovementOp::CopyRows;
    }
    let source = axes.iter().rposition(|a| a.1[0] == 1);
    match source {
        Some(at) if y == 1 && x != 1 && extent >= MIN_TILE && axes[at].0 >= MIN_TILE && axes.len() <= most + 1 => {
            let axis = axes.remove(at);
            axes.insert(axes.len() - 1, axis);
            MovementOp::Transpose
        }
        _ => MovementOp::CopyStrided,
    }
}

impl Checked<'_> {
    /// The plan; `None` where there is nothing to copy.
    fn prepare(&self) -> Result<Option<Arc<Prepared>>> {
        if self.desc.rows == 0 {
            return Ok(None);
        }
        self.call.operands[0].1.runtime().prepare(&Desc::Movement(self.desc.clone())).map(Some)
    }

    /// Extents and strides of the `N` axes before the last `own`, with axes of extent 1 in front.
    fn outer<const N: usize>(&self, own: usize) -> ([u32; N], [[u64; N]; 2]) {
        let (mut extents, mut strides) = ([1; N], [[0; N]; 2]);
        let outer = &self.axes[..self.axes.len() - own];
        for (place, (extent, from)) in (0..N).rev().zip(outer.iter().rev()) {
            extents[place] = u32::try_from(*extent).expect("INVARIANT: checked against the limit");
            (strides[0][place], strides[1][place]) = (from[0] as u64, from[1] as u64);
        }
        (extents, strides)
    }

    fn launch(&self, stream: Option<&Stream>, prepared: &Prepared) -> Result<()> {
        let [(_, x), (_, y)] = self.call.operands;
        let (rt, plan, pipeline) = (x.runtime(), &prepared.plan, prepared.pipeline);
        let run = |args: &[u8]| Launch { op: self.call.op, rt, plan, pipeline, args }.run(stream, &[x], &[y]);
        let narrow = |n: u64| u32::try_from(n).expect("INVARIANT: plans launch fewer than 2^32 groups");
        match self.desc.op {
            MovementOp::Transpose => {
                let ([_, r1, r2], [[x_s0, x_s1, x_s2], [y_s0, y_s1, y_s2]]) = self.outer::<3>(2);
                let [.., (_, [_, y_n]), (_, [x_m, _])] = *self.axes.as_slice() else {
                    unreachable!("INVARIANT: a transposition has two axes of its own")
                };
                let tiles = plan.tiles;
                let args = TransposeArgs {
                    x_s0,
                    x_s1,
                    x_s2,
                    y_s0,
                    y_s1,
                    y_s2,
                    x_m: x_m as u64,
                    y_n: y_n as u64,
                    r1,
                    r2,
                    m: self.desc.m,
                    n: self.desc.n,
                    tiles_m: tiles[0],
                    tiles_n: tiles[1],
                    matrices: narrow(self.desc.rows),
                    groups: plan.grid[0],
                };
                run(bytemuck::bytes_of(&args))
            }
            MovementOp::CopyStrided => {
                let ([_, r1, r2, r3], [[x_s0, x_s1, x_s2, x_s3], [y_s0, y_s1, y_s2, y_s3]]) = self.outer::<4>(1);
                let inner = self.axes.last().map_or([0, 0], |a| a.1);
                let [step_rows, step_vectors] = steps(plan, self.desc.n);
                let args = StridedArgs {
                    x_s0,
                    x_s1,
                    x_s2,
                    x_s3,
                    y_s0,
                    y_s1,
                    y_s2,
                    y_s3,
                    x_n: inner[0] as u64,
                    y_n: inner[1] as u64,
                    rows: self.desc.rows,
                    r1,
                    r2,
                    r3,
                    n: self.desc.n,
                    vectors: self.desc.n,
                    step_rows,
                    step_vectors,
                    zero: 0,
                };
                run(bytemuck::bytes_of(&args))
            }
            _ => {
                let extents: SmallVec<[usize; 6]> = self.axes.iter().map(|a| a.0).collect();
                let [x, y] = [0, 1].map(|i| self.axes.iter().map(|a| a.1[i]).collect::<SmallVec<[usize; 6]>>());
                let rows = Rows::strided(self.call.op, "x", &extents, [&x, &y])?;
                run(bytemuck::bytes_of(&map_args(plan, &rows, [0, 0, 1])))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferKind, DType, Device, GpuRuntime};

    #[test]
    fn patterns_follow_the_strides() {
        let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
        let memory = rt.uninit(DType::F32, &[1 << 16], BufferKind::Cold).unwrap();
        let op = |shape: &[usize], x: &[usize], y: &[usize]| {
            let (x, y) = (memory.view(shape, x, 0).unwrap(), memory.view(shape, y, 1 << 15).unwrap());
            let desc = Copy::new(&x, &y).desc().unwrap();
            (desc.op, desc.rows, desc.m, desc.n)
        };
        assert_eq!(op(&[4, 6], &[6, 1], &[6, 1]), (MovementOp::CopyRows, 1, 1, 24));
        assert_eq!(op(&[4, 6], &[7, 1], &[6, 1]), (MovementOp::CopyRows, 4, 1, 6));
        assert_eq!(op(&[], &[], &[]), (MovementOp::CopyRows, 1, 1, 1));
        assert_eq!(op(&[10, 20], &[1, 10], &[20, 1]), (MovementOp::Transpose, 1, 20, 10));
        assert_eq!(op(&[3, 10, 20], &[200, 1, 10], &[200, 20, 1]), (MovementOp::Transpose, 3, 20, 10));
        assert_eq!(op(&[4, 20], &[1, 4], &[20, 1]), (MovementOp::CopyStrided, 4, 1, 20));
        assert_eq!(op(&[4, 6], &[12, 2], &[6, 1]), (MovementOp::CopyStrided, 1, 1, 24));
        // Heads to the front: [T, H, D] to [H, T, D] moves rows.
        assert_eq!(op(&[8, 16, 32], &[32, 256, 1], &[512, 32, 1]), (MovementOp::CopyRows, 128, 1, 32));
    }
}
