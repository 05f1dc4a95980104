//! `C = act(alpha * sum + beta * C + bias)` on one tile of sums.

use super::super::convert::{element, narrow, widen};
use super::super::simd::{Simd, Task};
use super::activation::activate;
use crate::dtype::DType;
use crate::gemm::Activation;

/// Columns of the widest tile.
pub(super) const MAX_COLUMNS: usize = 64;

/// What happens to every sum, and where it goes.
#[derive(Clone, Copy)]
pub(super) struct Epilogue {
    /// C, from its first element of this matrix.
    pub(super) c: *mut u8,
    pub(super) c_rs: usize,
    pub(super) output: DType,
    /// 1 for an empty sum, which alpha must not turn into NaN.
    pub(super) alpha: f32,
    pub(super) beta: f32,
    /// 0 none, 1 per column, 2 per row.
    pub(super) bias_axis: u32,
    pub(super) bias: *const u8,
    pub(super) bias_dtype: DType,
    pub(super) activation: Activation,
    /// C is larger than the caches near the core, and no old value of it is read: stores go past them.
    pub(super) stream: bool,
}

/// Bytes of C from which on its stores go past the second-level cache (half of one).
const STREAM_BYTES: usize = 1 << 20;

impl Epilogue {
    /// Sets `stream` for `elements` of C: whole lines, and only a copy to do.
    pub(super) fn for_size(mut self, elements: usize) -> Self {
        let aligned = self.c.addr().is_multiple_of(64) && (self.c_rs * 4).is_multiple_of(64);
        self.stream = self.plain() && self.output == DType::F32 && aligned && elements * 4 >= STREAM_BYTES;
        self
    }

    /// Only a conversion.
    fn plain(&self) -> bool {
        self.alpha == 1.0 && self.beta == 0.0 && self.bias_axis == 0 && self.activation == Activation::None
    }

    /// C at (row, col).
    #[inline(always)]
    fn at(&self, row: usize, col: usize) -> *mut u8 {
        self.c.wrapping_add((row * self.c_rs + col) * self.output.size())
    }

    /// Fetches a tile of C for writing.
    #[inline(always)]
    pub(super) fn fetch<S: Simd>(&self, row: usize, col: usize, rows: usize, cols: usize) {
        if self.stream {
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

// SAFETY: threads write disjoint tiles of C and only read the bias.
unsafe impl Sync for Epilogue {}

/// One tile: `rows` x `cols` sums, `ld` apart, for C from (row, col) on.
pub(super) struct Tile<'a> {
    pub(super) epilogue: &'a Epilogue,
    pub(super) sums: *mut f32,
    pub(super) ld: usize,
    pub(super) row: usize,
    pub(super) col: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Task for Tile<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile { epilogue: e, sums, ld, row, col, rows, cols } = self;
        debug_assert!(cols <= MAX_COLUMNS);
        // SAFETY: the driver passes tiles inside C, and sums of this tile's size.
        unsafe {
            if e.stream && cols.is_multiple_of(S::LANES) {
                for i in 0..rows {
                    let (t, c) = (sums.add(i * ld), e.at(row + i, col).cast::<f32>());
                    for j in (0..cols).step_by(S::LANES) {
                        S::stream(c.add(j), S::load(t.add(j)));
                    }
                }
            } else if e.plain() {
                for i in 0..rows {
                    narrow::<S>(sums.add(i * ld), e.at(row + i, col), e.output, cols);
                }
            } else {
                self.all::<S>();
            }
        }
    }
}

impl Tile<'_> {
    /// The whole formula.
    #[inline(always)]
    unsafe fn all<S: Simd>(self) {
        let Tile { epilogue: e, sums, ld, row, col, rows, cols } = self;
        let mut bias = [0.0f32; MAX_COLUMNS];
        let mut old = [0.0f32; MAX_COLUMNS];
        // SAFETY: forwarded.
        unsafe {
            if e.bias_axis == 1 {
                widen::<S>(e.bias.add(col * e.bias_dtype.size()), e.bias_dtype, bias.as_mut_ptr(), cols);
            }
            for i in 0..rows {
                let t = std::slice::from_raw_parts_mut(sums.add(i * ld), cols);
                let c = e.at(row + i, col);
                if e.alpha != 1.0 {
                    t.iter_mut().for_each(|t| *t *= e.alpha);
                }
                if e.beta != 0.0 {
                    widen::<S>(c, e.output, old.as_mut_ptr(), cols);
                    t.iter_mut().zip(&old).for_each(|(t, c)| *t += e.beta * c);
                }
                if e.bias_axis == 1 {
                    t.iter_mut().zip(&bias).for_each(|(t, b)| *t += b);
                } else if e.bias_axis == 2 {
                    let b = element(e.bias.add((row + i) * e.bias_dtype.size()), e.bias_dtype);
                    t.iter_mut().for_each(|t| *t += b);
                }
                activate(t, e.activation);
                narrow::<S>(t.as_ptr(), c, e.output, cols);
            }
        }
    }
}
