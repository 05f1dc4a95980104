//! Attention for many queries: tiles of scores and of results, by the micro-kernels of matrix products.
//!
//! Scores are kept transposed, keys by queries, so that a query is a lane of a vector: maxima and sums need no work across
//! lanes, and scores that have become weights are already the packed operand of the second product. Where packed elements
//! are bf16 (AMX), a weight becomes the sum of two of them, within 2^-17.

use super::super::call::KernelCall;
use super::super::convert::{element, narrow};
use super::super::gemm::micro::{Micro, Panel, Product, Side};
use super::super::gemm::pack::Source;
use super::super::simd::{Simd, Task};
use super::super::workspace::{A_BYTES, ACC_BYTES, B_BYTES, Workspace};
use super::weights::{Decode, Finite, Halves, Hide, Lanes, Rescale, Scale, Weigh};
use super::{Attention, Piece};
use crate::dtype::DType;
use std::marker::PhantomData;

/// Queries of one piece: a multiple of every micro-kernel's columns.
pub(in super::super) const QUERIES: usize = 192;
/// Keys taken at once: a multiple of every micro-kernel's rows.
const KEYS: usize = 96;
/// Elements of a head, at most.
const DIM: usize = 512;
/// Columns of the widest micro-kernel.
pub(super) const LANES: usize = 32;

const _: () = assert!(QUERIES * DIM * 4 <= B_BYTES && QUERIES * (DIM + LANES) * 4 <= ACC_BYTES);
const _: () = assert!((3 * (DIM + LANES) + QUERIES) * KEYS * 4 <= A_BYTES);
const _: () = assert!(KEYS.is_multiple_of(32), "whole steps of every micro-kernel");

/// Where a piece keeps what.
struct Work<'a, M> {
    a: &'a Attention<'a>,
    piece: Piece,
    head: u64,
    dim: usize,
    /// Elements of a head as they are packed, in bytes of a lane.
    lane: usize,
    /// Panels of queries, and of elements of a head.
    panels: usize,
    deep: usize,
    q: *mut u8,
    k: *mut u8,
    v: *mut u8,
    scores: *mut f32,
    /// Pages side by side, then the halves of weights.
    staged: *mut u8,
    results: *mut f32,
    micro: PhantomData<M>,
}

/// One launch: a chunk of the pool is one head's piece of queries.
pub(super) unsafe fn run<M: Micro>(call: &KernelCall<'_>, dtype: DType) {
    let all = Attention::new(call, dtype);
    all.check(call);
    let heads = u64::from(all.args.heads);
    let work = usize::try_from(all.args.work).expect("INVARIANT: rows lie in memory");
    call.pool().run(work, &|i| {
        let all = &all;
        let (tile, head) = (u64::from(all.args.tiles) - 1 - i as u64 / heads, i as u64 % heads);
        if let Some(Ok(piece)) = all.piece(tile, 1) {
            // SAFETY: forwarded; pieces are disjoint rows of out.
            unsafe {
                M::begin();
                Work::<M>::new(all, piece, head).run();
                M::end();
            }
        }
    });
}

