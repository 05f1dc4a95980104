//! Q4_K: `w = (d * s) * q - dmin * m`. 256 weights in 144 bytes: d, dmin (f16), eight pairs (s, m) of 6 bits in 12 bytes, one
//! for each 32 weights, then 128 bytes: byte 32 i + l holds weight 64 i + l in its low half, 64 i + 32 + l in its high half.

use super::scales::{pack_super_block, read_f16, six_bits};
use crate::quant::Code;

/// The block of Q4_K.
#[derive(Clone, Copy)]
pub(crate) struct Q4K;

impl Code for Q4K {
    const RUN: usize = 256;
    const BYTES: usize = 144;
    const FACTORS: usize = 0;

    fn pack(weights: &[f32], _: [f32; 2], block: &mut [u8]) {
        let codes = pack_super_block(weights, 15, block);
        for (at, byte) in block[16..].iter_mut().enumerate() {
            let first = at / 32 * 64 + at % 32;
            *byte = codes[first] | codes[first + 32] << 4;
        }
    }

    #[inline(always)]
    fn unpack(block: &[u8], _: [f32; 2], weights: &mut [f32]) {
        let (block, weights) = (&block[..144], &mut weights[..256]);
        let (d, dmin) = (read_f16(block, 0), read_f16(block, 2));
        for i in 0..4 {
            let bytes = &block[16 + 32 * i..][..32];
            for half in 0..2 {
                let [s, m] = six_bits(&block[4..16], 2 * i + half).map(f32::from);
                let (step, min) = (d * s, dmin * m);
                let out = &mut weights[64 * i + 32 * half..][..32];
                for l in 0..32 {
                    out[l] = step * f32::from(bytes[l] >> (4 * half) & 15) - min;
                }
            }
        }
    }
}
