//! What several formats share: f16 factors, nearest whole numbers, ranges, the 6-bit scales of Q4_K and Q5_K.

use half::f16;

/// The value of an f16. Branch-free, so that kernels can inline it in their loops; NaN stays NaN.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // 2^112 moves the exponent bias from 15 to 127; exact, subnormals included.
    let finite = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let value = if bits & 0x7c00 == 0x7c00 { magnitude | 0x7f80_0000 } else { finite.to_bits() };
    f32::from_bits(value | u32::from(bits & 0x8000) << 16)
}

/// The f16 at `at`.
#[inline(always)]
pub(super) fn read_f16(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Stores the nearest f16 and returns its value.
pub(super) fn write_f16(block: &mut [u8], at: usize, x: f32) -> f32 {
    let rounded = f16::from_f32(x);
    block[at..at + 2].copy_from_slice(&rounded.to_le_bytes());
    rounded.to_f32()
}

/// `x / step` to the nearest whole number inside `low..=high`; the nearest to 0 where the step is 0.
#[allow(clippy::cast_possible_truncation)] // A whole number between the bounds.
pub(super) fn nearest(x: f32, step: f32, low: i32, high: i32) -> i32 {
    let q = if step == 0.0 { 0.0 } else { x / step };
    q.round_ties_even().clamp(low as f32, high as f32) as i32
}

/// Smallest and largest weight; the weights are finite.
pub(super) fn range(weights: &[f32]) -> [f32; 2] {
    let first = weights.first().copied().unwrap_or_default();
    weights.iter().fold([first; 2], |[low, high], &x| [low.min(x), high.max(x)])
}

/// The weight of largest magnitude, with its sign.
pub(super) fn extreme(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |a: f32, &x| if x.abs() > a.abs() { x } else { a })
}

/// Scale and minimum `j` of the eight pairs of 6-bit numbers in 12 bytes.
///
/// Pairs 0 to 3 have their low six bits in bytes j (scale) and j + 4 (minimum). Pairs 4 to 7 have their low four bits in byte
/// j + 4 (scale low, minimum high) and their upper two bits on top of bytes j - 4 and j.
#[inline(always)]
pub(super) fn six_bits(bytes: &[u8], j: usize) -> [u8; 2] {
    if j < 4 {
        return [bytes[j] & 63, bytes[j + 4] & 63];
    }
    let low = bytes[j + 4];
    [low & 15 | bytes[j - 4] >> 6 << 4, low >> 4 | bytes[j] >> 6 << 4]
}

/// Stores pair `j`; bytes start as zeros, pairs come in order.
pub(super) fn set_six_bits(bytes: &mut [u8], j: usize, [scale, min]: [u8; 2]) {
    if j < 4 {
        bytes[j] |= scale & 63;
        bytes[j + 4] |= min & 63;
    } else {
        bytes[j + 4] = scale & 15 | min << 4;
        bytes[j - 4] |= scale >> 4 << 6;
        bytes[j] |= min >> 4 << 6;
    }
}

/// Codes of a super-block of Q4_K or Q5_K: header (d, dmin, pairs) written, one code a weight returned.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Codes are below `levels`.
pub(super) fn pack_super_block(weights: &[f32], levels: u8, block: &mut [u8]) -> [u8; 256] {
    let most = f32::from(levels);
    let mut steps = [[0.0f32; 2]; 8];
    for (step, sub) in steps.iter_mut().zip(weights.chunks_exact(32)) {
        let [low, high] = range(sub);
        // The minimum is taken away, so it cannot be above 0.
        let low = if low > 0.0 { 0.0 } else { low };
        *step = [(high - low) / most, -low];
    }
    let largest = |i: usize| extreme(&steps.map(|s| s[i]));
    block[..16].fill(0);
    let d = write_f16(block, 0, largest(0) / 63.0);
    let dmin = write_f16(block, 2, largest(1) / 63.0);
    let mut codes = [0u8; 256];
    for (j, sub) in weights.chunks_exact(32).enumerate() {
        let pair = [nearest(steps[j][0], d, 0, 63) as u8, nearest(steps[j][1], dmin, 0, 63) as u8];
        set_six_bits(&mut block[4..16], j, pair);
        let (step, min) = (d * f32::from(pair[0]), dmin * f32::from(pair[1]));
        for (code, &w) in codes[32 * j..].iter_mut().zip(sub) {
            *code = nearest(w + min, step, 0, levels.into()) as u8;
        }
    }
    codes
}
