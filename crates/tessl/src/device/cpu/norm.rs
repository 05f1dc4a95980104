//! Root-mean-square normalisation: `y = norm(x)`, `norm(x) = x * rsqrt(mean(x^2) + eps) * (w + weight_offset)`.
//!
//! Kernels are `rms_norm_{x}_{weight}_{isa}` (bindings x, w, y), `add_rms_norm_..` (`h = (x + res) * scale`, `y = norm(h)`;
//! bindings x, w, res, scale, h, y), `rms_norm_add_..` (`y = (norm(x) + res) * scale`; bindings x, w, res, scale, y) and
//! `rms_norm_add_rms_norm_..` (`h` is that sum, `y = norm(h)` with the second weight; bindings x, w, res, scale, w2, h, y).
//! Outputs may be exactly x or res. Sums of squares are f32 in eight vectors, added in a fixed order.

mod layer;
mod qk;

use super::call::KernelCall;
use super::convert::{load, narrow, widen};
use super::registry::Builtin;
use super::rows::{RUN, for_each_isa, row_offset};
use super::simd::{Simd, Task};
use crate::args::RmsNormArgs;
use crate::dtype::DType;
use crate::nn::NormResidual;

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

/// Types of rows and weight, and the residual.
#[derive(Clone, Copy)]
struct Kind {
    x: DType,
    w: DType,
    residual: NormResidual,
}

/// `h` is y where it is not written, and `res` x where it is not read.
#[derive(Clone, Copy)]
struct Rows<'a> {
    x: *const u8,
    w: *const u8,
    /// The weight of a second norm, or w.
    next: *const u8,
    res: *const u8,
    h: *mut u8,
    y: *mut u8,
    kind: Kind,
    sum_scale: f32,
    args: &'a RmsNormArgs,
    first: u64,
    count: u64,
}

// SAFETY: threads write disjoint rows of y and h, which are apart from the inputs or the same rows.
unsafe impl Sync for Rows<'_> {}

impl Task for Rows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (a, n, kind) = (self.args, self.args.n as usize, self.kind);
        let size = kind.x.size();
        for row in self.first..self.first + self.count {
            let at = |strides| row_offset(row, [a.r1, a.r2], strides) * size;
            // SAFETY: the row is inside every operand; `w` has n elements.
            unsafe {
                let res = self.res.add(at([a.r_s0, a.r_s1, a.r_s2]));
                let y = self.y.add(at([a.y_s0, a.y_s1, a.y_s2]));
                let x = self.x.add(at([a.x_s0, a.x_s1, a.x_s2]));
                let h = self.h.add(at([a.h_s0, a.h_s1, a.h_s2]));
                match kind.residual {
                    NormResidual::None => self.normalise::<S>(x, self.w, None, y),
                    NormResidual::After => self.normalise::<S>(x, self.w, Some(res), y),
                    NormResidual::Before => {
                        add::<S>(x, res, h, kind.x, n, self.sum_scale);
                        self.normalise::<S>(h, self.w, None, y);
                    }
                    NormResidual::Between => {
                        self.normalise::<S>(x, self.w, Some(res), h);
                        self.normalise::<S>(h, self.next, None, y);
                    }
                }
            }
        }
    }
}

impl Rows<'_> {
    /// `y = norm(x)`, or `(norm(x) + res) * scale`, for one row.
    ///
    /// # Safety
    /// All have n elements; y is apart from the inputs or exactly one of them.
    #[inline(always)]
    unsafe fn normalise<S: Simd>(&self, x: *const u8, w: *const u8, res: Option<*const u8>, y: *mut u8) {
        let (a, n, kind) = (self.args, self.args.n as usize, self.kind);
        let size = kind.x.size();
        let (mut xs, mut ws) = ([0.0f32; RUN], [0.0f32; RUN]);
        // SAFETY: forwarded.
        unsafe {
            #[allow(clippy::cast_precision_loss)] // Exact up to 2^24; above, the error is that of one rounding.
            let scale = 1.0 / (squares::<S>(x, kind.x, n) / n as f32 + a.eps).sqrt();
            for start in (0..n).step_by(RUN) {
                let count = RUN.min(n - start);
                widen::<S>(x.add(start * size), kind.x, xs.as_mut_ptr(), count);
                widen::<S>(w.add(start * kind.w.size()), kind.w, ws.as_mut_ptr(), count);
                for (x, w) in xs.iter_mut().zip(&ws) {
                    *x = *x * scale * (w + a.weight_offset);
                }
                if let Some(res) = res {
                    widen::<S>(res.add(start * size), kind.x, ws.as_mut_ptr(), count);
                    for (x, r) in xs.iter_mut().zip(&ws) {
                        *x = (*x + r) * self.sum_scale;
                    }
                }
                narrow::<S>(xs.as_ptr(), y.add(start * size), kind.x, count);
            }
        }
    }
}

