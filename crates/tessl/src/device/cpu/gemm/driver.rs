//! The blocked product: packs B where it is not packed yet, then walks tiles of C in parallel.
//!
//! A chunk is one tile of C (`tile_m` x `tile_n`, or less where threads would be idle) over all of k. Its thread packs the rows of A into its workspace and
//! multiplies them by one panel of B after the other; `tile_k` steps of a panel stay in the first-level cache while all
//! rows pass. The sums of one element are made in the order of k, in blocks that the plan fixes, and the epilogue sees
//! them once. So results do not depend on the number of threads.
//!
//! Where products keep a unit of their own busy, an activation of a panel's sums runs between the steps of the next panel's
//! products (`late.rs`).
//!
//! A gated product has panels whose first half are columns of the gate and whose second half are the same columns of up.

mod tile;

use super::super::call::KernelCall;
#[cfg(target_arch = "x86_64")]
use super::super::simd::Simd;
use super::super::workspace::{A_BYTES, ACC_BYTES, B_BYTES, Workspace};
use super::blocks;
use super::columns::{PACK_PANELS, PackedB};
#[cfg(target_arch = "x86_64")]
use super::epilogue::Tile;
#[cfg(target_arch = "x86_64")]
use super::micro::Product;
use super::micro::{Micro, Panel, Side};
use super::operands::{Groups, Operands};
use crate::dtype::DType;
use crate::error::FaultKind;
use std::ops::Range;

/// Chunks for each thread, where the product is large enough.
const CHUNKS: usize = 2;
/// The same for few rows, whose chunks cost nothing to cut.
const FEW_ROWS_CHUNKS: usize = 8;
/// Panels of a chunk that are not cut: packing its rows of A would cost too much.
const NARROW: usize = 8;

#[derive(Clone, Copy)]
struct Driver<'a> {
    op: &'a Operands,
    tile_m: usize,
    tile_n: usize,
    tile_k: usize,
    /// Columns of C that a panel of B is for.
    cols: usize,
    /// Steps along k whose rows of A are packed at once.
    depth: usize,
    /// k, up to whole steps.
    padded_k: usize,
}

/// Runs one product of few rows: each chunk packs some columns of B piece by piece and multiplies each piece at once, so
/// that B is read once and never written to memory.
///
/// # Safety
/// As [`run`].
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn run_few_rows<M: Micro>(call: &KernelCall<'_>, input: DType, output: DType) {
    // SAFETY: forwarded.
    let (op, _) = unsafe { Operands::new(call, input, output) };
    if op.m == 0 || op.n == 0 || op.batch == 0 {
        return;
    }
    let driver = Driver::new::<M>(&op);
    let panels = driver.tile_n / driver.cols;
    assert!(op.m <= M::ROWS && !op.packed && op.groups.is_none());
    assert!(panels * M::ROWS * M::COLS * 4 <= ACC_BYTES && panels * M::COLS * driver.tile_k * M::BYTES <= B_BYTES);
    let tiles = op.n.div_ceil(driver.tile_n);
    call.pool().run(op.batch * tiles, &|chunk| {
        let first = chunk % tiles * driver.tile_n;
        // SAFETY: forwarded; chunks write disjoint columns.
        unsafe {
            M::begin();
            driver.few_rows::<M>(chunk / tiles, first..op.n.min(first + driver.tile_n));
            M::end();
        }
    });
}

/// Runs one product, or the product of each group, with tiles of `M`.
///
/// # Safety
/// The bindings are as [`Operands::new`] describes, and the processor has `M`'s instructions.
pub(super) unsafe fn run<M: Micro>(call: &KernelCall<'_>, input: DType, output: DType) {
    // SAFETY: forwarded.
    unsafe {
        let (op, scratch) = Operands::new(call, input, output);
        match op.groups {
            None => product::<M>(call, &op, scratch),
            Some(groups) => {
                if !groups.are_valid(call, op.m) {
                    return;
                }
                for (g, rows) in groups.rows().enumerate().filter(|(_, rows)| !rows.is_empty()) {
                    product::<M>(call, &op.group(g, rows.start, rows.len()), scratch);
                }
            }
        }
    }
}

impl Groups {
    fn offset(&self, g: usize) -> usize {
        // SAFETY: there are `count + 1` offsets.
        unsafe { *self.offsets.add(g) as usize }
    }

    /// Reports the first offset that decreases or passes the end.
    fn are_valid(&self, call: &KernelCall<'_>, rows: usize) -> bool {
        let bad = |g: &usize| self.offset(*g) > rows || (*g > 0 && self.offset(*g) < self.offset(*g - 1));
        let Some(g) = (0..=self.count).find(bad) else { return true };
        call.fault(FaultKind::BadLength, g as u64, i64::try_from(self.offset(g)).unwrap_or(i64::MAX));
        false
    }

    fn rows(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.count).map(move |g| self.offset(g)..self.offset(g + 1))
    }
}

