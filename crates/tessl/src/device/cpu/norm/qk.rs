//! Root-mean-square normalisation of the heads of queries and keys.
//!
//! Kernels are `qk_norm_{x}_{weight}_{isa}`; bindings q, k, q_weight, k_weight, q_out, k_out, where outputs may be exactly
//! their inputs. Rows are those of q, then those of k.

use super::super::call::KernelCall;
use super::super::convert::{narrow, widen};
use super::super::registry::Builtin;
use super::super::rows::{RUN, for_each_isa, row_offset};
use super::super::simd::{Simd, Task};
use super::{norm_kernels, rows_of_chunk, squares};
use crate::args::QkNormArgs;
use crate::dtype::DType;

#[derive(Clone, Copy)]
struct Rows<'a> {
    inputs: [*const u8; 2],
    weights: [*const u8; 2],
    outputs: [*mut u8; 2],
    dtypes: [DType; 2],
    args: &'a QkNormArgs,
    first: u64,
    count: u64,
}

// SAFETY: threads write disjoint rows of the outputs, which are apart from the inputs or the same rows.
unsafe impl Sync for Rows<'_> {}

impl Task for Rows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (a, n, [x_dtype, w_dtype]) = (self.args, self.args.n as usize, self.dtypes);
        let size = x_dtype.size();
        let (mut xs, mut ws) = ([0.0f32; RUN], [0.0f32; RUN]);
        for row in self.first..self.first + self.count {
            let of_k = row >= a.q_rows;
            let (which, splits, from, to) = if of_k {
                (1, [a.k_r1, a.k_r2], [a.k_s0, a.k_s1, a.k_s2], [a.p_s0, a.p_s1, a.p_s2])
            } else {
                (0, [a.q_r1, a.q_r2], [a.q_s0, a.q_s1, a.q_s2], [a.o_s0, a.o_s1, a.o_s2])
            };
            let own = if of_k { row - a.q_rows } else { row };
            // SAFETY: the row is inside its operands; a weight has n elements.
            unsafe {
                let x = self.inputs[which].add(row_offset(own, splits, from) * size);
                let y = self.outputs[which].add(row_offset(own, splits, to) * size);
                #[allow(clippy::cast_precision_loss)] // Exact up to 2^24; above, the error is that of one rounding.
                let scale = 1.0 / (squares::<S>(x, x_dtype, n) / n as f32 + a.eps).sqrt();
                for start in (0..n).step_by(RUN) {
                    let count = RUN.min(n - start);
                    widen::<S>(x.add(start * size), x_dtype, xs.as_mut_ptr(), count);
                    let w = self.weights[which].add(start * w_dtype.size());
                    widen::<S>(w, w_dtype, ws.as_mut_ptr(), count);
                    for (x, w) in xs[..count].iter_mut().zip(&ws) {
                        *x = *x * scale * (w + a.weight_offset);
                    }
                    narrow::<S>(xs.as_ptr(), y.add(start * size), x_dtype, count);
                }
            }
        }
    }
}

/// One launch on vectors of `S`.
unsafe fn qk_norm<S: Simd>(call: &KernelCall<'_>, x_dtype: DType, w_dtype: DType) {
    let args: &QkNormArgs = call.args();
    let [q, k, q_weight, k_weight, q_out, k_out] = [0, 1, 2, 3, 4, 5].map(|i| call.binding(i).ptr);
    let all = Rows {
        inputs: [q, k],
        weights: [q_weight, k_weight],
        outputs: [q_out, k_out],
        dtypes: [x_dtype, w_dtype],
        args,
        first: 0,
        count: args.rows,
    };
    let step = rows_of_chunk(args.n);
    let chunks = usize::try_from(args.rows.div_ceil(step)).expect("INVARIANT: rows lie in memory");
    call.pool().run(chunks, &|chunk| {
        let all = &all;
        let first = chunk as u64 * step;
        // SAFETY: forwarded; chunks write disjoint rows.
        unsafe { S::vectorize(Rows { first, count: step.min(all.count - first), ..*all }) };
    });
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        norm_kernels! { $isa, $which, $s; "qk_norm" |c, x, w| qk_norm::<$s>(c, x, w) }
    };
}

/// Every kernel of this file, by instruction set.
pub(in super::super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
