//! 8-bit products without AMX: both operands become pairs of i16 along k, which one instruction multiplies and adds to an
//! i32. Nothing saturates, whatever the signs: a pair of products of 9-bit numbers is far below 2^31.

use super::super::simd::{Scalar, Simd, Task};
use super::micro::{Micro, Panel, Product, Side};
use crate::dtype::DType;
use std::marker::PhantomData;

/// Vectors of i32 of one instruction set.
///
/// # Safety of all functions
/// The processor has the instruction set, and pointers are valid for a vector.
pub(in super::super) trait Pairs: 'static {
    /// The instruction set of packing and epilogue.
    type S: Simd;
    type V: Copy;

    unsafe fn zero() -> Self::V;
    unsafe fn load(p: *const i32) -> Self::V;
    unsafe fn store(p: *mut i32, v: Self::V);
    unsafe fn splat(x: i32) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// `sum + a.low * b.low + a.high * b.high`, lane by lane.
    unsafe fn dot(sum: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Runs `task` with the instruction set enabled.
    unsafe fn vectorize<T: Task>(task: T);
}

/// `ROWS` rows by `VECS` vectors of sums.
pub(super) struct Int8<P, const ROWS: usize, const VECS: usize>(PhantomData<P>);

/// The slow twin.
pub(super) type ScalarInt8 = Int8<Scalar, 4, 2>;
#[cfg(target_arch = "aarch64")]
pub(super) type NeonInt8 = Int8<super::super::simd::Neon, 8, 3>;
#[cfg(target_arch = "x86_64")]
pub(super) type Avx2Int8 = Int8<super::super::simd::Avx2, 6, 2>;
#[cfg(target_arch = "x86_64")]
pub(super) type Avx512Int8 = Int8<super::super::simd::Avx512, 12, 2>;
#[cfg(target_arch = "x86_64")]
pub(super) type VnniInt8 = Int8<super::super::simd::Vnni, 12, 2>;

impl<P: Pairs, const ROWS: usize, const VECS: usize> Micro for Int8<P, ROWS, VECS> {
    type S = P::S;
    const ROWS: usize = ROWS;
    const COLS: usize = VECS * P::S::LANES;
    const STEP: usize = 2;
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn pack(panel: Panel) {
        let stride = if panel.side == Side::A { Self::ROWS } else { Self::COLS };
        // SAFETY: forwarded.
        unsafe { P::S::vectorize(PackPairs { panel, stride }) };
    }

    #[inline(always)]
    unsafe fn tile(product: Product) {
        // SAFETY: forwarded.
        unsafe {
            if product.rows == 1 {
                P::vectorize(Sums::<P, 1, VECS> { product, stride: ROWS, kind: PhantomData });
            } else {
                P::vectorize(Sums::<P, ROWS, VECS> { product, stride: ROWS, kind: PhantomData });
            }
        }
    }
}

/// The sums of `ROWS` rows by `VECS` vectors.
struct Sums<P, const ROWS: usize, const VECS: usize> {
    product: Product,
    /// Rows of A's panel.
    stride: usize,
    kind: PhantomData<P>,
}

impl<P: Pairs, const ROWS: usize, const VECS: usize> Task for Sums<P, ROWS, VECS> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Product { steps, a, b, acc, first, .. } = self.product;
        let (mut a, mut b, acc) = (a.cast::<i32>(), b.cast::<i32>(), acc.cast::<i32>());
        let lanes = P::S::LANES;
        // SAFETY: the panels have pairs of steps, the tile ROWS rows of VECS vectors.
        unsafe {
            let mut sums = [[P::zero(); VECS]; ROWS];
            for _ in 0..steps / 2 {
                // A loop and no `from_fn`, which is compiled apart, without the instruction set of the caller.
                let mut columns = [P::zero(); VECS];
                for (j, column) in columns.iter_mut().enumerate() {
                    *column = P::load(b.add(j * lanes));
                }
                for (i, row) in sums.iter_mut().enumerate() {
                    let x = P::splat(*a.add(i));
                    for (sum, column) in row.iter_mut().zip(columns) {
                        *sum = P::dot(*sum, x, column);
                    }
                }
                a = a.add(self.stride);
                b = b.add(VECS * lanes);
            }
            for (i, row) in sums.iter().enumerate() {
                for (j, &sum) in row.iter().enumerate() {
                    let p = acc.add((i * VECS + j) * lanes);
                    P::store(p, if first { sum } else { P::add(P::load(p), sum) });
                }
            }
        }
    }
}

/// `dst[pair * stride + lane]`, a word of two steps each.
struct PackPairs {
    panel: Panel,
    stride: usize,
}

impl Task for PackPairs {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let PackPairs { panel: p, stride } = self;
        let signed = p.source.dtype == DType::I8;
        // SAFETY: the driver passes lanes and steps inside the operand, and room for whole steps.
        unsafe {
            let dst = p.dst.cast::<[i16; 2]>().add(p.place);
            for pair in 0..p.steps.div_ceil(2) {
                let row = dst.add(pair * stride);
                for lane in 0..p.lanes {
                    let mut word = [0i16; 2];
                    for (i, half) in word.iter_mut().enumerate().take(p.steps - 2 * pair) {
                        let byte = *p.source.at(p.first_lane + lane, p.first_step + 2 * pair + i);
                        *half = if signed { byte.cast_signed().into() } else { byte.into() };
                    }
                    row.add(lane).write_unaligned(word);
                }
                std::ptr::write_bytes(row.add(p.lanes), 0, p.width - p.lanes);
            }
        }
    }
}

impl Pairs for Scalar {
    type S = Scalar;
    type V = [i32; 4];

    #[inline(always)]
    unsafe fn zero() -> [i32; 4] {
        [0; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const i32) -> [i32; 4] {
        // SAFETY: forwarded.
        unsafe { p.cast::<[i32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut i32, v: [i32; 4]) {
        // SAFETY: forwarded.
        unsafe { p.cast::<[i32; 4]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn splat(x: i32) -> [i32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn add(a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // The halves are what is asked for.
    unsafe fn dot(sum: [i32; 4], a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        let half = |x: i32, high: bool| i32::from(if high { (x >> 16) as i16 } else { x as i16 });
        std::array::from_fn(|i| sum[i] + half(a[i], false) * half(b[i], false) + half(a[i], true) * half(b[i], true))
    }
    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        // SAFETY: forwarded.
        unsafe { <Scalar as Simd>::vectorize(task) }
    }
}
