//! Q6_K: `w = (d * s) * (q - 32)`. 256 weights in 210 bytes: 128 bytes of low nibbles, 64 bytes of upper bit pairs, sixteen i8
//! scales, one for each 16 weights, then d (f16).
//!
//! Each half h of the block has 128 weights, 64 low bytes and 32 upper bytes. Weight 32 p + l of a half (p in 0..4, l in 0..32)
//! has its nibble in low byte 32 (p % 2) + l (the high half of the byte for p of 2 and 3), its pair in bits 2 p of upper byte l.

use super::scales::{extreme, nearest, read_f16, write_f16};
use crate::quant::Code;

/// The block of Q6_K.
#[derive(Clone, Copy)]
pub(crate) struct Q6K;

const HIGH: usize = 128;
const SCALES: usize = 192;
const D: usize = 208;

impl Code for Q6K {
    const RUN: usize = 256;
    const BYTES: usize = 210;
    const FACTORS: usize = 0;

    /// The extreme weight of 16 becomes -32, as far as the 8-bit scales allow.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // An i8, and six bits.
    fn pack(weights: &[f32], _: [f32; 2], block: &mut [u8]) {
        let mut steps = [0.0f32; 16];
        steps.iter_mut().zip(weights.chunks_exact(16)).for_each(|(step, w)| *step = extreme(w) / -32.0);
        block[..D].fill(0);
        let d = write_f16(block, D, extreme(&steps) / -128.0);
        for (at, &w) in weights.iter().enumerate() {
            let s = nearest(steps[at / 16], d, -128, 127);
            block[SCALES + at / 16] = s as u8;
            let q = (nearest(w, d * s as f32, -32, 31) + 32) as u8;
            let (half, p, l) = (at / 128, at % 128 / 32, at % 32);
            block[64 * half + 32 * (p % 2) + l] |= (q & 15) << (4 * (p / 2));
            block[HIGH + 32 * half + l] |= q >> 4 << (2 * p);
        }
    }

    #[inline(always)]
    fn unpack(block: &[u8], _: [f32; 2], weights: &mut [f32]) {
        let (block, weights) = (&block[..210], &mut weights[..256]);
        let d = read_f16(block, D);
        for half in 0..2 {
            let high = &block[HIGH + 32 * half..][..32];
            for p in 0..4 {
                let low = &block[64 * half + 32 * (p % 2)..][..32];
                for part in 0..2 {
                    let step = d * f32::from(block[SCALES + 8 * half + 2 * p + part].cast_signed());
                    let out = &mut weights[128 * half + 32 * p + 16 * part..][..16];
                    let (low, high) = (&low[16 * part..][..16], &high[16 * part..][..16]);
                    for l in 0..16 {
                        let q = low[l] >> (4 * (p / 2)) & 15 | (high[l] >> (2 * p) & 3) << 4;
                        out[l] = step * f32::from(q.cast_signed() - 32);
                    }
                }
            }
        }
    }
}