unsafe fn product<M: Micro>(call: &KernelCall<'_>, op: &Operands, scratch: Option<(*mut u8, usize)>) {
    if op.m == 0 || op.n == 0 || op.batch == 0 {
        return;
    }
    let driver = Driver::new::<M>(op);
    let (padded_k, cols) = (driver.padded_k, driver.cols);
    // INVARIANT of plans: all sums of a tile fit the workspace when its rows of A do not.
    let kept = driver.kept::<M>() * M::COLS;
    assert!(driver.tile_m.next_multiple_of(M::ROWS) * kept * 4 <= ACC_BYTES, "tile of sums");
    let panels = op.n.div_ceil(cols);
    let to = |base| PackedB::new::<M>(base, padded_k, panels);
    // SAFETY: forwarded.
    unsafe {
        if op.packed {
            driver.packed::<M>(call, to(op.b(0).ptr.cast_mut()));
        } else if let Some((base, bytes)) = scratch {
            driver.shared::<M>(call, to(base), bytes / to(base).panel.max(1));
        } else {
            driver.local::<M>(call, panels);
        }
    }
}

impl<'a> Driver<'a> {
    fn new<M: Micro>(op: &'a Operands) -> Self {
        let (tile_m, tile_n, tile_k) = op.tile;
        let panels_m = tile_m.div_ceil(M::ROWS);
        let padded_k = op.k.next_multiple_of(M::STEP);
        let cols = op.columns(0).of_panel::<M>();
        // INVARIANT of plans: one block along k of a tile's rows fits the workspace.
        assert!(tile_m > 0 && tile_n.is_multiple_of(cols) && tile_k > 0 && tile_k.is_multiple_of(M::STEP));
        let depth = A_BYTES / (panels_m * M::ROWS * M::BYTES) / tile_k * tile_k;
        assert!(depth >= tile_k, "tile of A");
        Driver { op, tile_m, tile_n, tile_k, cols, depth, padded_k }
    }

    /// Panels whose sums are kept at once: all of a tile while there is more of k to come, else those at work.
    fn kept<M: Micro>(&self) -> usize {
        if self.padded_k > self.depth { self.tile_n / self.cols } else { 1 + usize::from(M::OVERLAPS) }
    }

