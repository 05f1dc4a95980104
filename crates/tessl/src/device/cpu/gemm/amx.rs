//! bf16 products on AMX tiles: 2 x 2 tiles of 16 x 16 sums, 32 steps along k at a time.
//!
//! std has no stable AMX intrinsics, so the tile loop is one `asm!` block. TDPBF16PS treats subnormal inputs as zeros
//! and flushes subnormal sums; it rounds to nearest even whatever MXCSR says.

use super::super::simd::{Avx512, Simd, Task};
use super::micro::{Micro, Panel, Side};
use super::pack::{AHEAD, Source, transpose};
use crate::dtype::DType;
use std::arch::asm;

/// bf16 on AMX.
pub(in super::super) struct AmxTile;

/// Steps of one tile product.
const STEP: usize = 32;
/// Lanes of one tile.
const LANES: usize = 16;
/// Words (pairs of steps) of one row of a tile.
const WORDS: usize = 16;
/// Tile products whose rows of A are copied together.
const RUN: usize = 4;
/// Bytes of one tile.
const TILE: usize = 1024;

#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles have 16 rows of 64 bytes.
static CONFIG: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

impl Micro for AmxTile {
    type S = Avx512;
    const ROWS: usize = 32;
    const COLS: usize = 32;
    const STEP: usize = STEP;
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn pack(panel: Panel) {
        // SAFETY: forwarded.
        unsafe { Avx512::vectorize(Pack(panel)) };
    }

    #[inline(always)]
    unsafe fn begin() {
        // SAFETY: AMX is usable; the configuration is valid for palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) };
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: AMX is usable.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }

