//! Rows of x in fixed point: whole numbers with one power of two for each 32 elements, cut into digits of 8 bits.
//!
//! With D digits an element keeps 8 D bits below the largest of its 32: three for f32, two for the half types, whose own
//! significands have 11 and 8. Products with whole codes are then exact; docs/numerics.md has the bound.
//!
//! Elements are grouped by 128 (a quad of blocks), in the order in which a format unpacks its codes.

use super::super::convert::widen;
use super::super::gemm::int8::Pairs;
use super::super::simd::{Simd, Task, Vnni};
use crate::dtype::DType;
use std::arch::x86_64::*;

/// Elements of a quad.
pub(super) const QUAD: usize = 128;
/// Elements that share a power of two.
pub(super) const BLOCK: usize = 32;
/// Exponents below this one are not used, so that every step and its inverse are normal numbers.
const MIN_EXPONENT: i32 = -100;

/// Whether this processor has what rows in fixed point are made and multiplied with.
pub(super) fn usable() -> bool {
    std::arch::is_x86_feature_detected!("avx512vnni")
}

/// [`usable`] for the test of this path, which is counted as skipped where it is not.
#[cfg(test)]
pub(super) fn usable_or_skip(test: &str) -> bool {
    if !usable() {
        tessl_conformance::skip::skip("avx512", test, "the processor has no AVX-512 VNNI");
    }
    usable()
}

/// Digits for elements of `dtype`.
pub(super) const fn digits(dtype: DType) -> usize {
    if matches!(dtype, DType::F32) { 3 } else { 2 }
}

/// Which element of a quad lies at byte `j` of vector `v` of its two vectors of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// 16 bytes of each block: its first half in one vector, its second half in the other.
    Halves,
    /// Even elements, then odd ones.
    Pairs,
    /// Blocks 0 and 2, then 1 and 3.
    Alternate,
    /// As they come.
    Straight,
    /// As they come, with one step and one start for each block: `steps[0][b]`, `start[i][0][b]`.
    Blocks,
}

impl Order {
    /// Whether both vectors have the same blocks in the same lanes, so that their sums can be one.
    pub(super) const fn even(self) -> bool {
        matches!(self, Order::Halves | Order::Pairs)
    }
}

/// A quad of x.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Quad {
    /// Digits, the highest first; with two of them the last place is not used.
    pub(super) digits: [[[i8; 64]; 2]; 3],
    /// What the offset of the codes adds up to in each lane, negated: where the sum of the low digits (of both digits, where
    /// there are two) starts, and that of the highest digit of three. The second vector is for orders that are not even.
    pub(super) start: [[[i32; 16]; 2]; 2],
    /// Steps of the elements of each lane; NaN where the block has an element that is not finite.
    pub(super) steps: [[f32; 16]; 2],
    /// Sum of the elements of each block.
    pub(super) sums: [f32; 4],
}

/// Quads of a row of `k` elements.
pub(super) const fn quads(k: usize) -> usize {
    k.div_ceil(QUAD)
}

/// One row to bring into fixed point for codes of `order` and `offset`, on a processor with AVX-512 and VNNI.
pub(super) struct Row {
    pub(super) x: *const u8,
    pub(super) dtype: DType,
    pub(super) k: usize,
    pub(super) order: Order,
    pub(super) offset: i32,
    pub(super) out: *mut Quad,
}

impl Row {
    /// Brings the row into fixed point.
    ///
    /// # Safety
    /// The processor has VNNI, the row its elements, and `out` its quads.
    pub(super) unsafe fn convert(self) {
        // SAFETY: forwarded.
        unsafe { Vnni::vectorize(self) }
    }
}

impl Task for Row {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut x = [0.0f32; QUAD];
        for i in 0..quads(self.k) {
            let count = QUAD.min(self.k - i * QUAD);
            if count < QUAD {
                x.fill(0.0);
            }
            // SAFETY: forwarded: the row has these elements, `out` has the quads.
            unsafe {
                widen::<S>(self.x.add(i * QUAD * self.dtype.size()), self.dtype, x.as_mut_ptr(), count);
                let out = &mut *self.out.add(i);
                if digits(self.dtype) == 3 {
                    quad::<3>(&x, self.order, self.offset, out);
                } else {
                    quad::<2>(&x, self.order, self.offset, out);
                }
            }
        }
    }
}

