//! What a thread will need next, fetched while it multiplies: the next piece of B, then rows of A.

use super::micro::Micro;
use super::operands::Operands;
use super::pack::Source;

/// Memory to fetch, in the order of need.
pub(super) struct Ahead {
    /// Packed steps of B.
    piece: *const u8,
    /// Bytes of the piece that have not been fetched.
    left: usize,
    rows: NextRows,
}

impl Ahead {
    /// Begins with the rows.
    pub(super) fn new(rows: NextRows) -> Self {
        Ahead { piece: std::ptr::null(), left: 0, rows }
    }

    /// `bytes` from `piece` on come first.
    #[inline(always)]
    pub(super) fn expect(&mut self, piece: *const u8, bytes: usize) {
        (self.piece, self.left) = (piece, bytes);
    }

    /// The next `count` bytes.
    #[inline(always)]
    pub(super) fn take(&mut self, count: usize) -> Option<*const u8> {
        if self.left == 0 {
            return self.rows.take(count);
        }
        let at = self.piece;
        self.piece = at.wrapping_add(count);
        self.left = self.left.saturating_sub(count);
        Some(at)
    }
}

/// The rows of A that this thread will probably pack next.
pub(super) struct NextRows {
    row: *const u8,
    /// Bytes from one row to the next.
    stride: usize,
    /// Bytes of a row.
    bytes: usize,
    /// Bytes of the row that have been fetched.
    done: usize,
    rows: usize,
}

impl NextRows {
    /// `rows` rows from `first` on, where A has them and they lie side by side.
    pub(super) fn new<M: Micro>(a: Source, op: &Operands, first: usize, rows: usize) -> Self {
        let size = a.dtype.size();
        let rows = if M::AHEAD > 0 && a.step == 1 { op.m.saturating_sub(first).min(rows) } else { 0 };
        NextRows { row: a.at(first, 0), stride: a.lane * size, bytes: op.k * size, done: 0, rows }
    }

    /// The next `count` bytes.
    #[inline(always)]
    fn take(&mut self, count: usize) -> Option<*const u8> {
        if self.rows == 0 {
            return None;
        }
        let at = self.row.wrapping_add(self.done);
        self.done += count;
        if self.done >= self.bytes {
            (self.done, self.rows, self.row) = (0, self.rows - 1, self.row.wrapping_add(self.stride));
        }
        Some(at)
    }
}
