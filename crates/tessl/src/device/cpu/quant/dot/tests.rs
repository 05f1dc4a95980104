//! The sums against decoded weights, before anything is taken again: all finite and near.

use super::super::fixed::usable_or_skip;
use super::*;
use crate::quant::formats::{Affine4, Affine8, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8, Q8_0, Signed4};
use crate::quant::{Code, QFormat, host};
use tessl_oracle::{Rng, bound};

const N: usize = 5;

struct Case<'a> {
    format: QFormat,
    k: usize,
    m: usize,
    weights: &'a Weights,
    kernel: Kernel,
    dtype: DType,
}

impl Case<'_> {
    fn check(&self, rng: &mut Rng) {
        let &Case { format, k, m, weights, kernel, dtype } = self;
        #[allow(clippy::cast_possible_truncation)]
        let x: Vec<f32> = (0..m * k).map(|_| half::bf16::from_f64(rng.normal()).to_f32()).collect();
        let halves: Vec<u16> = x.iter().map(|v| half::bf16::from_f32(*v).to_bits()).collect();
        let data: *const u8 = if dtype == DType::F32 { x.as_ptr().cast() } else { halves.as_ptr().cast() };
        let empty = Quad { digits: [[[0; 64]; 2]; 3], start: [[[0; 16]; 2]; 2], steps: [[0.0; 16]; 2], sums: [0.0; 4] };
        let mut fixed = vec![empty; m * quads(k)];
        let mut sums = vec![f32::NAN; m * N];
        for i in 0..m {
            let out = fixed[i * quads(k)..].as_mut_ptr();
            let x = data.wrapping_add(i * k * dtype.size());
            // SAFETY: x has the row, and `out` the quads; the processor has VNNI.
            unsafe { Row { x, dtype, k, order: kernel.order, offset: kernel.offset, out }.convert() };
        }
        let call = Sums { weights, first: 0, count: N, k, x: fixed.as_ptr(), sums: sums.as_mut_ptr() };
        // SAFETY: the processor has the instructions, the weights N rows.
        unsafe { kernel.sums[digits(dtype) - 2][m - 1](&call) };
        let digits = i32::try_from(digits(dtype)).unwrap();
        for (at, got) in sums.iter().enumerate() {
            let (row, x) = (at % N, &x[at / N * k..][..k]);
            let mut w = vec![0f32; k];
            // SAFETY: the row has k weights.
            unsafe { weights.decode(row, 0, k, w.as_mut_ptr()) };
            let x: Vec<f64> = x.iter().map(|&v| v.into()).collect();
            let want: f64 = x.iter().zip(&w).map(|(x, &w)| x * f64::from(w)).sum();
            // A weight of formats with minima is the difference of two numbers, of at most 3 here.
            let magnitude = |w: &f32| f64::from(w.abs()) + 6.0;
            let size: f64 = x.iter().zip(&w).map(|(x, w)| x.abs() * magnitude(w)).sum();
            let allowed = bound::quant(k, size, 0.0) + bound::fixed_point(&x, w.iter().map(magnitude), digits);
            let error = (f64::from(*got) - want).abs();
            assert!(error <= allowed, "{format} k = {k}, {m} rows: {got} is not {want}");
        }
    }
}

#[test]
fn sums_are_near_without_a_second_look() {
    if !usable_or_skip("device::cpu::quant::dot::tests::sums_are_near_without_a_second_look") {
        return;
    }
    let mut rng = Rng::new(3);
    macro_rules! formats {
        ($($format:expr, $code:ident, $codes:ty;)*) => {$({
            let format = $format;
            for k in [format.group(), 3 * format.group(), 5 * format.group(), 8 * format.group()] {
                #[allow(clippy::cast_possible_truncation)]
                let values: Vec<f32> = (0..N * k).map(|_| rng.normal().clamp(-3.0, 3.0) as f32).collect();
                let packed = host::pack(format, DType::F32, &values);
                let weights = Weights {
                    codes: packed.codes.as_ptr(),
                    scales: packed.scales.as_ptr().cast(),
                    biases: packed.biases.as_ptr().cast(),
                    row: format.row_bytes(k),
                    groups: k / format.group(),
                    group: format.group(),
                    factors: DType::F32,
                    decode: super::super::operands::decode::<Avx512, $code>,
                };
                assert_eq!($code::FACTORS, format.factors());
                for (dtype, m) in [(DType::F32, 1), (DType::Bf16, 1), (DType::F32, 3), (DType::Bf16, 4)] {
                    Case { format, k, m, weights: &weights, kernel: Kernel::of::<$codes>(), dtype }.check(&mut rng);
                }
            }
        })*};
    }
    formats! {
        QFormat::Affine { bits: 4, group: 32 }, Affine4, Nibbles<false>;
        QFormat::Affine { bits: 8, group: 64 }, Affine8, Bytes<false>;
        QFormat::Signed4 { group: 128 }, Signed4, Nibbles<true>;
        QFormat::Q8 { group: 32 }, Q8, Bytes<true>;
        QFormat::Q4_0, Q4_0, Blocks<18, 2, 0, false, 8>;
        QFormat::Q4_1, Q4_1, Blocks<20, 4, 0, true, 0>;
        QFormat::Q5_0, Q5_0, Blocks<22, 6, 2, false, 16>;
        QFormat::Q5_1, Q5_1, Blocks<24, 8, 4, true, 0>;
        QFormat::Q8_0, Q8_0, Eights;
        QFormat::Q4K, Q4K, Supers<false>;
        QFormat::Q5K, Q5K, Supers<true>;
        QFormat::Q6K, Q6K, Supers6;
    }
}
