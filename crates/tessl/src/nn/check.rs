//! What operations on rows check, and how their rows are walked.

use crate::args::MapArgs;
use crate::device::PipelineId;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::runtime::GpuRuntime;
use crate::stream::{Access, Binding, Encoded, Stream, Work};
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// Kernels number rows in 32 bits.
pub(super) const MAX_ROWS: u64 = u32::MAX as u64;
/// Kernels count the elements of a row, and the rows along one axis, in 31 bits.
pub(super) const MAX_EXTENT: u64 = (u32::MAX >> 1) as u64;

/// A call under examination: its name and named operands.
pub(super) struct Call<'a, const N: usize> {
    pub(super) op: &'static str,
    pub(super) operands: [(&'static str, &'a Tensor); N],
}

impl<'a, const N: usize> Call<'a, N> {
    /// A call whose operands are on the runtime of the first one.
    pub(super) fn new(op: &'static str, operands: [(&'static str, &'a Tensor); N]) -> Result<Self> {
        let rt = operands[0].1.runtime();
        operands.iter().try_for_each(|(name, tensor)| tensor.check_usable(op, name, rt))?;
        Ok(Call { op, operands })
    }

    /// Operand `i` has one of these types.
    pub(super) fn dtype(&self, i: usize, accepted: &[DType], expected: &'static str) -> Result<()> {
        let (operand, actual) = (self.operands[i].0, self.operands[i].1.dtype());
        if accepted.contains(&actual) {
            return Ok(());
        }
        Err(Error::DType { op: self.op, operand, actual, expected })
    }

    /// Operand `i` is a float of 16 bits or more.
    pub(super) fn float(&self, i: usize) -> Result<()> {
        self.dtype(i, &[DType::F32, DType::F16, DType::Bf16], "f32, f16 or bf16")
    }

    /// Operand `i` has this shape, which is that of operand `of`.
    pub(super) fn same_shape(&self, i: usize, of: usize) -> Result<()> {
        let ((name, tensor), (first, wanted)) = (self.operands[i], self.operands[of]);
        if tensor.shape() == wanted.shape() {
            return Ok(());
        }
        let expected = format!("`{first}` is {:?}", wanted.shape());
        let error = Error::shape(self.op, name, format_args!("{:?}", tensor.shape()), expected);
        let fits = tensor.broadcast_to(wanted.shape()).is_ok();
        Err(if fits { error.help(format!("did you mean {name}.broadcast_to({:?})?", wanted.shape())) } else { error })
    }

    /// The last stride of operand `i` is 1.
    pub(super) fn unit_stride(&self, i: usize) -> Result<()> {
        let (name, tensor) = self.operands[i];
        match (tensor.shape().last(), tensor.strides().last()) {
            (Some(&extent), Some(&stride)) if extent > 1 && stride != 1 => {
                let actual = format!("strided {:?}", tensor.strides());
                Err(Error::layout(self.op, name, actual, "its last stride must be 1"))
            }
            _ => Ok(()),
        }
    }

    /// Operand `i` is one f32 that the device reads.
    pub(super) fn one_number(&self, i: usize) -> Result<()> {
        self.dtype(i, &[DType::F32], "f32")?;
        let (name, tensor) = self.operands[i];
        if tensor.len() == 1 {
            return Ok(());
        }
        Err(Error::shape(self.op, name, format_args!("{:?}", tensor.shape()), "it must have one element"))
    }

    /// Operand `output` can be written: no element twice, no byte of an input, unless `in_place` allows exactly that view.
    pub(super) fn output(&self, output: usize, in_place: &[usize]) -> Result<()> {
        let (name, y) = self.operands[output];
        if y.repeats_elements() {
            let actual = format!("{:?} with strides {:?}", y.shape(), y.strides());
            return Err(Error::layout(self.op, name, actual, "an output cannot repeat elements"));
        }
        for (i, &(input, x)) in self.operands.iter().enumerate().filter(|(i, _)| *i != output) {
            let same = in_place.contains(&i) && x.same_view(y);
            if !same && x.may_overlap(y) {
                return Err(Error::Overlap { op: self.op, output: name, input });
            }
        }
        Ok(())
    }

    /// `stream` belongs to the runtime of the operands.
    pub(super) fn stream<'s>(&self, stream: Option<&'s mut Stream>) -> Result<Option<&'s Stream>> {
        let stream = stream.map(|s| &*s);
        match stream {
            Some(s) if !self.operands[0].1.runtime().is_same(s.runtime()) => {
                Err(Error::WrongRuntime { op: self.op, operand: "stream" })
            }
            _ => Ok(stream),
        }
    }
}

/// The rows that `N` operands of one shape share: axes joined wherever all of them allow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows<const N: usize> {
    /// Rows.
    pub(super) count: u64,
    /// Elements of a row.
    pub(super) n: u32,
    /// Extents and strides of up to three axes, outermost first.
    axes: SmallVec<[(usize, [usize; N]); 3]>,
}

