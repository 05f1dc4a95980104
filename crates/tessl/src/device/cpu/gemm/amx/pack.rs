//! Operands in the order of tiles.

use super::super::super::simd::{Simd, Task};
use super::super::micro::{Panel, Side};
use super::super::pack::{AHEAD, Source, transpose};
use super::{DEPTH, LANES};

/// Words (pairs or quadruples of steps) of one row of a tile.
const WORDS: usize = 16;
/// Tile products whose rows of A are copied together.
const RUN: usize = 4;
/// Bytes of one tile.
const TILE: usize = 1024;

/// Packs elements of SIZE bytes as `[64 bytes of steps][2 tiles]`, where a tile of A is `[16 lanes][16 words]` and one of B
/// `[16 words][16 lanes]`; a word holds neighbouring steps of one lane.
pub(super) struct Pack<const SIZE: usize>(pub(super) Panel);

impl<const SIZE: usize> Task for Pack<SIZE> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (p, step_of_tile) = (self.0, DEPTH / SIZE);
        debug_assert!(p.source.dtype.size() == SIZE);
        let mut first = 0;
        if p.side == Side::A && p.source.step == 1 && p.lanes == 2 * LANES {
            first = p.steps - p.steps % (RUN * step_of_tile);
            // SAFETY: forwarded.
            unsafe { runs_of_rows::<SIZE>(&p, first) };
        }
        for step in (first..p.steps).step_by(step_of_tile) {
            let steps = step_of_tile.min(p.steps - step);
            for lane in (0..p.width).step_by(LANES) {
                let lanes = p.lanes.saturating_sub(lane).min(LANES);
                let block = Block {
                    source: p.source,
                    first_lane: p.first_lane + lane,
                    lanes,
                    first_step: p.first_step + step,
                    steps,
                };
                // SAFETY: forwarded; the panel has room for whole tiles.
                unsafe {
                    let dst = p.dst.add((step / step_of_tile * 2 + (p.place + lane) / LANES) * TILE);
                    tile::<S, SIZE>(&block, p.side, dst.cast());
                }
            }
        }
    }
}

/// Rows of A that lie contiguous: four tiles' worth of a row at a time, because single lines of 32 rows make the cache
/// fetch more than it can hold.
#[inline(always)]
unsafe fn runs_of_rows<const SIZE: usize>(p: &Panel, steps: usize) {
    let step_of_tile = DEPTH / SIZE;
    for step in (0..steps).step_by(RUN * step_of_tile) {
        for lane in 0..2 * LANES {
            for i in 0..RUN {
                // SAFETY: forwarded; a run is RUN lines of 64 bytes.
                unsafe {
                    let src =
                        p.source.at(p.first_lane + lane, p.first_step + step + i * step_of_tile).cast::<[f32; 16]>();
                    let dst = p.dst.add((step / step_of_tile + i) * 2 * TILE + lane * 64).cast::<[f32; 16]>();
                    dst.write_unaligned(src.read_unaligned());
                }
            }
        }
    }
}

/// What one tile holds of an operand.
struct Block {
    source: Source,
    first_lane: usize,
    lanes: usize,
    first_step: usize,
    steps: usize,
}

/// One tile. The source is read as words in the order it has, and transposed where the tile wants the other.
#[inline(always)]
unsafe fn tile<S: Simd, const SIZE: usize>(block: &Block, side: Side, dst: *mut u32) {
    let &Block { source, first_lane, lanes, first_step, steps } = block;
    // SAFETY: forwarded: `lanes` and `steps` are inside the operand, `dst` has 256 words.
    unsafe {
        if lanes == 0 {
            std::ptr::write_bytes(dst, 0, LANES * WORDS);
            return;
        }
        let lanes_first = source.lane == 1 && source.step != 1;
        let direct = lanes_first == (side == Side::B);
        let mut words = [0u32; LANES * WORDS];
        let full = lanes == LANES && steps == DEPTH / SIZE;
        let out = if direct { dst } else { words.as_mut_ptr() };
        if direct && !full {
            std::ptr::write_bytes(dst, 0, LANES * WORDS);
        }
        if lanes_first {
            words_of_lanes::<S, SIZE>(block, out);
        } else if source.step == 1 {
            for l in 0..lanes {
                let src = source.at(first_lane + l, first_step);
                let row = out.add(l * WORDS).cast::<u8>();
                if full {
                    std::ptr::copy_nonoverlapping(src, row, DEPTH);
                } else {
                    std::ptr::copy_nonoverlapping(src, row, SIZE * steps);
                }
            }
        } else {
            for l in 0..lanes {
                for s in 0..steps {
                    let src = source.at(first_lane + l, first_step + s);
                    std::ptr::copy_nonoverlapping(src, out.add(l * WORDS).cast::<u8>().add(s * SIZE), SIZE);
                }
            }
        }
        if !direct {
            transpose::<S>(words.as_ptr(), LANES, [LANES, LANES], WORDS, dst, LANES);
        }
    }
}

/// `out[w * 16 + l]` from rows of lanes side by side.
#[inline(always)]
unsafe fn words_of_lanes<S: Simd, const SIZE: usize>(block: &Block, out: *mut u32) {
    let &Block { source, first_lane, lanes, first_step, steps } = block;
    let per_word = 4 / SIZE;
    for w in 0..steps.div_ceil(per_word) {
        let step = first_step + w * per_word;
        // SAFETY: forwarded.
        unsafe {
            let row = out.add(w * LANES);
            for i in 0..per_word {
                S::prefetch(source.at(first_lane, step + i + AHEAD));
            }
            if (w + 1) * per_word > steps {
                for l in 0..lanes {
                    let mut word = 0;
                    for i in 0..steps - w * per_word {
                        word |= narrow_word::<SIZE>(source.at(first_lane + l, step + i)) << (8 * SIZE * i);
                    }
                    *row.add(l) = word;
                }
            } else {
                let from: [*const u8; 4] = std::array::from_fn(|i| source.at(first_lane, step + i.min(per_word - 1)));
                for l in 0..lanes {
                    let element = |i: usize| narrow_word::<SIZE>(from[i].add(l * SIZE)) << (8 * SIZE * i);
                    *row.add(l) = if SIZE == 2 {
                        element(0) | element(1)
                    } else {
                        element(0) | element(1) | element(2) | element(3)
                    };
                }
            }
        }
    }
}

/// An element in the low end of a word.
#[inline(always)]
unsafe fn narrow_word<const SIZE: usize>(p: *const u8) -> u32 {
    // SAFETY: forwarded.
    unsafe { if SIZE == 2 { u32::from(p.cast::<u16>().read_unaligned()) } else { u32::from(*p) } }
}
