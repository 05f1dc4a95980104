//! Sixteen rows side by side: what a vector loads then belongs to sixteen outputs, and their sums need no adding across lanes.
//!
//! Block b of rows 16 g to 16 g + 15 takes the place of those sixteen blocks in one run of rows: sixteen scales, sixteen minima
//! where the format has them, 64 bytes of fifth bits where it has them, then the codes in words of four bytes, word w of row r
//! at byte 64 w + 4 r. Bit 4 r + j of fifth-bit word 2 w is that of the low half of byte j of word w of row r, the same bit of
//! word 2 w + 1 that of its high half. Bytes of Q8_0 have their top bit turned, so that they are unsigned.

use super::QFormat;

/// Rows that lie together.
pub(crate) const ROWS: usize = 16;

/// Bytes of a block, at most.
#[cfg(target_arch = "x86_64")]
pub(crate) const MAX_BLOCK: usize = 34;

/// Which parts a block of 32 weights has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// A minimum beside the scale.
    pub(crate) min: bool,
    /// A word of fifth bits.
    pub(crate) fifth: bool,
    /// A byte for each code, not half of one.
    pub(crate) bytes: bool,
}

impl Parts {
    /// Those of a format that can lie so.
    pub(crate) const fn of(format: QFormat) -> Option<Self> {
        let (min, fifth, bytes) = match format {
            QFormat::Q4_0 => (false, false, false),
            QFormat::Q4_1 => (true, false, false),
            QFormat::Q5_0 => (false, true, false),
            QFormat::Q5_1 => (true, true, false),
            QFormat::Q8_0 => (false, false, true),
            _ => return None,
        };
        Some(Parts { min, fifth, bytes })
    }

    /// Bytes of the scale and the minimum of a row.
    pub(crate) const fn factors(self) -> usize {
        if self.min { 4 } else { 2 }
    }

    /// Where the codes of a block in a file begin.
    const fn codes(self) -> usize {
        self.factors() + if self.fifth { 4 } else { 0 }
    }

    /// Words of codes.
    const fn words(self) -> usize {
        if self.bytes { 8 } else { 4 }
    }

    /// Bytes of a block.
    pub(crate) const fn size(self) -> usize {
        self.codes() + 4 * self.words()
    }

    /// What turns codes of files into those here.
    const fn turn(self) -> u32 {
        if self.bytes { 0x8080_8080 } else { 0 }
    }

    /// Puts block `from` of row `row` among sixteen, which were zeros.
    fn put(self, from: &[u8], row: usize, to: &mut [u8]) {
        to[2 * row..][..2].copy_from_slice(&from[..2]);
        if self.min {
            to[32 + 2 * row..][..2].copy_from_slice(&from[2..4]);
        }
        let (fifth, codes) = to[ROWS * self.factors()..].split_at_mut(if self.fifth { 64 } else { 0 });
        if self.fifth {
            let bits = u32::from_le_bytes(word(from, self.factors()));
            for (at, to) in fifth.chunks_exact_mut(8).enumerate() {
                let four = bits >> (4 * (at / 2) + 16 * (at % 2)) & 15;
                let all =
                    u64::from_le_bytes(to.try_into().expect("INVARIANT: eight bytes")) | u64::from(four) << (4 * row);
                to.copy_from_slice(&all.to_le_bytes());
            }
        }
        for w in 0..self.words() {
            let code = u32::from_le_bytes(word(from, self.codes() + 4 * w)) ^ self.turn();
            codes[64 * w + 4 * row..][..4].copy_from_slice(&code.to_le_bytes());
        }
    }

