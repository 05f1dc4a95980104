//! `C = act(alpha * row_scale * col_scale * sum + beta * C + bias) [* the same of up] + residual` on one tile of sums.

use super::super::convert::{element, narrow, widen};
use super::super::simd::{Simd, Task};
use super::activation::activate;
use crate::dtype::DType;
use crate::gemm::Activation;

/// Columns of the widest tile.
pub(super) const MAX_COLUMNS: usize = 64;
/// Columns of a row that the compiler may know.
pub(super) const SIMPLE: usize = 32;
/// Bytes of a cache line.
const LINE: usize = 64;

/// One value per row or column; null where there is none.
#[derive(Clone, Copy)]
pub(super) struct Vector {
    pub(super) ptr: *const u8,
    pub(super) dtype: DType,
}

impl Vector {
    fn is_some(&self) -> bool {
        !self.ptr.is_null()
    }

    fn skip(self, i: usize) -> Self {
        let ptr = if self.is_some() { self.ptr.wrapping_add(i * self.dtype.size()) } else { self.ptr };
        Vector { ptr, ..self }
    }

    /// Value `i`.
    #[inline(always)]
    unsafe fn get(&self, i: usize) -> f32 {
        // SAFETY: forwarded: the vector has a value for each row.
        unsafe { element(self.ptr.wrapping_add(i * self.dtype.size()), self.dtype) }
    }

    /// `count` values from `first` on.
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, first: usize, count: usize, to: &mut [f32; MAX_COLUMNS]) {
        // SAFETY: forwarded: the vector has a value for each column.
        unsafe { widen::<S>(self.skip(first).ptr, self.dtype, to.as_mut_ptr(), count) };
    }
}

/// What happens to every sum, and where it goes.
#[derive(Clone, Copy)]
pub(super) struct Epilogue {
    /// C, from its first element of this matrix.
    pub(super) c: *mut u8,
    pub(super) c_rs: usize,
    pub(super) output: DType,
    /// Sums are i32.
    pub(super) whole: bool,
    /// 1 for an empty sum, which alpha must not turn into NaN.
    pub(super) alpha: f32,
    pub(super) beta: f32,
    /// 0 none, 1 per column, 2 per row.
    pub(super) bias_axis: u32,
    pub(super) bias: Vector,
    pub(super) row_scale: Vector,
    pub(super) col_scale: Vector,
    /// Null where there is none.
    pub(super) residual: *const u8,
    pub(super) r_rs: usize,
    /// Each tile has the sums of the gate in its first half, those of up in the second.
    pub(super) gated: bool,
    /// Place of up's values in vectors along columns.
    pub(super) up: usize,
    pub(super) activation: Activation,
    /// C is larger than what should stay near the core, and no old value of it is read: stores go past the caches.
    pub(super) stream: bool,
}

/// Elements of C from which on its stores go past the second-level cache.
const STREAMED: usize = 1 << 18;

impl Epilogue {
    /// Sets `stream` for `elements` of C whose tiles are `cols` wide: whole lines that nobody reads before. There are no
    /// such stores of single bytes.
    pub(super) fn for_size(mut self, elements: usize, cols: usize) -> Self {
        let size = self.output.size();
        let lines = [self.c.addr(), self.c_rs * size, cols * size].iter().all(|x| x.is_multiple_of(LINE));
        self.stream = size > 1 && lines && elements >= STREAMED && self.beta == 0.0 && self.residual.is_null();
        self
    }

    /// The epilogue of the rows from `first` on.
    pub(super) fn starting_at_row(self, first: usize) -> Self {
        let bias = if self.bias_axis == 2 { self.bias.skip(first) } else { self.bias };
        let size = self.output.size();
        let residual = self.residual;
        let residual = if residual.is_null() { residual } else { residual.wrapping_add(first * self.r_rs * size) };
        let c = self.c.wrapping_add(first * self.c_rs * size);
        Epilogue { c, bias, residual, row_scale: self.row_scale.skip(first), ..self }
    }

    /// Only a conversion of floats, or none at all.
    #[inline(always)]
    fn plain(&self) -> bool {
        self.whole == (self.output == DType::I32) && self.identity()
    }

    /// Nothing is done to the sums.
    fn identity(&self) -> bool {
        let none = !self.row_scale.is_some() && !self.col_scale.is_some() && self.residual.is_null() && !self.gated;
        none && self.alpha == 1.0 && self.beta == 0.0 && self.bias_axis == 0 && self.activation == Activation::None
    }