/// `h = (x + res) * scale` for n elements.
///
/// # Safety
/// All have n elements of `dtype`; h is apart from the inputs or exactly one of them.
#[inline(always)]
unsafe fn add<S: Simd>(x: *const u8, res: *const u8, h: *mut u8, dtype: DType, n: usize, scale: f32) {
    let size = dtype.size();
    let (mut xs, mut rs) = ([0.0f32; RUN], [0.0f32; RUN]);
    for start in (0..n).step_by(RUN) {
        let count = RUN.min(n - start);
        // SAFETY: forwarded.
        unsafe {
            widen::<S>(x.add(start * size), dtype, xs.as_mut_ptr(), count);
            widen::<S>(res.add(start * size), dtype, rs.as_mut_ptr(), count);
            for (x, r) in xs.iter_mut().zip(&rs) {
                *x = (*x + r) * scale;
            }
            narrow::<S>(xs.as_ptr(), h.add(start * size), dtype, count);
        }
    }
}

/// The sum of squares of n elements.
///
/// # Safety
/// `x` has n elements of `dtype`.
#[inline(always)]
pub(super) unsafe fn squares<S: Simd>(x: *const u8, dtype: DType, n: usize) -> f32 {
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
unsafe fn rms_norm<S: Simd>(call: &KernelCall<'_>, kind: Kind) {
    let args: &RmsNormArgs = call.args();
    let at = |i| call.binding(i).ptr;
    let (x, w) = (at(0), at(1));
    let [res, h, y, next] = match kind.residual {
        NormResidual::None => [x, at(2), at(2), w],
        NormResidual::Before => [at(2), at(4), at(5), w],
        NormResidual::After => [at(2), at(4), at(4), w],
        NormResidual::Between => [at(2), at(5), at(6), at(4)],
    };
    let sum_scale = if kind.residual != NormResidual::None && args.scale_from_memory != 0 {
        // SAFETY: the scale is a tensor of one f32.
        unsafe { at(3).cast::<f32>().read_unaligned() }
    } else {
        args.scale
    };
    let all = Rows { x, w, next, res, h, y, kind, sum_scale, args, first: 0, count: args.rows };
    let step = rows_of_chunk(args.n);
    let chunks = usize::try_from(args.rows.div_ceil(step)).expect("INVARIANT: rows lie in memory");
    call.pool().run(chunks, &|chunk| {
        let all = &all;
        let first = chunk as u64 * step;
        // SAFETY: forwarded; chunks write disjoint rows.
        unsafe { S::vectorize(Rows { first, count: step.min(all.count - first), ..*all }) };
    });
}

/// Entry points `{name}_{x}_{weight}_{isa}` for the types that norms have: `$body::<vectors>(call, x, weight)`.
macro_rules! norm_kernels {
    ($isa:literal, $which:expr, $s:ty; $($name:literal $body:expr),*) => {
        &[$(
            $crate::device::cpu::norm::norm_kernels!(@ $isa, $which, $name, $body, "f32_f32", F32, F32),
            $crate::device::cpu::norm::norm_kernels!(@ $isa, $which, $name, $body, "f16_f16", F16, F16),
            $crate::device::cpu::norm::norm_kernels!(@ $isa, $which, $name, $body, "f16_f32", F16, F32),
            $crate::device::cpu::norm::norm_kernels!(@ $isa, $which, $name, $body, "bf16_bf16", Bf16, Bf16),
            $crate::device::cpu::norm::norm_kernels!(@ $isa, $which, $name, $body, "bf16_f32", Bf16, F32)
        ),*]
    };
    (@ $isa:literal, $which:expr, $name:literal, $body:expr, $types:literal, $x:ident, $w:ident) => {{
        unsafe fn entry(call: &$crate::device::cpu::call::KernelCall<'_>) {
            // SAFETY: forwarded.
            unsafe { $body(call, $crate::dtype::DType::$x, $crate::dtype::DType::$w) }
        }
        $crate::device::cpu::registry::Builtin {
            module: "norm",
            name: concat!($name, "_", $types, "_", $isa),
            isa: $which,
            function: entry as $crate::device::cpu::call::KernelFn,
        }
    }};
}
pub(super) use norm_kernels;

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        norm_kernels! { $isa, $which, $s;
            "rms_norm" |c, x, w| rms_norm::<$s>(c, Kind { x, w, residual: NormResidual::None }),
            "add_rms_norm" |c, x, w| rms_norm::<$s>(c, Kind { x, w, residual: NormResidual::Before }),
            "rms_norm_add" |c, x, w| rms_norm::<$s>(c, Kind { x, w, residual: NormResidual::After }),
            "rms_norm_add_rms_norm" |c, x, w| rms_norm::<$s>(c, Kind { x, w, residual: NormResidual::Between })
        }
    };
}

/// Every kernel of this file, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
pub(super) use {layer::BUILTINS as LAYER, qk::BUILTINS as QK};
