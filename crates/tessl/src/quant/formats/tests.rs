//! Blocks worked out by hand, bytes and values both ways, and how close quantised weights come.

use super::f16_to_f32;
use super::scales::{set_six_bits, six_bits};
use crate::dtype::DType;
use crate::quant::QFormat;
use crate::quant::host::{factors_from_f32, factors_to_f32, pack, unpack};
use half::f16;

fn f16_bytes(x: f32) -> [u8; 2] {
    f16::from_f32(x).to_le_bytes()
}

#[test]
fn f16_values_are_those_of_half() {
    for bits in 0..=u16::MAX {
        let (got, want) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:#x}: {got} {want}");
    }
}

#[test]
fn six_bit_pairs_fill_twelve_bytes() {
    let pairs: [[u8; 2]; 8] = [[1, 63], [62, 2], [0, 33], [21, 42], [63, 0], [16, 15], [47, 48], [32, 31]];
    let mut bytes = [0u8; 12];
    pairs.into_iter().enumerate().for_each(|(j, pair)| set_six_bits(&mut bytes, j, pair));
    assert!(pairs.into_iter().enumerate().all(|(j, pair)| six_bits(&bytes, j) == pair));
    // Pair 4, (63, 0): low four bits 15 and 0 in byte 8, upper two bits 3 and 0 on top of bytes 0 and 4.
    assert_eq!((bytes[8], bytes[0], bytes[4]), (0x0f, 0b1100_0001, 63));
}

/// w = 0.5 q - 2 with q = j mod 16: the first word of MLX's array is 0x76543210.
#[test]
fn affine_golden() {
    let q: Vec<u8> = (0..32).map(|j| j % 16).collect();
    let want: Vec<f32> = q.iter().map(|&q| 0.5 * f32::from(q) - 2.0).collect();
    let words = [0x7654_3210u32, 0xfedc_ba98, 0x7654_3210, 0xfedc_ba98];
    let codes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    assert_eq!(unpack(QFormat::Affine { bits: 4, group: 32 }, &codes, &[0.5], &[-2.0]), want);
    assert_eq!(unpack(QFormat::Affine { bits: 8, group: 32 }, &q, &[0.5], &[-2.0]), want);
    // A line from -2 to 5.5: the edge is 5.5, 15 steps of -0.5 lead to -2, so q counts down from 15.
    let packed = pack(QFormat::Affine { bits: 4, group: 32 }, DType::F16, &want);
    assert_eq!((packed.scales, packed.biases), (vec![-0.5], vec![5.5]));
    assert_eq!(packed.codes[..8], [0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]);
}

#[test]
fn signed4_and_q8_golden() {
    let q: Vec<i8> = (0..32).map(|j| (j % 16) - 8).collect();
    let want: Vec<f32> = q.iter().map(|&q| 0.25 * f32::from(q)).collect();
    // -8 is 8, -7 is 9, .., -1 is 15, 0 is 0.
    let codes = [0x98, 0xba, 0xdc, 0xfe, 0x10, 0x32, 0x54, 0x76].repeat(2);
    let signed4 = QFormat::Signed4 { group: 32 };
    assert_eq!(unpack(signed4, &codes, &[0.25], &[]), want);
    let packed = pack(signed4, DType::Bf16, &want);
    assert_eq!((packed.codes, packed.scales), (codes, vec![0.25]));
    let mut w: Vec<f32> = (0..32).map(|j| 0.5 * (j as f32 - 16.0)).collect();
    w[0] = -63.5;
    let packed = pack(QFormat::Q8 { group: 32 }, DType::F32, &w);
    assert_eq!((packed.codes[0], packed.codes[1], packed.codes[17], packed.scales[0]), (0x81, 0xf1, 1, 0.5));
    assert_eq!(unpack(QFormat::Q8 { group: 32 }, &packed.codes, &packed.scales, &[]), w);
}

/// 32 weights: nibbles 0..15 in the low halves, 15..0 in the high ones.
fn nibbles() -> Vec<u8> {
    (0..16u8).map(|i| i | ((15 - i) << 4)).collect()
}

#[test]
fn q4_golden() {
    let q = |i: usize| if i < 16 { i as f32 } else { 31.0 - i as f32 };
    let block = [f16_bytes(-0.5).to_vec(), nibbles()].concat();
    let want: Vec<f32> = (0..32).map(|i| -0.5 * (q(i) - 8.0)).collect();
    assert_eq!(unpack(QFormat::Q4_0, &block, &[], &[]), want);
    // The extreme, 4 = -0.5 * (0 - 8), gives d = -0.5 again.
    assert_eq!(pack(QFormat::Q4_0, DType::F16, &want).codes, block);
    let block = [f16_bytes(0.5).to_vec(), f16_bytes(-3.0).to_vec(), nibbles()].concat();
    let want: Vec<f32> = (0..32).map(|i| 0.5 * q(i) - 3.0).collect();
    assert_eq!(unpack(QFormat::Q4_1, &block, &[], &[]), want);
    assert_eq!(pack(QFormat::Q4_1, DType::F16, &want).codes, block);
}

/// Fifth bits 0xFFFF0000: weights 16 to 31.
#[test]
fn q5_golden() {
    let q = |i: usize| if i < 16 { i as f32 } else { 47.0 - i as f32 };
    let tail = [vec![0, 0, 0xff, 0xff], nibbles()].concat();
    let block = [f16_bytes(-0.25).to_vec(), tail.clone()].concat();
    let want: Vec<f32> = (0..32).map(|i| -0.25 * (q(i) - 16.0)).collect();
    assert_eq!(unpack(QFormat::Q5_0, &block, &[], &[]), want);
    assert_eq!(pack(QFormat::Q5_0, DType::F16, &want).codes, block);
    let block = [f16_bytes(0.25).to_vec(), f16_bytes(1.0).to_vec(), tail].concat();
    let want: Vec<f32> = (0..32).map(|i| 0.25 * q(i) + 1.0).collect();
    assert_eq!(unpack(QFormat::Q5_1, &block, &[], &[]), want);
    assert_eq!(pack(QFormat::Q5_1, DType::F16, &want).codes, block);
}

