//! Validation of a product: everything is checked here, before anything is encoded.

use super::desc::{Bias, Factor, GemmDesc, Layout};
use super::{Gemm, GemmBackend};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

const OP: &str = "gemm";
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

/// A validated problem. Operands may have been exchanged so that C is row-major.
pub(super) struct Checked<'a> {
    pub(super) desc: GemmDesc,
    pub(super) a: (&'a Tensor, Matrix),
    pub(super) b: (&'a Tensor, Matrix),
    pub(super) c: (&'a Tensor, Matrix),
}

impl Matrix {
    fn of(operand: &'static str, t: &Tensor) -> Result<Self> {
        let (shape, strides) = (t.shape(), t.strides());
        let rank = t.rank();
        if !(2..=3).contains(&rank) {
            let expected = "it must be [rows, columns] or [batch, rows, columns]";
            return Err(Error::shape(OP, operand, format_args!("{shape:?}"), expected));
        }
        if let Some(&large) = shape.iter().find(|&&d| d > MAX_DIM) {
            let what = "an extent of a matrix";
            return Err(Error::TooLarge { op: OP, what, value: large as u64, limit: MAX_DIM as u64 });
        }
        let (rows, columns) = (shape[rank - 2], shape[rank - 1]);
        // A stride along an axis of one element is never followed; it counts as what suits.
        let (mut row_stride, mut column_stride) = (strides[rank - 2], strides[rank - 1]);
        let unit = |extent: usize, stride: usize| stride == 1 || extent <= 1;
        if !unit(columns, column_stride) && !unit(rows, row_stride) {
            let actual = format!("{shape:?} with strides {strides:?}");
            return Err(Error::layout(OP, operand, actual, "one of the last two strides must be 1")
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

    fn layout(&self) -> Layout {
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
        let (a, b, c) = (self.a, self.b, self.c);
        let rt = a.runtime();
        let named = [("a", a), ("b", b), ("c", c)];
        for (name, tensor) in named {
            tensor.check_usable(OP, name, rt)?;
        }
        let (input, output) = self.check_dtypes()?;
        let (ma, mb, mc) = (Matrix::of("a", a)?, Matrix::of("b", b)?, Matrix::of("c", c)?);
        self.check_shapes(&ma, &mb, &mc)?;
        let batch = Self::check_batch(&ma, &mb, &mc)?;
        let factors = [("alpha", self.epilogue.alpha), ("beta", self.epilogue.beta)];
        for (name, value) in factors {
            if !value.is_finite() {
                return Err(Error::Scalar { op: OP, name, value: value.into(), expected: "finite" });
            }
        }
        let bias = self.check_bias(output, mc.columns)?;
        self.check_aliasing()?;
        // A column-major C is the transposed problem: C^T = B^T A^T, and the bias runs along rows.
        let flip = mc.layout() == Layout::ColMajor;
        let ((ta, ma), (tb, mb), mc, bias) = if flip {
            let bias = match bias {
                Bias::Column(dtype) => Bias::Row(dtype),
                other => other,
            };
            ((b, mb.transposed()), (a, ma.transposed()), mc.transposed(), bias)
        } else {
            ((a, ma), (b, mb), mc, bias)
        };
        let dim = |n: usize| u32::try_from(n).expect("INVARIANT: bounded by MAX_DIM");
        let desc = GemmDesc {
            m: dim(mc.rows),
            n: dim(mc.columns),
            k: dim(ma.columns),
            batch: dim(batch),
            input,
            output,
            a: ma.layout(),
            b: mb.layout(),
            b_shared: mb.batch_stride == 0,
            a_align: ta.alignment(ma.outer_strides()),
            b_align: tb.alignment(mb.outer_strides()),
            c_align: c.alignment(mc.outer_strides()),
            alpha: Factor::of(self.epilogue.alpha),
            beta: Factor::of(self.epilogue.beta),
            bias,
            activation: self.epilogue.activation,
            precision: if input == DType::F32 { self.precision } else { super::Precision::Exact },
            backend: self.backend,
        };
        Ok(Checked { desc, a: (ta, ma), b: (tb, mb), c: (c, mc) })
    }

    fn check_dtypes(&self) -> Result<(DType, DType)> {
        let (input, output) = (self.a.dtype(), self.c.dtype());
        if !input.is_float() {
            return Err(Error::DType { op: OP, operand: "a", actual: input, expected: "f32, bf16 or f16" });
        }
        if self.b.dtype() != input {
            return Err(Error::DType { op: OP, operand: "b", actual: self.b.dtype(), expected: "the dtype of `a`" });
        }
        if !output.is_float() {
            return Err(Error::DType { op: OP, operand: "c", actual: output, expected: "f32, bf16 or f16" });
        }
        Ok((input, output))
    }

    fn check_shapes(&self, ma: &Matrix, mb: &Matrix, mc: &Matrix) -> Result<()> {
        let (m, k, n) = (ma.rows, ma.columns, mb.columns);
        let (a, b, c) = (self.a.shape(), self.b.shape(), self.c.shape());
        if mb.rows != k {
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
            let expected = format!("A B is [{m}, {n}] (from `a` {a:?} and `b` {b:?})");
            let error = Error::shape(OP, "c", format_args!("{c:?}"), expected);
            return Err(if (mc.columns, mc.rows) == (m, n) { error.help("did you mean c.t()?") } else { error });
        }
        Ok(())
    }

    fn check_batch(ma: &Matrix, mb: &Matrix, mc: &Matrix) -> Result<usize> {
        let batch = mc.batch.unwrap_or(1);
        for (name, have) in [("a", ma.batch), ("b", mb.batch)] {
            if have.is_some_and(|have| have != batch && have != 1) {
                let actual = format!("a batch of {}", have.unwrap_or(1));
                return Err(Error::shape(OP, name, actual, format!("`c` has a batch of {batch}")));
            }
        }
        Ok(batch)
    }

    fn check_bias(&self, output: DType, n: usize) -> Result<Bias> {
        let Some(bias) = self.epilogue.bias else { return Ok(Bias::None) };
        bias.check_usable(OP, "bias", self.a.runtime())?;
        if bias.dtype() != DType::F32 && bias.dtype() != output {
            return Err(Error::DType {
                op: OP,
                operand: "bias",
                actual: bias.dtype(),
                expected: "f32 or the dtype of `c`",
            });
        }
        let fits = match bias.shape() {
            &[len] | &[1, len] => len == n,
            _ => false,
        };
        if !fits {
            let expected = format!("it must be [{n}], one value per column of `c`");
            return Err(Error::shape(OP, "bias", format_args!("{:?}", bias.shape()), expected));
        }
        if n > 1 && bias.strides().last() != Some(&1) {
            return Err(Error::layout(
                OP,
                "bias",
                format_args!("strided {:?}", bias.strides()),
                "its stride must be 1",
            ));
        }
        Ok(Bias::Column(bias.dtype()))
    }

    fn check_aliasing(&self) -> Result<()> {
        if self.c.repeats_elements() {
            let actual = format!("{:?} with strides {:?}", self.c.shape(), self.c.strides());
            return Err(Error::layout(OP, "c", actual, "an output cannot repeat elements"));
        }
        let inputs = [("a", Some(self.a)), ("b", Some(self.b)), ("bias", self.epilogue.bias)];
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
