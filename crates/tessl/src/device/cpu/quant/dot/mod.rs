//! A few rows of x as whole numbers in fixed point, times codes as whole numbers (`vpdpbusd`): four blocks of 32 at a time.
//!
//! Sums of products are exact inside a block; what is rounded is what `x` loses in fixed point (`fixed.rs`) and the sum over
//! the blocks in f32. A sum that is not finite is taken again from the decoded weights, so that NaN and infinity come out as
//! they do everywhere else.
//!
//! The pool's chunks are rows of one matrix. The order of the sums of an output depends on its row of weights alone.

mod codes;
mod factors;
mod rows16;

use super::super::call::KernelCall;
use super::super::convert::element;
use super::super::gemm::int8::Pairs;
use super::super::simd::{Avx512, Simd, Task, Vnni};
use super::super::workspace::{A_BYTES, ACC_BYTES, Workspace};
use super::few;
use super::finish::finish;
use super::fixed::{BLOCK, Order, QUAD, Quad, Row, digits, quads, usable};
use super::operands::{DecodeFn, Operands, STRIP, Segment, Weights, address};
use super::{DOT_CHUNK, DOT_TILE, FIXED_MAX_K};
use crate::dtype::DType;
pub(super) use codes::{Blocks, Bytes, Eights, Nibbles, Supers, Supers6};
use codes::{Codes, Unpacked};
pub(super) use rows16::{EIGHTS16, FIVES16, FIVES16_MIN, FOURS16, FOURS16_MIN};
use std::arch::x86_64::*;
use std::marker::PhantomData;

#[cfg(test)]
mod tests;

/// Rows of x that one pass over a row of weights multiplies.
const ROWS: usize = 4;
/// Quads of all rows of x together that are near at once.
const NEAR_QUADS: usize = 32;
/// Rows of weights that use them.
const GROUP: usize = 16;
/// Bytes ahead of the codes in use that are fetched where a row is read in one go.
const AHEAD: usize = 4096;
const _: () = assert!(quads(FIXED_MAX_K as usize) * size_of::<Quad>() <= A_BYTES);
const _: () = assert!(2 * DOT_TILE as usize * few::MAX_ROWS as usize * 4 <= ACC_BYTES);

/// Sums for `count` rows of weights from `first` on with `m` rows of x in fixed point, into `sums[row * stride + i]`.
type SumsFn = unsafe fn(&Sums<'_>);

/// How a format is multiplied.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    order: Order,
    offset: i32,
    /// By digits (two, three), then rows (one to [`ROWS`]).
    sums: [[SumsFn; ROWS]; 2],
}

/// Numbers of the kernels of a code, `$entry::<code, digits, rows>`.
macro_rules! by_rows {
    ($entry:ident, $c:ty) => {
        [
            [$entry::<$c, 2, 1>, $entry::<$c, 2, 2>, $entry::<$c, 2, 3>, $entry::<$c, 2, 4>],
            [$entry::<$c, 3, 1>, $entry::<$c, 3, 2>, $entry::<$c, 3, 3>, $entry::<$c, 3, 4>],
        ]
    };
}
use by_rows;

impl Kernel {
    /// The kernel of codes `C`.
    pub(super) const fn of<C: Codes>() -> Self {
        Kernel { order: C::ORDER, offset: C::OFFSET, sums: by_rows!(entry, C) }
    }
}

/// Runs the product for at most [`few::MAX_ROWS`] rows; decodes the weights in place where the processor has no VNNI.
///
/// # Safety
/// The bindings are those of a product whose weights `decode` decodes and `kernel` is for; the processor has AVX-512.
pub(super) unsafe fn run(call: &KernelCall<'_>, input: DType, decode: DecodeFn, kernel: &Kernel) {
    if !usable() {
        // SAFETY: forwarded.
        return unsafe { few::run::<Avx512>(call, input, decode) };
    }
    let op = Operands::new(call, input, decode);
    let (m, k, columns) = (op.args.m as usize, op.args.k as usize, op.args.tile_n as usize);
    assert!(op.args.m <= few::MAX_ROWS && op.args.k <= FIXED_MAX_K && columns > 0 && columns <= DOT_TILE as usize);
    // The caller's workspace holds x for all threads: it packs nothing else during the region.
    let x = Workspace::get().a().cast::<Quad>();
    let fit = (A_BYTES / (quads(k) * size_of::<Quad>()).max(1)).min(m.max(1));
    for first in (0..m).step_by(fit) {
        let rows = fit.min(m - first);
        let fixed = Fixed { x, first, rows, order: kernel.order, offset: kernel.offset };
        if rows * k > DOT_CHUNK as usize {
            call.pool().run(rows, &|row| fixed.row(&op, row));
        } else {
            (0..rows).for_each(|row| fixed.row(&op, row));
        }
        call.pool().run(op.tiles(columns), &|tile| {
            let (segment, at) = op.place(tile, columns);
            let (column, count) = (at * columns, columns.min(segment.n - at * columns));
            // SAFETY: forwarded; chunks write disjoint columns.
            unsafe { fixed.columns(&op, kernel, segment, column, count) };
        });
    }
}

