//! Concatenation.

use super::{Copy, check};
use crate::error::{Error, Result};
use crate::nn::MovementDesc;
use crate::nn::check::Call;
use crate::stream::Stream;
use crate::tensor::Tensor;
use smallvec::SmallVec;

const OP: &str = "concat";

/// Tensors behind each other along one axis.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | inputs | y's, but for the axis | any, all the same |
/// | y | the extents of the inputs along the axis add up to its | theirs |
///
/// One [`Copy`](struct@crate::nn::Copy) for each input that is not empty, with all that it says about strides: any bits, any views. An input may
/// be exactly its part of y, which then costs nothing; y does not overlap the inputs otherwise.
///
/// ```
/// use tessl::{nn::Concat, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let a = rt.from_slice(&[1.0f32, 2.0], &[2, 1])?;
/// let b = rt.from_slice(&[3.0f32, 4.0, 5.0, 6.0], &[2, 2])?;
/// let y = rt.alloc_tensor_f32(&[2, 3])?;
/// Concat::new(&[&a, &b], 1, &y).run()?;
/// assert_eq!(y.read::<f32>()?, [1.0, 3.0, 4.0, 2.0, 5.0, 6.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a Concat does nothing until run() or run_on()"]
pub struct Concat<'a> {
    inputs: &'a [&'a Tensor],
    axis: usize,
    y: &'a Tensor,
}

impl<'a> Concat<'a> {
    /// `inputs` along `axis`.
    pub fn new(inputs: &'a [&'a Tensor], axis: usize, y: &'a Tensor) -> Self {
        Concat { inputs, axis, y }
    }

    /// The part of y for each input.
    fn parts(&self) -> Result<SmallVec<[Tensor; 4]>> {
        let (axis, y) = (self.axis, self.y);
        y.check_usable(OP, "y", y.runtime())?;
        let whole = y.shape();
        if axis >= whole.len() {
            let expected = format!("`y` {whole:?} has {} axes", whole.len());
            return Err(Error::shape(OP, "axis", axis, expected));
        }
        let mut parts = SmallVec::new();
        let mut start = 0usize;
        for x in self.inputs {
            x.check_usable(OP, "inputs", y.runtime())?;
            if x.dtype() != y.dtype() {
                let (operand, actual) = ("inputs", x.dtype());
                return Err(Error::DType { op: OP, operand, actual, expected: "the dtype of `y`" });
            }
            let same = |i: usize| i == axis || x.shape()[i] == whole[i];
            let fits = x.rank() == whole.len() && (0..whole.len()).all(same);
            let length = if fits { x.shape()[axis] } else { 0 };
            if !fits || length > whole[axis] - start {
                let expected = format!("`y` is {whole:?}, with {} left along axis {axis}", whole[axis] - start);
                return Err(Error::shape(OP, "inputs", format_args!("{:?}", x.shape()), expected));
            }
            parts.push(y.narrow(axis, start, length)?);
            start += length;
        }
        if start != whole[axis] {
            let expected = format!("the inputs have {start} along axis {axis}");
            return Err(Error::shape(OP, "y", format_args!("{whole:?}"), expected));
        }
        let written = self.inputs.iter().zip(&parts).filter(|(x, part)| !x.same_view(part));
        for (_, part) in written {
            if self.inputs.iter().any(|x| x.may_overlap(part)) {
                return Err(Error::Overlap { op: OP, output: "y", input: "inputs" });
            }
        }
        Ok(parts)
    }

    fn check(&self) -> Result<Vec<MovementDesc>> {
        let parts = self.parts()?;
        self.inputs.iter().zip(&parts).map(|(x, part)| Copy::new(x, part).desc()).collect()
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let parts = self.parts()?;
        let stream = stream.map(|s| &*s);
        if let Some(s) = stream
            && !self.y.runtime().is_same(s.runtime())
        {
            return Err(Error::WrongRuntime { op: OP, operand: "stream" });
        }
        // All are checked and planned before the first is encoded.
        let mut copies: SmallVec<[_; 4]> = SmallVec::new();
        for (&x, part) in self.inputs.iter().zip(&parts).filter(|(x, part)| !x.same_view(part)) {
            let checked = check(Call { op: OP, operands: [("inputs", x), ("y", part)] })?;
            if let Some(prepared) = checked.prepare()? {
                copies.push((checked, prepared));
            }
        }
        copies.iter().try_for_each(|(checked, prepared)| checked.launch(stream, prepared))
    }
}

operation!(Concat, Vec<MovementDesc>, |checked| checked);
