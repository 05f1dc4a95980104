//! Signed 4-bit: `w = scale * q`, q in -8..=7 as two's complement nibbles in the order of [`Affine4`](super::Affine4).

use super::scales::{extreme, nearest};
use crate::quant::Code;

/// 4-bit two's complement codes.
#[derive(Clone, Copy)]
pub(crate) struct Signed4;

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The low half of a number in -8..=7.
fn code(w: f32, scale: f32) -> u8 {
    nearest(w, scale, -8, 7) as u8 & 15
}

/// The number that the low half of a byte stands for.
#[inline(always)]
fn value(nibble: u8) -> f32 {
    f32::from(((nibble & 15) ^ 8).cast_signed() - 8)
}

impl Code for Signed4 {
    const RUN: usize = 32;
    const BYTES: usize = 16;
    const FACTORS: usize = 1;

    /// The extreme weight becomes -8.
    fn factors(group: &[f32]) -> [f32; 2] {
        [extreme(group) / -8.0, 0.0]
    }

    fn pack(weights: &[f32], [scale, _]: [f32; 2], codes: &mut [u8]) {
        for (byte, pair) in codes.iter_mut().zip(weights.chunks_exact(2)) {
            *byte = code(pair[0], scale) | code(pair[1], scale) << 4;
        }
    }

    #[inline(always)]
    fn unpack(codes: &[u8], [scale, _]: [f32; 2], weights: &mut [f32]) {
        let (codes, weights) = (&codes[..16], &mut weights[..32]);
        for i in 0..16 {
            weights[2 * i] = scale * value(codes[i]);
            weights[2 * i + 1] = scale * value(codes[i] >> 4);
        }
    }
}
