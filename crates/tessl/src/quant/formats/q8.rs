//! Signed 8-bit: `w = scale * q`, one i8 a weight.

use super::scales::{extreme, nearest};
use crate::quant::Code;

/// 8-bit codes with factors apart.
#[derive(Clone, Copy)]
pub(crate) struct Q8;

impl Code for Q8 {
    const RUN: usize = 32;
    const BYTES: usize = 32;
    const FACTORS: usize = 1;

    fn factors(group: &[f32]) -> [f32; 2] {
        [extreme(group).abs() / 127.0, 0.0]
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The bits of an i8.
    fn pack(weights: &[f32], [scale, _]: [f32; 2], codes: &mut [u8]) {
        codes.iter_mut().zip(weights).for_each(|(byte, &w)| *byte = nearest(w, scale, -127, 127) as u8);
    }

    #[inline(always)]
    fn unpack(codes: &[u8], [scale, _]: [f32; 2], weights: &mut [f32]) {
        let (codes, weights) = (&codes[..32], &mut weights[..32]);
        for i in 0..32 {
            weights[i] = scale * f32::from(codes[i].cast_signed());
        }
    }
}
