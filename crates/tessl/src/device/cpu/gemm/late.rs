//! The tiles of a finished panel, whose rows are stored between the steps of the next panel's products.

use super::super::simd::{Simd, Task};
use super::epilogue::{Columns, Tile};
use super::micro::Beside;
use std::ops::Range;

/// A panel of finished sums.
pub(super) struct Late {
    /// Those of its first tile.
    pub(super) sums: *mut f32,
    /// Its first column of C.
    pub(super) col: usize,
    columns: Columns,
}

impl Late {
    /// The panel whose first tile this is.
    ///
    /// # Safety
    /// The tile lies inside C; the processor has `S`.
    pub(super) unsafe fn new<S: Simd>(tile: Tile<'_>) -> Self {
        let mut columns = Columns::PLAIN;
        // SAFETY: forwarded.
        unsafe { S::vectorize(Fill { tile, columns: &mut columns }) };
        Late { sums: tile.sums, col: tile.col, columns }
    }

    /// `rows` of `tile`, which is one of the panel, beside `steps` steps.
    #[allow(clippy::cast_possible_truncation, reason = "rows of one tile")]
    pub(super) fn rows<'a>(&'a self, tile: Tile<'a>, rows: Range<usize>, steps: usize) -> Rows<'a> {
        let each = rows.len().div_ceil(steps.max(1)) as u32;
        Rows { tile, columns: &self.columns, first: rows.start as u32, end: rows.end as u32, each }
    }
}

struct Fill<'a> {
    tile: Tile<'a>,
    columns: &'a mut Columns,
}

impl Task for Fill<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: forwarded.
        *self.columns = unsafe { self.tile.columns::<S>() };
    }
}

/// Some rows of a tile of finished sums.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    tile: Tile<'a>,
    columns: &'a Columns,
    first: u32,
    end: u32,
    /// Rows beside one step.
    each: u32,
}

impl Beside for Rows<'_> {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "steps of a piece of k")]
    fn part(&self, i: usize) -> Self {
        let first = self.end.min(self.first + i as u32 * self.each);
        Rows { first, end: self.end.min(first + self.each), ..*self }
    }
}

impl Task for Rows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for i in self.first..self.end {
            // SAFETY: forwarded: the rows are rows of the tile, and its sums are finished.
            unsafe { self.tile.simple_row::<S>(i as usize, self.columns) };
        }
    }
}
