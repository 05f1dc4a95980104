//! Products with few rows (m <= 16): every element of B is read once, in place, and each thread has columns of its own.
//!
//! - Columns of B side by side: rows of B are added to the sums four at a time, `c[r][j] += a[r][k] * b[k][j]`; the sums
//!   of one chunk stay in the first-level cache.
//! - Steps along k side by side (a transposed view): dot products of up to four rows with four columns.

use super::super::call::KernelCall;
use super::super::convert::{element, load, widen};
use super::super::simd::{Simd, Task};
use super::super::workspace::{A_BYTES, ACC_BYTES, Workspace};
use super::epilogue::{MAX_COLUMNS, Tile};
use super::operands::Operands;
use super::pack::{PackF32, Source};
use crate::dtype::DType;

/// Rows that this kernel takes.
pub(in super::super) const MAX_ROWS: u32 = 16;

/// Rows of B added at once.
const GROUP: usize = 4;
/// Rows of B fetched ahead.
const AHEAD: usize = GROUP;

/// Runs one product on vectors of `S`.
///
/// # Safety
/// The bindings are as [`Operands::new`] describes; B has a unit stride; the processor has `S`.
pub(super) unsafe fn run<S: Simd>(call: &KernelCall<'_>, input: DType, output: DType) {
    // SAFETY: forwarded.
    let (op, _) = unsafe { Operands::new(call, input, output) };
    if op.m == 0 || op.n == 0 || op.batch == 0 {
        return;
    }
    let (_, tile_n, tile_k) = op.tile;
    assert!(op.m <= MAX_ROWS as usize && tile_n > 0 && tile_k > 0 && !op.packed && op.groups.is_none());
    assert!(2 * op.m * tile_n * 4 <= ACC_BYTES && op.m * tile_k * 4 <= A_BYTES);
    let tiles = op.n.div_ceil(tile_n);
    call.pool().run(op.batch * tiles, &|chunk| {
        let (z, first) = (chunk / tiles, chunk % tiles * tile_n);
        let work = Workspace::get();
        let (sums, a) = (work.acc(), work.a().cast());
        let task = Columns { op: &op, z, first, count: tile_n.min(op.n - first), depth: tile_k, sums, a };
        // SAFETY: forwarded; chunks write disjoint columns.
        unsafe { S::vectorize(task) };
    });
}

/// `count` columns from `first` on, over all of k.
struct Columns<'a> {
    op: &'a Operands,
    z: usize,
    first: usize,
    count: usize,
    depth: usize,
    /// `[m][count]`.
    sums: *mut f32,
    /// Room for `m * depth` elements.
    a: *mut f32,
}

/// A block of B: `steps` steps from `start` on, `count` columns from `first` on; its sums are `[m][count]`.
#[derive(Clone, Copy)]
struct Block {
    source: Source,
    start: usize,
    steps: usize,
    first: usize,
    count: usize,
    sums: *mut f32,
}

impl Task for Columns<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Columns { op, z, first, count, sums, .. } = self;
        let epilogue = op.epilogue(z, MAX_COLUMNS);
        let up = op.m * count;
        // SAFETY: the workspace holds twice `m * count` sums and `m * depth` elements of A; all else is inside the
        // operands.
        unsafe {
            self.sum::<S>(op.b(z), sums);
            if op.gated {
                self.sum::<S>(op.up(z), sums.add(up));
            }
            for col in (0..count).step_by(MAX_COLUMNS) {
                let cols = MAX_COLUMNS.min(count - col);
                let (sums, epilogue, rows) = (sums.add(col), &epilogue, op.m);
                Tile { epilogue, sums, ld: count, up, row: 0, col: first + col, rows, cols }.run::<S>();
            }
            if epilogue.stream {
                S::stream_end();
            }
        }
    }
}

impl Columns<'_> {
    /// The sums of these columns of one matrix.
    #[inline(always)]
    unsafe fn sum<S: Simd>(&self, source_b: Source, sums: *mut f32) {
        let &Columns { op, z, first, count, depth, a, .. } = self;
        let source_a = op.a(z);
        // SAFETY: forwarded.
        unsafe {
            std::ptr::write_bytes(sums, 0, op.m * count);
            for start in (0..op.k).step_by(depth) {
                let steps = depth.min(op.k - start);
                let block = Block { source: source_b, start, steps, first, count, sums };
                if source_b.lane == 1 {
                    let (lanes, width, stride) = (op.m, op.m, op.m);
                    PackF32 { source: source_a, first_lane: 0, lanes, first_step: start, steps, width, stride, dst: a }
                        .run::<S>();
                    add_rows::<S>(&block, op.m, a);
                } else {
                    rows_of_a::<S>(&source_a, start, steps, op.m, a);
                    for row in (0..op.m).step_by(4) {
                        let a = a.add(row * steps);
                        let block = Block { sums: sums.add(row * count), ..block };
                        match op.m - row {
                            1 => dots::<S, 1>(&block, a),
                            2 => dots::<S, 2>(&block, a),
                            3 => dots::<S, 3>(&block, a),
                            _ => dots::<S, 4>(&block, a),
                        }
                    }
                }
            }
        }
    }
}