/// Some rows of x in fixed point.
struct Fixed {
    x: *mut Quad,
    first: usize,
    rows: usize,
    order: Order,
    offset: i32,
}

// SAFETY: rows are written apart, then only read.
unsafe impl Sync for Fixed {}

impl Fixed {
    /// The row as the operands have it.
    fn source(&self, op: &Operands<'_>, row: usize) -> *const u8 {
        op.x.wrapping_add((self.first + row) * address(op.args.x_rs) * op.input.size())
    }

    /// Brings row `row` into fixed point.
    fn row(&self, op: &Operands<'_>, row: usize) {
        let k = op.args.k as usize;
        let out = self.x.wrapping_add(row * quads(k));
        let task = Row { x: self.source(op, row), dtype: op.input, k, order: self.order, offset: self.offset, out };
        // SAFETY: x has the row, the workspace room for it; `usable` was asked.
        unsafe { task.convert() };
    }

    /// Computes and finishes `count` columns of `segment` from `column` on.
    ///
    /// # Safety
    /// The processor has VNNI, and the segment these columns.
    unsafe fn columns(&self, op: &Operands<'_>, kernel: &Kernel, segment: &Segment, column: usize, count: usize) {
        let (k, sums) = (op.args.k as usize, Workspace::get().acc());
        let matrices = if op.gated() { 2 } else { 1 };
        let part = self.rows * count;
        let by_rows = &kernel.sums[usize::from(digits(op.input) == 3)];
        // SAFETY: the workspace holds `2 * rows * count` sums.
        unsafe {
            for (i, weights) in segment.weights[..matrices].iter().enumerate() {
                let all = std::slice::from_raw_parts_mut(sums.add(i * part), part);
                for row in (0..self.rows).step_by(ROWS) {
                    let m = ROWS.min(self.rows - row);
                    let (x, sums) = (self.x.add(row * quads(k)), all.as_mut_ptr().add(row * count));
                    by_rows[m - 1](&Sums { weights, first: column, count, k, x, sums });
                }
                for (at, sum) in all.iter_mut().enumerate().filter(|(_, sum)| !sum.is_finite()) {
                    *sum = weights.product(column + at % count, self.source(op, at / count), op.input, k);
                }
            }
            for row in 0..self.rows {
                let of = |i: usize| std::slice::from_raw_parts_mut(sums.add(i * part + row * count), count);
                let finish_row = Finish {
                    op,
                    segment,
                    row: self.first + row,
                    column,
                    sums: of(0),
                    second: op.gated().then(|| of(1)),
                };
                <Avx512 as Simd>::vectorize(finish_row);
            }
        }
    }
}

/// One row of outputs.
struct Finish<'a> {
    op: &'a Operands<'a>,
    segment: &'a Segment,
    row: usize,
    column: usize,
    sums: &'a mut [f32],
    second: Option<&'a mut [f32]>,
}

impl Task for Finish<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: forwarded.
        unsafe { finish::<S>(self.op, self.segment, self.row, self.column, self.sums, self.second) };
    }
}

/// Rows of weights and rows of x whose products are wanted.
pub(super) struct Sums<'a> {
    weights: &'a Weights,
    first: usize,
    count: usize,
    k: usize,
    x: *const Quad,
    sums: *mut f32,
}

unsafe fn entry<C: Codes, const D: usize, const M: usize>(sums: &Sums<'_>) {
    // SAFETY: forwarded.
    unsafe { Vnni::vectorize(Rows::<'_, C, D, M>(sums, PhantomData)) }
}

struct Rows<'a, C, const D: usize, const M: usize>(&'a Sums<'a>, PhantomData<C>);

impl<C: Codes, const D: usize, const M: usize> Task for Rows<'_, C, D, M> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let blocks = self.0.k % (C::QUADS * QUAD) / BLOCK;
        // SAFETY: forwarded.
        unsafe {
            match blocks {
                0 => self.rows(0),
                // One row is common: the blocks left over are then unpacked without a branch.
                1 if M == 1 => self.rows(1),
                2 if M == 1 => self.rows(2),
                3 if M == 1 => self.rows(3),
                _ => self.rows(blocks),
            }
        }
    }
}

