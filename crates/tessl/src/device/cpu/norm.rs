//! Root-mean-square normalisation: `y = x * rsqrt(mean(x^2) + eps) * (w + weight_offset)`.
//!
//! Kernels are `rms_norm_{x}_{weight}_{isa}`; bindings x, w, y, where y may be exactly x. Sums of squares are f32 in
//! eight vectors, added in a fixed order.

use super::call::{KernelCall, KernelFn};
use super::convert::{load, narrow, widen};
use super::registry::Builtin;
use super::rows::{RUN, for_each_isa, row_offset};
use super::simd::{Simd, Task};
use crate::args::RmsNormArgs;
use crate::dtype::DType;

#[cfg(test)]
mod tests;

/// Elements that one chunk normalises, about.
const CHUNK: u64 = 16 << 10;
/// Independent sums.
const SUMS: usize = 8;

/// Rows of one chunk: depends on the row length alone.
pub(super) fn rows_of_chunk(n: u32) -> u64 {
    (CHUNK / u64::from(n.max(1))).max(1)
}

#[derive(Clone, Copy)]
struct Rows<'a> {
    x: *const u8,
    w: *const u8,
    y: *mut u8,
    x_dtype: DType,
    w_dtype: DType,
    args: &'a RmsNormArgs,
    first: u64,
    count: u64,
}

// SAFETY: threads write disjoint rows of y, and y is apart from x or the same rows.
unsafe impl Sync for Rows<'_> {}

impl Task for Rows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (a, n) = (self.args, self.args.n as usize);
        let size = self.x_dtype.size();
        for row in self.first..self.first + self.count {
            // SAFETY: the row is inside x and y; `w` has n elements.
            unsafe {
                let x = self.x.add(row_offset(row, [a.r1, a.r2], [a.x_s0, a.x_s1, a.x_s2]) * size);
                let y = self.y.add(row_offset(row, [a.r1, a.r2], [a.y_s0, a.y_s1, a.y_s2]) * size);
                #[allow(clippy::cast_precision_loss)] // Exact up to 2^24; above, the error is that of one rounding.
                let scale = 1.0 / (squares::<S>(x, self.x_dtype, n) / n as f32 + a.eps).sqrt();
                let (mut xs, mut ws) = ([0.0f32; RUN], [0.0f32; RUN]);
                for start in (0..n).step_by(RUN) {
                    let count = RUN.min(n - start);
                    widen::<S>(x.add(start * size), self.x_dtype, xs.as_mut_ptr(), count);
                    widen::<S>(self.w.add(start * self.w_dtype.size()), self.w_dtype, ws.as_mut_ptr(), count);
                    for (x, w) in xs.iter_mut().zip(&ws) {
                        *x = *x * scale * (w + a.weight_offset);
                    }
                    narrow::<S>(xs.as_ptr(), y.add(start * size), self.x_dtype, count);
                }
            }
        }
    }
}

/// The sum of squares of n elements.
///
/// # Safety
/// `x` has n elements of `dtype`.
#[inline(always)]
unsafe fn squares<S: Simd>(x: *const u8, dtype: DType, n: usize) -> f32 {
    let size = dtype.size();
    let block = SUMS * S::LANES;
    let (blocks, whole) = (n - n % block, n - n % S::LANES);
    // SAFETY: forwarded.
    unsafe {
        let mut sums = [S::splat(0.0); SUMS];
        for i in (0..blocks).step_by(block) {
            for (j, sum) in sums.iter_mut().enumerate() {
                let v = load::<S>(x.add((i + j * S::LANES) * size), dtype);
                *sum = S::fma(v, v, *sum);
            }
        }
        for i in (blocks..whole).step_by(S::LANES) {
            let v = load::<S>(x.add(i * size), dtype);
            sums[0] = S::fma(v, v, sums[0]);
        }
        let mut width = SUMS;
        while width > 1 {
            width /= 2;
            for j in 0..width {
                sums[j] = S::add(sums[j], sums[j + width]);
            }
        }
        let mut tail = [0.0f32; 16];
        widen::<S>(x.add(whole * size), dtype, tail.as_mut_ptr(), n - whole);
        S::sum(sums[0]) + tail.iter().map(|v| v * v).sum::<f32>()
    }
}

/// One launch on vectors of `S`.
unsafe fn rms_norm<S: Simd>(call: &KernelCall<'_>, x_dtype: DType, w_dtype: DType) {
    let args: &RmsNormArgs = call.args();
    let (x, w, y) = (call.binding(0).ptr, call.binding(1).ptr, call.binding(2).ptr);
    let all = Rows { x, w, y, x_dtype, w_dtype, args, first: 0, count: args.rows };
    if args.n == 0 || args.rows == 0 {
        return;
    }
    let step = rows_of_chunk(args.n);
    let chunks = usize::try_from(args.rows.div_ceil(step)).expect("INVARIANT: rows lie in memory");
    call.pool().run(chunks, &|chunk| {
        let all = &all;
        let first = chunk as u64 * step;
        // SAFETY: forwarded; chunks write disjoint rows.
        unsafe { S::vectorize(Rows { first, count: step.min(all.count - first), ..*all }) };
    });
}

/// An entry point of the kernel table.
macro_rules! kernel {
    ($x:literal $xd:ident, $w:literal $wd:ident, $isa:literal, $which:expr, $s:ty) => {{
        unsafe fn entry(call: &KernelCall<'_>) {
            // SAFETY: forwarded.
            unsafe { rms_norm::<$s>(call, DType::$xd, DType::$wd) }
        }
        Builtin {
            module: "norm",
            name: concat!("rms_norm_", $x, "_", $w, "_", $isa),
            isa: $which,
            function: entry as KernelFn,
        }
    }};
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        &[
            kernel!("f32" F32, "f32" F32, $isa, $which, $s),
            kernel!("f16" F16, "f16" F16, $isa, $which, $s),
            kernel!("f16" F16, "f32" F32, $isa, $which, $s),
            kernel!("bf16" Bf16, "bf16" Bf16, $isa, $which, $s),
            kernel!("bf16" Bf16, "f32" F32, $isa, $which, $s),
        ]
    };
}

/// Every kernel of this file, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
