//! Reductions of rows; kernels/simt/reduce.metal has the formulas.
//!
//! Kernels are `softmax_` and `log_softmax_{dtype}_{isa}` (bindings x, mask or x, y), `row_sum_` and
//! `row_max_{dtype}_{output}_{isa}` and `row_argmax_{dtype}_{isa}` (bindings x, y). Sums and maxima run in 16 f32 lanes on
//! every instruction set, then halve: the same order, hence the same bits, everywhere.

use super::call::{KernelCall, KernelFn};
use super::convert::{element, narrow, widen};
use super::gemm::activation::{exp, tanh};
use super::registry::Builtin;
use super::rows::{for_each_isa, row_offset};
use super::simd::{Simd, Task};
use crate::args::ReduceArgs;
use crate::dtype::DType;

#[cfg(test)]
mod tests;

/// Elements that one chunk reduces, about.
const CHUNK: u64 = 16 << 10;
/// Elements of a row that are held as f32; longer rows are read once for each pass.
pub(super) const HELD: usize = 4096;
/// Lanes of sums and maxima.
pub(super) const LANES: usize = 16;

/// Rows of one chunk: depends on the row length alone.
pub(super) fn rows_of_chunk(n: u32) -> u64 {
    (CHUNK / u64::from(n.max(1))).max(1)
}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Softmax,
    LogSoftmax,
    Sum,
    Max,
    ArgMax,
}

#[derive(Clone, Copy)]
struct Reduce<'a> {
    x: *const u8,
    mask: *const u8,
    y: *mut u8,
    input: DType,
    output: DType,
    kind: Kind,
    args: &'a ReduceArgs,
    first: u64,
    count: u64,
}

// SAFETY: threads write disjoint rows of y, and y is apart from x and mask or the same rows as x.
unsafe impl Sync for Reduce<'_> {}

impl Reduce<'_> {
    /// Pointers to a row of x, the mask and y.
    fn row(&self, row: u64) -> (*const u8, *const u8, *mut u8) {
        let a = self.args;
        let at = |strides| row_offset(row, [a.r1, a.r2], strides);
        let (x, m, y) = (at([a.x_s0, a.x_s1, a.x_s2]), at([a.m_s0, a.m_s1, a.m_s2]), at([a.y_s0, a.y_s1, a.y_s2]));
        let mask_size = [0, 1, 4, 2, 2][a.mask as usize];
        (
            self.x.wrapping_add(x * self.input.size()),
            self.mask.wrapping_add(m * mask_size),
            self.y.wrapping_add(y * self.output.size()),
        )
    }
}

impl Task for Reduce<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n = self.args.n as usize;
        let mut held = [0.0f32; HELD];
        for row in self.first..self.first + self.count {
            let (x, mask, y) = self.row(row);
            // SAFETY: the row is inside every operand.
            unsafe {
                match self.kind {
                    Kind::Softmax | Kind::LogSoftmax => softmax::<S>(&self, x, mask, y, &mut held),
                    Kind::ArgMax => y.cast::<u32>().write_unaligned(argmax::<S>(x, self.input, n, &mut held)),
                    Kind::Sum | Kind::Max => {
                        let value = fold::<S>(&self, x, n, &mut held);
                        narrow::<S>([value].as_ptr(), y, self.output, 1);
                    }
                }
            }
        }
    }
}

/// NaN before all numbers.
#[inline(always)]
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// The largest of `lanes` elements and of `v`, whose length is a multiple of [`LANES`].
#[inline(always)]
pub(super) fn max_of(v: &[f32], mut lanes: [f32; LANES]) -> [f32; LANES] {
    for block in v.chunks_exact(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane = larger(x, *lane);
        }
    }
    lanes
}

#[inline(always)]
pub(super) fn sum_of(v: &[f32], mut lanes: [f32; LANES]) -> [f32; LANES] {
    for block in v.chunks_exact(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane += x;
        }
    }
    lanes
}

/// Halves the lanes until one is left.
#[inline(always)]
pub(super) fn halve(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] = join(lanes[i], lanes[i + width]);
        }
    }
    lanes[0]
}

/// Elements `start..` of a row as f32, at most [`HELD`]; filled up to a multiple of [`LANES`] with `beyond`.
///
/// # Safety
/// `x` has `n` elements.
#[inline(always)]
pub(super) unsafe fn load_block<S: Simd>(
    x: *const u8,
    dtype: DType,
    start: usize,
    n: usize,
    beyond: f32,
    held: &mut [f32; HELD],
) -> usize {
    let count = HELD.min(n - start);
    // SAFETY: forwarded.
    unsafe { widen::<S>(x.add(start * dtype.size()), dtype, held.as_mut_ptr(), count) };
    let used = count.next_multiple_of(LANES);
    held[count..used].fill(beyond);
    used
}

