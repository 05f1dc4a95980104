//! Q5_K: `w = (d * s) * q - dmin * m`. 256 weights in 176 bytes: d, dmin and pairs as in Q4_K, 32 bytes with fifth bits (bit j of
//! byte l belongs to weight 32 j + l), then 128 bytes with the low four bits as in Q4_K.

use super::scales::{pack_super_block, read_f16, six_bits};
use crate::quant::Code;

/// The block of Q5_K.
#[derive(Clone, Copy)]
pub(crate) struct Q5K;

impl Code for Q5K {
    const RUN: usize = 256;
    const BYTES: usize = 176;
    const FACTORS: usize = 0;

    fn pack(weights: &[f32], _: [f32; 2], block: &mut [u8]) {
        let codes = pack_super_block(weights, 31, block);
        let (fifth, low) = block[16..].split_at_mut(32);
        for (l, byte) in fifth.iter_mut().enumerate() {
            *byte = (0..8).fold(0, |bits, j| bits | codes[32 * j + l] >> 4 << j);
        }
        for (at, byte) in low.iter_mut().enumerate() {
            let first = at / 32 * 64 + at % 32;
            *byte = codes[first] & 15 | codes[first + 32] << 4;
        }
    }

    #[inline(always)]
    fn unpack(block: &[u8], _: [f32; 2], weights: &mut [f32]) {
        let (block, weights) = (&block[..176], &mut weights[..256]);
        let (d, dmin) = (read_f16(block, 0), read_f16(block, 2));
        let fifth = &block[16..48];
        for i in 0..4 {
            let bytes = &block[48 + 32 * i..][..32];
            for half in 0..2 {
                let j = 2 * i + half;
                let [s, m] = six_bits(&block[4..16], j).map(f32::from);
                let (step, min) = (d * s, dmin * m);
                let out = &mut weights[32 * j..][..32];
                for l in 0..32 {
                    out[l] = step * f32::from(bytes[l] >> (4 * half) & 15 | (fifth[l] >> j & 1) << 4) - min;
                }
            }
        }
    }
}
