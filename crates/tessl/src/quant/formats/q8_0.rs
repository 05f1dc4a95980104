//! Q8_0: `w = d * q`. 32 weights in 34 bytes: d (f16), then one i8 a weight.

use super::scales::{extreme, nearest, read_f16, write_f16};
use crate::quant::Code;
#[cfg(target_arch = "x86_64")]
use crate::quant::{QFormat, rows16::Parts};

/// The block of Q8_0.
#[derive(Clone, Copy)]
pub(crate) struct Q8_0;

impl Code for Q8_0 {
    const RUN: usize = 32;
    const BYTES: usize = 34;
    const FACTORS: usize = 0;
    #[cfg(target_arch = "x86_64")]
    const ROWS16: Option<Parts> = Parts::of(QFormat::Q8_0);

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The bits of an i8.
    fn pack(weights: &[f32], _: [f32; 2], block: &mut [u8]) {
        let d = write_f16(block, 0, extreme(weights).abs() / 127.0);
        block[2..].iter_mut().zip(weights).for_each(|(byte, &w)| *byte = nearest(w, d, -127, 127) as u8);
    }

    #[inline(always)]
    fn unpack(block: &[u8], _: [f32; 2], weights: &mut [f32]) {
        let (block, weights) = (&block[..34], &mut weights[..32]);
        let d = read_f16(block, 0);
        for i in 0..32 {
            weights[i] = d * f32::from(block[2 + i].cast_signed());
        }
    }
}