impl<C: Codes, const D: usize, const M: usize> Rows<'_, C, D, M> {
    /// Units of x that are used for all rows of a group before the next ones: they stay in the first-level cache.
    const NEAR: usize = NEAR_QUADS / M / C::QUADS;

    /// Rows of weights end with `blocks` blocks after their last whole unit.
    #[inline(always)]
    unsafe fn rows(&self, blocks: usize) {
        let &Sums { weights, first, count, k, x, sums } = self.0;
        let whole = k / (C::QUADS * QUAD);
        // What is used next: the row goes on, or the next row has the same units.
        let ahead = if whole > Self::NEAR { weights.row } else { AHEAD };
        // SAFETY: forwarded; rows of weights have `whole` units and then `blocks` blocks, rows of x as many quads.
        unsafe {
            for group in (0..count).step_by(GROUP) {
                let mut totals = [[Total::ZERO; M]; GROUP];
                for start in (0..whole.max(1)).step_by(Self::NEAR) {
                    let end = whole.min(start + Self::NEAR);
                    for (column, kept) in (group..count).zip(&mut totals) {
                        let row = C::row(weights, first + column);
                        let mut total = *kept;
                        for at in start..end {
                            let unit = C::open(&row, at, ahead);
                            for quad in 0..C::QUADS {
                                let codes = C::unpack(&row, &unit, at, quad, 4);
                                add::<C, D, M>(&codes, x.add(at * C::QUADS + quad), quads(k), &mut total);
                            }
                        }
                        if end < whole {
                            *kept = total;
                            continue;
                        }
                        if blocks > 0 {
                            let codes = C::unpack(&row, &C::open(&row, whole, ahead), whole, 0, blocks);
                            add::<C, D, M>(&codes, x.add(whole), quads(k), &mut total);
                        }
                        for (i, total) in total.iter().enumerate() {
                            *sums.add(i * count + column) = total.sum::<C>();
                        }
                    }
                }
            }
        }
    }
}

/// The sum of one output so far.
#[derive(Clone, Copy)]
struct Total {
    lanes: __m512,
    mins: __m128,
}

impl Total {
    // SAFETY: all bits zero are vectors of zeros.
    const ZERO: Self = unsafe { std::mem::zeroed() };

    #[inline(always)]
    unsafe fn sum<C: Codes>(&self) -> f32 {
        // SAFETY: forwarded.
        unsafe {
            let sum = _mm512_reduce_add_ps(self.lanes);
            if !C::MINS {
                return sum;
            }
            let pairs = _mm_add_ps(self.mins, _mm_movehl_ps(self.mins, self.mins));
            sum + _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps::<1>(pairs, pairs)))
        }
    }
}

/// Adds the products of one quad of codes with those of M rows of x, whose quads lie `apart` apart.
#[inline(always)]
unsafe fn add<C: Codes, const D: usize, const M: usize>(
    codes: &Unpacked,
    x: *const Quad,
    apart: usize,
    total: &mut [Total; M],
) {
    // SAFETY: forwarded.
    unsafe {
        for (i, total) in total.iter_mut().enumerate() {
            let x = x.add(i * apart);
            if C::ORDER.even() {
                let sum = products::<C, D>(&codes.codes, x, &[0, 1], 0);
                let step = _mm512_mul_ps(codes.steps[0], _mm512_loadu_ps((*x).steps[0].as_ptr()));
                total.lanes = _mm512_fmadd_ps(sum, step, total.lanes);
            } else {
                for v in 0..2 {
                    let sum = products::<C, D>(&codes.codes, x, &[v], v);
                    let step = _mm512_mul_ps(codes.steps[v], _mm512_loadu_ps((*x).steps[v].as_ptr()));
                    total.lanes = _mm512_fmadd_ps(sum, step, total.lanes);
                }
            }
            if C::MINS {
                total.mins = _mm_fmadd_ps(codes.mins, _mm_loadu_ps((*x).sums.as_ptr()), total.mins);
            }
        }
    }
}

/// The sums of whole products in each lane, of the vectors `vectors`, as f32.
#[inline(always)]
unsafe fn products<C: Codes, const D: usize>(
    codes: &[__m512i; 2],
    x: *const Quad,
    vectors: &[usize],
    start: usize,
) -> __m512 {
    // SAFETY: forwarded.
    unsafe {
        let zero = _mm512_setzero_si512();
        let load = |p: *const u8| _mm512_loadu_si512(p.cast());
        let digit = |d: usize, mut sum: __m512i| {
            for &v in vectors {
                sum = _mm512_dpbusd_epi32(sum, codes[v], load((*x).digits[d][v].as_ptr().cast()));
            }
            sum
        };
        let from = |i: usize| if C::OFFSET == 0 { zero } else { load((*x).start[i][start].as_ptr().cast()) };
        // Below the highest digit sums stay under 2^24; with three, the highest is added in f32.
        let low = _mm512_add_epi32(_mm512_slli_epi32::<8>(digit(D - 2, zero)), digit(D - 1, from(0)));
        let low = _mm512_cvtepi32_ps(low);
        if D == 2 {
            return low;
        }
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(digit(0, from(1))), _mm512_set1_ps(65_536.0), low)
    }
}

impl Weights {
    /// The sum of products of row `row` with `k` elements of x, one decoded weight after the other.
    ///
    /// # Safety
    /// The row and x have `k` elements; the processor has the instructions of `decode`.
    unsafe fn product(&self, row: usize, x: *const u8, dtype: DType, k: usize) -> f32 {
        let (mut strip, mut sum) = ([0.0f32; STRIP], 0.0);
        for start in (0..k).step_by(STRIP) {
            let count = STRIP.min(k - start);
            // SAFETY: forwarded.
            unsafe {
                self.decode(row, start, count, strip.as_mut_ptr());
                for (i, w) in strip[..count].iter().enumerate() {
                    sum += w * element(x.add((start + i) * dtype.size()), dtype);
                }
            }
        }
        sum
    }
}
