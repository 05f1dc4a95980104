//! GGUF super-blocks of 256 weights.

use super::super::factors::{by_block, spread};
use super::*;

/// Q4_K, or Q5_K if `FIVE`: d, dmin, eight pairs of 6 bits in 12 bytes, then (fifth bits and) nibbles, of which 32 bytes hold
/// one sub-block in their low halves and the next one in their high halves.
#[derive(Clone, Copy)]
pub(in super::super::super) struct Supers<const FIVE: bool>;

/// Steps of the sub-blocks, then minus their minima.
pub(in super::super::super) struct Steps(__m512);

impl<const FIVE: bool> Supers<FIVE> {
    const SIZE: usize = if FIVE { 176 } else { 144 };
    const NIBBLES: usize = if FIVE { 48 } else { 16 };
}

impl<const FIVE: bool> Codes for Supers<FIVE> {
    const ORDER: Order = Order::Alternate;
    const OFFSET: i32 = 0;
    const MINS: bool = true;
    const QUADS: usize = 2;
    type Row = *const u8;
    type Unit = Steps;

    #[inline(always)]
    unsafe fn row(w: &Weights, row: usize) -> *const u8 {
        // SAFETY: forwarded.
        unsafe { whole_row(w, row) }
    }

    #[inline(always)]
    unsafe fn open(row: &*const u8, at: usize, ahead: usize) -> Steps {
        const LOW6: u32 = 0x3f3f_3f3f;
        const LOW4: u32 = 0x0f0f_0f0f;
        const TOP2: u32 = 0x0303_0303;
        let p = row.wrapping_add(at * Self::SIZE);
        // SAFETY: forwarded.
        unsafe {
            (0..Self::SIZE.div_ceil(64)).for_each(|line| fetch(p.wrapping_add(64 * line), ahead));
            let word = |i: usize| p.add(4 + 4 * i).cast::<u32>().read_unaligned();
            let [a, b, c] = [word(0), word(1), word(2)];
            let high = |low: u32, top: u32| low & LOW4 | (top >> 6 & TOP2) << 4;
            let pair = |first: u32, second: u32| (u64::from(second) << 32 | u64::from(first)).cast_signed();
            let scales = pair(a & LOW6, high(c, a));
            let mins = pair(b & LOW6, high(c >> 4, b));
            let whole = _mm512_cvtepu8_epi32(_mm_set_epi64x(mins, scales));
            let factors = _mm_cvtph_ps(_mm_cvtsi32_si128(p.cast::<i32>().read_unaligned()));
            // d, and minus dmin.
            let factors = _mm_xor_ps(factors, _mm_setr_ps(0.0, -0.0, 0.0, 0.0));
            let factors = spread(factors, _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
            Steps(_mm512_mul_ps(_mm512_cvtepi32_ps(whole), factors))
        }
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // Bits of a byte.
    unsafe fn unpack(row: &*const u8, steps: &Steps, at: usize, quad: usize, _: usize) -> Unpacked {
        // SAFETY: forwarded.
        unsafe {
            let p = row.add(at * Self::SIZE);
            let mut codes = split(_mm512_loadu_si512(p.add(Self::NIBBLES + 64 * quad).cast()));
            if FIVE {
                let fifth = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.add(16).cast()));
                for (v, codes) in codes.iter_mut().enumerate() {
                    let bit = |sub: usize| _mm256_set1_epi8((1u8 << (4 * quad + v + sub)).cast_signed());
                    let bits = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(bit(0)), bit(2));
                    let set = _mm512_test_epi8_mask(fifth, bits);
                    *codes = _mm512_mask_add_epi8(*codes, set, *codes, _mm512_set1_epi8(16));
                }
            }
            let first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
            let from = |i: i32| _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(i)), steps.0);
            let (vectors, mins) = if quad == 0 {
                ([from(0), from(1)], _mm512_extractf32x4_ps::<2>(steps.0))
            } else {
                ([from(4), from(5)], _mm512_extractf32x4_ps::<3>(steps.0))
            };
            Unpacked { codes, steps: vectors, mins }
        }
    }
}

/// Q6_K: 128 low nibbles, 64 upper bit pairs, sixteen i8 scales, d.
#[derive(Clone, Copy)]
pub(in super::super::super) struct Supers6;

const SIZE6: usize = 210;

impl Codes for Supers6 {
    const ORDER: Order = Order::Straight;
    const OFFSET: i32 = 32;
    const MINS: bool = false;
    const QUADS: usize = 2;
    type Row = *const u8;
    type Unit = Steps;

    #[inline(always)]
    unsafe fn row(w: &Weights, row: usize) -> *const u8 {
        // SAFETY: forwarded.
        unsafe { whole_row(w, row) }
    }

    #[inline(always)]
    unsafe fn open(row: &*const u8, at: usize, ahead: usize) -> Steps {
        let p = row.wrapping_add(at * SIZE6);
        // SAFETY: forwarded.
        unsafe {
            (0..4).for_each(|line| fetch(p.wrapping_add(64 * line), ahead));
            let scales = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.add(192).cast()));
            let d = _mm_cvtph_ps(_mm_cvtsi32_si128(p.add(208).cast::<u16>().read_unaligned().into()));
            Steps(_mm512_mul_ps(_mm512_cvtepi32_ps(scales), _mm512_broadcastss_ps(d)))
        }
    }

    #[inline(always)]
    unsafe fn unpack(row: &*const u8, steps: &Steps, at: usize, quad: usize, _: usize) -> Unpacked {
        // SAFETY: forwarded.
        unsafe {
            let p = row.add(at * SIZE6);
            let [low, high] = split(_mm512_loadu_si512(p.add(64 * quad).cast()));
            let upper = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.add(128 + 32 * quad).cast()));
            // Bits 0 and 1 (first 32), 2 and 3 (second 32) go to bits 4 and 5; then 4 and 5, 6 and 7.
            let by = |first, second| _mm512_inserti64x4::<1>(_mm512_set1_epi16(first), _mm256_set1_epi16(second));
            let pair = _mm512_set1_epi8(0x30);
            let first = _mm512_and_si512(_mm512_sllv_epi16(upper, by(4, 2)), pair);
            let second = _mm512_and_si512(_mm512_srlv_epi16(upper, by(0, 2)), pair);
            let from = |i: i32| _mm512_permutexvar_ps(_mm512_add_epi32(by_block(), _mm512_set1_epi32(i)), steps.0);
            let vectors = if quad == 0 { [from(0), from(4)] } else { [from(8), from(12)] };
            let codes = [_mm512_or_si512(low, first), _mm512_or_si512(high, second)];
            Unpacked { codes, steps: vectors, mins: _mm_setzero_ps() }
        }
    }
}