/// Scores `start..` of a row, as [`load_block`]; -infinity beyond the row.
///
/// # Safety
/// `x` and, unless it is not used, `mask` have `n` elements.
#[inline(always)]
unsafe fn load_scores<S: Simd>(
    r: &Reduce<'_>,
    x: *const u8,
    mask: *const u8,
    start: usize,
    held: &mut [f32; HELD],
) -> usize {
    let (args, n) = (r.args, r.args.n as usize);
    // SAFETY: forwarded.
    let used = unsafe { load_block::<S>(x, r.input, start, n, f32::NEG_INFINITY, held) };
    let count = HELD.min(n - start);
    let row = &mut held[..count];
    if args.scale != 1.0 {
        for t in row.iter_mut() {
            *t *= args.scale;
        }
    }
    if args.softcap > 0.0 {
        for t in row.iter_mut() {
            *t = args.softcap * tanh(*t * args.inverse_softcap);
        }
    }
    let dtype = [DType::U8, DType::U8, DType::F32, DType::F16, DType::Bf16][args.mask as usize];
    match args.mask {
        0 => {}
        1 => {
            // SAFETY: forwarded.
            let mask = unsafe { std::slice::from_raw_parts(mask.add(start), count) };
            for (t, &m) in row.iter_mut().zip(mask) {
                *t = if m == 0 { f32::NEG_INFINITY } else { *t };
            }
        }
        _ => {
            for (i, t) in row.iter_mut().enumerate() {
                // SAFETY: forwarded.
                *t += unsafe { element(mask.add((start + i) * dtype.size()), dtype) };
            }
        }
    }
    used
}

/// One row of softmax or log-softmax. y may be x: a block is read before it is written, in the last pass.
///
/// # Safety
/// As [`load_scores`]; `y` has `n` elements.
#[inline(always)]
unsafe fn softmax<S: Simd>(r: &Reduce<'_>, x: *const u8, mask: *const u8, y: *mut u8, held: &mut [f32; HELD]) {
    let (n, log, once) = (r.args.n as usize, r.kind == Kind::LogSoftmax, r.args.n as usize <= HELD);
    let size = r.output.size();
    // SAFETY: forwarded.
    unsafe {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let mut used = 0;
        for start in (0..n).step_by(HELD) {
            used = load_scores::<S>(r, x, mask, start, held);
            lanes = max_of(&held[..used], lanes);
        }
        let most = halve(lanes, larger);
        if most == f32::NEG_INFINITY {
            return flat::<S>(r, y, held);
        }
        let mut lanes = [0.0; LANES];
        for start in (0..n).step_by(HELD) {
            if !once {
                used = load_scores::<S>(r, x, mask, start, held);
            }
            if log {
                for block in held[..used].chunks_exact(LANES) {
                    for (lane, &t) in lanes.iter_mut().zip(block) {
                        *lane += exp(t - most);
                    }
                }
            } else {
                for t in &mut held[..used] {
                    *t = exp(*t - most);
                }
                lanes = sum_of(&held[..used], lanes);
            }
        }
        let sum = halve(lanes, |a, b| a + b);
        let total = sum.ln();
        for start in (0..n).step_by(HELD) {
            if !once {
                used = load_scores::<S>(r, x, mask, start, held);
            }
            let row = &mut held[..used];
            match (log, once) {
                (true, _) => {
                    for t in row {
                        *t = (*t - most) - total;
                    }
                }
                (false, true) => {
                    for t in row {
                        *t /= sum;
                    }
                }
                (false, false) => {
                    for t in row {
                        *t = exp(*t - most) / sum;
                    }
                }
            }
            narrow::<S>(held.as_ptr(), y.add(start * size), r.output, HELD.min(n - start));
        }
    }
}

/// One row without a number above -infinity.
///
/// # Safety
/// `y` has `n` elements.
#[inline(always)]
unsafe fn flat<S: Simd>(r: &Reduce<'_>, y: *mut u8, held: &mut [f32; HELD]) {
    let n = r.args.n as usize;
    #[allow(clippy::cast_precision_loss)] // One rounding, below those of the formula.
    let count = n as f32;
    held.fill(match (r.kind == Kind::LogSoftmax, r.args.mask == 0) {
        (true, true) => -count.ln(),
        (true, false) => f32::NEG_INFINITY,
        (false, true) => 1.0 / count,
        (false, false) => 0.0,
    });
    for start in (0..n).step_by(HELD) {
        // SAFETY: forwarded.
        unsafe { narrow::<S>(held.as_ptr(), y.add(start * r.output.size()), r.output, HELD.min(n - start)) };
    }
}

