//! Element-wise arithmetic, conversion and strided copies.

use super::check::{Call, Launch, Rows, map_args};
use super::{ElementwiseDesc, ElementwiseOp};
use crate::args::MapArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::{Scalar, Tensor};

/// Declares a builder of an operation on two operands of one type.
macro_rules! binary {
    ($(#[$doc:meta])* $name:ident, $formula:literal, $unused:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[must_use = $unused]
        pub struct $name<'a> {
            a: &'a Tensor,
            b: &'a Tensor,
            y: &'a Tensor,
        }

        impl<'a> $name<'a> {
            #[doc = $formula]
            pub fn new(a: &'a Tensor, b: &'a Tensor, y: &'a Tensor) -> Self {
                $name { a, b, y }
            }

            fn check(&self) -> Result<(Call<'a, 3>, ElementwiseDesc, Rows<3>)> {
                binary(ElementwiseOp::$name, [("a", self.a), ("b", self.b), ("y", self.y)])
            }

            fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
                let (call, desc, rows) = self.check()?;
                let stream = call.stream(stream)?;
                launch(&call, stream, desc, &rows, [0, 1, 2], Factor::default(), &[self.a, self.b], self.y)
            }
        }

        operation!($name, ElementwiseDesc, |checked| checked.1);
    };
}

binary! {
    /// `y = a + b`, element by element: residual connections, and a bias that is broadcast along the rows.
    ///
    /// | operand | shape | dtypes |
    /// | --- | --- | --- |
    /// | a | any | f32, f16, bf16 |
    /// | b, y | a's | a's |
    ///
    /// Computed in f32 and rounded once. The last stride of every operand is 1; up to three other axes may be strided on
    /// their own, and inputs may be broadcast along them ([`Tensor::broadcast_to`]). y may be exactly a or exactly b. NaN in
    /// an input gives NaN.
    ///
    /// ```
    /// use tessl::{nn::Add, Device, GpuRuntime};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let a = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// let b = rt.from_slice(&[10.0f32, 20.0], &[2])?.broadcast_to(&[2, 2])?;
    /// Add::new(&a, &b, &a).run()?;
    /// assert_eq!(a.read::<f32>()?, [11.0, 22.0, 13.0, 24.0]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    Add, "`y = a + b`.", "an Add does nothing until run() or run_on()"
}

binary! {
    /// `y = a * b`, element by element.
    ///
    /// | operand | shape | dtypes |
    /// | --- | --- | --- |
    /// | a | any | f32, f16, bf16 |
    /// | b, y | a's | a's |
    ///
    /// Computed in f32 and rounded once. The last stride of every operand is 1; up to three other axes may be strided on
    /// their own, and inputs may be broadcast along them ([`Tensor::broadcast_to`]). y may be exactly a or exactly b. NaN in
    /// an input gives NaN.
    ///
    /// ```
    /// use tessl::{nn::Mul, Device, GpuRuntime};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let a = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// let b = rt.from_slice(&[10.0f32, 20.0], &[2])?.broadcast_to(&[2, 2])?;
    /// Mul::new(&a, &b, &a).run()?;
    /// assert_eq!(a.read::<f32>()?, [10.0, 40.0, 30.0, 80.0]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    Mul, "`y = a * b`.", "a Mul does nothing until run() or run_on()"
}

/// `y = factor * x`, element by element.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | any | f32, f16, bf16 |
/// | factor | a number, or a tensor of one element that the device reads when the command runs | f32 |
/// | y | x's | x's |
///
/// Computed in f32 and rounded once. The last stride of x and y is 1; up to three other axes may be strided on their own,
/// and x may be broadcast along them. y may be exactly x, and not overlap a device factor. NaN in x or in a device factor
/// gives NaN.
///
/// ```
/// use tessl::{nn::Scale, Device, GpuRuntime, Scalar};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[1.0f32, -2.0], &[2])?;
/// Scale::new(&x, 0.5, &x).run()?;
/// let four = rt.from_slice(&[4.0f32], &[1])?;
/// Scale::new(&x, Scalar::Device(&four), &x).run()?;
/// assert_eq!(x.read::<f32>()?, [2.0, -4.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a Scale does nothing until run() or run_on()"]
pub struct Scale<'a> {
    x: &'a Tensor,
    factor: Scalar<'a, f32>,
    y: &'a Tensor,
}

impl<'a> Scale<'a> {
    /// `y = factor * x`.
    pub fn new(x: &'a Tensor, factor: impl Into<Scalar<'a, f32>>, y: &'a Tensor) -> Self {
        Scale { x, factor: factor.into(), y }
    }

    fn check(&self) -> Result<(Call<'a, 3>, ElementwiseDesc, Rows<2>)> {
        // A factor of the host takes the place of its operand by x, which the kernel then does not read there.
        let device = match self.factor {
            Scalar::Device(tensor) => tensor,
            Scalar::Host(_) => self.x,
        };
        let call = Call::new(ElementwiseOp::Scale.name(), [("x", self.x), ("factor", device), ("y", self.y)])?;
        call.float(0)?;
        call.dtype(2, &[self.x.dtype()], "the dtype of `x`")?;
        call.same_shape(2, 0)?;
        [0, 2].into_iter().try_for_each(|i| call.unit_stride(i))?;
        match self.factor {
            Scalar::Host(value) if !value.is_finite() => {
                let (name, value, expected) = ("factor", value.into(), "finite");
                return Err(Error::Scalar { op: call.op, name, value, expected });
            }
            Scalar::Host(_) => call.output(2, &[0, 1])?,
            Scalar::Device(_) => {
                call.one_number(1)?;
                call.output(2, &[0])?;
            }
        }
        let rows = Rows::flat(call.op, [("x", self.x), ("y", self.y)])?;
        let align = rows.align(0, self.x).min(rows.align(1, self.y));
        Ok((call, ElementwiseDesc::new(ElementwiseOp::Scale, &rows, self.x.dtype(), self.y.dtype(), align), rows))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, rows) = self.check()?;
        let stream = call.stream(stream)?;
        let (factor, tensor) = match self.factor {
            Scalar::Host(value) => (Factor { mode: 0, scale: value }, self.x),
            Scalar::Device(tensor) => (Factor { mode: 1, scale: 1.0 }, tensor),
        };
        launch(&call, stream, desc, &rows, [0, 0, 1], factor, &[self.x, tensor], self.y)
    }
}