    /// There is an activation, and rows of [`SIMPLE`] columns may go through [`Tile::simple_row`].
    pub(super) fn simple_activation(&self) -> bool {
        let own = self.alpha == 1.0 && !self.row_scale.is_some() && !self.col_scale.is_some() && self.bias_axis != 2;
        let others = self.beta != 0.0 || !self.residual.is_null() || self.gated;
        let floats = !self.whole && self.output != DType::I32 && self.output.size() > 1;
        self.activation != Activation::None && floats && own && !others
    }

    /// C at (row, col).
    #[inline(always)]
    fn at(&self, row: usize, col: usize) -> *mut u8 {
        self.c.wrapping_add((row * self.c_rs + col) * self.output.size())
    }

    /// Stores one row of a tile: `cols` finished values, or sums where nothing is done to them.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, from: *const f32, to: *mut u8, cols: usize) {
        let size = self.output.size();
        // SAFETY: forwarded. Whole lines are aligned to registers and as long as some of them.
        unsafe {
            if !S::STREAMS || !self.stream || !(cols * size).is_multiple_of(LINE) {
                // Whole numbers are four bytes as well.
                let output = if size == 4 { DType::F32 } else { self.output };
                narrow::<S>(from, to, output, cols);
            } else if size == 4 {
                for j in (0..cols).step_by(S::LANES) {
                    S::stream(to.cast::<f32>().add(j), S::load(from.add(j)));
                }
            } else {
                for j in (0..cols).step_by(2 * S::LANES) {
                    let halves = [S::load(from.add(j)), S::load(from.add(j + S::LANES))];
                    S::stream_short(to.cast::<u16>().add(j), halves, self.output);
                }
            }
        }
    }

    /// Fetches a tile of C for writing.
    #[inline(always)]
    pub(super) fn fetch<S: Simd>(&self, row: usize, col: usize, rows: usize, cols: usize) {
        if self.stream && S::STREAMS {
            return;
        }
        for i in 0..rows {
            for j in (0..cols * self.output.size()).step_by(64) {
                // SAFETY: a prefetch never faults.
                unsafe { S::prefetch_write(self.at(row + i, col).wrapping_add(j)) };
            }
        }
    }
}

// SAFETY: threads write disjoint tiles of C and only read the other operands.
unsafe impl Sync for Epilogue {}

/// One tile: `rows` x `cols` sums, `ld` apart, for C from (row, col) on; up's sums are `up` elements further.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) epilogue: &'a Epilogue,
    pub(super) sums: *mut f32,
    pub(super) ld: usize,
    pub(super) up: usize,
    pub(super) row: usize,
    pub(super) col: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Task for Tile<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the driver passes tiles inside C, and sums of this tile's size.
        unsafe {
            let columns = self.columns::<S>();
            for i in 0..self.rows {
                self.row::<S>(i, &columns);
            }
        }
    }
}

/// Scales and bias of the columns of a tile.
pub(super) struct Columns {
    /// Only a conversion of floats, or none at all: the rest is not filled in.
    plain: bool,
    gate: Values,
    up: Values,
}

struct Values {
    scale: [f32; MAX_COLUMNS],
    bias: [f32; MAX_COLUMNS],
}

impl Columns {
    /// No scales and no bias.
    pub(super) const PLAIN: Self = Columns { plain: true, gate: Values::NONE, up: Values::NONE };
}

impl Values {
    const NONE: Self = Values { scale: [1.0; MAX_COLUMNS], bias: [0.0; MAX_COLUMNS] };
}

