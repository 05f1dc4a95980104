//! GGUF blocks of 32 weights: a factor or two, upper bits, then 16 bytes whose low halves are weights 0 to 15; or 32 bytes.

use super::super::factors::{by_block, halves, spread};
use super::*;

/// Blocks of `SIZE` bytes with nibbles from byte `AT` on, fifth bits from byte `HIGH` on (0: none), a
/// minimum (f16 at byte 2) if `MIN`, else codes above their numbers by `OFFSET`.
#[derive(Clone, Copy)]
pub(in super::super::super) struct Blocks<
    const SIZE: usize,
    const AT: usize,
    const HIGH: usize,
    const MIN: bool,
    const OFFSET: i32,
>;

impl<const SIZE: usize, const AT: usize, const HIGH: usize, const MIN: bool, const OFFSET: i32>
    Blocks<SIZE, AT, HIGH, MIN, OFFSET>
{
    /// The factors of four blocks lie in their first 64 bytes.
    const NEAR: bool = 3 * SIZE + 4 <= 64;

    /// Steps by lane; minima by block.
    #[inline(always)]
    unsafe fn few_factors(p: *const u8, blocks: usize) -> [__m512; 2] {
        // SAFETY: forwarded.
        unsafe {
            let mins = if MIN { halves(p, SIZE, 2, blocks) } else { _mm_setzero_ps() };
            [spread(halves(p, SIZE, 0, blocks), by_block()), _mm512_castps128_ps512(mins)]
        }
    }

    /// The same for four blocks whose factors are near.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // Below 32.
    unsafe fn factors(p: *const u8) -> [__m512; 2] {
        // SAFETY: forwarded.
        unsafe {
            let word = (SIZE / 2) as i16;
            let at = |b: i16, min: i16| b * word + min;
            let wide = |b: i16| i64::from(at(b, 0)) * 0x0001_0001_0001_0001;
            let mins = (0..4).fold(0i64, |all, b| all | i64::from(at(b, 1)) << (16 * b));
            let index = _mm512_setr_epi64(wide(0), wide(1), wide(2), wide(3), mins, 0, 0, 0);
            let all = _mm512_permutexvar_epi16(index, _mm512_loadu_si512(p.cast()));
            let mins = if MIN { _mm_cvtph_ps(_mm512_extracti32x4_epi32::<2>(all)) } else { _mm_setzero_ps() };
            [_mm512_cvtph_ps(_mm512_castsi512_si256(all)), _mm512_castps128_ps512(mins)]
        }
    }
}

impl<const SIZE: usize, const AT: usize, const HIGH: usize, const MIN: bool, const OFFSET: i32> Codes
    for Blocks<SIZE, AT, HIGH, MIN, OFFSET>
{
    const ORDER: Order = Order::Halves;
    const OFFSET: i32 = OFFSET;
    const MINS: bool = MIN;
    const QUADS: usize = 1;
    type Row = *const u8;
    type Unit = ();

    #[inline(always)]
    unsafe fn row(w: &Weights, row: usize) -> *const u8 {
        // SAFETY: forwarded.
        unsafe { whole_row(w, row) }
    }

    #[inline(always)]
    unsafe fn open(row: &*const u8, at: usize, ahead: usize) {
        // SAFETY: forwarded.
        unsafe { fetch(row.wrapping_add(at * 4 * SIZE), ahead) }
    }

    #[inline(always)]
    unsafe fn unpack(row: &*const u8, (): &(), at: usize, _: usize, blocks: usize) -> Unpacked {
        // SAFETY: forwarded.
        unsafe {
            let p = row.add(at * 4 * SIZE);
            let mut codes = split(sixteens(p.add(AT), SIZE, blocks));
            if HIGH > 0 {
                let mut bits = [0u64; 2];
                for b in 0..blocks {
                    let fifth = u64::from(p.add(b * SIZE + HIGH).cast::<u32>().read_unaligned());
                    bits[0] |= (fifth & 0xffff) << (16 * b);
                    bits[1] |= (fifth >> 16) << (16 * b);
                }
                for (codes, bits) in codes.iter_mut().zip(bits) {
                    *codes = _mm512_mask_add_epi8(*codes, bits, *codes, _mm512_set1_epi8(16));
                }
            }
            let [steps, mins] = if blocks == 4 && Self::NEAR { Self::factors(p) } else { Self::few_factors(p, blocks) };
            let mins = _mm512_castps512_ps128(mins);
            Unpacked { codes, steps: [steps; 2], mins }
        }
    }
}

/// Q8_0: f16, then 32 signed bytes.
#[derive(Clone, Copy)]
pub(in super::super::super) struct Eights;

const EIGHT: usize = 34;

impl Codes for Eights {
    const ORDER: Order = Order::Halves;
    const OFFSET: i32 = 128;
    const MINS: bool = false;
    const QUADS: usize = 1;
    type Row = *const u8;
    type Unit = ();

    #[inline(always)]
    unsafe fn row(w: &Weights, row: usize) -> *const u8 {
        // SAFETY: forwarded.
        unsafe { whole_row(w, row) }
    }

    #[inline(always)]
    unsafe fn open(row: &*const u8, at: usize, ahead: usize) {
        let p = row.wrapping_add(at * 4 * EIGHT);
        // SAFETY: forwarded.
        unsafe {
            fetch(p, ahead);
            fetch(p.wrapping_add(64), ahead);
        }
    }

    #[inline(always)]
    unsafe fn unpack(row: &*const u8, (): &(), at: usize, _: usize, blocks: usize) -> Unpacked {
        // SAFETY: forwarded.
        unsafe {
            let p = row.add(at * 4 * EIGHT);
            let top = _mm512_set1_epi8(-128);
            let (low, high) = (sixteens(p.add(2), EIGHT, blocks), sixteens(p.add(18), EIGHT, blocks));
            let codes = [_mm512_xor_si512(low, top), _mm512_xor_si512(high, top)];
            let steps = spread(halves(p, EIGHT, 0, blocks), by_block());
            Unpacked { codes, steps: [steps; 2], mins: _mm_setzero_ps() }
        }
    }
}