/// `a[row * steps + s]` = A.
#[inline(always)]
unsafe fn rows_of_a<S: Simd>(source: &Source, start: usize, steps: usize, m: usize, a: *mut f32) {
    for row in 0..m {
        // SAFETY: forwarded.
        unsafe {
            if source.step == 1 {
                widen::<S>(source.at(row, start), source.dtype, a.add(row * steps), steps);
            } else {
                for s in 0..steps {
                    *a.add(row * steps + s) = element(source.at(row, start + s), source.dtype);
                }
            }
        }
    }
}

/// `sums[r][j] += a[s][r] * B[start + s][first + j]`, in the order of s.
#[inline(always)]
unsafe fn add_rows<S: Simd>(block: &Block, m: usize, a: *const f32) {
    let Block { source: b, start, steps, first, count, sums } = *block;
    let size = b.dtype.size();
    let whole = count - count % S::LANES;
    for s in (0..steps).step_by(GROUP) {
        let group = GROUP.min(steps - s);
        // SAFETY: forwarded.
        unsafe {
            let row = |i: usize| b.at(first, start + s + i);
            if group == GROUP {
                for j in (0..whole).step_by(S::LANES) {
                    // Loops and no `from_fn`, which is compiled apart, without the instruction set of the caller.
                    let mut v = [S::splat(0.0); GROUP];
                    for (i, v) in v.iter_mut().enumerate() {
                        *v = load::<S>(row(i).add(j * size), b.dtype);
                    }
                    // Once per line.
                    if (j * size) % 64 == 0 {
                        for i in 0..GROUP {
                            S::prefetch(row(i + AHEAD).wrapping_add(j * size));
                        }
                    }
                    for r in 0..m {
                        let p = sums.add(r * count + j);
                        let mut sum = S::load(p);
                        for (i, v) in v.into_iter().enumerate() {
                            sum = S::fma(S::splat(*a.add((s + i) * m + r)), v, sum);
                        }
                        S::store(p, sum);
                    }
                }
            } else {
                for i in 0..group {
                    for j in (0..whole).step_by(S::LANES) {
                        let v = load::<S>(row(i).add(j * size), b.dtype);
                        for r in 0..m {
                            let p = sums.add(r * count + j);
                            S::store(p, S::fma(S::splat(*a.add((s + i) * m + r)), v, S::load(p)));
                        }
                    }
                }
            }
            for i in 0..group {
                for j in whole..count {
                    let x = element(row(i).add(j * size), b.dtype);
                    for r in 0..m {
                        *sums.add(r * count + j) += *a.add((s + i) * m + r) * x;
                    }
                }
            }
        }
    }
}

/// `sums[r][j] += sum over s of a[r][s] * B[start + s][first + j]` for R rows.
#[inline(always)]
unsafe fn dots<S: Simd, const R: usize>(block: &Block, a: *const f32) {
    let whole = block.count - block.count % 4;
    // SAFETY: forwarded.
    unsafe {
        for j in (0..whole).step_by(4) {
            dot::<S, R, 4>(block, j, a);
        }
        for j in whole..block.count {
            dot::<S, R, 1>(block, j, a);
        }
    }
}

/// R x C dot products, for the columns from `j` on.
#[inline(always)]
unsafe fn dot<S: Simd, const R: usize, const C: usize>(block: &Block, j: usize, a: *const f32) {
    let Block { source: b, start, steps, first, count, sums } = *block;
    let size = b.dtype.size();
    let whole = steps - steps % S::LANES;
    // SAFETY: forwarded.
    unsafe {
        let mut acc = [[S::splat(0.0); C]; R];
        let column: [*const u8; C] = std::array::from_fn(|c| b.at(first + j + c, start));
        for s in (0..whole).step_by(S::LANES) {
            let mut v = [S::splat(0.0); C];
            for (v, column) in v.iter_mut().zip(column) {
                *v = load::<S>(column.add(s * size), b.dtype);
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = S::load(a.add(r * steps + s));
                for (acc, v) in acc.iter_mut().zip(v) {
                    *acc = S::fma(x, v, *acc);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (c, &acc) in acc.iter().enumerate() {
                let mut sum = S::sum(acc);
                for s in whole..steps {
                    sum += *a.add(r * steps + s) * element(column[c].add(s * size), b.dtype);
                }
                *sums.add(r * count + j + c) += sum;
            }
        }
    }
}
