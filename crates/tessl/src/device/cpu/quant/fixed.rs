//! Rows of x in fixed point: whole numbers with one power of two for each 32 elements, cut into digits of 8 bits.
//!
//! With D digits an element keeps 8 D bits below the largest of its 32: three for f32, two for the half types, whose own
//! significands have 11 and 8. Products with whole codes are then exact; docs/numerics.md has the bound.
//!
//! Elements are grouped by 128 (a quad of blocks), in the order in which a format unpacks its codes.

use super::super::convert::widen;
use super::super::simd::{Simd, Task};
use crate::dtype::DType;

/// Elements of a quad.
pub(super) const QUAD: usize = 128;
/// Elements that share a power of two.
pub(super) const BLOCK: usize = 32;
/// Exponents below this one are not used, so that every step and its inverse are normal numbers.
const MIN_EXPONENT: i32 = -100;

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
}

impl Order {
    /// Element at byte `j` of vector `v`.
    pub(super) const fn element(self, v: usize, j: usize) -> usize {
        match self {
            Order::Halves => j / 16 * 32 + 16 * v + j % 16,
            Order::Pairs => 2 * j + v,
            Order::Alternate => j / 32 * 64 + 32 * v + j % 32,
            Order::Straight => 64 * v + j,
        }
    }

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

/// One row to bring into fixed point for codes of `order` and `offset`.
pub(super) struct Row {
    pub(super) x: *const u8,
    pub(super) dtype: DType,
    pub(super) k: usize,
    pub(super) order: Order,
    pub(super) offset: i32,
    pub(super) out: *mut Quad,
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
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // Digits.
fn quad<const D: usize>(x: &[f32; QUAD], order: Order, offset: i32, out: &mut Quad) {
    let (mut whole, mut steps) = ([0i32; QUAD], [0.0f32; 4]);
    for (b, block) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
        let largest = block.iter().fold(0, |most, v| (v.to_bits() & 0x7fff_ffff).max(most));
        let [step, inverse] = if D == 3 { step::<3>(largest) } else { step::<2>(largest) };
        if !step.is_nan() {
            for (q, v) in whole[BLOCK * b..][..BLOCK].iter_mut().zip(block) {
                *q = (v * inverse).round_ties_even() as i32;
            }
        }
        (steps[b], out.sums[b]) = (step, step * whole[BLOCK * b..][..BLOCK].iter().sum::<i32>() as f32);
    }
    let mut digits = [[0i8; QUAD]; 3];
    let mut rest = whole;
    for digit in digits[..D].iter_mut().rev() {
        for (d, q) in digit.iter_mut().zip(&mut rest) {
            *d = *q as i8;
            *q = (*q - i32::from(*d)) >> 8;
        }
    }
    for (to, from) in out.digits[..D].iter_mut().zip(&digits) {
        match order {
            Order::Halves => arrange(to, from, Order::Halves),
            Order::Pairs => arrange(to, from, Order::Pairs),
            Order::Alternate => arrange(to, from, Order::Alternate),
            Order::Straight => arrange(to, from, Order::Straight),
        }
    }
    for v in 0..2 {
        for lane in 0..16 {
            out.steps[v][lane] = steps[order.element(v, 4 * lane) / BLOCK];
        }
    }
    if offset != 0 {
        starts::<D>(order.even(), offset, out);
    }
}

#[inline(always)]
fn arrange(to: &mut [[i8; 64]; 2], from: &[i8; QUAD], order: Order) {
    for (v, to) in to.iter_mut().enumerate() {
        for (j, to) in to.iter_mut().enumerate() {
            *to = from[order.element(v, j)];
        }
    }
}

#[inline(always)]
fn starts<const D: usize>(even: bool, offset: i32, out: &mut Quad) {
    let lane = |digit: usize, v: usize, i: usize| -> i32 {
        out.digits[digit][v][4 * i..][..4].iter().map(|&d| i32::from(d)).sum()
    };
    let mut start = [[[0i32; 16]; 2]; 2];
    for (v, i) in (0..2).flat_map(|v| (0..16).map(move |i| (v, i))) {
        let [high, low] = if D == 3 {
            [lane(0, v, i), 256 * lane(1, v, i) + lane(2, v, i)]
        } else {
            [0, 256 * lane(0, v, i) + lane(1, v, i)]
        };
        let to = if even { 0 } else { v };
        start[0][to][i] -= offset * low;
        start[1][to][i] -= offset * high;
    }
    out.start = start;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::simd::Scalar;

    fn row(x: &[f32], dtype: DType, order: Order, offset: i32) -> Vec<Quad> {
        let empty = Quad { digits: [[[0; 64]; 2]; 3], start: [[[0; 16]; 2]; 2], steps: [[0.0; 16]; 2], sums: [0.0; 4] };
        let mut out = vec![empty; quads(x.len())];
        let halves: Vec<u16> = x.iter().map(|v| half::bf16::from_f32(*v).to_bits()).collect();
        let data = if dtype == DType::F32 { x.as_ptr().cast() } else { halves.as_ptr().cast() };
        // SAFETY: both have the elements of the row.
        unsafe { Row { x: data, dtype, k: x.len(), order, offset, out: out.as_mut_ptr() }.run::<Scalar>() };
        out
    }

    /// The element at (v, j) of a quad, and the step of its lane.
    fn element(quad: &Quad, count: usize, v: usize, j: usize) -> (f64, f64) {
        let step = f64::from(quad.steps[v][j / 4]);
        let whole = (0..count).fold(0.0, |sum, d| sum * 256.0 + f64::from(quad.digits[d][v][j]));
        (whole * step, step)
    }

    #[test]
    fn every_element_is_there_once_and_near() {
        let mut rng = tessl_oracle::Rng::new(5);
        for order in [Order::Halves, Order::Pairs, Order::Alternate, Order::Straight] {
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
                        let (got, _) = element(quad, digits(dtype), v, j);
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
        let x: Vec<f32> = (0i16..160).map(|i| f32::from(i % 23 - 11)).collect();
        for order in [Order::Halves, Order::Pairs, Order::Alternate, Order::Straight] {
            for dtype in [DType::F32, DType::Bf16] {
                let quad = row(&x, dtype, order, 8)[0];
                assert_eq!(f64::from(quad.sums[1]), x[32..64].iter().map(|&v| f64::from(v)).sum::<f64>());
                for lane in 0..16 {
                    let mut sum = 0.0;
                    for (v, j) in (0..2).flat_map(|v| (4 * lane..4 * lane + 4).map(move |j| (v, j))) {
                        let (got, step) = element(&quad, digits(dtype), v, j);
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
    fn what_is_not_finite_is_nan_in_its_block_alone() {
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
        let (least, _) = element(&row(&[1e-30; 32], DType::F32, Order::Halves, 0)[0], 3, 0, 0);
        assert!((least - 1e-30).abs() < 1e-36);
    }
}
