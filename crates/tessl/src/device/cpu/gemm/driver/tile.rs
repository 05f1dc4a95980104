//! One tile of C: all panels of B for some rows of A.

use super::super::super::simd::Simd;
use super::super::super::workspace::Workspace;
use super::super::ahead::{Ahead, NextRows};
use super::super::columns::PackedB;
use super::super::epilogue::{Epilogue, SIMPLE, Tile};
use super::super::late::Late;
use super::super::micro::{Micro, Product};
use super::Driver;
use std::ops::Range;

/// Rows and columns of C, and what is done to them.
struct Region<'a> {
    epilogue: &'a Epilogue,
    rows: Range<usize>,
    columns: Range<usize>,
    /// Columns that a panel is for.
    cols: usize,
}

impl<'a> Region<'a> {
    /// The tile of strip `i` of the panel from column `col` on, whose sums begin at `sums`.
    fn tile<M: Micro>(&self, sums: *mut f32, i: usize, col: usize) -> Tile<'a> {
        let row = self.rows.start + i * M::ROWS;
        let (rows, cols) = (M::ROWS.min(self.rows.end - row), self.cols.min(self.columns.end - col));
        let sums = sums.wrapping_add(i * M::ROWS * M::COLS);
        Tile { epilogue: self.epilogue, sums, ld: M::COLS, up: M::COLS / 2, row, col, rows, cols }
    }
}

impl Driver<'_> {
    /// The rows from `row` on and these columns. `first_panel` is the panel at the start of `b`.
    pub(super) unsafe fn tile<M: Micro>(
        &self,
        b: PackedB,
        z: usize,
        row: usize,
        columns: Range<usize>,
        first_panel: usize,
        threads: usize,
    ) {
        let (op, work) = (self.op, Workspace::get());
        let rows = row..op.m.min(row + self.tile_m);
        let epilogue = &op.epilogue(z, self.cols);
        let region = Region { epilogue, rows: rows.clone(), columns, cols: self.cols };
        let strips = rows.len().div_ceil(M::ROWS);
        let mut ahead = Ahead::new(NextRows::new::<M>(op.a(z), op, row + self.tile_m * threads, self.tile_m));
        let overlaps = M::OVERLAPS && self.padded_k > 0 && self.cols == SIMPLE && epilogue.simple_activation();
        let mut start = 0;
        loop {
            let depth = self.depth.min(self.padded_k - start);
            let last = start + depth == self.padded_k;
            // SAFETY: forwarded; `product` checked that everything fits the workspace.
            unsafe {
                self.pack_a::<M>(z, rows.clone(), start, depth);
                let mut late: Option<Late> = None;
                for (j, col) in region.columns.clone().step_by(self.cols).enumerate() {
                    let sums = work.acc().add(j % self.kept::<M>() * strips * M::ROWS * M::COLS);
                    let panel = b.base.add((col / self.cols - first_panel) * b.panel + start * M::COLS * M::BYTES);
                    // Its activations run beside the next one.
                    let waits = overlaps && last && region.columns.end - col >= SIMPLE;
                    let mut k = 0;
                    loop {
                        let steps = self.tile_k.min(depth - k);
                        let step = M::COLS * M::BYTES;
                        if M::FETCHES_B {
                            // After the last steps of a panel come the first ones of the next.
                            let more = k + steps < depth;
                            let next = if more { panel.add((k + steps) * step) } else { panel.wrapping_add(b.panel) };
                            ahead.expect(next, steps * step);
                        }
                        for i in 0..strips {
                            let tile = region.tile::<M>(sums, i, col);
                            // A part of the rows for each piece of k: the lines under way are few.
                            let part = |at: usize| tile.rows * at / self.padded_k.max(1);
                            let (from, to) = (part(start + k), part(start + k + steps));
                            epilogue.fetch::<M::S>(tile.row + from, col, to - from, tile.cols);
                            let a = work.a().add((i * depth + k) * M::ROWS * M::BYTES).cast_const();
                            let b = panel.add(k * step).cast_const();
                            let next = ahead.take(steps / M::STEP * M::AHEAD).unwrap_or(a);
                            let (acc, first, rows) = (tile.sums, start + k == 0, tile.rows);
                            let product = Product { steps, a, b, acc, first, rows, ahead: next };
                            if let Some(late) = &late {
                                let done = region.tile::<M>(late.sums, i, late.col);
                                let part = |at: usize| done.rows * at / depth;
                                let rows = late.rows(done, part(k)..part(k + steps), steps / M::STEP);
                                M::tile_beside(product, rows);
                            } else {
                                M::tile(product);
                            }
                            if last && k + steps == depth && !waits {
                                M::S::vectorize(tile);
                            }
                        }
                        k += steps;
                        if k == depth {
                            break;
                        }
                    }
                    late = waits.then(|| Late::new::<M::S>(region.tile::<M>(sums, 0, col)));
                }
                if let Some(late) = late {
                    for i in 0..strips {
                        M::S::vectorize(region.tile::<M>(late.sums, i, late.col));
                    }
                }
            }
            start += depth;
            if last {
                break;
            }
        }
        if epilogue.stream {
            // SAFETY: the processor has the instruction set.
            unsafe { M::S::stream_end() };
        }
    }
}