impl Tile<'_> {
    /// What the rows of this tile, and of those above and below, need to know of its columns.
    #[inline(always)]
    pub(super) unsafe fn columns<S: Simd>(&self) -> Columns {
        let mut columns = Columns::PLAIN;
        // SAFETY: forwarded.
        unsafe {
            columns.plain = self.epilogue.plain();
            if !columns.plain {
                self.values::<S>(self.col, &mut columns.gate);
                if self.epilogue.gated {
                    self.values::<S>(self.epilogue.up + self.col, &mut columns.up);
                }
            }
        }
        columns
    }

    /// Row `i` of the tile. Its sums are used up.
    #[inline(always)]
    pub(super) unsafe fn row<S: Simd>(&self, i: usize, columns: &Columns) {
        let &Tile { epilogue: e, sums, ld, up, row, col, cols, .. } = self;
        debug_assert!(cols <= MAX_COLUMNS && i < self.rows);
        // SAFETY: forwarded.
        unsafe {
            let t = sums.add(i * ld);
            let c = e.at(row + i, col);
            if columns.plain {
                return e.store::<S>(t, c, cols);
            }
            let mut old = [0.0f32; MAX_COLUMNS];
            if e.beta != 0.0 {
                widen::<S>(c, e.output, old.as_mut_ptr(), cols);
            }
            let t = self.linear::<S>(t, row + i, &columns.gate, &old);
            activate(t, e.activation);
            if e.gated {
                let u = self.linear::<S>(sums.add(i * ld + up), row + i, &columns.up, &old);
                for (t, u) in t.iter_mut().zip(&*u) {
                    *t *= u;
                }
            }
            if !e.residual.is_null() {
                let r = e.residual.wrapping_add(((row + i) * e.r_rs + col) * e.output.size());
                widen::<S>(r, e.output, old.as_mut_ptr(), cols);
                for (t, r) in t.iter_mut().zip(&old) {
                    *t += r;
                }
            }
            e.store::<S>(t.as_ptr(), c, cols);
        }
    }

    /// [`row`](Self::row) for [`SIMPLE`] columns of a [simple](Epilogue::simple_activation) epilogue, in few instructions.
    #[inline(always)]
    pub(super) unsafe fn simple_row<S: Simd>(&self, i: usize, columns: &Columns) {
        let &Tile { epilogue: e, sums, ld, row, col, .. } = self;
        debug_assert!(self.cols == SIMPLE && i < self.rows);
        // SAFETY: forwarded.
        unsafe {
            let t = &mut *sums.add(i * ld).cast::<[f32; SIMPLE]>();
            for (t, b) in t.iter_mut().zip(&columns.gate.bias) {
                *t += b;
            }
            activate(t, e.activation);
            e.store::<S>(t.as_ptr(), e.at(row + i, col), SIMPLE);
        }
    }

    /// Scales and bias from column `first` on.
    #[inline(always)]
    unsafe fn values<S: Simd>(&self, first: usize, to: &mut Values) {
        let (e, cols) = (self.epilogue, self.cols);
        // SAFETY: forwarded.
        unsafe {
            if e.col_scale.is_some() {
                e.col_scale.load::<S>(first, cols, &mut to.scale);
            }
            if e.bias_axis == 1 {
                e.bias.load::<S>(first, cols, &mut to.bias);
            }
        }
    }

    /// What the activation is applied to, in place of one row of sums.
    #[inline(always)]
    unsafe fn linear<S: Simd>(
        &self,
        sums: *mut f32,
        row: usize,
        columns: &Values,
        old: &[f32; MAX_COLUMNS],
    ) -> &'static mut [f32] {
        let e = self.epilogue;
        // SAFETY: forwarded; the sums live longer than the tile is worked on, and each row is asked for once.
        unsafe {
            if e.whole {
                let whole = std::slice::from_raw_parts(sums.cast::<i32>(), self.cols);
                let mut floats = [0.0f32; MAX_COLUMNS];
                #[allow(clippy::cast_precision_loss)] // Rounded to nearest, once.
                for (f, &w) in floats.iter_mut().zip(whole) {
                    *f = w as f32;
                }
                std::ptr::copy_nonoverlapping(floats.as_ptr(), sums, self.cols);
            }
            let t = std::slice::from_raw_parts_mut(sums, self.cols);
            if e.row_scale.is_some() {
                let scale = e.row_scale.get(row);
                for (t, s) in t.iter_mut().zip(&columns.scale) {
                    *t *= scale * s;
                }
            } else if e.col_scale.is_some() {
                for (t, s) in t.iter_mut().zip(&columns.scale) {
                    *t *= s;
                }
            }
            if e.alpha != 1.0 {
                for t in t.iter_mut() {
                    *t *= e.alpha;
                }
            }
            if e.beta != 0.0 {
                for (t, c) in t.iter_mut().zip(old) {
                    *t += e.beta * c;
                }
            }
            if e.bias_axis == 1 {
                for (t, b) in t.iter_mut().zip(&columns.bias) {
                    *t += b;
                }
            } else if e.bias_axis == 2 {
                let b = e.bias.get(row);
                for t in t.iter_mut() {
                    *t += b;
                }
            }
            t
        }
    }
}
