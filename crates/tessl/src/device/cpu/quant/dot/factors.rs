//! Scales and biases of four blocks of 32 as vectors.

use super::super::operands::Weights;
use crate::dtype::DType;
use std::arch::x86_64::*;

/// Words of a vector that repeat element `i` of four over the lanes of block `i`.
#[inline(always)]
pub(super) unsafe fn by_block() -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3) }
}

/// f16 numbers at `at` of up to four blocks of `size` bytes, as the low elements of a register; 0 for the rest.
#[inline(always)]
pub(super) unsafe fn halves(blocks: *const u8, size: usize, at: usize, count: usize) -> __m128 {
    let mut bits = 0u64;
    for b in 0..count {
        // SAFETY: forwarded: there are `count` blocks.
        bits |= u64::from(unsafe { blocks.add(b * size + at).cast::<u16>().read_unaligned() }) << (16 * b);
    }
    // SAFETY: the caller has AVX-512.
    unsafe { _mm_cvtph_ps(_mm_cvtsi64_si128(bits.cast_signed())) }
}

/// Element `i` of `x` in the lanes of block `i`.
#[inline(always)]
pub(super) unsafe fn spread(x: __m128, lanes: __m512i) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(x)) }
}

/// A row of factors that lie beside the codes.
#[derive(Clone, Copy)]
pub(super) struct Apart {
    scales: *const u8,
    biases: *const u8,
    dtype: DType,
    group: usize,
    lanes: __m512i,
    blocks: __m128i,
}

impl Apart {
    #[inline(always)]
    pub(super) unsafe fn new(w: &Weights, row: usize) -> Self {
        let at = row * w.groups * w.factors.size();
        // SAFETY: forwarded.
        unsafe {
            let shift = match w.group {
                32 => 0,
                64 => 1,
                _ => 2,
            };
            let count = _mm_cvtsi32_si128(shift);
            Apart {
                scales: w.scales.wrapping_add(at),
                biases: w.biases.wrapping_add(at),
                dtype: w.factors,
                group: w.group,
                lanes: _mm512_srl_epi32(by_block(), count),
                blocks: _mm_srl_epi32(_mm_setr_epi32(0, 1, 2, 3), count),
            }
        }
    }

    /// Scales of the lanes of a quad with `blocks` blocks.
    #[inline(always)]
    pub(super) unsafe fn scales(&self, quad: usize, blocks: usize) -> __m512 {
        // SAFETY: forwarded.
        unsafe { spread(self.load(self.scales, quad, blocks), self.lanes) }
    }

    /// Biases of its blocks.
    #[inline(always)]
    pub(super) unsafe fn biases(&self, quad: usize, blocks: usize) -> __m128 {
        // SAFETY: forwarded.
        unsafe { _mm_permutevar_ps(self.load(self.biases, quad, blocks), self.blocks) }
    }

    #[inline(always)]
    unsafe fn load(&self, array: *const u8, quad: usize, blocks: usize) -> __m128 {
        let count = (blocks * 32).div_ceil(self.group);
        // SAFETY: forwarded: the quad has `count` groups.
        unsafe {
            let at = array.add(quad * 128 / self.group * self.dtype.size());
            if self.dtype == DType::F32 {
                return match count {
                    1 => _mm_load_ss(at.cast()),
                    2 => _mm_castsi128_ps(_mm_loadl_epi64(at.cast())),
                    3 => _mm_maskz_loadu_ps(7, at.cast()),
                    _ => _mm_loadu_ps(at.cast()),
                };
            }
            let word = |i: usize| u64::from(at.cast::<u16>().add(i).read_unaligned()) << (16 * i);
            let bits = match count {
                1 => word(0),
                2 => at.cast::<u32>().read_unaligned().into(),
                3 => word(0) | word(1) | word(2),
                _ => at.cast::<u64>().read_unaligned(),
            };
            let bits = _mm_cvtsi64_si128(bits.cast_signed());
            if self.dtype == DType::F16 {
                _mm_cvtph_ps(bits)
            } else {
                _mm_castsi128_ps(_mm_slli_epi32::<16>(_mm_cvtepu16_epi32(bits)))
            }
        }
    }
}
