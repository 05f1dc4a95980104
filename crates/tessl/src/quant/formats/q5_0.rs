//! Q5_0: `w = d * (q - 16)`. 32 weights in 22 bytes: d (f16), a little-endian u32 with the fifth bit of weight i in bit i, then
//! 16 bytes with the four low bits as in Q4_0.

use super::scales::{extreme, nearest, read_f16, write_f16};
use crate::quant::Code;
#[cfg(target_arch = "x86_64")]
use crate::quant::{QFormat, rows16::Parts};

/// The block of Q5_0.
#[derive(Clone, Copy)]
pub(crate) struct Q5_0;

impl Code for Q5_0 {
    const RUN: usize = 32;
    const BYTES: usize = 22;
    const FACTORS: usize = 0;
    #[cfg(target_arch = "x86_64")]
    const ROWS16: Option<Parts> = Parts::of(QFormat::Q5_0);

    /// The extreme weight becomes code 0.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Between 0 and 31.
    fn pack(weights: &[f32], _: [f32; 2], block: &mut [u8]) {
        let d = write_f16(block, 0, extreme(weights) / -16.0);
        pack_five(&mut block[2..], |i| (nearest(weights[i], d, -16, 15) + 16) as u8);
    }

    #[inline(always)]
    fn unpack(block: &[u8], _: [f32; 2], weights: &mut [f32]) {
        let d = read_f16(block, 0);
        unpack_five(&block[2..22], |q| d * (q - 16.0), weights);
    }
}

/// Writes the fifth bits and the nibbles of 32 codes.
pub(super) fn pack_five(bytes: &mut [u8], code: impl Fn(usize) -> u8) {
    let high = (0..32).fold(0u32, |bits, i| bits | u32::from(code(i) >> 4) << i);
    bytes[..4].copy_from_slice(&high.to_le_bytes());
    for i in 0..16 {
        bytes[4 + i] = code(i) & 15 | code(i + 16) << 4;
    }
}

/// Applies `value` to 32 codes.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // One bit.
pub(super) fn unpack_five(bytes: &[u8], value: impl Fn(f32) -> f32, weights: &mut [f32]) {
    let (bytes, weights) = (&bytes[..20], &mut weights[..32]);
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for i in 0..16 {
        weights[i] = value(f32::from((bytes[4 + i] & 15) | ((high >> i & 1) as u8 * 16)));
        weights[i + 16] = value(f32::from((bytes[4 + i] >> 4) | ((high >> (i + 16) & 1) as u8 * 16)));
    }
}