    #[inline(always)]
    unsafe fn tile(steps: usize, a: *const u8, b: *const u8, acc: *mut f32, first: bool) {
        debug_assert!(steps.is_multiple_of(STEP));
        if steps == 0 {
            if first {
                // SAFETY: forwarded.
                unsafe { std::ptr::write_bytes(acc, 0, Self::ROWS * Self::COLS) };
            }
            return;
        }
        // SAFETY: each panel has 2048 bytes per 32 steps, `acc` 32 rows of 128 bytes. Prefetches may go astray.
        unsafe {
            asm!(
                "test {first:e}, {first:e}",
                "jz 3f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "jmp 2f",
                "3:",
                "tileloadd tmm0, [{c} + {ld}]",
                "tileloadd tmm1, [{c} + {ld} + 64]",
                "tileloadd tmm2, [{c2} + {ld}]",
                "tileloadd tmm3, [{c2} + {ld} + 64]",
                "2:",
                "tileloadd tmm6, [{b} + {s}]",
                "tileloadd tmm4, [{a} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {s} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {s} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {n}",
                "jnz 2b",
                "tilestored [{c} + {ld}], tmm0",
                "tilestored [{c} + {ld} + 64], tmm1",
                "tilestored [{c2} + {ld}], tmm2",
                "tilestored [{c2} + {ld} + 64], tmm3",
                first = in(reg) u32::from(first),
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                n = inout(reg) steps / STEP => _,
                s = in(reg) 64usize,
                c = in(reg) acc,
                c2 = in(reg) acc.add(LANES * Self::COLS),
                ld = in(reg) 4 * Self::COLS,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Packs bf16 as `[32 steps][2 tiles]`, where a tile of A is `[16 lanes][16 pairs]` and one of B `[16 pairs][16 lanes]`.
struct Pack(Panel);

impl Task for Pack {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let p = self.0;
        debug_assert!(p.source.dtype == DType::Bf16);
        let mut dst = p.dst;
        let mut first = 0;
        if p.side == Side::A && p.source.step == 1 && p.lanes == 2 * LANES {
            first = p.steps - p.steps % (RUN * STEP);
            // SAFETY: forwarded.
            unsafe { runs_of_rows(&p, first) };
            dst = dst.wrapping_add(first * 2 * LANES * 2);
        }
        for step in (first..p.steps).step_by(STEP) {
            for lane in [0, LANES] {
                let lanes = p.lanes.saturating_sub(lane).min(LANES);
                let steps = STEP.min(p.steps - step);
                // SAFETY: forwarded; the panel has room for whole tiles.
                unsafe {
                    tile::<S>(p.source, p.side, p.first_lane + lane, lanes, p.first_step + step, steps, dst.cast());
                    dst = dst.add(TILE);
                }
            }
        }
    }
}

/// Rows of A that lie contiguous: four tiles' worth of a row at a time, because single lines of 32 rows make the cache
/// fetch more than it can hold.
#[inline(always)]
unsafe fn runs_of_rows(p: &Panel, steps: usize) {
    for step in (0..steps).step_by(RUN * STEP) {
        for lane in 0..2 * LANES {
            for i in 0..RUN {
                // SAFETY: forwarded; a run is RUN lines of 64 bytes.
                unsafe {
                    let src = p.source.at(p.first_lane + lane, p.first_step + step + i * STEP).cast::<[f32; 16]>();
                    let dst = p.dst.add((step / STEP + i) * 2 * TILE + lane * 64).cast::<[f32; 16]>();
                    dst.write_unaligned(src.read_unaligned());
                }
            }
        }
    }
}

/// One tile. The source is read as words of two steps in the order it has, and transposed where the tile wants the other.
#[inline(always)]
unsafe fn tile<S: Simd>(
    source: Source,
    side: Side,
    first_lane: usize,
    lanes: usize,
    first_step: usize,
    steps: usize,
    dst: *mut u32,
) {
    // SAFETY: forwarded: `lanes` and `steps` are inside the operand, `dst` has 256 words.
    unsafe {
        if lanes == 0 {
            std::ptr::write_bytes(dst, 0, LANES * WORDS);
            return;
        }
        let lanes_first = source.lane == 1 && source.step != 1;
        let direct = lanes_first == (side == Side::B);
        let mut words = [0u32; LANES * WORDS];
        let full = lanes == LANES && steps == STEP;
        let out = if direct { dst } else { words.as_mut_ptr() };
        if direct && !full {
            std::ptr::write_bytes(dst, 0, LANES * WORDS);
        }
        if lanes_first {
            for w in 0..steps.div_ceil(2) {
                let low = source.at(first_lane, first_step + 2 * w).cast::<u16>();
                let high = source.at(first_lane, first_step + 2 * w + 1).cast::<u16>();
                let row = out.add(w * LANES);
                S::prefetch(source.at(first_lane, first_step + 2 * w + AHEAD));
                S::prefetch(source.at(first_lane, first_step + 2 * w + 1 + AHEAD));
                if 2 * w + 1 == steps {
                    for l in 0..lanes {
                        *row.add(l) = u32::from(low.add(l).read_unaligned());
                    }
                } else {
                    for l in 0..lanes {
                        *row.add(l) =
                            u32::from(low.add(l).read_unaligned()) | u32::from(high.add(l).read_unaligned()) << 16;
                    }
                }
            }
        } else if source.step == 1 {
            for l in 0..lanes {
                let src = source.at(first_lane + l, first_step);
                let row = out.add(l * WORDS).cast::<u8>();
                if steps == STEP {
                    std::ptr::copy_nonoverlapping(src, row, 2 * STEP);
                } else {
                    std::ptr::copy_nonoverlapping(src, row, 2 * steps);
                }
            }
        } else {
            for l in 0..lanes {
                for s in 0..steps {
                    let src = source.at(first_lane + l, first_step + s).cast::<u16>();
                    *out.add(l * WORDS).cast::<u16>().add(s) = src.read_unaligned();
                }
            }
        }
        if !direct {
            transpose::<S>(words.as_ptr(), 16, 16, 16, dst, 16);
        }
    }
}
