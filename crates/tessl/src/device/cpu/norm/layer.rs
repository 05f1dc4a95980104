//! Layer normalisation: `y = (x - mean(x)) * rsqrt(var(x) + eps) * w + bias`.
//!
//! Kernels are `layer_norm_{x}_{weight}_{isa}`; bindings x, w, bias (or w), y, where y may be exactly x. Sums of `x - x[0]`
//! and of squared distances run in 16 f32 lanes on every instruction set, then halve.

use super::super::call::KernelCall;
use super::super::convert::{element, narrow, widen};
use super::super::reduce::{HELD, LANES, halve, load_block};
use super::super::registry::Builtin;
use super::super::rows::{RUN, for_each_isa, row_offset};
use super::super::simd::{Simd, Task};
use super::{norm_kernels, rows_of_chunk};
use crate::args::LayerNormArgs;
use crate::dtype::DType;

#[derive(Clone, Copy)]
struct Rows<'a> {
    x: *const u8,
    w: *const u8,
    bias: *const u8,
    y: *mut u8,
    dtypes: [DType; 2],
    args: &'a LayerNormArgs,
    first: u64,
    count: u64,
}

// SAFETY: threads write disjoint rows of y, and y is apart from x or the same rows.
unsafe impl Sync for Rows<'_> {}

impl Task for Rows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (a, size) = (self.args, self.dtypes[0].size());
        let mut held = [0.0f32; HELD];
        for row in self.first..self.first + self.count {
            let x = self.x.wrapping_add(row_offset(row, [a.r1, a.r2], [a.x_s0, a.x_s1, a.x_s2]) * size);
            let y = self.y.wrapping_add(row_offset(row, [a.r1, a.r2], [a.y_s0, a.y_s1, a.y_s2]) * size);
            // SAFETY: the row is inside both operands; weight and bias have n elements.
            unsafe { self.row::<S>(x, y, &mut held) };
        }
    }
}

impl Rows<'_> {
    /// # Safety
    /// All have n elements.
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, x: *const u8, y: *mut u8, held: &mut [f32; HELD]) {
        let (n, [x_dtype, w_dtype], eps) = (self.args.n as usize, self.dtypes, self.args.eps);
        let once = n <= HELD;
        #[allow(clippy::cast_precision_loss)] // Exact up to 2^24; above, the error is that of one rounding.
        let count = n as f32;
        // SAFETY: forwarded.
        unsafe {
            let shift = element(x, x_dtype);
            let mut lanes = [0.0f32; LANES];
            for start in (0..n).step_by(HELD) {
                let used = load_shifted::<S>(x, x_dtype, [start, n], shift, held);
                for block in held[..used].chunks_exact(LANES) {
                    for (lane, v) in lanes.iter_mut().zip(block) {
                        *lane += v;
                    }
                }
            }
            let mean = halve(lanes, |a, b| a + b) / count;
            let mut lanes = [0.0f32; LANES];
            for start in (0..n).step_by(HELD) {
                if !once {
                    load_shifted::<S>(x, x_dtype, [start, n], shift, held);
                }
                let used = HELD.min(n - start);
                let whole = used - used % LANES;
                for block in held[..whole].chunks_exact(LANES) {
                    for (lane, v) in lanes.iter_mut().zip(block) {
                        *lane += (v - mean) * (v - mean);
                    }
                }
                for (lane, v) in lanes.iter_mut().zip(&held[whole..used]) {
                    *lane += (v - mean) * (v - mean);
                }
            }
            let scale = 1.0 / (halve(lanes, |a, b| a + b) / count + eps).sqrt();
            let mut ws = [0.0f32; RUN];
            for start in (0..n).step_by(HELD) {
                if !once {
                    load_shifted::<S>(x, x_dtype, [start, n], shift, held);
                }
                let block = HELD.min(n - start);
                for (i, v) in held[..block].chunks_mut(RUN).enumerate() {
                    let at = start + i * RUN;
                    widen::<S>(self.w.add(at * w_dtype.size()), w_dtype, ws.as_mut_ptr(), v.len());
                    for (v, w) in v.iter_mut().zip(&ws) {
                        *v = (*v - mean) * scale * w;
                    }
                    if self.args.bias != 0 {
                        widen::<S>(self.bias.add(at * w_dtype.size()), w_dtype, ws.as_mut_ptr(), v.len());
                        for (v, b) in v.iter_mut().zip(&ws) {
                            *v += b;
                        }
                    }
                    narrow::<S>(v.as_ptr(), y.add(at * x_dtype.size()), x_dtype, v.len());
                }
            }
        }
    }
}

/// Elements from `start` of a row of n, less `shift`, as [`load_block`]; 0 beyond the row.
///
/// # Safety
/// `x` has n elements.
#[inline(always)]
unsafe fn load_shifted<S: Simd>(
    x: *const u8,
    dtype: DType,
    [start, n]: [usize; 2],
    shift: f32,
    held: &mut [f32; HELD],
) -> usize {
    // SAFETY: forwarded.
    let used = unsafe { load_block::<S>(x, dtype, start, n, shift, held) };
    for v in &mut held[..used] {
        *v -= shift;
    }
    used
}

/// One launch on vectors of `S`.
unsafe fn layer_norm<S: Simd>(call: &KernelCall<'_>, x_dtype: DType, w_dtype: DType) {
    let args: &LayerNormArgs = call.args();
    let [x, w, bias, y] = [0, 1, 2, 3].map(|i| call.binding(i).ptr);
    let all = Rows { x, w, bias, y, dtypes: [x_dtype, w_dtype], args, first: 0, count: args.rows };
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
        norm_kernels! { $isa, $which, $s; "layer_norm" |c, x, w| layer_norm::<$s>(c, x, w) }
    };
}

/// Every kernel of this file, by instruction set.
pub(in super::super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
