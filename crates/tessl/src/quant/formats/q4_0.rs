//! Q4_0: `w = d * (q - 8)`. 32 weights in 18 bytes: d (f16), then 16 bytes; byte i holds weight i in its low half and weight
//! i + 16 in its high half.

use super::scales::{extreme, nearest, read_f16, write_f16};
use crate::quant::Code;
#[cfg(target_arch = "x86_64")]
use crate::quant::{QFormat, rows16::Parts};

/// The block of Q4_0.
#[derive(Clone, Copy)]
pub(crate) struct Q4_0;

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Between 0 and 15.
fn code(w: f32, d: f32) -> u8 {
    (nearest(w, d, -8, 7) + 8) as u8
}

impl Code for Q4_0 {
    const RUN: usize = 32;
    const BYTES: usize = 18;
    const FACTORS: usize = 0;
    #[cfg(target_arch = "x86_64")]
    const ROWS16: Option<Parts> = Parts::of(QFormat::Q4_0);

    /// The extreme weight becomes code 0.
    fn pack(weights: &[f32], _: [f32; 2], block: &mut [u8]) {
        let d = write_f16(block, 0, extreme(weights) / -8.0);
        for i in 0..16 {
            block[2 + i] = code(weights[i], d) | code(weights[i + 16], d) << 4;
        }
    }

    #[inline(always)]
    fn unpack(block: &[u8], _: [f32; 2], weights: &mut [f32]) {
        let (block, weights) = (&block[..18], &mut weights[..32]);
        let d = read_f16(block, 0);
        for i in 0..16 {
            weights[i] = d * f32::from((block[2 + i] & 15).cast_signed() - 8);
            weights[i + 16] = d * f32::from((block[2 + i] >> 4).cast_signed() - 8);
        }
    }
}
