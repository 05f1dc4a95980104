//! Sixteen rows side by side (`quant/rows16.rs`): a lane is a row of weights, words of four elements of x go to all lanes.

use super::super::super::gemm::int8::Pairs;
use super::super::super::simd::{Simd, Task, Vnni};
use super::super::fixed::{BLOCK, Order, QUAD, Quad, quads};
use super::codes::split;
use super::{Kernel, ROWS, Sums, by_rows};
use crate::quant::QFormat;
use crate::quant::rows16::{self, Parts};
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Bytes ahead of the codes in use that are fetched to the second-level cache: the few places where the first level waits for
/// memory would hold up more than they bring.
const AHEAD: usize = 8192;

/// A format whose codes are above their numbers by `OFFSET`.
pub(super) trait Code: Copy + 'static {
    const PARTS: Parts;
    const OFFSET: i32;
}

macro_rules! codes {
    ($($code:ident $kernel:ident $format:ident $offset:literal),*) => {$(
        #[derive(Clone, Copy)]
        struct $code;

        impl Code for $code {
            const PARTS: Parts = Parts::of(QFormat::$format).unwrap();
            const OFFSET: i32 = $offset;
        }

        pub(in super::super) const $kernel: Kernel =
            Kernel { order: Order::Blocks, offset: $offset, sums: by_rows!(entry, $code) };
    )*};
}

codes! {
    Fours FOURS16 Q4_0 8, FoursMin FOURS16_MIN Q4_1 0, Fives FIVES16 Q5_0 16, FivesMin FIVES16_MIN Q5_1 0,
    Eights EIGHTS16 Q8_0 128
}

unsafe fn entry<C: Code, const D: usize, const M: usize>(sums: &Sums<'_>) {
    // SAFETY: forwarded.
    unsafe { Vnni::vectorize(Sixteens::<'_, C, D, M>(sums, PhantomData)) }
}

struct Sixteens<'a, C, const D: usize, const M: usize>(&'a Sums<'a>, PhantomData<C>);

impl<C: Code, const D: usize, const M: usize> Task for Sixteens<'_, C, D, M> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        const { assert!(M <= ROWS) };
        let &Sums { weights, first, count, k, x, sums } = self.0;
        debug_assert!(first.is_multiple_of(rows16::ROWS) && count.is_multiple_of(rows16::ROWS));
        let size = rows16::ROWS * C::PARTS.size();
        for column in (0..count).step_by(rows16::ROWS) {
            // SAFETY: forwarded; the sixteen rows have `k / 32` blocks, rows of x as many.
            unsafe {
                let row = weights.codes.add((first + column) * weights.row);
                let mut totals = [_mm512_setzero_ps(); M];
                for block in 0..k / BLOCK {
                    let (quad, b) = (block / (QUAD / BLOCK), block % (QUAD / BLOCK));
                    add::<C, D, M>(row.add(block * size), x.add(quad), quads(k), b, &mut totals);
                }
                for (i, total) in totals.iter().enumerate() {
                    _mm512_storeu_ps(sums.add(i * count + column), *total);
                }
            }
        }
    }
}

/// Adds the products of one block of sixteen rows with block `b` of a quad of M rows of x, which lie `apart` apart.
#[inline(always)]
unsafe fn add<C: Code, const D: usize, const M: usize>(
    p: *const u8,
    x: *const Quad,
    apart: usize,
    b: usize,
    totals: &mut [__m512; M],
) {
    // SAFETY: forwarded.
    unsafe {
        for line in 0..(rows16::ROWS * C::PARTS.size()).div_ceil(64) {
            _mm_prefetch::<_MM_HINT_T1>(p.wrapping_add(AHEAD + 64 * line).cast());
        }
        let factors = rows16::ROWS * C::PARTS.factors();
        let codes = p.add(factors + if C::PARTS.fifth { 64 } else { 0 });
        let (zero, sixteen) = (_mm512_setzero_si512(), _mm512_set1_epi8(16));
        let mut sums = [[zero; D]; M];
        if C::OFFSET != 0 {
            for (i, sums) in sums.iter_mut().enumerate() {
                let start = &(*x.add(i * apart)).start;
                sums[D - 1] = _mm512_set1_epi32(start[0][0][b]);
                if D == 3 {
                    sums[0] = _mm512_set1_epi32(start[1][0][b]);
                }
            }
        }
        for w in 0..4 {
            let (pair, at) = if C::PARTS.bytes {
                let load = |w: usize| _mm512_loadu_si512(codes.add(64 * w).cast());
                ([load(2 * w), load(2 * w + 1)], [8 * w, 8 * w + 4])
            } else {
                let mut pair = split(_mm512_loadu_si512(codes.add(64 * w).cast()));
                if C::PARTS.fifth {
                    for (half, codes) in pair.iter_mut().enumerate() {
                        let set = p.add(factors + 16 * w + 8 * half).cast::<u64>().read_unaligned();
                        *codes = _mm512_mask_add_epi8(*codes, set, *codes, sixteen);
                    }
                }
                (pair, [4 * w, 16 + 4 * w])
            };
            for (i, sums) in sums.iter_mut().enumerate() {
                for (d, sum) in sums.iter_mut().enumerate() {
                    // The digits of a quad lie in order over both vectors.
                    let digits = (*x.add(i * apart)).digits[d].as_ptr().cast::<u8>().add(BLOCK * b);
                    for (codes, at) in pair.into_iter().zip(at) {
                        let four = _mm512_set1_epi32(digits.add(at).cast::<i32>().read_unaligned());
                        *sum = _mm512_dpbusd_epi32(*sum, codes, four);
                    }
                }
            }
        }
        let step = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        for (i, (sums, total)) in sums.iter().zip(totals).enumerate() {
            let x = x.add(i * apart);
            let low = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<8>(sums[D - 2]), sums[D - 1]));
            let sum =
                if D == 2 { low } else { _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[0]), _mm512_set1_ps(65_536.0), low) };
            *total = _mm512_fmadd_ps(_mm512_mul_ps(step, _mm512_set1_ps((*x).steps[0][b])), sum, *total);
            if C::PARTS.min {
                let mins = _mm512_cvtph_ps(_mm256_loadu_si256(p.add(2 * rows16::ROWS).cast()));
                *total = _mm512_fmadd_ps(mins, _mm512_set1_ps((*x).sums[b]), *total);
            }
        }
    }
}
