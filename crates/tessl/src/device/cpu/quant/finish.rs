//! `y = act(sum + bias) + residual`, or gated, on a row of sums.

use super::super::convert::{element, narrow, widen};
use super::super::gemm::activation::activate;
use super::super::simd::Simd;
use super::operands::{Operands, Segment};
use crate::gemm::Activation;

/// Columns that are finished at once.
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
        let add_bias = |sums: &mut [f32], bias: Option<*const u8>| {
            if let Some(bias) = bias {
                for (at, t) in sums.iter_mut().enumerate() {
                    *t += element(bias.add((col + at) * op.bias_dtype.size()), op.bias_dtype);
                }
            }
        };
        add_bias(sums, segment.bias[0]);
        activate(sums, activation);
        if let Some(second) = second {
            add_bias(second, segment.bias[1]);
            // Loops and no `for_each`, which is compiled apart, without the instruction set of the caller.
            for (t, u) in sums.iter_mut().zip(second.iter()) {
                *t *= u;
            }
        }
        let size = op.output.size();
        if let Some(residual) = op.residual {
            let from = residual.add((row * super::operands::address(op.args.r_rs) + col) * size);
            let mut old = [0.0f32; RUN];
            for (i, sums) in sums.chunks_mut(RUN).enumerate() {
                widen::<S>(from.add(i * RUN * size), op.output, old.as_mut_ptr(), sums.len());
                for (t, r) in sums.iter_mut().zip(&old) {
                    *t += r;
                }
            }
        }
        narrow::<S>(sums.as_ptr(), segment.y.add((row * segment.y_rs + col) * size), op.output, sums.len());
    }
}