#[test]
fn q8_0_golden() {
    let q: Vec<i8> = (0..16).flat_map(|i| [i * 8 - 127, 127 - i * 7]).collect();
    let block: Vec<u8> = f16_bytes(0.125).into_iter().chain(q.iter().map(|q| q.cast_unsigned())).collect();
    let want: Vec<f32> = q.iter().map(|&q| 0.125 * f32::from(q)).collect();
    assert_eq!(unpack(QFormat::Q8_0, &block, &[], &[]), want);
    assert_eq!(pack(QFormat::Q8_0, DType::F16, &want).codes, block);
}

/// d = 0.5, dmin = 2; scales 1, 2, .., 8 and minima 0, 1, .., 7; q = (64 i + l) mod 16 low, 15 - that high.
#[test]
fn q4_k_and_q5_k_golden() {
    let mut head = [f16_bytes(0.5), f16_bytes(2.0)].concat();
    // Pairs 0-3 as they are, pairs 4-7 (5, 4), (6, 5), (7, 6), (8, 7) below 16: no upper bits.
    head.extend([1, 2, 3, 4, 0, 1, 2, 3, 0x45, 0x56, 0x67, 0x78]);
    let low: Vec<u8> = (0..128u8).map(|at| (at % 16) | ((15 - at % 16) << 4)).collect();
    let nibble = |at: usize| if at % 64 < 32 { at % 16 } else { 15 - at % 16 };
    let factors = |at: usize| (0.5 * (at / 32 + 1) as f32, 2.0 * (at / 32) as f32);
    let want = |q: &dyn Fn(usize) -> usize| -> Vec<f32> {
        (0..256).map(|at| factors(at).0 * q(at) as f32 - factors(at).1).collect()
    };
    let block = [head.clone(), low.clone()].concat();
    assert_eq!(unpack(QFormat::Q4K, &block, &[], &[]), want(&nibble));
    // Fifth bits 0b10000001: the first and the last 32 weights.
    let block = [head, vec![0x81; 32], low].concat();
    let fifth = |at: usize| nibble(at) + if at / 32 == 0 || at / 32 == 7 { 16 } else { 0 };
    assert_eq!(unpack(QFormat::Q5K, &block, &[], &[]), want(&fifth));
}

/// d = 0.25, scale s = j - 8 for weights 16 j .. 16 j + 15.
#[test]
fn q6_k_golden() {
    let mut block = vec![0u8; 210];
    // Low bytes: nibbles (1, 2) in the first half, (3, 4) in the second. Upper pairs of weights 32 p + l: p.
    block[..64].fill(0x21);
    block[64..128].fill(0x43);
    block[128..192].fill(0b1110_0100);
    (0..16u8).for_each(|j| block[192 + usize::from(j)] = (j.cast_signed() - 8).cast_unsigned());
    block[208..].copy_from_slice(&f16_bytes(0.25));
    let want: Vec<f32> = (0..256)
        .map(|at| {
            let (half, p) = (at / 128, at % 128 / 32);
            let q = 1 + 2 * half + p / 2 + 16 * p;
            0.25 * (at as f32 / 16.0).floor().mul_add(1.0, -8.0) * (q as f32 - 32.0)
        })
        .collect();
    assert_eq!(unpack(QFormat::Q6K, &block, &[], &[]), want);
}

/// Packed weights are within half a step, the step being what the format has for its worst group.
#[test]
fn packing_is_close_and_zeros_stay() {
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    for format in QFormat::all() {
        let weights: Vec<f32> = (0..1024).map(|i| random() * (1.0 + (i / 256) as f32)).collect();
        let largest = |i: usize| 1.0 + (i / 256) as f32;
        // Half a step, more where six bits hold the scale and the minimum.
        let share = match format {
            QFormat::Affine { bits: 8, .. } | QFormat::Q8 { .. } | QFormat::Q8_0 => 0.008,
            QFormat::Q5_0 | QFormat::Q5_1 => 0.07,
            QFormat::Q5K => 0.09,
            QFormat::Q6K => 0.04,
            _ => 0.16,
        };
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let back = |weights: &[f32]| {
                let p = pack(format, dtype, weights);
                let round = |f: &[f32]| factors_to_f32(dtype, &factors_from_f32(dtype, f));
                assert_eq!((round(&p.scales), round(&p.biases)), (p.scales.clone(), p.biases.clone()));
                unpack(format, &p.codes, &p.scales, &p.biases)
            };
            let scale = if format.group() == 512 { 2.0 } else { 1.0 };
            for (i, (w, got)) in weights.iter().zip(back(&weights)).enumerate() {
                let allowed = scale * share * largest(i) + if dtype == DType::Bf16 { 0.02 * largest(i) } else { 0.0 };
                assert!((w - got).abs() <= allowed, "{format} {dtype} [{i}]: {w} became {got}");
            }
            // openvinotoolkit/openvino#28326: rows of zeros, and rows whose scale underflows in f16.
            assert!(back(&[0.0; 512]).iter().all(|&w| w == 0.0), "{format}");
            assert!(back(&[1e-8; 512]).iter().all(|&w| w.abs() <= 1.1e-7), "{format}");
        }
    }
}