    /// All rows and these columns of matrix `z`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn few_rows<M: Micro>(&self, z: usize, columns: Range<usize>) {
        let (op, work, rows) = (self.op, Workspace::get(), self.op.m);
        let panels = columns.start / self.cols..columns.end.div_ceil(self.cols);
        let piece = PackedB::new::<M>(work.b(), self.tile_k, panels.len());
        let sums = |panel: usize| work.acc().wrapping_add((panel - panels.start) * M::ROWS * M::COLS);
        let mut start = 0;
        // SAFETY: forwarded; `run_few_rows` checked that everything fits the workspace.
        unsafe {
            loop {
                if start % self.depth == 0 {
                    self.pack_a::<M>(z, 0..rows, start, self.depth.min(self.padded_k - start));
                }
                let steps = self.tile_k.min(self.padded_k - start);
                op.columns(z).pack::<M>(piece, panels.start, panels.clone(), start..op.k.min(start + steps));
                for panel in panels.clone() {
                    let a = work.a().add(start % self.depth * M::ROWS * M::BYTES);
                    let b = piece.base.add((panel - panels.start) * piece.panel);
                    let (acc, first, ahead) = (sums(panel), start == 0, a);
                    M::tile(Product { steps, a, b, acc, first, rows, ahead });
                }
                start += steps;
                if start == self.padded_k {
                    break;
                }
            }
            let epilogue = &op.epilogue(z, self.cols);
            for panel in panels.clone() {
                let col = panel * self.cols;
                let (sums, ld, up, cols) = (sums(panel), M::COLS, M::COLS / 2, self.cols.min(columns.end - col));
                M::S::vectorize(Tile { epilogue, sums, ld, up, row: 0, col, rows, cols });
            }
            if epilogue.stream {
                M::S::stream_end();
            }
        }
    }

    /// Small matrices: one chunk is one product with a B of its own.
    unsafe fn local<M: Micro>(&self, call: &KernelCall<'_>, panels: usize) {
        let bytes = panels * self.padded_k * M::COLS * M::BYTES;
        assert!(bytes <= B_BYTES, "packed B");
        call.pool().run(self.op.batch, &|z| {
            let b = PackedB::new::<M>(Workspace::get().b(), self.padded_k, panels);
            // SAFETY: forwarded; the workspace belongs to this thread.
            unsafe {
                self.pack_b::<M>(b, z, 0, 0..panels);
                M::begin();
                for row in (0..self.op.m).step_by(self.tile_m) {
                    for col in (0..self.op.n).step_by(self.tile_n) {
                        self.tile::<M>(b, z, row, col..self.op.n.min(col + self.tile_n), 0, 1);
                    }
                }
                M::end();
            }
        });
    }

    /// B is packed into `capacity` panels of shared memory, for as many columns at a time as fit.
    unsafe fn shared<M: Micro>(&self, call: &KernelCall<'_>, b: PackedB, capacity: usize) {
        let op = self.op;
        let panels = op.n.div_ceil(self.cols);
        // Whole tiles, or everything.
        let block = if capacity >= panels { panels } else { capacity - capacity % (self.tile_n / self.cols) };
        assert!(block > 0, "scratch for packed B");
        let once = op.b_bs == 0 && block == panels;
        // Matrices that share a region, and how often.
        let (together, times) = if once { (op.batch, 1) } else { (1, op.batch) };
        for z in 0..times {
            for first in (0..panels).step_by(block) {
                let count = block.min(panels - first);
                call.pool().run(count.div_ceil(PACK_PANELS), &|chunk| {
                    let range = first + chunk * PACK_PANELS..first + count.min((chunk + 1) * PACK_PANELS);
                    // SAFETY: forwarded; chunks pack disjoint panels.
                    unsafe { self.pack_b::<M>(b, z, first, range) };
                });
                let columns = first * self.cols..op.n.min((first + count) * self.cols);
                // SAFETY: forwarded.
                unsafe { self.tiles::<M>(call, &|_| b, z..z + together, columns, first) };
            }
        }
    }

    /// B is packed already.
    unsafe fn packed<M: Micro>(&self, call: &KernelCall<'_>, b: PackedB) {
        let of_matrix = |z: usize| if self.op.b_bs == 0 { b } else { b.matrix(self.op.first_matrix + z) };
        // SAFETY: forwarded.
        unsafe { self.tiles::<M>(call, &of_matrix, 0..self.op.batch, 0..self.op.n, 0) };
    }

    /// The tiles of these matrices and columns, in one region.
    unsafe fn tiles<M: Micro>(
        &self,
        call: &KernelCall<'_>,
        b: &(dyn Fn(usize) -> PackedB + Sync),
        matrices: Range<usize>,
        columns: Range<usize>,
        first_panel: usize,
    ) {
        let threads = call.pool().threads();
        let driver = self.cut::<M>(matrices.len(), columns.len(), threads);
        let (tiles_m, tiles_n) = (self.op.m.div_ceil(driver.tile_m), columns.len().div_ceil(driver.tile_n));
        call.pool().run(matrices.len() * tiles_m * tiles_n, &|chunk| {
            let (z, tile) = (matrices.start + chunk / (tiles_m * tiles_n), chunk % (tiles_m * tiles_n));
            // Down the rows first, so that a thread keeps its columns of B.
            let (i, j) = (tile % tiles_m, tile / tiles_m);
            let col = columns.start + j * driver.tile_n;
            // SAFETY: forwarded; chunks write disjoint tiles of C.
            unsafe {
                M::begin();
                let columns = col..columns.end.min(col + driver.tile_n);
                driver.tile::<M>(b(z), z, i * driver.tile_m, columns, first_panel, threads);
                M::end();
            }
        });
    }

    /// The same with smaller tiles, where `threads` would otherwise have too few. Sums are made in the same order.
    fn cut<M: Micro>(&self, matrices: usize, columns: usize, threads: usize) -> Self {
        let mut driver = *self;
        let few = self.op.m <= M::ROWS;
        let (each, narrow) = if few { (FEW_ROWS_CHUNKS, 1) } else { (CHUNKS, NARROW) };
        let wanted = if threads == 1 { 1 } else { each * threads };
        let half = |size: usize, unit: usize| size.div_ceil(2).next_multiple_of(unit);
        loop {
            let count = matrices * self.op.m.div_ceil(driver.tile_m) * columns.div_ceil(driver.tile_n);
            if count >= wanted {
                return driver;
            }
            if driver.tile_n > narrow * self.cols {
                driver.tile_n = half(driver.tile_n.min(columns.next_multiple_of(self.cols)), self.cols);
            } else if driver.tile_m > 2 * M::ROWS {
                driver.tile_m = half(driver.tile_m.min(self.op.m), M::ROWS);
            } else {
                return driver;
            }
        }
    }

    /// Packs `panels` of matrix `z`; `first` is the panel at the start of the memory.
    unsafe fn pack_b<M: Micro>(&self, b: PackedB, z: usize, first: usize, panels: Range<usize>) {
        // SAFETY: forwarded.
        unsafe {
            self.op.columns(z).pack::<M>(b, first, panels.clone(), 0..self.op.k);
            if let Some(scales) = self.op.blocks {
                for panel in panels {
                    let dst = b.base.add((panel - first) * b.panel).cast();
                    blocks::scale_b(dst, M::COLS, panel * M::COLS, self.op.n, self.op.k, scales.b);
                }
            }
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
                let (first_step, width) = (start, M::ROWS);
                M::pack(Panel { source, side: Side::A, first_lane, lanes, first_step, steps, place: 0, width, dst });
                if let Some(scales) = self.op.blocks {
                    blocks::scale_a(
                        dst.cast(),
                        M::ROWS,
                        first_lane..first_lane + lanes,
                        start,
                        steps,
                        self.op.k,
                        scales.a,
                    );
                }
            }
        }
    }
}
