//! Attention for a few queries: the keys stream through once for all rows that share them, up to eight at a time.
//!
//! A chunk of the pool takes one key head's rows and one part of the keys; how the keys are cut follows from their number
//! and the plan.

use super::super::call::KernelCall;
use super::super::convert::{element, load, narrow, widen};
use super::super::gemm::activation::{exp, tanh};
use super::super::gemm::pack::transpose;
use super::super::reduce::{LANES, halve, larger, max_of, sum_of};
use super::super::simd::{Simd, Task};
use super::{Attention, Piece};
use crate::dtype::DType;

/// Rows of one piece.
pub(in super::super) const ROWS: usize = 8;
/// Keys taken at once.
const KEYS: usize = 64;
/// Keys whose products are summed together.
const TOGETHER: usize = LANES;
/// Keys whose values are added together.
const PASS: usize = 4;
/// Elements of a head, at most, and some so that whole vectors can be loaded.
const DIM: usize = 512 + 16;
/// The parts of a sequence's keys are multiples of this many.
const UNIT: u64 = 64;

struct Rows<'a> {
    a: &'a Attention<'a>,
    piece: Piece,
    head: u64,
    part: u64,
}

/// One launch.
pub(super) unsafe fn run<S: Simd>(call: &KernelCall<'_>, dtype: DType) {
    let all = Attention::new(call, dtype);
    all.check(call);
    let (heads, split) = (u64::from(all.args.kv_heads), u64::from(all.args.split));
    let work = usize::try_from(all.args.work).expect("INVARIANT: rows lie in memory");
    call.pool().run(work, &|i| {
        let (part, rest) = (i as u64 % split, i as u64 / split);
        let (tile, head) = (rest / heads, rest % heads);
        match all.piece(tile, all.args.group.into()) {
            Some(Ok(piece)) => {
                // SAFETY: forwarded; pieces are disjoint rows of out, or of a part.
                unsafe { S::vectorize(Rows { a: &all, piece, head, part }) }
            }
            Some(Err(_)) if split > 1 => {
                // SAFETY: as above.
                unsafe { all.skip(tile, head, part) }
            }
            _ => {}
        }
    });
}

impl Attention<'_> {
    /// Number among the rows of the result of row `row` of a piece.
    fn result(&self, query: u64, head: u64) -> usize {
        let row = query * u64::from(self.args.heads) + head;
        usize::try_from(row).expect("INVARIANT: rows lie in memory")
    }

    /// The maximum and sum of a part, and its row.
    pub(super) fn part(&self, row: usize, part: usize) -> (*mut f32, *mut f32) {
        let (split, dim) = (self.args.split as usize, self.args.dim as usize);
        let rows = self.args.sequences as usize * self.args.queries as usize * self.args.heads as usize;
        let at = row * split + part;
        (self.parts.wrapping_add(2 * at), self.parts.wrapping_add(2 * rows * split + at * dim))
    }

    /// Marks the rows of a sequence with wrong data: a negative sum says that nothing is to be written.
    #[allow(clippy::cast_possible_truncation)] // Parts are few.
    unsafe fn skip(&self, tile: u64, head: u64, part: u64) {
        let a = self.args;
        let (queries, group) = (u64::from(a.queries), u64::from(a.group));
        let each = (queries * group).div_ceil(a.tile.into());
        let (sequence, first) = (tile / each, tile % each * u64::from(a.tile));
        for r in first..(queries * group).min(first + u64::from(a.tile)) {
            let row = self.result(sequence * queries + r / group, head * group + r % group);
            // SAFETY: the parts have a place for each row.
            unsafe { *self.part(row, part as usize).0.add(1) = -1.0 };
        }
    }
}

impl Rows<'_> {
    /// Query and head of row `r`.
    fn place(&self, r: usize) -> (u64, u64) {
        let group = u64::from(self.a.args.group);
        let row = self.piece.first + r as u64;
        (row / group, self.head * group + row % group)
    }

    /// The keys of this part.
    #[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)] // Below 2^31.
    fn keys(&self) -> (i64, i64) {
        let s = &self.piece.sequence;
        let low = self.a.visible(s, self.place(0).0).0;
        let high = self.a.visible(s, self.place(self.piece.count - 1).0).1;
        let count = (high - low).max(0) as u64;
        let each = count.div_ceil(self.a.args.split.into()).next_multiple_of(UNIT) as i64;
        let begin = low + self.part as i64 * each;
        (begin.min(high), (begin + each).min(high))
    }
}

/// A block of keys under work.
struct Block {
    rows: [[*const u8; 2]; KEYS],
    /// What the codes of k and v are multiplied by, where they are codes.
    scales: [[f32; 2]; KEYS],
    scores: [[f32; KEYS]; ROWS],
    products: [[f32; 16 * TOGETHER]; ROWS],
}

impl Task for Rows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: forwarded.
        unsafe {
            match self.piece.count {
                1 => rows::<S, 1>(&self),
                2 => rows::<S, 2>(&self),
                3 | 4 => rows::<S, 4>(&self),
                _ => rows::<S, ROWS>(&self),
            }
        }
    }
}

