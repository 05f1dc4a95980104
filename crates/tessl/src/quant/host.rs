//! Whole matrices on the host: used when weights are loaded, never in a hot path.

use super::{Code, QFormat, with_code};
use crate::dtype::DType;
use crate::error::{Error, Result};
use half::{bf16, f16};

/// One row of scales or biases as f32.
pub(crate) fn factors_to_f32(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let pair = |b: &[u8]| [b[0], b[1]];
    match dtype {
        DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes(pair(b)).to_f32()).collect(),
        DType::Bf16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes(pair(b)).to_f32()).collect(),
        _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

/// Scales or biases in their stored type.
pub(crate) fn factors_from_f32(dtype: DType, factors: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => factors.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        DType::Bf16 => factors.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        _ => factors.iter().flat_map(|&x| x.to_le_bytes()).collect(),
    }
}

/// Codes and factors of weights whose rows are whole groups.
pub(crate) struct Packed {
    pub(crate) codes: Vec<u8>,
    pub(crate) scales: Vec<f32>,
    pub(crate) biases: Vec<f32>,
}

/// Codes finite weights; factors beside the codes are rounded to `dtype` before the codes are chosen.
pub(crate) fn pack(format: QFormat, dtype: DType, weights: &[f32]) -> Packed {
    let group = format.group();
    let mut codes = vec![0u8; weights.len() / group * format.group_bytes()];
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    with_code!(format, C => {
        for (w, codes) in weights.chunks_exact(group).zip(codes.chunks_exact_mut(format.group_bytes())) {
            let exact = C::factors(w);
            let rounded = factors_to_f32(dtype, &factors_from_f32(dtype, &exact));
            let factors = [rounded[0], rounded[1]];
            let runs = w.chunks_exact(C::RUN).zip(codes.chunks_exact_mut(C::BYTES));
            runs.for_each(|(w, codes)| C::pack(w, factors, codes));
            if C::FACTORS > 0 {
                scales.push(factors[0]);
            }
            if C::FACTORS > 1 {
                biases.push(factors[1]);
            }
        }
    });
    Packed { codes, scales, biases }
}

/// The weights, in f32.
pub(crate) fn unpack(format: QFormat, codes: &[u8], scales: &[f32], biases: &[f32]) -> Vec<f32> {
    let group = format.group();
    let mut weights = vec![0.0f32; codes.len() / format.group_bytes() * group];
    with_code!(format, C => {
        let groups = weights.chunks_exact_mut(group).zip(codes.chunks_exact(format.group_bytes()));
        for (i, (w, codes)) in groups.enumerate() {
            let at = |factors: &[f32]| factors.get(i).copied().unwrap_or_default();
            let factors = [at(scales), at(biases)];
            let runs = w.chunks_exact_mut(C::RUN).zip(codes.chunks_exact(C::BYTES));
            runs.for_each(|(w, codes)| C::unpack(codes, factors, w));
        }
    });
    weights
}

/// Refuses weights that the factors cannot reach.
pub(crate) fn check_weights(op: &'static str, format: QFormat, dtype: DType, weights: &[f32]) -> Result<()> {
    let half = format.factors() == 0 || dtype == DType::F16;
    // A range of weights is their difference, which has to be finite too.
    let (limit, expected) = if half {
        (f16::MAX.to_f32(), "finite, and at most 65504, because factors are f16")
    } else {
        (f32::MAX / 4.0, "finite, and at most 8.5e37")
    };
    match weights.iter().find(|w| w.is_nan() || w.abs() > limit) {
        Some(&w) => Err(Error::Scalar { op, name: "a weight", value: w.into(), expected }),
        None => Ok(()),
    }
}
