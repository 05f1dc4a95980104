//! Q5_1: `w = d * q + m`. 32 weights in 24 bytes: d, m (f16), then fifth bits and nibbles as in Q5_0.

use super::q5_0::{pack_five, unpack_five};
use super::scales::{nearest, range, read_f16, write_f16};
use crate::quant::Code;
#[cfg(target_arch = "x86_64")]
use crate::quant::{QFormat, rows16::Parts};

/// The block of Q5_1.
#[derive(Clone, Copy)]
pub(crate) struct Q5_1;

impl Code for Q5_1 {
    const RUN: usize = 32;
    const BYTES: usize = 24;
    const FACTORS: usize = 0;
    #[cfg(target_arch = "x86_64")]
    const ROWS16: Option<Parts> = Parts::of(QFormat::Q5_1);

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Between 0 and 31.
    fn pack(weights: &[f32], _: [f32; 2], block: &mut [u8]) {
        let [low, high] = range(weights);
        let d = write_f16(block, 0, (high - low) / 31.0);
        let m = write_f16(block, 2, low);
        pack_five(&mut block[4..], |i| nearest(weights[i] - m, d, 0, 31) as u8);
    }

    #[inline(always)]
    fn unpack(block: &[u8], _: [f32; 2], weights: &mut [f32]) {
        let (d, m) = (read_f16(block, 0), read_f16(block, 2));
        unpack_five(&block[4..24], |q| d * q + m, weights);
    }
}