impl<const N: usize> Rows<N> {
    /// Rows along the last axis.
    pub(super) fn new(op: &'static str, operands: [(&'static str, &Tensor); N]) -> Result<Self> {
        Self::of(op, operands[0].0, operands[0].1.shape(), operands.map(|(_, t)| t.strides()), false)
    }

    /// Rows of an operation that treats all elements alike: they grow over axes that lie side by side.
    pub(super) fn flat(op: &'static str, operands: [(&'static str, &Tensor); N]) -> Result<Self> {
        Self::of(op, operands[0].0, operands[0].1.shape(), operands.map(|(_, t)| t.strides()), true)
    }

    /// Rows along the last axis of `shape`, for operands that step along the other axes by these strides.
    pub(super) fn strided(
        op: &'static str,
        name: &'static str,
        shape: &[usize],
        strides: [&[usize]; N],
    ) -> Result<Self> {
        Self::of(op, name, shape, strides, false)
    }

    fn of(op: &'static str, name: &'static str, shape: &[usize], operands: [&[usize]; N], grow: bool) -> Result<Self> {
        let too_large = |what, value: usize| Error::TooLarge { op, what, value: value as u64, limit: MAX_EXTENT };
        let fits = |n: usize| n as u64 <= MAX_EXTENT;
        let (mut n, outer) = shape.split_last().map_or((1, &[][..]), |(&n, outer)| (n, outer));
        if !fits(n) {
            return Err(too_large("the length of a row", n));
        }
        // Nothing is walked in an empty view, whatever its other extents.
        if shape.contains(&0) {
            let count = if outer.contains(&0) { 0 } else { 1 };
            return Ok(Rows { count, n: narrow(n), axes: SmallVec::new() });
        }
        let mut axes: SmallVec<[(usize, [usize; N]); 4]> = SmallVec::new();
        for (axis, &extent) in outer.iter().enumerate().filter(|(_, d)| **d != 1) {
            let strides = operands.map(|strides| strides[axis]);
            let beside = |last: &[usize; N]| last.iter().zip(&strides).all(|(&l, &s)| l == s.saturating_mul(extent));
            match axes.last_mut() {
                Some(last) if beside(&last.1) => *last = (last.0.saturating_mul(extent), strides),
                _ => axes.push((extent, strides)),
            }
        }
        if grow
            && let Some(&(extent, strides)) = axes.last()
            && strides.iter().all(|&s| s == n)
            && let Some(longer) = n.checked_mul(extent).filter(|&n| fits(n))
        {
            n = longer;
            axes.pop();
        }
        if axes.len() > 3 {
            let strides = operands.map(|strides| format!("{strides:?}"));
            let actual = format!("{shape:?} with strides {}", strides.join(" and "));
            let expected = "at most three axes before the last may be strided on their own";
            return Err(Error::layout(op, name, actual, expected));
        }
        if axes.len() > 1
            && let Some(&(extent, _)) = axes.iter().find(|a| !fits(a.0))
        {
            return Err(too_large("an extent", extent));
        }
        let count = axes.iter().fold(1u64, |product, a| product.saturating_mul(a.0 as u64));
        if count > MAX_ROWS {
            return Err(Error::TooLarge { op, what: "the number of rows", value: count, limit: MAX_ROWS });
        }
        Ok(Rows { count, n: narrow(n), axes: axes.into_iter().collect() })
    }

    /// Whether there is nothing to compute.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 || self.n == 0
    }

    /// Extents of the middle and the innermost axis, as kernels split a row's number by them. A single axis may be
    /// longer than 31 bits, and is never split.
    pub(super) fn splits(&self) -> [u32; 2] {
        match self.axes.as_slice() {
            [] | [_] => [1, u32::MAX],
            [.., (r1, _), (r2, _)] => [narrow(*r1), narrow(*r2)],
        }
    }

    /// Row strides of operand `i`, outermost first; 0 along axes that are never stepped along.
    pub(super) fn strides(&self, i: usize) -> [u64; 3] {
        let mut strides = [0; 3];
        let places = strides.iter_mut().rev().zip(self.axes.iter().rev());
        places.for_each(|(place, axis)| *place = axis.1[i] as u64);
        strides
    }

    /// log2 of the largest power of two, 128 bytes at most, that divides the address and row strides of operand `i`.
    pub(super) fn align(&self, i: usize, operand: &Tensor) -> u8 {
        operand.alignment(self.axes.iter().map(|a| a.1[i]))
    }
}

fn narrow(extent: usize) -> u32 {
    u32::try_from(extent).expect("INVARIANT: checked against the limit")
}