/// `R` rows, of which the last ones may repeat.
#[inline(always)]
#[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)] // Counts below 2^31.
unsafe fn rows<S: Simd, const R: usize>(w: &Rows<'_>) {
    let (a, dim, s) = (w.a, w.a.args.dim as usize, &w.piece.sequence);
    let padded = dim.next_multiple_of(S::LANES);
    let mut q = [[0.0f32; DIM]; R];
    let mut results = [[0.0f32; DIM]; R];
    let (mut most, mut sum) = ([f32::NEG_INFINITY; R], [0.0f32; R]);
    let mut block = Block {
        rows: [[std::ptr::null(); 2]; KEYS],
        scales: [[1.0; 2]; KEYS],
        scores: [[0.0; KEYS]; ROWS],
        products: [[0.0; 16 * TOGETHER]; ROWS],
    };
    let row = |r: usize| r.min(w.piece.count - 1);
    // SAFETY: forwarded.
    unsafe {
        for (r, q) in q.iter_mut().enumerate() {
            let (t, h) = w.place(row(r));
            widen::<S>(a.q_row(s, t, h), a.dtype, q.as_mut_ptr(), dim);
        }
        let (mut key, end) = w.keys();
        while key < end {
            let keys = (end - key).min(KEYS as i64) as usize;
            for (j, rows) in block.rows[..keys].iter_mut().enumerate() {
                *rows = a.kv_rows(s, key + j as i64, w.head);
            }
            if a.scales.is_some() {
                for (j, scales) in block.scales[..keys].iter_mut().enumerate() {
                    *scales = a.kv_scales(s, key + j as i64, w.head);
                }
            }
            products::<S, R>(a, &q, &mut block, keys, padded);
            for r in 0..R {
                let (t, h) = w.place(row(r));
                // What lies behind the last key counts as hidden.
                let scores = &mut block.scores[r][..keys.next_multiple_of(TOGETHER)];
                for x in scores.iter_mut() {
                    *x *= a.args.scale;
                }
                if a.args.softcap > 0.0 {
                    for x in scores.iter_mut() {
                        *x = a.args.softcap * tanh(*x * a.args.inverse_softcap);
                    }
                }
                scores[keys..].fill(f32::NEG_INFINITY);
                let (low, high) = a.visible(s, t);
                if low > key || high < key + keys as i64 || a.args.mask != 0 {
                    for (j, x) in scores[..keys].iter_mut().enumerate() {
                        let j = key + j as i64;
                        *x = if j >= low && j < high { a.masked(*x, s, t, h, j) } else { f32::NEG_INFINITY };
                    }
                }
                let top = larger(halve(max_of(scores, [f32::NEG_INFINITY; TOGETHER]), larger), most[r]);
                let shift = if top == f32::NEG_INFINITY { 0.0 } else { top };
                let scale = exp(most[r] - shift);
                for x in scores.iter_mut() {
                    *x = exp(*x - shift);
                }
                sum[r] = sum[r] * scale + halve(sum_of(scores, [0.0; TOGETHER]), |a, b| a + b);
                most[r] = top;
                if scale != 1.0 {
                    for x in &mut results[r][..padded] {
                        *x *= scale;
                    }
                }
            }
            values::<S, R>(w, &mut block, &mut results, key, keys, padded);
            key += keys as i64;
        }
        for r in 0..w.piece.count {
            let (t, h) = w.place(r);
            if a.args.split == 1 {
                let factor = a.inverse(h, most[r], sum[r]);
                // A row that sees nothing has no results.
                for x in &mut results[r][..dim] {
                    *x = if sum[r] == 0.0 { factor } else { *x * factor };
                }
                narrow::<S>(results[r].as_ptr(), a.out_row(s, t, h), a.dtype, dim);
            } else {
                let (state, to) = a.part(a.result(s.row + t, h), w.part as usize);
                *state = most[r];
                *state.add(1) = sum[r];
                std::ptr::copy_nonoverlapping(results[r].as_ptr(), to, dim);
            }
        }
    }
}

/// One register of a row; what lies behind its end is 0.
#[inline(always)]
unsafe fn part<S: Simd>(p: *const u8, dtype: DType, d: usize, dim: usize) -> S::V {
    // SAFETY: forwarded.
    unsafe {
        if d + S::LANES <= dim {
            return load::<S>(p.add(d * dtype.size()), dtype);
        }
        let mut last = [0.0f32; 16];
        for (i, x) in last[..dim - d].iter_mut().enumerate() {
            *x = element(p.add((d + i) * dtype.size()), dtype);
        }
        S::load(last.as_ptr())
    }
}