/// Step and its inverse for a block whose largest magnitude has these bits; the step is NaN if it is not finite.
#[inline(always)]
fn step<const D: i32>(largest: u32) -> [f32; 2] {
    if largest >= 0x7f80_0000 {
        return [f32::NAN, 0.0];
    }
    // The digits reach 127 / 128 of their range.
    let above = (f32::from_bits(largest) * 1.005).to_bits() >> 23;
    let exponent = (above.cast_signed() - 127).max(MIN_EXPONENT) + 2 - 8 * D;
    let power = |e: i32| f32::from_bits((e + 127).cast_unsigned() << 23);
    [power(exponent), power(-exponent)]
}

/// Fills one quad.
///
/// # Safety
/// The processor has AVX-512 with VNNI.
#[inline(always)]
unsafe fn quad<const D: usize>(x: &[f32; QUAD], order: Order, offset: i32, out: &mut Quad) {
    // SAFETY: forwarded; every load and store is inside its array.
    unsafe {
        let mut steps = [0.0f32; 4];
        // Digits as sixteens of bytes, in the order of the elements.
        let mut pieces = [[_mm_setzero_si128(); 8]; D];
        for b in 0..4 {
            let v = [_mm512_loadu_ps(x.as_ptr().add(32 * b)), _mm512_loadu_ps(x.as_ptr().add(32 * b + 16))];
            let magnitude = _mm512_set1_epi32(0x7fff_ffff);
            let low = _mm512_and_si512(_mm512_castps_si512(v[0]), magnitude);
            let high = _mm512_and_si512(_mm512_castps_si512(v[1]), magnitude);
            let largest = _mm512_reduce_max_epu32(_mm512_max_epu32(low, high));
            let [step, inverse] = if D == 3 { step::<3>(largest) } else { step::<2>(largest) };
            // All zeros in a block with an element that is not finite.
            let finite = if step.is_nan() { 0 } else { 0xffff };
            let mut sum = _mm512_setzero_si512();
            for (half, v) in v.into_iter().enumerate() {
                let scaled = _mm512_mul_ps(v, _mm512_set1_ps(inverse));
                let mut rest = _mm512_maskz_cvtps_epi32(finite, scaled);
                sum = _mm512_add_epi32(sum, rest);
                for pieces in pieces.iter_mut().rev() {
                    pieces[2 * b + half] = _mm512_cvtepi32_epi8(rest);
                    // The lowest digit is signed: what is left over is rounded to it.
                    rest = _mm512_srai_epi32::<8>(_mm512_add_epi32(rest, _mm512_set1_epi32(128)));
                }
            }
            #[allow(clippy::cast_precision_loss)] // Rounded once.
            let total = _mm512_reduce_add_epi32(sum) as f32;
            (steps[b], out.sums[b]) = (step, step * total);
        }
        let all = _mm512_castps128_ps512(_mm_loadu_ps(steps.as_ptr()));
        let [first, second] = order.blocks();
        _mm512_storeu_ps(out.steps[0].as_mut_ptr(), _mm512_permutexvar_ps(first, all));
        _mm512_storeu_ps(out.steps[1].as_mut_ptr(), _mm512_permutexvar_ps(second, all));
        let mut digits = [[_mm512_setzero_si512(); 2]; D];
        for ((to, digits), pieces) in out.digits.iter_mut().zip(&mut digits).zip(&pieces) {
            *digits = order.arrange(pieces);
            _mm512_storeu_si512(to[0].as_mut_ptr().cast(), digits[0]);
            _mm512_storeu_si512(to[1].as_mut_ptr().cast(), digits[1]);
        }
        if offset != 0 {
            starts(order, offset, &digits, out);
        }
    }
}

impl Order {
    /// The block of each lane of both vectors.
    #[inline(always)]
    unsafe fn blocks(self) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let lanes = |a, b, c, d| _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
            match self {
                Order::Halves | Order::Pairs => [lanes(0, 1, 2, 3); 2],
                Order::Alternate => [lanes(0, 0, 2, 2), lanes(1, 1, 3, 3)],
                Order::Straight => [lanes(0, 0, 1, 1), lanes(2, 2, 3, 3)],
                Order::Blocks => [_mm512_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3); 2],
            }
        }
    }

    /// Eight times sixteen bytes as they come, in this order.
    #[inline(always)]
    unsafe fn arrange(self, p: &[__m128i; 8]) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            match self {
                Order::Halves => [join(p[0], p[2], p[4], p[6]), join(p[1], p[3], p[5], p[7])],
                Order::Alternate => [join(p[0], p[1], p[4], p[5]), join(p[2], p[3], p[6], p[7])],
                Order::Straight | Order::Blocks => [join(p[0], p[1], p[2], p[3]), join(p[4], p[5], p[6], p[7])],
                Order::Pairs => {
                    let low = join(p[0], p[1], p[2], p[3]);
                    let high = join(p[4], p[5], p[6], p[7]);
                    let both = |low, high| {
                        _mm512_inserti64x4::<1>(
                            _mm512_castsi256_si512(_mm512_cvtepi16_epi8(low)),
                            _mm512_cvtepi16_epi8(high),
                        )
                    };
                    [both(low, high), both(_mm512_srli_epi16::<8>(low), _mm512_srli_epi16::<8>(high))]
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn join(a: __m128i, b: __m128i, c: __m128i, d: __m128i) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
        let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }
}

