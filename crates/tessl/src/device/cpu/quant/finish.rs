//! `y = act(sum + bias) + residual`, or gated, on a row of sums.

use super::super::convert::{narrow, widen};
use super::super::gemm::activation::activate;
use super::super::simd::Simd;
use super::operands::{Operands, Segment};
use crate::dtype::DType;
use crate::gemm::Activation;

/// Elements converted at once.
const RUN: usize = 256;

/// Finishes `count` columns from `col` on of row `row`. `sums` holds those of the first matrix, `second` those of the other
/// one where the output is gated; both are changed.
///
/// # Safety
/// As [`Simd`]; the sums and the output have these columns.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(
    op: &Operands<'_>,
    segment: &Segment,
    row: usize,
    col: usize,
    sums: &mut [f32],
    second: Option<&mut [f32]>,
) {
    let activation = Activation::from_code(op.args.activation).unwrap_or(Activation::None);
    // SAFETY: forwarded.
    unsafe {
        add_row::<S>(sums, segment.bias[0], col, op.bias_dtype);
        activate(sums, activation);
        if let Some(second) = second {
            add_row::<S>(second, segment.bias[1], col, op.bias_dtype);
            for (t, u) in sums.iter_mut().zip(second.iter()) {
                *t *= u;
            }
        }
        let row_of_residual = row * super::operands::address(op.args.r_rs);
        add_row::<S>(sums, op.residual, row_of_residual + col, op.output);
        let size = op.output.size();
        narrow::<S>(sums.as_ptr(), segment.y.add((row * segment.y_rs + col) * size), op.output, sums.len());
    }
}

/// Adds the elements from `first` on of what there is to add.
///
/// # Safety
/// It has as many of them as there are sums.
#[inline(always)]
unsafe fn add_row<S: Simd>(sums: &mut [f32], added: Option<*const u8>, first: usize, dtype: DType) {
    let Some(added) = added else { return };
    let mut terms = [0.0f32; RUN];
    for (i, sums) in sums.chunks_mut(RUN).enumerate() {
        // SAFETY: forwarded.
        unsafe {
            let from = added.add((first + i * RUN) * dtype.size());
            widen::<S>(from, dtype, terms.as_mut_ptr(), sums.len());
        }
        for (t, term) in sums.iter_mut().zip(&terms) {
            *t += term;
        }
    }
}
