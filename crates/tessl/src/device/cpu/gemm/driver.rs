//! The blocked product: packs B, then walks tiles of C in parallel.
//!
//! A chunk is one tile of C (`tile_m` x `tile_n`) over all of k. Its thread packs the rows of A into its workspace and
//! multiplies them by one panel of B after the other; `tile_k` steps of a panel stay in the first-level cache while all
//! rows pass. The sums of one element are made in the order of k, in blocks that the plan fixes, and the epilogue sees
//! them once. So results do not depend on the number of threads.

use super::super::call::KernelCall;
use super::super::simd::Simd;
use super::super::workspace::{A_BYTES, ACC_BYTES, B_BYTES, Workspace};
use super::epilogue::Tile;
use super::micro::{Micro, Panel, Side};
use super::operands::Operands;
use crate::dtype::DType;
use std::ops::Range;

/// Panels of B that one chunk packs.
const PACK_PANELS: usize = 4;
/// Steps along k that it packs before it goes on to the next panel: a multiple of every `Micro::STEP`.
const PACK_STEPS: usize = 64;

struct Driver<'a> {
    op: &'a Operands,
    tile_m: usize,
    tile_n: usize,
    tile_k: usize,
    /// Steps along k whose rows of A are packed at once.
    depth: usize,
    /// k, up to whole steps.
    padded_k: usize,
}

/// Packed columns of B.
#[derive(Clone, Copy)]
struct PackedB {
    base: *mut u8,
    /// Bytes of one panel.
    panel: usize,
}

// SAFETY: threads pack disjoint panels, and only read them in later regions.
unsafe impl Sync for PackedB {}

/// Runs one product with tiles of `M`.
///
/// # Safety
/// The bindings are as [`Operands::new`] describes, and the processor has `M`'s instructions.
pub(super) unsafe fn run<M: Micro>(call: &KernelCall<'_>, input: DType, output: DType) {
    // SAFETY: forwarded.
    let (op, scratch) = unsafe { Operands::new(call, input, output) };
    if op.m == 0 || op.n == 0 || op.batch == 0 {
        return;
    }
    let (tile_m, tile_n, tile_k) = op.tile;
    let panels_m = tile_m.div_ceil(M::ROWS);
    let padded_k = op.k.next_multiple_of(M::STEP);
    // INVARIANT of plans: one block along k of a tile's rows fits the workspace, and so do all sums of a tile when its
    // rows of A do not.
    assert!(tile_m > 0 && tile_n.is_multiple_of(M::COLS) && tile_k > 0 && tile_k.is_multiple_of(M::STEP));
    let depth = A_BYTES / (panels_m * M::ROWS * M::BYTES) / tile_k * tile_k;
    assert!(depth >= tile_k, "tile of A");
    let kept = if padded_k > depth { tile_n } else { M::COLS };
    assert!(panels_m * M::ROWS * kept * 4 <= ACC_BYTES, "tile of sums");
    let driver = Driver { op: &op, tile_m, tile_n, tile_k, depth, padded_k };
    let panel = padded_k * M::COLS * M::BYTES;
    // SAFETY: forwarded.
    unsafe {
        match scratch {
            Some((base, bytes)) => driver.shared::<M>(call, PackedB { base, panel }, bytes / panel.max(1)),
            None => driver.local::<M>(call, panel),
        }
    }
}