/// Products of R queries and a block of keys.
#[inline(always)]
unsafe fn products<S: Simd, const R: usize>(
    a: &Attention<'_>,
    q: &[[f32; DIM]; R],
    block: &mut Block,
    keys: usize,
    padded: usize,
) {
    let dim = a.args.dim as usize;
    let mut turned = [0.0f32; 16 * TOGETHER];
    for first in (0..keys).step_by(TOGETHER) {
        let count = TOGETHER.min(keys - first);
        // SAFETY: forwarded.
        unsafe {
            for j in 0..count {
                let k = block.rows[first + j][0];
                // Far enough ahead that memory keeps up.
                let ahead = block.rows[(first + j + 8).min(keys - 1)][0];
                for at in (0..dim * a.kv.size()).step_by(64) {
                    S::prefetch(ahead.wrapping_add(at));
                }
                let mut sums = [S::splat(0.0); R];
                for d in (0..padded).step_by(S::LANES) {
                    let k = part::<S>(k, a.kv, d, dim);
                    for (sum, q) in sums.iter_mut().zip(q) {
                        *sum = S::fma(S::load(q.as_ptr().add(d)), k, *sum);
                    }
                }
                for (sum, products) in sums.iter().zip(&mut block.products) {
                    S::store(products.as_mut_ptr().add(j * S::LANES), *sum);
                }
            }
            for r in 0..R {
                let products = block.products[r].as_ptr().cast();
                transpose::<S>(
                    products,
                    S::LANES,
                    [TOGETHER, TOGETHER],
                    S::LANES,
                    turned.as_mut_ptr().cast(),
                    TOGETHER,
                );
                let mut total = [0.0f32; TOGETHER];
                for lanes in turned[..S::LANES * TOGETHER].chunks_exact(TOGETHER) {
                    for (total, x) in total.iter_mut().zip(lanes) {
                        *total += x;
                    }
                }
                if a.scales.is_some() {
                    for (total, scales) in total.iter_mut().zip(&block.scales[first..]) {
                        *total *= scales[0];
                    }
                }
                block.scores[r][first..first + count].copy_from_slice(&total[..count]);
            }
        }
    }
}

/// Adds a block of weighted values.
#[inline(always)]
#[allow(clippy::cast_possible_wrap)]
unsafe fn values<S: Simd, const R: usize>(
    w: &Rows<'_>,
    block: &mut Block,
    results: &mut [[f32; DIM]; R],
    key: i64,
    keys: usize,
    padded: usize,
) {
    // What a place without a value points to, whatever the element type.
    static ZEROS: [f32; DIM] = [0.0; DIM];
    let (a, dim) = (w.a, w.a.args.dim as usize);
    let uneven = a.args.mask != 0 || w.place(0).0 != w.place(w.piece.count - 1).0;
    // SAFETY: forwarded.
    unsafe {
        for j in (0..keys).filter(|_| uneven) {
            let hidden = |r: usize| {
                let (t, h) = w.place(r);
                !a.sees(&w.piece.sequence, t, h, key + j as i64)
            };
            let (v, scale) = (block.rows[j][1], block.scales[j][1]);
            let value = |d: usize| scale * element(v.add(d * a.kv.size()), a.kv);
            if !(0..w.piece.count).any(hidden) || (0..dim).all(|d| value(d).is_finite()) {
                continue;
            }
            // Left out where it is hidden, not multiplied by 0.
            for r in (0..w.piece.count).filter(|&r| !hidden(r)) {
                for (d, x) in results[r][..dim].iter_mut().enumerate() {
                    *x += block.scores[r][j] * value(d);
                }
            }
            block.rows[j][1] = ZEROS.as_ptr().cast();
            block.scales[j][1] = 0.0;
            (0..R).for_each(|r| block.scores[r][j] = 0.0);
        }
        for j in keys..keys.next_multiple_of(PASS) {
            block.rows[j][1] = ZEROS.as_ptr().cast();
            block.scales[j][1] = 0.0;
            (0..R).for_each(|r| block.scores[r][j] = 0.0);
        }
        for first in (0..keys).step_by(PASS) {
            let v: [*const u8; PASS] = std::array::from_fn(|j| block.rows[first + j][1]);
            let ahead = (first + 2 * PASS).min(KEYS - PASS);
            for rows in &block.rows[ahead..ahead + PASS] {
                for at in (0..dim * a.kv.size()).step_by(64) {
                    S::prefetch(rows[1].wrapping_add(at));
                }
            }
            // Loops and no closures of library functions: those are compiled without the instruction set.
            let mut weights = [[S::splat(0.0); PASS]; R];
            for (weights, scores) in weights.iter_mut().zip(&block.scores) {
                for ((weight, score), scales) in weights.iter_mut().zip(&scores[first..]).zip(&block.scales[first..]) {
                    *weight = S::splat(if a.scales.is_some() { *score * scales[1] } else { *score });
                }
            }
            for d in (0..padded).step_by(S::LANES) {
                let mut parts = [S::splat(0.0); PASS];
                for (to, v) in parts.iter_mut().zip(v) {
                    *to = part::<S>(v, a.kv, d, dim);
                }
                for (result, weights) in results.iter_mut().zip(&weights) {
                    let to = result.as_mut_ptr().add(d);
                    let mut sum = S::load(to);
                    for (weight, v) in weights.iter().zip(parts) {
                        sum = S::fma(*weight, v, sum);
                    }
                    S::store(to, sum);
                }
            }
        }
    }
}
