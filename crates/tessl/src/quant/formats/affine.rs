//! Affine: `w = scale * q + bias`, q unsigned, 32-bit little-endian words filled from their lowest bits.
//!
//! 4 bits: weight j of a row is in bits 4 j .. 4 j + 3 of its stream, so byte j / 2, the low half for even j. 8 bits: byte j.

use super::scales::{nearest, range};
use crate::quant::Code;

/// 4-bit codes.
#[derive(Clone, Copy)]
pub(crate) struct Affine4;

/// 8-bit codes.
#[derive(Clone, Copy)]
pub(crate) struct Affine8;

/// Scale and bias that put the weight of largest magnitude on code 0 or on a whole number of steps from 0, so that zeros
/// and the extreme stay exact where the stored type allows.
fn fit(group: &[f32], most: f32) -> [f32; 2] {
    let [low, high] = range(group);
    let step = ((high - low) / most).max(1e-7);
    let (edge, step) = if low.abs() > high.abs() { (low, step) } else { (high, -step) };
    let steps = (edge / step).round_ties_even();
    if steps == 0.0 { [step, 0.0] } else { [edge / steps, edge] }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Between 0 and `most`.
fn code(w: f32, [scale, bias]: [f32; 2], most: i32) -> u8 {
    nearest(w - bias, scale, 0, most) as u8
}

impl Code for Affine4 {
    const RUN: usize = 32;
    const BYTES: usize = 16;
    const FACTORS: usize = 2;

    fn factors(group: &[f32]) -> [f32; 2] {
        fit(group, 15.0)
    }

    fn pack(weights: &[f32], factors: [f32; 2], codes: &mut [u8]) {
        for (byte, pair) in codes.iter_mut().zip(weights.chunks_exact(2)) {
            *byte = code(pair[0], factors, 15) | code(pair[1], factors, 15) << 4;
        }
    }

    #[inline(always)]
    fn unpack(codes: &[u8], [scale, bias]: [f32; 2], weights: &mut [f32]) {
        let (codes, weights) = (&codes[..16], &mut weights[..32]);
        for i in 0..16 {
            weights[2 * i] = scale * f32::from(codes[i] & 15) + bias;
            weights[2 * i + 1] = scale * f32::from(codes[i] >> 4) + bias;
        }
    }
}

impl Code for Affine8 {
    const RUN: usize = 32;
    const BYTES: usize = 32;
    const FACTORS: usize = 2;

    fn factors(group: &[f32]) -> [f32; 2] {
        fit(group, 255.0)
    }

    fn pack(weights: &[f32], factors: [f32; 2], codes: &mut [u8]) {
        codes.iter_mut().zip(weights).for_each(|(byte, &w)| *byte = code(w, factors, 255));
    }

    #[inline(always)]
    fn unpack(codes: &[u8], [scale, bias]: [f32; 2], weights: &mut [f32]) {
        let (codes, weights) = (&codes[..32], &mut weights[..32]);
        for i in 0..32 {
            weights[i] = scale * f32::from(codes[i]) + bias;
        }
    }
}
