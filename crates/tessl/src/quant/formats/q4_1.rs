//! Q4_1: `w = d * q + m`. 32 weights in 20 bytes: d, m (f16), then 16 bytes as in Q4_0.

use super::scales::{nearest, range, read_f16, write_f16};
use crate::quant::Code;
#[cfg(target_arch = "x86_64")]
use crate::quant::{QFormat, rows16::Parts};

/// The block of Q4_1.
#[derive(Clone, Copy)]
pub(crate) struct Q4_1;

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Between 0 and 15.
fn code(w: f32, d: f32, m: f32) -> u8 {
    nearest(w - m, d, 0, 15) as u8
}

impl Code for Q4_1 {
    const RUN: usize = 32;
    const BYTES: usize = 20;
    const FACTORS: usize = 0;
    #[cfg(target_arch = "x86_64")]
    const ROWS16: Option<Parts> = Parts::of(QFormat::Q4_1);

    fn pack(weights: &[f32], _: [f32; 2], block: &mut [u8]) {
        let [low, high] = range(weights);
        let d = write_f16(block, 0, (high - low) / 15.0);
        let m = write_f16(block, 2, low);
        for i in 0..16 {
            block[4 + i] = code(weights[i], d, m) | code(weights[i + 16], d, m) << 4;
        }
    }

    #[inline(always)]
    fn unpack(block: &[u8], _: [f32; 2], weights: &mut [f32]) {
        let (block, weights) = (&block[..20], &mut weights[..32]);
        let (d, m) = (read_f16(block, 0), read_f16(block, 2));
        for i in 0..16 {
            weights[i] = d * f32::from(block[4 + i] & 15) + m;
            weights[i + 16] = d * f32::from(block[4 + i] >> 4) + m;
        }
    }
}
