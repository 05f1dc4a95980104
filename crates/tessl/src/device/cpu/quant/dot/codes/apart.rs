//! Codes in one array, factors in others: nibbles (even weights in low halves) and bytes.

use super::super::factors::Apart;
use super::*;

/// 4-bit codes: two's complement with one factor if `SIGNED`, else unsigned with a scale and a bias.
#[derive(Clone, Copy)]
pub(in super::super::super) struct Nibbles<const SIGNED: bool>;

/// 8-bit codes, likewise.
#[derive(Clone, Copy)]
pub(in super::super::super) struct Bytes<const SIGNED: bool>;

/// A row of codes and of factors.
#[derive(Clone, Copy)]
pub(in super::super::super) struct Parts {
    codes: *const u8,
    factors: Apart,
}

impl Parts {
    #[inline(always)]
    unsafe fn new(w: &Weights, row: usize) -> Self {
        // SAFETY: forwarded.
        unsafe { Parts { codes: whole_row(w, row), factors: Apart::new(w, row) } }
    }

    #[inline(always)]
    unsafe fn unpacked<const BIASES: bool>(&self, codes: [__m512i; 2], at: usize, blocks: usize) -> Unpacked {
        // SAFETY: forwarded.
        unsafe {
            let mins = if BIASES { self.factors.biases(at, blocks) } else { _mm_setzero_ps() };
            Unpacked { codes, steps: [self.factors.scales(at, blocks); 2], mins }
        }
    }
}

impl<const SIGNED: bool> Codes for Nibbles<SIGNED> {
    const ORDER: Order = Order::Pairs;
    const OFFSET: i32 = if SIGNED { 8 } else { 0 };
    const MINS: bool = !SIGNED;
    const QUADS: usize = 1;
    type Row = Parts;
    type Unit = ();

    #[inline(always)]
    unsafe fn row(w: &Weights, row: usize) -> Parts {
        // SAFETY: forwarded.
        unsafe { Parts::new(w, row) }
    }

    #[inline(always)]
    unsafe fn open(row: &Parts, at: usize, ahead: usize) {
        // SAFETY: forwarded.
        unsafe { fetch(row.codes.wrapping_add(at * 64), ahead) }
    }

    #[inline(always)]
    unsafe fn unpack(row: &Parts, (): &(), at: usize, _: usize, blocks: usize) -> Unpacked {
        // SAFETY: forwarded.
        unsafe {
            let all = bytes(row.codes.add(at * 64), blocks * 16);
            if SIGNED {
                let all = _mm512_xor_si512(all, _mm512_set1_epi8(0x88u8.cast_signed()));
                row.unpacked::<false>(split(all), at, blocks)
            } else {
                row.unpacked::<true>(split(all), at, blocks)
            }
        }
    }
}

impl<const SIGNED: bool> Codes for Bytes<SIGNED> {
    const ORDER: Order = Order::Halves;
    const OFFSET: i32 = if SIGNED { 128 } else { 0 };
    const MINS: bool = !SIGNED;
    const QUADS: usize = 1;
    type Row = Parts;
    type Unit = ();

    #[inline(always)]
    unsafe fn row(w: &Weights, row: usize) -> Parts {
        // SAFETY: forwarded.
        unsafe { Parts::new(w, row) }
    }

    #[inline(always)]
    unsafe fn open(row: &Parts, at: usize, ahead: usize) {
        let p = row.codes.wrapping_add(at * 128);
        // SAFETY: forwarded.
        unsafe {
            fetch(p, ahead);
            fetch(p.wrapping_add(64), ahead);
        }
    }

    #[inline(always)]
    unsafe fn unpack(row: &Parts, (): &(), at: usize, _: usize, blocks: usize) -> Unpacked {
        // SAFETY: forwarded.
        unsafe {
            let p = row.codes.add(at * 128);
            let (low, high) = (bytes(p, blocks.min(2) * 32), bytes(p.add(64), blocks.saturating_sub(2) * 32));
            // Pieces 0 and 2 of each, then 1 and 3: the halves of the blocks.
            let codes = [_mm512_shuffle_i64x2::<0x88>(low, high), _mm512_shuffle_i64x2::<0xdd>(low, high)];
            if SIGNED {
                let top = _mm512_set1_epi8(-128);
                let codes = [_mm512_xor_si512(codes[0], top), _mm512_xor_si512(codes[1], top)];
                row.unpacked::<false>(codes, at, blocks)
            } else {
                row.unpacked::<true>(codes, at, blocks)
            }
        }
    }
}
