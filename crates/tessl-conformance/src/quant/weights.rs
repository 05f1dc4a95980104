//! Random quantised matrices: every bit of every code, factors of a sane size.

use crate::data::{encode, format_of, representable, write_bytes};
use tessl::{BufferKind, DType, GpuRuntime, QFormat, QLayout, QTensor};
use tessl_oracle::{QuantFormat, QuantWeight, Rng, bound, quant_weight};

/// One matrix as bytes, with the oracle's view of it.
pub(crate) struct Matrix {
    format: QFormat,
    dtype: DType,
    n: usize,
    k: usize,
    codes: Vec<u8>,
    scales: Vec<f64>,
    biases: Vec<f64>,
}

/// The oracle's name of a format.
fn oracle(format: QFormat) -> QuantFormat {
    let group = format.group();
    match format {
        QFormat::Affine { bits, .. } => QuantFormat::Affine { bits: bits.into(), group },
        QFormat::Signed4 { .. } => QuantFormat::Signed4 { group },
        QFormat::Q8 { .. } => QuantFormat::Q8 { group },
        QFormat::Q4_0 => QuantFormat::Q4_0,
        QFormat::Q4_1 => QuantFormat::Q4_1,
        QFormat::Q5_0 => QuantFormat::Q5_0,
        QFormat::Q5_1 => QuantFormat::Q5_1,
        QFormat::Q8_0 => QuantFormat::Q8_0,
        QFormat::Q4K => QuantFormat::Q4K,
        QFormat::Q5K => QuantFormat::Q5K,
        QFormat::Q6K => QuantFormat::Q6K,
        other => panic!("{other} is not a format of the suite"),
    }
}

/// Bytes at which a block holds f16 factors.
fn halves(format: QFormat) -> &'static [usize] {
    match format {
        QFormat::Q4_0 | QFormat::Q5_0 | QFormat::Q8_0 => &[0],
        QFormat::Q4_1 | QFormat::Q5_1 | QFormat::Q4K | QFormat::Q5K => &[0, 2],
        QFormat::Q6K => &[208],
        _ => &[],
    }
}

/// The largest number that a factor is multiplied by.
fn reach(format: QFormat) -> f64 {
    match format {
        QFormat::Affine { bits: 8, .. } => 255.0,
        QFormat::Q8 { .. } | QFormat::Q8_0 => 128.0,
        QFormat::Q5_0 | QFormat::Q5_1 => 31.0,
        QFormat::Q4K => 63.0 * 15.0,
        QFormat::Q5K => 63.0 * 31.0,
        QFormat::Q6K => 128.0 * 32.0,
        _ => 15.0,
    }
}

impl Matrix {
    /// `n` rows of `k` weights. With `whole`, every factor is a small whole number.
    pub(crate) fn random(rng: &mut Rng, format: QFormat, dtype: DType, [n, k]: [usize; 2], whole: bool) -> Self {
        let groups = n * k / format.group();
        let factor = |rng: &mut Rng, dtype: DType| {
            let sign = if rng.one_in(2) { -1.0 } else { 1.0 };
            if whole { sign } else { representable(dtype, sign * (0.25 + rng.unit()) / reach(format)) }
        };
        let mut codes: Vec<u8> = (0..groups * format.group_bytes()).map(|_| rng.bits().to_le_bytes()[3]).collect();
        for block in codes.chunks_exact_mut(format.group_bytes()) {
            for &at in halves(format) {
                let bytes = encode(DType::F16, std::iter::once(factor(rng, DType::F16)));
                block[at..at + 2].copy_from_slice(&bytes);
            }
        }
        let array = |rng: &mut Rng, present: bool| -> Vec<f64> {
            (0..if present { groups } else { 0 }).map(|_| factor(rng, dtype)).collect()
        };
        let (scales, biases) = (array(rng, format.factors() > 0), array(rng, format.factors() > 1));
        Matrix { format, dtype, n, k, codes, scales, biases }
    }

