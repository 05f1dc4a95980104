//! Micro-kernels: one tile of sums from packed panels.

use super::super::simd::{Scalar, Simd, Task};
use super::pack::{PackF32, Source};
use std::marker::PhantomData;

/// Which operand a panel belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Side {
    A,
    B,
}

/// A range of lanes and steps of an operand, and where its panel goes.
#[derive(Clone, Copy)]
pub(in super::super) struct Panel {
    pub(in super::super) source: Source,
    pub(in super::super) side: Side,
    pub(in super::super) first_lane: usize,
    pub(in super::super) lanes: usize,
    pub(in super::super) first_step: usize,
    pub(in super::super) steps: usize,
    /// Place of the first lane in the panel: 0, or its middle.
    pub(in super::super) place: usize,
    /// Lanes that are filled, with zeros where the operand ends.
    pub(in super::super) width: usize,
    pub(in super::super) dst: *mut u8,
}

/// Two panels to multiply, and their sums.
#[derive(Clone, Copy)]
pub(in super::super) struct Product {
    pub(in super::super) steps: usize,
    pub(in super::super) a: *const u8,
    pub(in super::super) b: *const u8,
    pub(in super::super) acc: *mut f32,
    /// The sums are stored, not added.
    pub(in super::super) first: bool,
    /// Only so many rows from the first one on are asked for.
    pub(in super::super) rows: usize,
    /// [`AHEAD`](Micro::AHEAD) bytes from here on may be fetched for each `STEP` steps.
    pub(in super::super) ahead: *const u8,
}

/// A tile kernel, with the packing that it needs.
///
/// # Safety of all functions
/// The processor has the instruction set; pointers are valid for a whole panel or tile.
pub(in super::super) trait Micro: 'static {
    /// The instruction set of packing and epilogue.
    type S: Simd;
    /// Rows of a tile.
    const ROWS: usize;
    /// Columns of a tile.
    const COLS: usize;
    /// Panels have a multiple of this many steps.
    const STEP: usize;
    /// Bytes of a packed element.
    const BYTES: usize;

    /// Packs a panel: `lanes` up to `width` and `steps` up to a multiple of `STEP` are filled with zeros.
    unsafe fn pack(panel: Panel);

    /// Adds the product of two panels to the `ROWS` x `COLS` sums. Kernels of whole numbers keep i32 in the same place.
    unsafe fn tile(product: Product);

    /// [`tile`](Self::tile), and the parts of `beside` for its steps.
    #[inline(always)]
    unsafe fn tile_beside<B: Beside>(product: Product, beside: B) {
        // SAFETY: forwarded.
        unsafe {
            Self::tile(product);
            for i in 0..product.steps / Self::STEP {
                Self::S::vectorize(beside.part(i));
            }
        }
    }

    /// Products keep a unit of their own busy: vector work costs little beside them.
    const OVERLAPS: bool = false;

    /// Bytes of `ahead` that are fetched for each `STEP` steps.
    const AHEAD: usize = 0;

    /// B is read so slowly that fetching its next piece keeps nothing else waiting.
    const FETCHES_B: bool = true;

    /// Called by a thread before its first tile.
    #[inline(always)]
    unsafe fn begin() {}

    /// Called after the last one.
    #[inline(always)]
    unsafe fn end() {}
}

/// Vector work that can be done in parts, between the steps of a product.
pub(in super::super) trait Beside: Task + Copy {
    /// What belongs beside the `i`th `STEP` steps.
    fn part(&self, i: usize) -> Self;
}

/// f32 products on vectors of `S`: `ROWS` rows by `VECS` vectors.
pub(in super::super) struct F32<S, const ROWS: usize, const VECS: usize>(PhantomData<S>);

/// The slow twin.
pub(in super::super) type ScalarTile = F32<Scalar, 4, 2>;
/// 24 sums, 3 columns and one broadcast of 32 registers.
#[cfg(target_arch = "aarch64")]
pub(in super::super) type NeonTile = F32<super::super::simd::Neon, 8, 3>;
/// 12 sums, 2 columns and one broadcast of 16 registers.
#[cfg(target_arch = "x86_64")]
pub(in super::super) type Avx2Tile = F32<super::super::simd::Avx2, 6, 2>;
/// 24 sums, 2 columns and broadcasts of 32 registers.
#[cfg(target_arch = "x86_64")]
pub(in super::super) type Avx512Tile = F32<super::super::simd::Avx512, 12, 2>;

impl<S: Simd, const ROWS: usize, const VECS: usize> Micro for F32<S, ROWS, VECS> {
    type S = S;
    const ROWS: usize = ROWS;
    const COLS: usize = VECS * S::LANES;
    const STEP: usize = 1;
    const BYTES: usize = 4;
    const AHEAD: usize = 16;

    #[inline(always)]
    unsafe fn pack(panel: Panel) {
        let Panel { source, side, first_lane, lanes, first_step, steps, place, width, dst } = panel;
        let stride = if side == Side::A { Self::ROWS } else { Self::COLS };
        // SAFETY: forwarded.
        unsafe {
            let dst = dst.cast::<f32>().add(place);
            S::vectorize(PackF32 { source, first_lane, lanes, first_step, steps, width, stride, dst });
        }
    }

    #[inline(always)]
    unsafe fn tile(product: Product) {
        // SAFETY: forwarded. Fewer rows leave B's panel as the only thing to wait for.
        unsafe {
            match product.rows {
                1 => S::vectorize(Sums::<1, VECS> { product, stride: ROWS }),
                2 => S::vectorize(Sums::<2, VECS> { product, stride: ROWS }),
                3..=4 => S::vectorize(Sums::<4, VECS> { product, stride: ROWS }),
                5..=8 if ROWS > 8 => S::vectorize(Sums::<8, VECS> { product, stride: ROWS }),
                _ => S::vectorize(Sums::<ROWS, VECS> { product, stride: ROWS }),
            }
        }
    }
}

/// The sums of `ROWS` rows by `VECS` vectors.
struct Sums<const ROWS: usize, const VECS: usize> {
    product: Product,
    /// Rows of A's panel.
    stride: usize,
}

impl<const ROWS: usize, const VECS: usize> Task for Sums<ROWS, VECS> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Product { steps, a, b, acc, first, mut ahead, .. } = self.product;
        let (mut a, mut b) = (a.cast::<f32>(), b.cast::<f32>());
        // SAFETY: the panels have `steps` steps, the tile ROWS rows of VECS vectors.
        unsafe {
            let mut sums = [[S::splat(0.0); VECS]; ROWS];
            for _ in 0..steps {
                S::prefetch(b.wrapping_add(16 * VECS * S::LANES).cast());
                S::prefetch(b.wrapping_add(16 * VECS * S::LANES + 16).cast());
                S::prefetch_far(ahead);
                ahead = ahead.wrapping_add(16);
                let mut columns = [S::splat(0.0); VECS];
                for (j, column) in columns.iter_mut().enumerate() {
                    *column = S::load(b.add(j * S::LANES));
                }
                for (i, row) in sums.iter_mut().enumerate() {
                    let x = S::splat(*a.add(i));
                    for (sum, column) in row.iter_mut().zip(columns) {
                        *sum = S::fma(x, column, *sum);
                    }
                }
                a = a.add(self.stride);
                b = b.add(VECS * S::LANES);
            }
            for (i, row) in sums.iter().enumerate() {
                for (j, &sum) in row.iter().enumerate() {
                    let p = acc.add((i * VECS + j) * S::LANES);
                    S::store(p, if first { sum } else { S::add(S::load(p), sum) });
                }
            }
        }
    }
}