    /// The block of row `row` among sixteen, as a file has it.
    #[inline(always)]
    pub(crate) fn take(self, from: &[u8], row: usize, to: &mut [u8]) {
        to[..2].copy_from_slice(&from[2 * row..][..2]);
        if self.min {
            to[2..4].copy_from_slice(&from[32 + 2 * row..][..2]);
        }
        let (fifth, codes) = from[ROWS * self.factors()..].split_at(if self.fifth { 64 } else { 0 });
        if self.fifth {
            let mut bits = 0;
            for (at, from) in fifth.chunks_exact(8).enumerate() {
                // Bits 4 row to 4 row + 3 of the word.
                let four = u32::from(from[row / 2] >> (4 * (row % 2)) & 15);
                bits |= four << (4 * (at / 2) + 16 * (at % 2));
            }
            to[self.factors()..][..4].copy_from_slice(&bits.to_le_bytes());
        }
        for w in 0..self.words() {
            let code = u32::from_le_bytes(word(codes, 64 * w + 4 * row)) ^ self.turn();
            to[self.codes() + 4 * w..][..4].copy_from_slice(&code.to_le_bytes());
        }
    }

    /// Rows of `blocks` blocks as files have them, sixteen by sixteen side by side.
    pub(crate) fn interleave(self, rows: &[u8], blocks: usize, out: &mut [u8]) {
        let (size, row) = (self.size(), blocks * self.size());
        out.fill(0);
        for (from, to) in rows.chunks_exact(ROWS * row).zip(out.chunks_exact_mut(ROWS * row)) {
            for (b, to) in to.chunks_exact_mut(ROWS * size).enumerate() {
                (0..ROWS).for_each(|r| self.put(&from[r * row + b * size..][..size], r, to));
            }
        }
    }

    /// The other way round.
    pub(crate) fn restore(self, together: &[u8], blocks: usize) -> Vec<u8> {
        let (size, row) = (self.size(), blocks * self.size());
        let mut out = vec![0; together.len()];
        for (from, to) in together.chunks_exact(ROWS * row).zip(out.chunks_exact_mut(ROWS * row)) {
            for (b, from) in from.chunks_exact(ROWS * size).enumerate() {
                (0..ROWS).for_each(|r| self.take(from, r, &mut to[r * row + b * size..][..size]));
            }
        }
        out
    }
}

fn word(bytes: &[u8], at: usize) -> [u8; 4] {
    bytes[at..at + 4].try_into().expect("INVARIANT: four bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_comes_back_and_lies_where_the_text_says() {
        for format in QFormat::BLOCKS {
            let Some(parts) = Parts::of(format) else { continue };
            assert_eq!((parts.size(), format.group()), (format.group_bytes(), 32), "{format}");
            let (blocks, size) = (3, parts.size());
            let mut rng = tessl_oracle::Rng::new(9);
            #[allow(clippy::cast_possible_truncation)]
            let rows: Vec<u8> = (0..2 * ROWS * blocks * size).map(|_| rng.bits() as u8).collect();
            let mut together = vec![1; rows.len()];
            parts.interleave(&rows, blocks, &mut together);
            assert_eq!(parts.restore(&together, blocks), rows, "{format}");
            let (row, b, w) = (21, 1, 2);
            let from = &rows[(row * blocks + b) * size..][..size];
            let to = &together[(ROWS * blocks + b * ROWS) * size..][..ROWS * size];
            let r = row % ROWS;
            assert_eq!(to[2 * r..2 * r + 2], from[..2]);
            let codes = size - if parts.bytes { 32 } else { 16 };
            let at = ROWS * codes + 64 * w + 4 * r;
            let code = if parts.bytes { from[codes + 4 * w] ^ 0x80 } else { from[codes + 4 * w] };
            assert_eq!(to[at], code, "{format}");
            if parts.fifth {
                // Of weight 16 + 4 w + 3: the high half of byte 3 of word w.
                let bit = from[parts.factors() + 2 + (4 * w + 3) / 8] >> ((4 * w + 3) % 8) & 1;
                let place = ROWS * parts.factors() + 8 * (2 * w + 1);
                assert_eq!(to[place + (4 * r + 3) / 8] >> ((4 * r + 3) % 8) & 1, bit, "{format}");
            }
        }
    }
}