    /// Row `n` has code `q(n, k)`, scale `s` and bias `z`; for 4- and 8-bit affine formats.
    pub(super) fn affine(
        bits: u8,
        group: u16,
        [n, k]: [usize; 2],
        [s, z]: [f64; 2],
        q: impl Fn(usize, usize) -> u8,
    ) -> Self {
        let all: Vec<u8> = (0..n * k).map(|at| q(at / k, at % k)).collect();
        let codes = if bits == 8 { all } else { all.chunks_exact(2).map(|q| q[0] | q[1] << 4).collect() };
        let groups = n * k / usize::from(group);
        let format = QFormat::Affine { bits, group };
        Matrix { format, dtype: DType::F16, n, k, codes, scales: vec![s; groups], biases: vec![z; groups] }
    }

    /// The matrix on the device, between rows before and after it that hold NaN factors.
    pub(crate) fn place(&self, rt: &GpuRuntime, layout: QLayout) -> Result<QTensor, String> {
        let text = |e: tessl::Error| e.to_string();
        let slack = if layout == QLayout::Rows { 1 } else { 16 };
        let upload = |dtype: DType, bytes: &[u8]| {
            let row = bytes.len().checked_div(self.n).unwrap_or(0);
            let all = [vec![0xff; slack * row], bytes.to_vec(), vec![0xff; slack * row]].concat();
            let whole = rt.uninit(dtype, &[self.n + 2 * slack, row / dtype.size()], BufferKind::Hot).map_err(text)?;
            if row > 0 {
                let flat = whole.bitcast(DType::U8).map_err(text)?;
                write_bytes(&flat, &all, None)?;
            }
            Ok::<_, String>(whole)
        };
        let codes = upload(self.format.codes_dtype(), &self.codes)?;
        let mut factors = Vec::new();
        for array in [&self.scales, &self.biases].into_iter().take(self.format.factors()) {
            factors.push(upload(self.dtype, &encode(self.dtype, array.iter().copied()))?);
        }
        let factors: Vec<&tessl::Tensor> = factors.iter().collect();
        let whole = QTensor::from_parts(self.format, &codes, &factors).map_err(text)?;
        whole.repack(layout).map_err(text)?.narrow(0, slack, self.n).map_err(text)
    }

    /// Weight `k` of row `n`.
    pub(super) fn weight(&self, n: usize, k: usize) -> QuantWeight {
        let (groups, row) = (self.k / self.format.group(), self.k / self.format.group() * self.format.group_bytes());
        let of = |array: &'_ [f64]| array.get(n * groups..(n + 1) * groups).unwrap_or_default().to_vec();
        quant_weight(oracle(self.format), &self.codes[n * row..(n + 1) * row], &of(&self.scales), &of(&self.biases), k)
    }

    /// `x W^T`, row by row, with the error allowed for each element: 0 for whole numbers. `rounded` is the type that weights
    /// are rounded to, if any; `digits` those of an x in fixed point, if it is.
    pub(super) fn products(&self, x: &[f64], m: usize, rounded: Option<DType>, digits: Option<i32>) -> Vec<(f64, f64)> {
        let (n, k) = (self.n, self.k);
        let weights: Vec<QuantWeight> =
            (0..n).flat_map(|row| (0..k).map(move |at| (row, at))).map(|(row, at)| self.weight(row, at)).collect();
        let whole = x.iter().all(|x| x.fract() == 0.0)
            && weights.iter().all(|w| w.value().fract() == 0.0 && w.product.fract() == 0.0)
            && rounded.is_none_or(|d| weights.iter().all(|w| representable(d, w.value()) == w.value()));
        let relative = rounded.map_or(0.0, |d| format_of(d).unit_roundoff());
        let element = |at: usize| {
            let (x, w) = (&x[at / n * k..][..k], &weights[at % n * k..][..k]);
            let sum = x.iter().zip(w).map(|(x, w)| x * w.value()).sum();
            let magnitude = x.iter().zip(w).map(|(x, w)| x.abs() * w.magnitude()).sum();
            let exact = whole && magnitude < 2f64.powi(24);
            let fixed = digits.map_or(0.0, |d| bound::fixed_point(x, w.iter().map(|w| w.magnitude()), d));
            (sum, if exact { 0.0 } else { bound::quant(k, magnitude, relative) + fixed })
        };
        (0..m * n).map(element).collect()
    }

    /// Row `n` as values with the largest magnitude that its roundings are relative to.
    pub(crate) fn row(&self, n: usize) -> Vec<QuantWeight> {
        (0..self.k).map(|k| self.weight(n, k)).collect()
    }
}
