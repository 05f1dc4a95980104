//! Validation of what is fused into a product.

use super::check::{Matrix, OP};
use super::desc::{Bias, Layout};
use super::{Gemm, Weights};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Steps along k, and columns of B, that share a scale.
pub(crate) const BLOCK: usize = 128;

impl<'a> Gemm<'a> {
    pub(super) fn check_bias(&self, output: DType, rows: usize, columns: usize) -> Result<Bias> {
        let column = self.check_vector("bias", self.epilogue.bias, columns, "one value per column of `c`")?;
        let row = self.check_vector("row_bias", self.row_bias, rows, "one value per row of `c`")?;
        debug_assert!([column, row].into_iter().flatten().all(|d| d == DType::F32 || d == output));
        match (column, row) {
            (Some(_), Some(_)) => {
                let expected = "a bias runs along columns or along rows";
                Err(Error::shape(OP, "row_bias", "a second bias", expected))
            }
            (Some(dtype), None) => Ok(Bias::Column(dtype)),
            (None, Some(dtype)) => Ok(Bias::Row(dtype)),
            (None, None) => Ok(Bias::None),
        }
    }

    /// A vector of `len` values of f32 or C's type, side by side; its type.
    pub(super) fn check_vector(
        &self,
        operand: &'static str,
        vector: Option<&Tensor>,
        len: usize,
        what: &str,
    ) -> Result<Option<DType>> {
        let Some(vector) = vector else { return Ok(None) };
        vector.check_usable(OP, operand, self.a.runtime())?;
        let actual = vector.dtype();
        if actual != DType::F32 && (actual != self.c.dtype() || actual == DType::I32) {
            return Err(Error::DType { op: OP, operand, actual, expected: "f32 or the dtype of `c`" });
        }
        let fits = match vector.shape() {
            &[have] | &[1, have] => have == len,
            _ => false,
        };
        if !fits {
            let expected = format!("it must be [{len}], {what}");
            return Err(Error::shape(OP, operand, format_args!("{:?}", vector.shape()), expected));
        }
        if len > 1 && vector.strides().last() != Some(&1) {
            let actual = format!("strided {:?}", vector.strides());
            return Err(Error::layout(OP, operand, actual, "its stride must be 1"));
        }
        Ok(Some(actual))
    }

    /// A residual of C's shape, type and contiguous axis.
    pub(super) fn check_residual(&self, mc: &Matrix) -> Result<Option<(&'a Tensor, Matrix)>> {
        let Some(residual) = self.residual else { return Ok(None) };
        residual.check_usable(OP, "residual", self.a.runtime())?;
        if residual.dtype() != self.c.dtype() {
            let actual = residual.dtype();
            return Err(Error::DType { op: OP, operand: "residual", actual, expected: "the dtype of `c`" });
        }
        let mut matrix = Matrix::of(OP, "residual", residual)?;
        let batch = matrix.batch.unwrap_or(1);
        let same = (matrix.rows, matrix.columns) == (mc.rows, mc.columns);
        if !same || (batch != 1 && batch != mc.batch.unwrap_or(1)) {
            let expected = format!("it must have the shape of `c` {:?}", self.c.shape());
            return Err(Error::shape(OP, "residual", format_args!("{:?}", residual.shape()), expected));
        }
        if matrix.layout() != mc.layout() {
            // One row or one column can be read either way.
            let (row_stride, column_stride) = match mc.layout() {
                Layout::RowMajor if matrix.columns <= 1 => (matrix.row_stride, 1),
                Layout::ColMajor if matrix.rows <= 1 => (1, matrix.column_stride),
                _ => {
                    let actual = format!("{:?} with strides {:?}", residual.shape(), residual.strides());
                    return Err(Error::layout(OP, "residual", actual, "its contiguous axis must be that of `c`"));
                }
            };
            matrix = Matrix { row_stride, column_stride, ..matrix };
        }
        Ok(Some((residual, matrix)))
    }

    /// Whether there are scales of blocks, which fit fp8 operands of one matrix.
    pub(super) fn check_block_scales(&self, ma: &Matrix, mb: &Matrix, more: bool) -> Result<bool> {
        let Some((a, b)) = self.block_scales else { return Ok(false) };
        let fp8 = |d: DType| matches!(d, DType::F8E4M3 | DType::F8E5M2);
        if !fp8(self.a.dtype()) {
            let actual = self.a.dtype();
            return Err(Error::DType { op: OP, operand: "a", actual, expected: "fp8 where blocks have scales" });
        }
        if more || matches!(self.b, Weights::Packed(_)) {
            let expected = "not with a batch, groups, a gate or packed weights";
            return Err(Error::layout(OP, "block_scales", "scales of blocks", expected));
        }
        let blocks = |n: usize| n.div_ceil(BLOCK);
        let wanted = [
            ("block_scales of a", a, [ma.rows, blocks(ma.columns)]),
            ("block_scales of b", b, [blocks(mb.rows), blocks(mb.columns)]),
        ];
        for (operand, tensor, shape) in wanted {
            tensor.check_usable(OP, operand, self.a.runtime())?;
            if tensor.dtype() != DType::F32 {
                return Err(Error::DType { op: OP, operand, actual: tensor.dtype(), expected: "f32" });
            }
            if tensor.shape() != shape {
                let expected = format!("it must be {shape:?}, one value for each {BLOCK} steps along k");
                return Err(Error::shape(OP, operand, format_args!("{:?}", tensor.shape()), expected));
            }
            if !tensor.is_contiguous() {
                let actual = format!("strided {:?}", tensor.strides());
                return Err(Error::layout(OP, operand, actual, "it must be contiguous"));
            }
        }
        Ok(true)
    }
}