impl Driver<'_> {
    /// Small matrices: one chunk is one product with a B of its own.
    unsafe fn local<M: Micro>(&self, call: &KernelCall<'_>, panel: usize) {
        assert!(self.op.n.div_ceil(M::COLS) * panel <= B_BYTES, "packed B");
        call.pool().run(self.op.batch, &|z| {
            let b = PackedB { base: Workspace::get().b(), panel };
            // SAFETY: forwarded; the workspace belongs to this thread.
            unsafe {
                self.pack_b::<M>(b, z, 0, 0..self.op.n.div_ceil(M::COLS));
                M::begin();
                for row in (0..self.op.m).step_by(self.tile_m) {
                    for col in (0..self.op.n).step_by(self.tile_n) {
                        self.tile::<M>(b, z, row, col..self.op.n.min(col + self.tile_n), 0);
                    }
                }
                M::end();
            }
        });
    }

    /// B is packed into `capacity` panels of shared memory, for as many columns at a time as fit.
    unsafe fn shared<M: Micro>(&self, call: &KernelCall<'_>, b: PackedB, capacity: usize) {
        let op = self.op;
        let panels = op.n.div_ceil(M::COLS);
        // Whole tiles, or everything.
        let block = if capacity >= panels { panels } else { capacity - capacity % (self.tile_n / M::COLS) };
        assert!(block > 0, "scratch for packed B");
        let once = op.b_bs == 0 && block == panels;
        // Matrices that share a region, and how often.
        let (together, times) = if once { (op.batch, 1) } else { (1, op.batch) };
        let tiles_m = op.m.div_ceil(self.tile_m);
        for z in 0..times {
            for first in (0..panels).step_by(block) {
                let count = block.min(panels - first);
                call.pool().run(count.div_ceil(PACK_PANELS), &|chunk| {
                    let range = first + chunk * PACK_PANELS..first + count.min((chunk + 1) * PACK_PANELS);
                    // SAFETY: forwarded; chunks pack disjoint panels.
                    unsafe { self.pack_b::<M>(b, z, first, range) };
                });
                let columns = first * M::COLS..op.n.min((first + count) * M::COLS);
                let tiles_n = columns.len().div_ceil(self.tile_n);
                call.pool().run(together * tiles_m * tiles_n, &|chunk| {
                    let (matrix, tile) = (z + chunk / (tiles_m * tiles_n), chunk % (tiles_m * tiles_n));
                    // Down the rows first, so that a thread keeps its columns of B.
                    let (i, j) = (tile % tiles_m, tile / tiles_m);
                    let col = columns.start + j * self.tile_n;
                    // SAFETY: forwarded; chunks write disjoint tiles of C.
                    unsafe {
                        M::begin();
                        self.tile::<M>(b, matrix, i * self.tile_m, col..columns.end.min(col + self.tile_n), first);
                        M::end();
                    }
                });
            }
        }
    }

    /// Packs `panels` of matrix `z`; `first` is the panel at the start of the memory.
    unsafe fn pack_b<M: Micro>(&self, b: PackedB, z: usize, first: usize, panels: Range<usize>) {
        let source = self.op.b(z);
        // All panels of a few steps at a time: the pieces of one row of B lie side by side.
        for first_step in (0..self.op.k).step_by(PACK_STEPS) {
            let steps = PACK_STEPS.min(self.op.k - first_step);
            for panel in panels.clone() {
                let first_lane = panel * M::COLS;
                let lanes = M::COLS.min(self.op.n - first_lane);
                // SAFETY: forwarded; the panel is inside the packed memory.
                unsafe {
                    let dst = b.base.add((panel - first) * b.panel + first_step * M::COLS * M::BYTES);
                    M::pack(Panel { source, side: Side::B, first_lane, lanes, first_step, steps, dst });
                }
            }
        }
    }

    /// One tile of C.
    unsafe fn tile<M: Micro>(&self, b: PackedB, z: usize, row: usize, columns: Range<usize>, first_panel: usize) {
        let op = self.op;
        let (work, epilogue) = (Workspace::get(), op.epilogue(z));
        let rows = self.tile_m.min(op.m - row);
        let strips = rows.div_ceil(M::ROWS);
        let sums_of_panel = if self.padded_k > self.depth { strips * M::ROWS * M::COLS } else { 0 };
        let mut start = 0;
        loop {
            let depth = self.depth.min(self.padded_k - start);
            let last = start + depth == self.padded_k;
            // SAFETY: forwarded; `run` checked that everything fits the workspace.
            unsafe {
                self.pack_a::<M>(z, row..row + rows, start, depth);
                for (j, col) in columns.clone().step_by(M::COLS).enumerate() {
                    let sums = work.acc().add(j * sums_of_panel);
                    let panel = b.base.add((col / M::COLS - first_panel) * b.panel + start * M::COLS * M::BYTES);
                    let cols = M::COLS.min(columns.end - col);
                    let mut k = 0;
                    loop {
                        let steps = self.tile_k.min(depth - k);
                        let finished = last && k + steps == depth;
                        for i in 0..strips {
                            let (row, rows) = (row + i * M::ROWS, M::ROWS.min(rows - i * M::ROWS));
                            let a = work.a().add((i * depth + k) * M::ROWS * M::BYTES);
                            let b = panel.add(k * M::COLS * M::BYTES);
                            let sums = sums.add(i * M::ROWS * M::COLS);
                            if finished {
                                epilogue.fetch::<M::S>(row, col, rows, cols);
                            }
                            M::tile(steps, a, b, sums, start + k == 0);
                            if finished {
                                let epilogue = &epilogue;
                                M::S::vectorize(Tile { epilogue, sums, ld: M::COLS, row, col, rows, cols });
                            }
                        }
                        k += steps;
                        if k == depth {
                            break;
                        }
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

    unsafe fn pack_a<M: Micro>(&self, z: usize, rows: Range<usize>, start: usize, depth: usize) {
        let source = self.op.a(z);
        let steps = depth.min(self.op.k - start);
        for (i, first_lane) in rows.clone().step_by(M::ROWS).enumerate() {
            let lanes = M::ROWS.min(rows.end - first_lane);
            // SAFETY: forwarded.
            unsafe {
                let dst = Workspace::get().a().add(i * depth * M::ROWS * M::BYTES);
                M::pack(Panel { source, side: Side::A, first_lane, lanes, first_step: start, steps, dst });
            }
        }
    }
}
