//! Validation of a product: everything is checked here, before anything is encoded.

use super::desc::{Bias, Factor, GemmDesc, GemmExtras, Layout};
use super::packed::{Form, Weights};
use super::{Activation, Gemm, GemmBackend, Offsets, Up, max_k_i32};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use std::borrow::Cow;

pub(super) const OP: &str = "gemm";
/// Kernels count rows, columns and depth in 31 bits.
const MAX_DIM: usize = (1 << 31) - 1;

/// A matrix operand: extents and strides in elements, `batch` 0-strided where one matrix serves all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
    pub(super) batch: Option<usize>,
    pub(super) batch_stride: usize,
}

/// A matrix operand with its tensor (all of the packed bytes, for packed weights).
pub(super) type Placed<'a> = (Cow<'a, Tensor>, Matrix);

/// A validated problem. Operands may have been exchanged so that C is row-major; scales and bias with them.
pub(super) struct Checked<'a> {
    pub(super) desc: GemmDesc,
    pub(super) a: Placed<'a>,
    pub(super) b: Placed<'a>,
    pub(super) c: (&'a Tensor, Matrix),
    pub(super) up: Option<Placed<'a>>,
    pub(super) bias: Option<&'a Tensor>,
    pub(super) row_scale: Option<&'a Tensor>,
    pub(super) col_scale: Option<&'a Tensor>,
    pub(super) residual: Option<(&'a Tensor, Matrix)>,
}

impl Matrix {
    pub(super) fn of(op: &'static str, operand: &'static str, t: &Tensor) -> Result<Self> {
        let (shape, strides) = (t.shape(), t.strides());
        let rank = t.rank();
        if !(2..=3).contains(&rank) {
            let expected = "it must be [rows, columns] or [batch, rows, columns]";
            return Err(Error::shape(op, operand, format_args!("{shape:?}"), expected));
        }
        if let Some(&large) = shape.iter().find(|&&d| d > MAX_DIM) {
            let what = "an extent of a matrix";
            return Err(Error::TooLarge { op, what, value: large as u64, limit: MAX_DIM as u64 });
        }
        let (rows, columns) = (shape[rank - 2], shape[rank - 1]);
        // A stride along an axis of one element is never followed; it counts as what suits.
        let (mut row_stride, mut column_stride) = (strides[rank - 2], strides[rank - 1]);
        let unit = |extent: usize, stride: usize| stride == 1 || extent <= 1;
        if !unit(columns, column_stride) && !unit(rows, row_stride) {
            let actual = format!("{shape:?} with strides {strides:?}");
            return Err(Error::layout(op, operand, actual, "one of the last two strides must be 1")
                .help("copy it to a contiguous tensor"));
        }
        if columns <= 1 && row_stride != 1 {
            column_stride = 1;
        } else if rows <= 1 && column_stride != 1 {
            row_stride = 1;
        }
        let batch = (rank == 3).then(|| shape[0]);
        let batch_stride = if batch.is_none_or(|b| b == 1) { 0 } else { strides[0] };
        Ok(Matrix { rows, columns, row_stride, column_stride, batch, batch_stride })
    }

    pub(super) fn layout(&self) -> Layout {
        if self.column_stride == 1 { Layout::RowMajor } else { Layout::ColMajor }
    }

    fn transposed(self) -> Self {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// The stride that is not 1, and the batch stride. Lines that repeat one line (stride 0) count as unaligned: copy
    /// engines do not promise to take them.
    fn outer_strides(&self) -> [usize; 2] {
        let leading = if self.column_stride == 1 { self.row_stride } else { self.column_stride };
        let used = if self.column_stride == 1 { self.rows } else { self.columns };
        [if used > 1 { leading.max(1) } else { 0 }, self.batch_stride]
    }
}

impl<'a> Gemm<'a> {
    pub(super) fn check(&self) -> Result<Checked<'a>> {
        let (a, c) = (self.a, self.c);
        let rt = a.runtime();
        a.check_usable(OP, "a", rt)?;
        let (b, mb, up) = self.weights()?;
        b.check_usable(OP, "b", rt)?;
        c.check_usable(OP, "c", rt)?;
        let output = self.check_dtypes()?;
        let (ma, mc) = (Matrix::of(OP, "a", a)?, Matrix::of(OP, "c", c)?);
        self.check_shapes(&ma, &mb, &mc)?;
        let (batch, groups) = self.check_batch(&ma, &mb, &mc)?;
        let gated = up.is_some() || matches!(self.b, Weights::Packed(p) if p.is_gated());
        let packed = matches!(self.b, Weights::Packed(p) if matches!(p.form(), Form::Packed(_)));
        self.check_factors(gated)?;
        let columns = mc.columns * if gated { 2 } else { 1 };
        let bias = self.check_bias(output, mc.rows, columns)?;
        let row_scale = self.check_vector("row_scale", self.row_scale, mc.rows, "one value per row of `c`")?;
        let col_scale = self.check_vector("col_scale", self.col_scale, columns, "one value per column")?;
        let residual = self.check_residual(&mc)?;
        self.check_plain_i32()?;
        let grouped = self.offsets.is_some();
        let block_scales = self.check_block_scales(&ma, &mb, gated || packed || grouped || batch != 1)?;
        self.check_aliasing(&b, up.as_ref().map(|(t, _)| &**t))?;
        // A column-major C is the transposed problem: C^T = B^T A^T, and what ran along columns runs along rows.
        let flip = mc.layout() == Layout::ColMajor;
        if flip && (packed || gated || grouped || block_scales) {
            let actual = format!("{:?} with strides {:?}", c.shape(), c.strides());
            let expected = "with packed weights, a gate, groups or scales of blocks its rows must be contiguous";
            return Err(Error::layout(OP, "c", actual, expected));
        }
        let (bias_tensor, a, (input, input_b)) =
            (self.epilogue.bias.or(self.row_bias), (Cow::Borrowed(a), ma), (a.dtype(), self.b_dtype()));
        let transposed = |(t, m): Placed<'a>| (t, m.transposed());
        let (a, b, mc, bias, types, scales, vectors) = if flip {
            let bias = match bias {
                Bias::Column(dtype) => Bias::Row(dtype),
                Bias::Row(dtype) => Bias::Column(dtype),
                Bias::None => Bias::None,
            };
            let (a, b) = (transposed((b, mb)), transposed(a));
            let vectors = (self.col_scale, self.row_scale);
            (a, b, mc.transposed(), bias, (input_b, input), (col_scale, row_scale), vectors)
        } else {
            (a, (b, mb), mc, bias, (input, input_b), (row_scale, col_scale), (self.row_scale, self.col_scale))
        };
        let residual = residual.map(|(t, m)| (t, if flip { m.transposed() } else { m }));
        let dim = |n: usize| u32::try_from(n).expect("INVARIANT: bounded by MAX_DIM");
        let precision = if input == DType::F32 { self.precision } else { super::Precision::Exact };
        let desc = GemmDesc {
            m: dim(mc.rows),
            n: dim(mc.columns),
            k: dim(a.1.columns),
            batch: dim(batch),
            input: types.0,
            output,
            a: a.1.layout(),
            b: b.1.layout(),
            b_shared: b.1.batch_stride == 0,
            a_align: a.0.alignment(a.1.outer_strides()),
            b_align: if packed { 6 } else { b.0.alignment(b.1.outer_strides()) },
            c_align: c.alignment(mc.outer_strides()),
            alpha: Factor::of(self.epilogue.alpha),
            beta: Factor::of(self.epilogue.beta),
            bias,
            activation: self.epilogue.activation,
            precision,
            backend: self.backend,
            extras: GemmExtras {
                other_b: (types.1 != types.0).then_some(types.1),
                packed,
                gated,
                residual: residual.is_some(),
                row_scale: scales.0,
                col_scale: scales.1,
                block_scales,
                groups,
            },
        };
        let (bias, (row_scale, col_scale)) = (bias_tensor, vectors);
        Ok(Checked { desc, a, b, c: (c, mc), up, bias, row_scale, col_scale, residual })
    }

    fn b_dtype(&self) -> DType {
        match self.b {
            Weights::Tensor(t) => t.dtype(),
            Weights::Packed(p) => p.dtype(),
        }
    }

    /// B and, for a gated product, up.
    fn weights(&self) -> Result<(Cow<'a, Tensor>, Matrix, Option<Placed<'a>>)> {
        let (b, up) = match self.b {
            Weights::Tensor(b) => (b, self.up),
            Weights::Packed(p) => {
                if !matches!(self.up, Up::None) {
                    let actual = "a gate beside packed weights";
                    return Err(Error::layout(OP, "up", actual, "PackedWeights::gated packs both matrices"));
                }
                match p.form() {
                    Form::Packed(t) if p.backend() == self.backend => {
                        return Ok((Cow::Borrowed(t), p.matrix(), None));
                    }
                    Form::Packed(_) => {
                        let what = format!("a product on {:?} with weights packed for {:?}", self.backend, p.backend());
                        return Err(Error::unsupported(OP, what, "cpu"));
                    }
                    Form::Plain(b, up) => (b, up.as_ref().map_or(Up::None, Up::Tensor)),
                }
            }
        };
        match up {
            Up::None => Ok((Cow::Borrowed(b), Matrix::of(OP, "b", b)?, None)),
            Up::Tensor(up) => {
                up.check_usable(OP, "up", self.a.runtime())?;
                if up.dtype() != b.dtype() {
                    let actual = up.dtype();
                    return Err(Error::DType { op: OP, operand: "up", actual, expected: "the dtype of `b`" });
                }
                if up.shape() != b.shape() {
                    let expected = format!("`b` is {:?}", b.shape());
                    return Err(Error::shape(OP, "up", format_args!("{:?}", up.shape()), expected));
                }
                let placed = (Cow::Borrowed(up), Matrix::of(OP, "up", up)?);
                Ok((Cow::Borrowed(b), Matrix::of(OP, "b", b)?, Some(placed)))
            }
            Up::Half => {
                Matrix::of(OP, "b", b)?;
                let (axis, n) = (b.rank() - 1, b.shape()[b.rank() - 1] / 2);
                if b.shape()[axis] % 2 != 0 {
                    let expected = "a gated product needs an even number of columns";
                    return Err(Error::shape(OP, "b", format_args!("{:?}", b.shape()), expected));
                }
                let half = |start| -> Result<Placed<'a>> {
                    let half = b.narrow(axis, start, n)?;
                    let matrix = Matrix::of(OP, "b", &half)?;
                    Ok((Cow::Owned(half), matrix))
                };
                let ((gate, matrix), up) = (half(0)?, half(n)?);
                Ok((gate, matrix, Some(up)))
            }
        }
    }

    fn check_dtypes(&self) -> Result<DType> {
        let (input, other, output) = (self.a.dtype(), self.b_dtype(), self.c.dtype());
        let fail = |operand, actual, expected| Err(Error::DType { op: OP, operand, actual, expected });
        let (same, expected) = match input {
            DType::F32 | DType::F16 | DType::Bf16 => (other == input, "the dtype of `a`"),
            DType::I8 | DType::U8 => (matches!(other, DType::I8 | DType::U8), "i8 or u8, as `a`"),
            DType::F8E4M3 | DType::F8E5M2 => {
                (matches!(other, DType::F8E4M3 | DType::F8E5M2), "f8e4m3 or f8e5m2, as `a`")
            }
            _ => return fail("a", input, "f32, bf16, f16, i8, u8, f8e4m3 or f8e5m2"),
        };
        if !same {
            return fail("b", other, expected);
        }
        let own = match input {
            DType::I8 | DType::U8 => output == DType::I32,
            DType::F8E4M3 | DType::F8E5M2 => matches!(output, DType::F8E4M3 | DType::F8E5M2),
            _ => false,
        };
        if !output.is_float() && !own {
            return fail("c", output, "f32, bf16 or f16 (of i8 and u8 also i32, of fp8 also fp8)");
        }
        let limit = max_k_i32(input, other);
        let k = self.a.shape().last().copied().unwrap_or(0);
        if limit > 0 && k as u64 > u64::from(limit) {
            let what = "k, so that every sum fits 32 bits,";
            return Err(Error::TooLarge { op: OP, what, value: k as u64, limit: limit.into() });
        }
        Ok(output)
    }

    fn check_factors(&self, gated: bool) -> Result<()> {
        for (name, value) in [("alpha", self.epilogue.alpha), ("beta", self.epilogue.beta)] {
            if !value.is_finite() {
                return Err(Error::Scalar { op: OP, name, value: value.into(), expected: "finite" });
            }
        }
        if gated && self.epilogue.beta != 0.0 {
            let value = self.epilogue.beta.into();
            return Err(Error::Scalar { op: OP, name: "beta", value, expected: "0 for a gated product" });
        }
        Ok(())
    }

    /// An i32 result is the sum itself.
    fn check_plain_i32(&self) -> Result<()> {
        let e = &self.epilogue;
        let factors = e.alpha == 1.0 && e.beta == 0.0 && e.activation == Activation::None;
        let operands = [e.bias, self.row_bias, self.row_scale, self.col_scale, self.residual];
        let gated = !matches!(self.up, Up::None) || matches!(self.b, Weights::Packed(p) if p.is_gated());
        if self.c.dtype() != DType::I32 || (factors && operands.iter().all(Option::is_none) && !gated) {
            return Ok(());
        }
        let expected = "f32, bf16 or f16 where anything is done to the sums";
        Err(Error::DType { op: OP, operand: "c", actual: DType::I32, expected })
    }

    fn check_shapes(&self, ma: &Matrix, mb: &Matrix, mc: &Matrix) -> Result<()> {
        let (m, k, n) = (ma.rows, ma.columns, mb.columns);
        let (a, c) = (self.a.shape(), self.c.shape());
        let shape_of_b = || match self.b {
            Weights::Tensor(t) => t.shape().to_vec(),
            Weights::Packed(p) => p.shape(),
        };
        if mb.rows != k {
            let b = shape_of_b();
            let error = Error::shape(OP, "b", format_args!("{b:?}"), format!("k = {k} (from `a` {a:?})"));
            return Err(if mb.columns == k {
                error.help("did you mean b.t()?")
            } else if mb.rows == m {
                error.help("did you mean a.t()?")
            } else {
                error
            });
        }
        if (mc.rows, mc.columns) != (m, n) {
            let expected = format!("A B is [{m}, {n}] (from `a` {a:?} and `b` {:?})", shape_of_b());
            let error = Error::shape(OP, "c", format_args!("{c:?}"), expected);
            return Err(if (mc.columns, mc.rows) == (m, n) { error.help("did you mean c.t()?") } else { error });
        }
        Ok(())
    }

    /// The batch, and the number of groups whose bounds the device reads.
    fn check_batch(&self, ma: &Matrix, mb: &Matrix, mc: &Matrix) -> Result<(usize, u32)> {
        let Some(offsets) = self.offsets else {
            let batch = mc.batch.unwrap_or(1);
            for (name, have) in [("a", ma.batch), ("b", mb.batch)] {
                if have.is_some_and(|have| have != batch && have != 1) {
                    let actual = format!("a batch of {}", have.unwrap_or(1));
                    return Err(Error::shape(OP, name, actual, format!("`c` has a batch of {batch}")));
                }
            }
            return Ok((batch, 0));
        };
        for (name, tensor, have) in [("a", self.a, ma.batch), ("c", self.c, mc.batch)] {
            if have.is_some() {
                let expected = "with groups it must be [rows, columns]";
                return Err(Error::shape(OP, name, format_args!("{:?}", tensor.shape()), expected));
            }
        }
        let Some(groups) = mb.batch else {
            let actual = format!("[{}, {}]", mb.rows, mb.columns);
            return Err(Error::shape(OP, "b", actual, "with groups it must be [groups, k, n]"));
        };
        self.check_offsets(offsets, groups, ma.rows)?;
        let Ok(count) = u32::try_from(groups) else {
            return Err(Error::TooLarge { op: OP, what: "groups", value: groups as u64, limit: u32::MAX.into() });
        };
        Ok((1, if matches!(offsets, Offsets::Host(_)) { 0 } else { count }))
    }

    fn check_aliasing(&self, b: &Tensor, up: Option<&Tensor>) -> Result<()> {
        if self.c.repeats_elements() {
            let actual = format!("{:?} with strides {:?}", self.c.shape(), self.c.strides());
            return Err(Error::layout(OP, "c", actual, "an output cannot repeat elements"));
        }
        let (block_a, block_b) = self.block_scales.unzip();
        let inputs = [
            ("a", Some(self.a)),
            ("b", Some(b)),
            ("bias", self.epilogue.bias),
            ("row_bias", self.row_bias),
            ("row_scale", self.row_scale),
            ("col_scale", self.col_scale),
            ("up", up),
            ("block_scales of a", block_a),
            ("block_scales of b", block_b),
            ("residual", self.residual.filter(|r| !r.same_view(self.c))),
        ];
        for (input, tensor) in inputs {
            if tensor.is_some_and(|t| t.may_overlap(self.c)) {
                return Err(Error::Overlap { op: OP, output: "c", input });
            }
        }
        Ok(())
    }
}

impl GemmBackend {
    /// The other path, for comparisons.
    pub fn other(self) -> Self {
        match self {
            GemmBackend::TensorOps => GemmBackend::Simdgroup,
            GemmBackend::Simdgroup => GemmBackend::TensorOps,
        }
    }
}
