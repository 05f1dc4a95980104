//! How each format becomes unsigned codes, steps and minima, 128 weights at a time.
//!
//! INVARIANT: no intrinsic stands in a closure that a library function calls (`map`, `from_fn`): those are compiled without the
//! instruction set, and each intrinsic in them becomes a call.

mod apart;
mod blocks;
mod supers;

use super::super::fixed::Order;
use super::super::operands::Weights;
use std::arch::x86_64::*;

pub(in super::super) use apart::{Bytes, Nibbles};
pub(in super::super) use blocks::{Blocks, Eights};
pub(in super::super) use supers::{Supers, Supers6};

/// 128 weights: `w = steps * (code - offset) + mins`.
pub(in super::super) struct Unpacked {
    pub(in super::super) codes: [__m512i; 2],
    /// By lane; the second one for orders that are not even.
    pub(in super::super) steps: [__m512; 2],
    /// By block of 32.
    pub(in super::super) mins: __m128,
}

/// A format as the kernel reads it.
///
/// # Safety of all functions
/// The processor has AVX-512, the row exists and has the unit asked for.
pub(in super::super) trait Codes: Copy + 'static {
    /// Which element of x meets which byte.
    const ORDER: Order;
    /// What codes are above the numbers they stand for.
    const OFFSET: i32;
    /// Whether there are minima (or biases).
    const MINS: bool;
    /// Quads of a unit that is opened at once.
    const QUADS: usize;
    /// Where a row lies.
    type Row: Copy;
    /// What the quads of a unit share.
    type Unit;

    /// Row `row` of `w`.
    unsafe fn row(w: &Weights, row: usize) -> Self::Row;
    /// Unit `at` of the row; what lies `ahead` bytes after it is fetched.
    unsafe fn open(row: &Self::Row, at: usize, ahead: usize) -> Self::Unit;
    /// Quad `quad` of unit `at`, of which `blocks` blocks exist; the rest is zeros.
    unsafe fn unpack(row: &Self::Row, unit: &Self::Unit, at: usize, quad: usize, blocks: usize) -> Unpacked;
}

/// A row of blocks that hold their factors.
#[inline(always)]
unsafe fn whole_row(w: &Weights, row: usize) -> *const u8 {
    // SAFETY: forwarded.
    unsafe { w.codes.add(row * w.row) }
}

/// Fetches to the second-level cache (see `rows16.rs`).
#[inline(always)]
unsafe fn fetch(p: *const u8, ahead: usize) {
    // SAFETY: a prefetch never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(p.wrapping_add(ahead).cast()) }
}

/// The low and the high halves of 64 bytes.
#[inline(always)]
pub(super) unsafe fn split(bytes: __m512i) -> [__m512i; 2] {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let mask = _mm512_set1_epi8(15);
        [_mm512_and_si512(bytes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask)]
    }
}

/// The first `count` of 64 bytes.
#[inline(always)]
unsafe fn bytes(p: *const u8, count: usize) -> __m512i {
    // SAFETY: forwarded.
    unsafe {
        match count {
            0 => _mm512_setzero_si512(),
            64 => _mm512_loadu_si512(p.cast()),
            _ => _mm512_maskz_loadu_epi8((1 << count) - 1, p.cast()),
        }
    }
}

/// 16 bytes of each of `count` places, `size` bytes apart.
#[inline(always)]
unsafe fn sixteens(p: *const u8, size: usize, count: usize) -> __m512i {
    // SAFETY: forwarded.
    unsafe {
        let load = |i: usize| if i < count { _mm_loadu_si128(p.add(i * size).cast()) } else { _mm_setzero_si128() };
        let v = _mm512_zextsi128_si512(load(0));
        let v = _mm512_inserti32x4::<1>(v, load(1));
        let v = _mm512_inserti32x4::<2>(v, load(2));
        _mm512_inserti32x4::<3>(v, load(3))
    }
}