operation!(Scale, ElementwiseDesc, |checked| checked.1);

/// `y = x` with the elements of y's type: conversion between f32, f16 and bf16, and strided copies of any type.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | any | any |
/// | y | x's | x's; any of f32, f16, bf16 where x is one of them |
///
/// Conversions round once, to nearest even; too large becomes infinity, NaN stays NaN. Copies within one type keep every
/// bit. The last stride of x and y is 1; up to three other axes may be strided on their own, and x may be broadcast along
/// them. y may be exactly x, and not overlap it otherwise.
///
/// ```
/// use tessl::{bf16, nn::Cast, BufferKind, Device, DType, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[1.0f32, 257.0], &[2])?;
/// let y = rt.zeros(DType::Bf16, &[2], BufferKind::Cold)?;
/// Cast::new(&x, &y).run()?;
/// assert_eq!(y.read::<bf16>()?, [1.0, 256.0].map(bf16::from_f32));
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a Cast does nothing until run() or run_on()"]
pub struct Cast<'a> {
    x: &'a Tensor,
    y: &'a Tensor,
}

impl<'a> Cast<'a> {
    /// `y = x`.
    pub fn new(x: &'a Tensor, y: &'a Tensor) -> Self {
        Cast { x, y }
    }

    fn check(&self) -> Result<(Call<'a, 2>, ElementwiseDesc, Rows<2>)> {
        let operands = [("x", self.x), ("y", self.y)];
        let call = Call::new(ElementwiseOp::Cast.name(), operands)?;
        if self.x.dtype() != self.y.dtype() {
            if !self.y.dtype().is_float() {
                call.dtype(1, &[self.x.dtype()], "the dtype of `x`, or f32, f16 or bf16 from one of them")?;
            }
            call.dtype(0, &[DType::F32, DType::F16, DType::Bf16], "the dtype of `y`, or f32, f16 or bf16")?;
        }
        call.same_shape(1, 0)?;
        (0..2).try_for_each(|i| call.unit_stride(i))?;
        call.output(1, &[0])?;
        let rows = Rows::flat(call.op, operands)?;
        let align = rows.align(0, self.x).min(rows.align(1, self.y));
        Ok((call, ElementwiseDesc::new(ElementwiseOp::Cast, &rows, self.x.dtype(), self.y.dtype(), align), rows))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, rows) = self.check()?;
        let stream = call.stream(stream)?;
        launch(&call, stream, desc, &rows, [0, 0, 1], Factor::default(), &[self.x], self.y)
    }
}

operation!(Cast, ElementwiseDesc, |checked| checked.1);

type Operands<'a, const N: usize> = [(&'static str, &'a Tensor); N];

/// How a kernel gets its factor.
#[derive(Clone, Copy, Default)]
struct Factor {
    /// 0: it is `scale`; 1: it is read from memory.
    mode: u32,
    scale: f32,
}

fn binary<'a>(op: ElementwiseOp, operands: Operands<'a, 3>) -> Result<(Call<'a, 3>, ElementwiseDesc, Rows<3>)> {
    let call = Call::new(op.name(), operands)?;
    call.float(0)?;
    let dtype = operands[0].1.dtype();
    (1..3).try_for_each(|i| call.dtype(i, &[dtype], "the dtype of `a`"))?;
    (1..3).try_for_each(|i| call.same_shape(i, 0))?;
    (0..3).try_for_each(|i| call.unit_stride(i))?;
    call.output(2, &[0, 1])?;
    let rows = Rows::flat(op.name(), operands)?;
    let align = (0..3).map(|i| rows.align(i, operands[i].1)).min().unwrap_or_default();
    Ok((call, ElementwiseDesc::new(op, &rows, dtype, dtype, align), rows))
}

impl ElementwiseDesc {
    fn new<const N: usize>(op: ElementwiseOp, rows: &Rows<N>, input: DType, output: DType, align: u8) -> Self {
        ElementwiseDesc { op, rows: rows.count, n: rows.n, input, output, align }
    }
}

/// Encodes a checked call whose operands a, b and y are `places` of the rows.
#[allow(clippy::too_many_arguments)]
fn launch<const N: usize, const M: usize>(
    call: &Call<'_, N>,
    stream: Option<&Stream>,
    desc: ElementwiseDesc,
    rows: &Rows<M>,
    places: [usize; 3],
    factor: Factor,
    inputs: &[&Tensor],
    y: &Tensor,
) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let rt = y.runtime();
    let prepared = rt.prepare(&Desc::Elementwise(desc))?;
    let plan = &prepared.plan;
    let args = MapArgs { mode: factor.mode, scale: factor.scale, ..map_args(plan, rows, places) };
    Launch { op: call.op, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
        stream,
        inputs,
        &[y],
    )
}