/// The sum (times a factor) or the maximum of a row.
///
/// # Safety
/// `x` has `n` elements.
#[inline(always)]
unsafe fn fold<S: Simd>(r: &Reduce<'_>, x: *const u8, n: usize, held: &mut [f32; HELD]) -> f32 {
    let max = r.kind == Kind::Max;
    let neutral = if max { f32::NEG_INFINITY } else { 0.0 };
    let mut lanes = [neutral; LANES];
    for start in (0..n).step_by(HELD) {
        // SAFETY: forwarded.
        let used = unsafe { load_block::<S>(x, r.input, start, n, neutral, held) };
        lanes = if max { max_of(&held[..used], lanes) } else { sum_of(&held[..used], lanes) };
    }
    if max { halve(lanes, larger) } else { r.args.scale * halve(lanes, |a, b| a + b) }
}

/// The index of the largest element.
///
/// # Safety
/// `x` has `n` elements.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // Rows have fewer than 2^31 elements.
unsafe fn argmax<S: Simd>(x: *const u8, dtype: DType, n: usize, held: &mut [f32; HELD]) -> u32 {
    let (mut most, mut place) = (f32::NEG_INFINITY, 0);
    for start in (0..n).step_by(HELD) {
        // SAFETY: forwarded.
        let used = unsafe { load_block::<S>(x, dtype, start, n, f32::NEG_INFINITY, held) };
        let here = halve(max_of(&held[..used], [f32::NEG_INFINITY; LANES]), larger);
        if here > most || here.is_nan() {
            let found = held.iter().position(|&v| v == here || v.is_nan() && here.is_nan());
            (most, place) = (here, start + found.expect("INVARIANT: one of the elements"));
        }
        if most.is_nan() {
            break;
        }
    }
    place as u32
}

/// One launch on vectors of `S`.
unsafe fn reduce<S: Simd>(call: &KernelCall<'_>, kind: Kind, input: DType, output: DType) {
    let args: &ReduceArgs = call.args();
    let masked = matches!(kind, Kind::Softmax | Kind::LogSoftmax);
    let (x, mask) = (call.binding(0).ptr, call.binding(usize::from(masked)).ptr);
    let y = call.binding(1 + usize::from(masked)).ptr;
    let all = Reduce { x, mask, y, input, output, kind, args, first: 0, count: args.rows };
    let step = rows_of_chunk(args.n);
    let chunks = usize::try_from(args.rows.div_ceil(step)).expect("INVARIANT: rows lie in memory");
    call.pool().run(chunks, &|chunk| {
        let all = &all;
        let first = chunk as u64 * step;
        // SAFETY: forwarded; chunks write disjoint rows.
        unsafe { S::vectorize(Reduce { first, count: step.min(all.count - first), ..*all }) };
    });
}

/// Entry points of the kernel table.
macro_rules! table {
    ($isa:literal, $which:expr, $s:ty; $($name:literal $kind:ident $from:ident $to:ident),*) => {
        &[$({
            unsafe fn entry(call: &KernelCall<'_>) {
                // SAFETY: forwarded.
                unsafe { reduce::<$s>(call, Kind::$kind, DType::$from, DType::$to) }
            }
            Builtin {
                module: "reduce",
                name: concat!($name, "_", $isa),
                isa: $which,
                function: entry as KernelFn,
            }
        }),*]
    };
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        table! { $isa, $which, $s;
            "softmax_f32" Softmax F32 F32, "softmax_f16" Softmax F16 F16, "softmax_bf16" Softmax Bf16 Bf16,
            "log_softmax_f32" LogSoftmax F32 F32, "log_softmax_f16" LogSoftmax F16 F16,
            "log_softmax_bf16" LogSoftmax Bf16 Bf16,
            "row_sum_f32_f32" Sum F32 F32, "row_sum_f16_f16" Sum F16 F16, "row_sum_f16_f32" Sum F16 F32,
            "row_sum_bf16_bf16" Sum Bf16 Bf16, "row_sum_bf16_f32" Sum Bf16 F32,
            "row_max_f32_f32" Max F32 F32, "row_max_f16_f16" Max F16 F16, "row_max_f16_f32" Max F16 F32,
            "row_max_bf16_bf16" Max Bf16 Bf16, "row_max_bf16_f32" Max Bf16 F32,
            "row_argmax_f32" ArgMax F32 U32, "row_argmax_f16" ArgMax F16 U32, "row_argmax_bf16" ArgMax Bf16 U32
        }
    };
}

/// Every kernel of this file, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