/// Rows, and vectors of a row, from one vector of a thread to its next.
pub(super) fn steps(plan: &Plan, vectors: u32) -> [u32; 2] {
    let step = u64::from(plan.grid[0]) * u64::from(plan.threads);
    let narrow = |n: u64| u32::try_from(n).expect("INVARIANT: plans launch fewer than 2^32 threads");
    [narrow(step / u64::from(vectors)), narrow(step % u64::from(vectors))]
}

/// The argument block of an element-wise kernel whose operands a, b and y are these three of `rows`.
pub(super) fn map_args<const N: usize>(plan: &Plan, rows: &Rows<N>, [a, b, y]: [usize; 3]) -> MapArgs {
    let ([a_s0, a_s1, a_s2], [b_s0, b_s1, b_s2], [y_s0, y_s1, y_s2]) =
        (rows.strides(a), rows.strides(b), rows.strides(y));
    let [r1, r2] = rows.splits();
    let vectors = rows.n.div_ceil(plan.tile[1]);
    let [step_rows, step_vectors] = steps(plan, vectors);
    MapArgs {
        a_s0,
        a_s1,
        a_s2,
        b_s0,
        b_s1,
        b_s2,
        y_s0,
        y_s1,
        y_s2,
        rows: rows.count,
        r1,
        r2,
        n: rows.n,
        vectors,
        step_rows,
        step_vectors,
        mode: 0,
        scale: 1.0,
    }
}

/// A command on its way to a stream.
pub(super) struct Launch<'a> {
    pub(super) op: &'static str,
    pub(super) rt: &'a GpuRuntime,
    pub(super) plan: &'a Plan,
    pub(super) pipeline: PipelineId,
    pub(super) args: &'a [u8],
}

impl Launch<'_> {
    /// Hands the command over: every input, then the outputs, then scratch memory where the plan has some.
    pub(super) fn run(&self, stream: Option<&Stream>, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
        let mut bindings: SmallVec<[Binding; 6]> = inputs.iter().map(|t| t.binding(Access::Read)).collect();
        bindings.extend(outputs.iter().map(|t| t.binding(Access::Write)));
        let (plan, pipeline) = (self.plan, self.pipeline);
        bindings.extend(self.rt.scratch(stream, self.op, plan.scratch_bytes)?);
        let work = Work::Kernel { pipeline, grid: plan.grid, threads: plan.threads, shared_bytes: plan.shared_bytes };
        self.rt.encode_on(stream, Encoded { label: self.op, work, args: self.args, bindings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    /// Every element, by the numbers that kernels get, in the order of the rows.
    fn places<const N: usize>(rows: &Rows<N>, operand: usize) -> Vec<u64> {
        let ([r1, r2], [s0, s1, s2]) = (rows.splits().map(u64::from), rows.strides(operand));
        let start = |row: u64| row / r2 / r1 * s0 + row / r2 % r1 * s1 + row % r2 * s2;
        (0..rows.count).flat_map(|row| (0..u64::from(rows.n)).map(move |i| start(row) + i)).collect()
    }

    #[test]
    fn rows_walk_the_elements_of_every_operand_in_order() {
        let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
        let memory = rt.alloc_tensor_f32(&[4096]).unwrap();
        let shapes: [(&[usize], &[usize], &[usize]); 9] = [
            (&[], &[], &[]),
            (&[5], &[1], &[1]),
            (&[3, 5], &[5, 1], &[7, 1]),
            (&[2, 3, 5], &[15, 5, 1], &[15, 5, 1]),
            (&[2, 3, 5], &[5, 10, 1], &[15, 5, 1]),
            (&[2, 3, 4, 5], &[100, 30, 6, 1], &[60, 20, 5, 1]),
            (&[2, 3, 4, 5], &[5, 10, 30, 1], &[60, 20, 5, 1]),
            (&[2, 1, 3, 5], &[0, 9, 0, 1], &[15, 1, 5, 1]),
            (&[3, 1], &[2, 9], &[1, 1]),
        ];
        for (shape, a, b) in shapes {
            let operands = [("a", &memory.view(shape, a, 0).unwrap()), ("b", &memory.view(shape, b, 0).unwrap())];
            for rows in [Rows::new("test", operands).unwrap(), Rows::flat("test", operands).unwrap()] {
                for (operand, strides) in [a, b].into_iter().enumerate() {
                    let mut want = vec![0u64];
                    for (&extent, &stride) in shape.iter().zip(strides) {
                        let step = |p: u64| (0..extent as u64).map(move |i| p + i * stride as u64);
                        want = want.into_iter().flat_map(step).collect();
                    }
                    assert_eq!(places(&rows, operand), want, "{shape:?} {strides:?} {rows:?}");
                }
            }
        }
        let whole = ("a", &memory.view(&[2, 3, 5], &[15, 5, 1], 0).unwrap());
        assert_eq!(Rows::flat("test", [whole]).unwrap().n, 30);
        assert_eq!((Rows::new("test", [whole]).unwrap().count, Rows::new("test", [whole]).unwrap().n), (6, 5));
    }
}