/// Where sums start for codes that are above their numbers by `offset`.
#[inline(always)]
unsafe fn starts<const D: usize>(order: Order, offset: i32, digits: &[[__m512i; 2]; D], out: &mut Quad) {
    // SAFETY: the caller has AVX-512 with VNNI.
    unsafe {
        let (zero, ones) = (_mm512_setzero_si512(), _mm512_set1_epi8(1));
        let (minus, even) = (_mm512_set1_epi32(-offset), order.even());
        for to in 0..if even { 1 } else { 2 } {
            let lanes = |digit: usize| {
                let sum = _mm512_dpbusd_epi32(zero, ones, digits[digit][to]);
                if even { _mm512_dpbusd_epi32(sum, ones, digits[digit][1]) } else { sum }
            };
            let low = _mm512_add_epi32(_mm512_slli_epi32::<8>(lanes(D - 2)), lanes(D - 1));
            let high = if D == 3 { lanes(0) } else { zero };
            for (i, sum) in [low, high].into_iter().enumerate() {
                _mm512_storeu_si512(out.start[i][to].as_mut_ptr().cast(), _mm512_mullo_epi32(sum, minus));
            }
        }
        if order == Order::Blocks {
            for start in &mut out.start {
                for b in 0..4 {
                    let block: i32 = start[b / 2][b % 2 * 8..][..8].iter().sum();
                    start[b / 2][b % 2 * 8] = block;
                }
                start[0] = [start[0][0], start[0][8], start[1][0], start[1][8], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Order {
        /// Element at byte `j` of vector `v`.
        fn element(self, v: usize, j: usize) -> usize {
            match self {
                Order::Halves => j / 16 * 32 + 16 * v + j % 16,
                Order::Pairs => 2 * j + v,
                Order::Alternate => j / 32 * 64 + 32 * v + j % 32,
                Order::Straight | Order::Blocks => 64 * v + j,
            }
        }
    }

    fn row(x: &[f32], dtype: DType, order: Order, offset: i32) -> Vec<Quad> {
        let empty = Quad { digits: [[[0; 64]; 2]; 3], start: [[[0; 16]; 2]; 2], steps: [[0.0; 16]; 2], sums: [0.0; 4] };
        let mut out = vec![empty; quads(x.len())];
        let halves: Vec<u16> = x.iter().map(|v| half::bf16::from_f32(*v).to_bits()).collect();
        let data = if dtype == DType::F32 { x.as_ptr().cast() } else { halves.as_ptr().cast() };
        // SAFETY: both have the elements of the row.
        unsafe { Row { x: data, dtype, k: x.len(), order, offset, out: out.as_mut_ptr() }.convert() };
        out
    }

    /// The element at (v, j) of a quad, and the step of its lane.
    fn element(quad: &Quad, order: Order, count: usize, v: usize, j: usize) -> (f64, f64) {
        let step = f64::from(if order == Order::Blocks { quad.steps[0][2 * v + j / 32] } else { quad.steps[v][j / 4] });
        let whole = (0..count).fold(0.0, |sum, d| sum * 256.0 + f64::from(quad.digits[d][v][j]));
        (whole * step, step)
    }

    #[test]
    fn every_element_is_there_once_and_near() {
        if !usable_or_skip("device::cpu::quant::fixed::tests::every_element_is_there_once_and_near") {
            return;
        }
        let mut rng = tessl_oracle::Rng::new(5);
        for order in [Order::Halves, Order::Pairs, Order::Alternate, Order::Straight, Order::Blocks] {
            for (dtype, bits) in [(DType::F32, 23), (DType::Bf16, 15)] {
                #[allow(clippy::cast_possible_truncation)]
                let value = |i: usize| (rng.normal() * 2f64.powi(i32::try_from(i % 5).unwrap() * 20 - 40)) as f32;
                let mut x: Vec<f32> = (0..416).map(value).collect();
                x[64..96].fill(0.0);
                x[100] = 1.999_999_9;
                if dtype == DType::Bf16 {
                    x.iter_mut().for_each(|v| *v = half::bf16::from_f32(*v).to_f32());
                }
                let out = row(&x, dtype, order, 0);
                for (at, quad) in out.iter().enumerate() {
                    let mut seen = [false; QUAD];
                    for (v, j) in (0..2).flat_map(|v| (0..64).map(move |j| (v, j))) {
                        let e = order.element(v, j);
                        assert!(!std::mem::replace(&mut seen[e], true));
                        let (got, _) = element(quad, order, digits(dtype), v, j);
                        let Some(&want) = x.get(at * QUAD + e) else {
                            assert_eq!(got, 0.0);
                            continue;
                        };
                        let block = &x[(at * QUAD + e) / BLOCK * BLOCK..][..BLOCK];
                        let largest = block.iter().fold(0f32, |m, v| m.max(v.abs()));
                        let allowed = 1.005 * 2f64.powi(-bits) * f64::from(largest);
                        assert!((got - f64::from(want)).abs() <= allowed, "{got} {want} {largest}");
                    }
                }
            }
        }
    }

    #[test]
    fn whole_numbers_are_exact_and_starts_cancel_the_offset() {
        if !usable_or_skip("device::cpu::quant::fixed::tests::whole_numbers_are_exact_and_starts_cancel_the_offset") {
            return;
        }
        let x: Vec<f32> = (0i16..160).map(|i| f32::from(i % 23 - 11)).collect();
        for order in [Order::Halves, Order::Pairs, Order::Alternate, Order::Straight] {
            for dtype in [DType::F32, DType::Bf16] {
                let quad = row(&x, dtype, order, 8)[0];
                assert_eq!(f64::from(quad.sums[1]), x[32..64].iter().map(|&v| f64::from(v)).sum::<f64>());
                for lane in 0..16 {
                    let mut sum = 0.0;
                    for (v, j) in (0..2).flat_map(|v| (4 * lane..4 * lane + 4).map(move |j| (v, j))) {
                        let (got, step) = element(&quad, order, digits(dtype), v, j);
                        assert_eq!(got, f64::from(x[order.element(v, j)]));
                        sum += 8.0 * got / step;
                    }
                    let high = if dtype == DType::F32 { 65_536.0 } else { 0.0 };
                    let starts =
                        (0..2).map(|v| f64::from(quad.start[0][v][lane]) + high * f64::from(quad.start[1][v][lane]));
                    let started: f64 = starts.sum();
                    if order.even() {
                        assert_eq!(started, -sum);
                    }
                }
            }
        }
    }

    #[test]
    fn starts_of_blocks_are_sums_of_their_elements() {
        if !usable_or_skip("device::cpu::quant::fixed::tests::starts_of_blocks_are_sums_of_their_elements") {
            return;
        }
        let x: Vec<f32> = (0i16..128).map(|i| f32::from(i * i % 41 - 20)).collect();
        for (dtype, high) in [(DType::F32, 65_536.0), (DType::Bf16, 0.0)] {
            let quad = row(&x, dtype, Order::Blocks, 16)[0];
            for b in 0..4 {
                let sum: f64 = x[32 * b..][..32].iter().map(|&v| f64::from(v)).sum();
                let start = f64::from(quad.start[0][0][b]) + high * f64::from(quad.start[1][0][b]);
                assert_eq!(start * f64::from(quad.steps[0][b]), -16.0 * sum);
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_nan_in_its_block_alone() {
        if !usable_or_skip("device::cpu::quant::fixed::tests::what_is_not_finite_is_nan_in_its_block_alone") {
            return;
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0f32; 128];
            x[40] = bad;
            let quad = row(&x, DType::F32, Order::Halves, 0)[0];
            let nan: Vec<bool> = quad.steps[0].iter().map(|s| s.is_nan()).collect();
            assert_eq!(nan, (0..16).map(|lane| lane / 4 == 1).collect::<Vec<_>>());
            assert!(quad.sums[1].is_nan() && !quad.sums[0].is_nan());
        }
        let most = row(&[f32::MAX; 32], DType::F32, Order::Halves, 0)[0];
        assert!(most.steps[0][0].is_finite() && most.sums[0] == f32::MAX * 32.0);
        let (least, _) = element(&row(&[1e-30; 32], DType::F32, Order::Halves, 0)[0], Order::Halves, 3, 0, 0);
        assert!((least - 1e-30).abs() < 1e-36);
    }
}
