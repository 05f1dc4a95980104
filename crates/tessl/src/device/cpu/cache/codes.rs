//! New tokens as codes of 8 bits with a scale for each row.

use super::super::call::KernelCall;
use super::super::convert::widen;
use super::super::simd::{Simd, Task};
use super::{Cache, reported};
use crate::args::CacheArgs;
use crate::dtype::DType;

/// Elements that one chunk codes, about.
const CHUNK: u64 = 16 << 10;
/// Elements converted at once.
const RUN: usize = 256;
/// 2^-100: one over the scale of a smaller element could pass the range of f32.
const SMALLEST: f32 = 7.888_609e-31;

/// Rows of one chunk: depends on the row length alone.
pub(in super::super) fn rows_of_chunk(n: u32) -> u64 {
    (CHUNK / u64::from(n.max(1))).max(1)
}

#[derive(Clone, Copy)]
struct Rows<'a> {
    cache: &'a Cache<'a>,
    scales: [*mut f32; 2],
    sides: usize,
    dtype: DType,
    first: u64,
    count: u64,
}

// SAFETY: threads write disjoint rows, which are apart from what is read.
unsafe impl Sync for Rows<'_> {}

impl Task for Rows<'_> {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // Offsets of operands in memory fit the address space.
    unsafe fn run<S: Simd>(self) {
        let (a, n) = (self.cache.args, self.cache.args.n as usize);
        for (side, row) in (0..self.sides).flat_map(|side| (0..self.count).map(move |i| (side, i))) {
            let [b, t, h] = self.cache.split(self.first + row);
            let Ok([outer, slot]) = self.cache.place(b, t) else { continue };
            let [from, to, scale] = if side == 0 {
                [[a.a_b, a.a_t, a.a_h], [a.c_b, a.c_t, a.c_h], [a.e_b, a.e_t, a.e_h]]
            } else {
                [[a.b_b, a.b_t, a.b_h], [a.d_b, a.d_t, a.d_h], [a.f_b, a.f_t, a.f_h]]
            };
            let at = |s: [u64; 3], [x, y]: [u64; 2]| (s[0] * x + s[1] * y + s[2] * h) as usize;
            let (rows, cache) = self.cache.sides[side];
            // SAFETY: the row is inside its operand, its place inside cache and scales.
            unsafe {
                let x = rows.add(at(from, [b, t]) * self.dtype.size());
                let codes = cache.add(at(to, [outer, slot])).cast();
                let value = code_row::<S>(x, self.dtype, codes, n);
                self.scales[side].add(at(scale, [outer, slot])).write_unaligned(value);
            }
        }
    }
}

/// The codes of a row, and its scale.
///
/// # Safety
/// Both have n elements.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // Whole numbers up to 127.
unsafe fn code_row<S: Simd>(x: *const u8, dtype: DType, codes: *mut i8, n: usize) -> f32 {
    let (mut values, mut lanes) = ([0.0f32; RUN], [0.0f32; 16]);
    let mut finite = true;
    for start in (0..n).step_by(RUN) {
        let count = RUN.min(n - start);
        // SAFETY: forwarded.
        unsafe { widen::<S>(x.add(start * dtype.size()), dtype, values.as_mut_ptr(), count) };
        values[count..].fill(0.0);
        for block in values.chunks_exact(16) {
            for (lane, v) in lanes.iter_mut().zip(block) {
                let size = v.abs();
                *lane = if size > *lane { size } else { *lane };
                finite &= size < f32::INFINITY;
            }
        }
    }
    let mut most = 0.0f32;
    for lane in lanes {
        most = most.max(lane);
    }
    let some = finite && most >= SMALLEST;
    let inverse = if some { 127.0 / most } else { 0.0 };
    for start in (0..n).step_by(RUN) {
        let count = RUN.min(n - start);
        // SAFETY: forwarded.
        unsafe { widen::<S>(x.add(start * dtype.size()), dtype, values.as_mut_ptr(), count) };
        for (i, v) in values[..count].iter().enumerate() {
            /// Adding and taking away 1.5 * 2^23 rounds to the nearest whole number, ties to even.
            const ROUND: f32 = 12_582_912.0;
            let whole = if some { *v * inverse + ROUND - ROUND } else { 0.0 };
            // SAFETY: forwarded.
            unsafe { *codes.add(start + i) = whole as i8 };
        }
    }
    match (finite, some) {
        (false, _) => f32::NAN,
        (true, true) => most / 127.0,
        (true, false) => 0.0,
    }
}

/// One launch on vectors of `S`.
///
/// # Safety
/// The bindings are those of a store, then scales of k and of v.
pub(super) unsafe fn store<S: Simd>(call: &KernelCall<'_>, dtype: DType) {
    let args: &CacheArgs = call.args();
    let cache = reported(call, dtype.size());
    let scales = [6, 7].map(|i| call.binding(i).ptr.cast());
    let sides = usize::from(args.vectors > args.vectors_of_one) + 1;
    let all = Rows { cache: &cache, scales, sides, dtype, first: 0, count: args.rows };
    let step = rows_of_chunk(args.n);
    let chunks = usize::try_from(args.rows.div_ceil(step)).expect("INVARIANT: rows lie in memory");
    call.pool().run(chunks, &|chunk| {
        let all = &all;
        let first = chunk as u64 * step;
        // SAFETY: forwarded; chunks write disjoint rows.
        unsafe { S::vectorize(Rows { first, count: step.min(all.count - first), ..*all }) };
    });
}