impl<'a, M: Micro> Work<'a, M> {
    fn new(a: &'a Attention<'a>, piece: Piece, head: u64) -> Self {
        let space = Workspace::get();
        let dim = a.args.dim as usize;
        let lane = dim.next_multiple_of(M::STEP) * M::BYTES;
        let (panels, deep) = (piece.count.div_ceil(M::COLS), dim.div_ceil(M::ROWS));
        let k = space.a();
        let v = k.wrapping_add(KEYS * (DIM + LANES) * 4);
        let staged = v.wrapping_add(KEYS * (DIM + LANES) * 4);
        let scores = staged.wrapping_add(KEYS * (DIM + LANES) * 4).cast();
        let (q, results) = (space.b(), space.acc());
        Work { a, piece, head, dim, lane, panels, deep, q, k, v, scores, staged, results, micro: PhantomData }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)] // Below 2^31.
    unsafe fn run(&self) {
        let (a, piece) = (self.a, &self.piece);
        let s = &piece.sequence;
        let low = a.visible(s, piece.first).0;
        let high = a.visible(s, piece.first + piece.count as u64 - 1).1;
        let mut lanes = [Lanes { most: [f32::NEG_INFINITY; LANES], sum: [0.0; LANES], started: false }; QUERIES / 8];
        // SAFETY: forwarded; the asserts above say that everything fits the workspace.
        unsafe {
            self.pack_queries();
            let (mut key, mut scales) = (low, [[1.0f32; 2]; KEYS]);
            while key < high {
                let keys = (high - key).min(KEYS as i64) as usize;
                let finite = self.pack_keys(key, keys, &mut scales);
                let scales = a.scales.is_some().then_some(&scales[..keys]);
                for (panel, lanes) in lanes[..self.panels].iter_mut().enumerate() {
                    self.step(panel, lanes, key, keys, finite, scales);
                }
                key += keys as i64;
            }
            for (panel, lanes) in lanes[..self.panels].iter().enumerate() {
                self.store(panel, lanes);
            }
        }
    }

    unsafe fn pack_queries(&self) {
        let (a, piece) = (self.a, &self.piece);
        let lane = usize::try_from(a.args.q_t).expect("INVARIANT: offsets fit memory");
        let source = Source { ptr: a.q_row(&piece.sequence, piece.first, self.head), dtype: a.dtype, lane, step: 1 };
        for panel in 0..self.panels {
            let first_lane = panel * M::COLS;
            let lanes = M::COLS.min(piece.count - first_lane);
            let dst = self.q.wrapping_add(panel * M::COLS * self.lane);
            // SAFETY: forwarded.
            unsafe {
                let (side, steps, width) = (Side::B, self.dim, M::COLS);
                M::pack(Panel { source, side, first_lane, lanes, first_step: 0, steps, place: 0, width, dst });
            }
        }
    }

    /// Packs `keys` keys and values from `key` on, with their scales; whether all values are finite.
    #[allow(clippy::cast_possible_wrap)]
    unsafe fn pack_keys(&self, key: i64, keys: usize, scales: &mut [[f32; 2]; KEYS]) -> bool {
        let (a, dim) = (self.a, self.dim);
        let stride = |t: u64| usize::try_from(t).expect("INVARIANT: offsets fit memory");
        let mut finite = true;
        if a.scales.is_some() {
            for (j, scales) in scales[..keys].iter_mut().enumerate() {
                *scales = a.kv_scales(&self.piece.sequence, key + j as i64, self.kv_head());
                finite &= scales[1].is_finite();
            }
        }
        for (i, token) in [stride(a.args.k_t), stride(a.args.v_t)].into_iter().enumerate() {
            let (mut ptr, mut token) = (self.kv_row(i, key), token);
            // SAFETY: forwarded.
            unsafe {
                if a.args.page > 0 || a.scales.is_some() {
                    // Pages lie anywhere: copied side by side first. Codes become numbers of q's type, exactly.
                    let bytes = dim * a.dtype.size();
                    for j in 0..keys {
                        let (from, to) = (self.kv_row(i, key + j as i64), self.staged.add(j * bytes));
                        if a.scales.is_some() {
                            M::S::vectorize(Decode { from: from.cast(), to, dtype: a.dtype, n: dim });
                        } else {
                            std::ptr::copy_nonoverlapping(from, to, bytes);
                        }
                    }
                    (ptr, token) = (self.staged.cast_const(), dim);
                }
                let panel = |source, first_lane, all: usize, steps, dst| {
                    let lanes = M::ROWS.min(all - first_lane);
                    let (side, width) = (Side::A, M::ROWS);
                    M::pack(Panel { source, side, first_lane, lanes, first_step: 0, steps, place: 0, width, dst });
                };
                if i == 0 {
                    let source = Source { ptr, dtype: a.dtype, lane: token, step: 1 };
                    for first in (0..keys).step_by(M::ROWS) {
                        panel(source, first, keys, dim, self.k.add(first * self.lane));
                    }
                } else {
                    let source = Source { ptr, dtype: a.dtype, lane: 1, step: token };
                    for (p, first) in (0..dim).step_by(M::ROWS).enumerate() {
                        panel(source, first, dim, keys, self.v_panel(p));
                    }
                    M::S::vectorize(Finite { ptr, dtype: a.dtype, token, keys, dim, finite: &mut finite });
                }
            }
        }
        finite
    }

    fn kv_head(&self) -> u64 {
        self.head / u64::from(self.a.args.group)
    }

    /// The row of key `j` (0) or of its value (1).
    fn kv_row(&self, which: usize, j: i64) -> *const u8 {
        self.a.kv_rows(&self.piece.sequence, j, self.kv_head())[which]
    }

    fn v_panel(&self, panel: usize) -> *mut u8 {
        self.v.wrapping_add(panel * M::ROWS * KEYS * M::BYTES)
    }

    /// Adds `keys` keys to one panel of queries.
    #[allow(clippy::cast_possible_wrap)]
    unsafe fn step(
        &self,
        panel: usize,
        lanes: &mut Lanes,
        key: i64,
        keys: usize,
        finite: bool,
        scales: Option<&[[f32; 2]]>,
    ) {
        let (a, s) = (self.a, &self.piece.sequence);
        let first = self.piece.first + (panel * M::COLS) as u64;
        let count = M::COLS.min(self.piece.count - panel * M::COLS);
        let (least, most) = (a.visible(s, first), a.visible(s, first + count as u64 - 1));
        let end = key + keys as i64;
        if end <= least.0 || key >= most.1 {
            return;
        }
        let whole = most.0 <= key && least.1 >= end && a.args.mask == 0;
        let scores = self.scores.wrapping_add(panel * KEYS * M::COLS);
        // SAFETY: forwarded.
        unsafe {
            for first in (0..keys).step_by(M::ROWS) {
                let (k, q) = (self.k.add(first * self.lane), self.q.add(panel * M::COLS * self.lane));
                let (steps, acc) = (self.lane / M::BYTES, scores.add(first * M::COLS));
                M::tile(Product { steps, a: k, b: q, acc, first: true, rows: M::ROWS, ahead: k });
            }
            let mut scale = [1.0f32; LANES];
            let hide = (!whole).then_some(Hide { a, s, head: self.head, first, count, key });
            let scale_of = &mut scale;
            M::S::vectorize(Weigh::<M> { a, scores, keys, scales, lanes, scale: scale_of, hide, micro: PhantomData });
            let results = self.results.add(panel * self.deep * M::ROWS * M::COLS);
            if lanes.started && scale[..M::COLS].iter().any(|&x| x != 1.0) {
                M::S::vectorize(Rescale::<M> { results, rows: self.deep * M::ROWS, scale: &scale, micro: PhantomData });
            }
            // A half of a weight may be 0 where the weight is not: no factor of an infinite value.
            if finite || (whole && M::BYTES == 4 && scales.is_none()) {
                if let Some(scales) = scales {
                    M::S::vectorize(Scale::<M> { scores, scales, micro: PhantomData });
                }
                self.add_all(scores, results, keys, !lanes.started);
            } else {
                if !lanes.started {
                    std::ptr::write_bytes(results, 0, self.deep * M::ROWS * M::COLS);
                }
                self.add_seen(scores, results, key, keys, first, count);
            }
        }
        lanes.started = true;
    }

    /// The second product.
    unsafe fn add_all(&self, scores: *mut f32, results: *mut f32, keys: usize, first: bool) {
        let steps = keys.next_multiple_of(M::STEP);
        let mut weights = [scores.cast::<u8>(), std::ptr::null_mut()];
        // SAFETY: forwarded.
        unsafe {
            if M::BYTES == 2 {
                let bytes = KEYS * M::COLS * M::BYTES;
                weights = [self.staged, self.staged.add(bytes)];
                M::S::vectorize(Halves { scores, keys, steps, halves: weights.map(|w| w.cast()) });
            }
            for p in 0..self.deep {
                for (i, w) in weights[..4 / M::BYTES].iter().enumerate() {
                    let (a, b, acc) = (self.v_panel(p).cast_const(), *w, results.add(p * M::ROWS * M::COLS));
                    M::tile(Product { steps, a, b, acc, first: first && i == 0, rows: M::ROWS, ahead: b });
                }
            }
        }
    }

    /// The second product for values that are not all finite: what is hidden is left out, not multiplied by 0.
    #[allow(clippy::cast_possible_wrap)]
    unsafe fn add_seen(&self, scores: *mut f32, results: *mut f32, key: i64, keys: usize, first: u64, count: usize) {
        let (s, kv) = (&self.piece.sequence, self.a.kv);
        for (j, lane) in (0..keys).flat_map(|j| (0..count).map(move |lane| (j, lane))) {
            if self.a.sees(s, first + lane as u64, self.head, key + j as i64) {
                let v = self.kv_row(1, key + j as i64);
                let scale = self.a.kv_scales(s, key + j as i64, self.kv_head())[1];
                for d in 0..self.dim {
                    // SAFETY: forwarded.
                    unsafe {
                        let v = scale * element(v.add(d * kv.size()), kv);
                        *results.add(d * M::COLS + lane) += *scores.add(j * M::COLS + lane) * v;
                    }
                }
            }
        }
    }

    /// Writes the rows of one panel.
    unsafe fn store(&self, panel: usize, lanes: &Lanes) {
        let count = M::COLS.min(self.piece.count - panel * M::COLS);
        let results = self.results.wrapping_add(panel * self.deep * M::ROWS * M::COLS);
        let mut row = [0.0f32; DIM];
        for lane in 0..count {
            let factor = self.a.inverse(self.head, lanes.most[lane], lanes.sum[lane]);
            let t = self.piece.first + (panel * M::COLS + lane) as u64;
            let to = self.a.out_row(&self.piece.sequence, t, self.head);
            // SAFETY: forwarded.
            unsafe {
                for (d, x) in row[..self.dim].iter_mut().enumerate() {
                    // A row that sees nothing has no results.
                    *x = if lanes.sum[lane] == 0.0 { factor } else { *results.add(d * M::COLS + lane) * factor };
                }
                M::S::vectorize(Narrow { from: row.as_ptr(), to, dtype: self.a.dtype, n: self.dim });
            }
        }
    }
}

struct Narrow {
    from: *const f32,
    to: *mut u8,
    dtype: DType,
    n: usize,
}

impl Task for Narrow {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: forwarded.
        unsafe { narrow::<S>(self.from, self.to, self.dtype, self.n) }
    }
}
