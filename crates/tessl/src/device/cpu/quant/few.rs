//! A few rows of x: every weight is decoded once, in place, and multiplied by all rows.
//!
//! A chunk is some rows of one matrix. Weights are decoded 256 at a time into the first-level cache; each row of x has four
//! registers of sums. The order of the sums depends on the instruction set alone.

use super::super::call::KernelCall;
use super::super::convert::widen;
use super::super::simd::{Simd, Task};
use super::super::workspace::{A_BYTES, ACC_BYTES, Workspace};
use super::finish::finish;
use super::operands::{DecodeFn, Operands, STRIP, Segment, Weights, address};
use crate::dtype::DType;

/// Rows of x that this kernel takes.
pub(in super::super) const MAX_ROWS: u32 = 16;
/// Weights of one chunk, about.
const CHUNK: u32 = 1 << 17;
/// Rows of weights of a chunk, at most: the sums of all rows of x fit the workspace.
const MAX_TILE: u32 = 256;
/// Sums of one row of x.
const SUMS: usize = 4;

const _: () = assert!(2 * MAX_TILE as usize * MAX_ROWS as usize * 4 <= ACC_BYTES);

/// Rows of weights of one chunk.
pub(in super::super) fn tile_n(k: u32) -> u32 {
    (CHUNK / k.max(1)).clamp(4, MAX_TILE) / 4 * 4
}

/// Elements of a row of x that are held as f32 at once.
#[allow(clippy::cast_possible_truncation)] // A few thousand.
pub(in super::super) fn tile_k(k: u32) -> u32 {
    const MOST: u32 = (A_BYTES / 4) as u32 / MAX_ROWS;
    k.clamp(STRIP as u32, MOST).next_multiple_of(STRIP as u32)
}

/// Runs the product for at most [`MAX_ROWS`] rows.
///
/// # Safety
/// The bindings are those of a product whose weights `decode` decodes; the processor has `S`.
pub(super) unsafe fn run<S: Simd>(call: &KernelCall<'_>, input: DType, decode: DecodeFn) {
    let op = Operands::new(call, input, decode);
    let (columns, depth) = (op.args.tile_n as usize, op.args.tile_k as usize);
    assert!(op.args.m <= MAX_ROWS && columns > 0 && columns <= MAX_TILE as usize);
    assert!(depth.is_multiple_of(STRIP) && depth > 0 && depth * MAX_ROWS as usize * 4 <= A_BYTES);
    call.pool().run(op.tiles(columns), &|tile| {
        let (segment, at) = op.place(tile, columns);
        let (first, count) = (at * columns, columns.min(segment.n - at * columns));
        let task = Columns { op: &op, segment, first, count, depth };
        // SAFETY: forwarded; chunks write disjoint columns.
        unsafe { S::vectorize(task) };
    });
}

/// `count` columns of an output from `first` on.
struct Columns<'a> {
    op: &'a Operands<'a>,
    segment: &'a Segment,
    first: usize,
    count: usize,
    depth: usize,
}

impl Task for Columns<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Columns { op, segment, first, count, depth } = self;
        let (m, k, work) = (op.args.m as usize, op.args.k as usize, Workspace::get());
        let (rows, sums) = (work.a().cast::<f32>(), work.acc());
        let matrices = if op.gated() { 2 } else { 1 };
        let part = m * count;
        // SAFETY: the workspace holds `m * depth` elements of x and `2 * m * count` sums, as `run` checked.
        unsafe {
            std::ptr::write_bytes(sums, 0, matrices * part);
            for start in (0..k).step_by(depth) {
                let steps = depth.min(k - start);
                for row in 0..m {
                    let from = op.x.add((row * address(op.args.x_rs) + start) * op.input.size());
                    widen::<S>(from, op.input, rows.add(row * depth), steps);
                }
                for (i, weights) in segment.weights[..matrices].iter().enumerate() {
                    let block = Block { weights, first, count, start, steps, rows, depth, sums: sums.add(i * part) };
                    // One row is common and keeps its sums in registers.
                    match m {
                        1 => block.multiply::<S, 1>(1),
                        2..=4 => block.multiply::<S, 4>(m),
                        _ => block.multiply::<S, { MAX_ROWS as usize }>(m),
                    }
                }
            }
            for row in 0..m {
                let of = |i: usize| std::slice::from_raw_parts_mut(sums.add(i * part + row * count), count);
                finish::<S>(op, segment, row, first, of(0), op.gated().then(|| of(1)));
            }
        }
    }
}

/// Rows of weights times rows of x, for one range along k: `sums[row][column] += ..`.
struct Block<'a> {
    weights: &'a Weights,
    first: usize,
    count: usize,
    start: usize,
    steps: usize,
    rows: *const f32,
    depth: usize,
    sums: *mut f32,
}

impl Block<'_> {
    /// `m` rows, at most M.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const M: usize>(&self, m: usize) {
        let m = if M == 1 { 1 } else { m };
        let mut strip = [0.0f32; STRIP];
        // SAFETY: forwarded; strips end inside the row, whose length is whole runs.
        unsafe {
            for column in 0..self.count {
                let row = self.first + column;
                let mut acc = [[S::splat(0.0); SUMS]; M];
                for at in (0..self.steps).step_by(STRIP) {
                    let length = STRIP.min(self.steps - at);
                    self.weights.decode(row, self.start + at, length, strip.as_mut_ptr());
                    for (i, acc) in acc.iter_mut().enumerate().take(m) {
                        let x = self.rows.add(i * self.depth + at);
                        if length == STRIP {
                            dot::<S>(strip.as_ptr(), x, STRIP, acc);
                        } else {
                            dot::<S>(strip.as_ptr(), x, length, acc);
                        }
                    }
                }
                for (i, acc) in acc.iter().enumerate().take(m) {
                    let sum = S::add(S::add(acc[0], acc[1]), S::add(acc[2], acc[3]));
                    *self.sums.add(i * self.count + column) += S::sum(sum);
                }
            }
        }
    }
}

/// Adds `w * x` for `length` elements, a multiple of 32.
#[inline(always)]
unsafe fn dot<S: Simd>(w: *const f32, x: *const f32, length: usize, acc: &mut [S::V; SUMS]) {
    // SAFETY: forwarded.
    unsafe {
        for run in (0..length).step_by(32) {
            for v in 0..32 / S::LANES {
                let at = run + v * S::LANES;
                let sum = &mut acc[(v + run / 32 * (32 / S::LANES)) % SUMS];
                *sum = S::fma(S::load(w.add(at)), S::load(x.add(at)), *sum);
            }
        }
    }
}
