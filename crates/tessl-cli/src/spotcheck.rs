//! A sample of results compared with sums in f64.

use crate::error::{CliError, Result};
use half::{bf16, f16};
use serde::Serialize;
use tessl::{Activation, DType, Precision, Tensor};
use tessl_oracle::Format;
use tessl_oracle::bound::stored;

/// Results compared by default.
pub(crate) const SAMPLES: usize = 64;
/// Unit roundoff of f32.
const U32: f64 = 1.0 / 16_777_216.0;

/// A finished product.
pub(crate) struct Problem<'a> {
    pub(crate) a: &'a Tensor,
    pub(crate) b: &'a Tensor,
    pub(crate) c: &'a Tensor,
    pub(crate) c_in: Option<&'a Tensor>,
    pub(crate) bias: Option<&'a Tensor>,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) activation: Activation,
    pub(crate) precision: Precision,
}

/// What the comparison found.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Checked {
    /// Results compared.
    pub(crate) samples: usize,
    /// Largest error as a part of the bound.
    pub(crate) worst: f64,
}

/// Compares results spread over C.
///
/// # Errors
/// `Failed` for a result outside the bound of any order of summation in f32.
pub(crate) fn sample(p: &Problem<'_>, samples: usize) -> Result<Checked> {
    let total = p.c.len();
    let samples = samples.min(total);
    let mut worst = 0.0f64;
    for i in 0..samples {
        // Odd multiples of the golden ratio spread over all rows and columns; corners come first.
        let at = match i {
            0 => 0,
            1 => total - 1,
            i => i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % total,
        };
        let (index, want, bound) = p.expected(at)?;
        let got = read(&p.c.reshape(&[total])?.narrow(0, at, 1)?)?[0];
        let error = (got - want).abs();
        let same = got == want || (got.is_nan() && want.is_nan());
        // A NaN is inside nothing.
        let inside = error <= bound;
        if !same && !inside {
            return Err(CliError::Failed(format!("gemm: c{index:?} is {got} but must be {want} within {bound:.1e}")));
        }
        worst = worst.max(if same || bound == 0.0 { 0.0 } else { error / bound });
    }
    Ok(Checked { samples, worst })
}

impl Problem<'_> {
    /// Position, value and error bound of one result.
    #[allow(clippy::cast_precision_loss)]
    fn expected(&self, at: usize) -> Result<(Vec<usize>, f64, f64)> {
        let shape = self.c.shape();
        let mut index = vec![0; shape.len()];
        let mut rest = at;
        for axis in (0..shape.len()).rev() {
            index[axis] = rest % shape[axis];
            rest /= shape[axis];
        }
        let (row, column) = (index[shape.len() - 2], index[shape.len() - 1]);
        let matrix = |t: &Tensor| match t.rank() {
            3 => t.select(0, if t.shape()[0] == 1 { 0 } else { index[0] }),
            _ => Ok(t.clone()),
        };
        let a = read(&matrix(self.a)?.select(0, row)?)?;
        let b = read(&matrix(self.b)?.select(1, column)?)?;
        let (mut sum, mut size) = (0.0, 0.0);
        for (x, y) in a.iter().zip(&b) {
            sum += x * y;
            size += (x * y).abs();
        }
        let alpha = f64::from(self.alpha);
        let mut value = alpha * sum;
        size *= alpha.abs();
        if let (Some(c_in), true) = (self.c_in, self.beta != 0.0) {
            let old = f64::from(self.beta) * read(&c_in.reshape(&[c_in.len()])?.narrow(0, at, 1)?)?[0];
            value += old;
            size += old.abs();
        }
        if let Some(bias) = self.bias {
            let bias = read(&bias.reshape(&[bias.len()])?.narrow(0, column, 1)?)?[0];
            value += bias;
            size += bias.abs();
        }
        // The bound of any order of summation, since files may hold anything: TF32 rounds both factors at 2^-11.
        let lost = if self.precision == Precision::Relaxed { 1.0 / 1024.0 } else { 0.0 };
        let sums = ((a.len() as f64 + 8.0) * U32 + lost) * size;
        let function = reference(self.activation);
        let result = function.apply(value);
        let before_store = function.slope() * sums + function.error(value);
        let format = match self.c.dtype() {
            DType::Bf16 => Format::BF16,
            DType::F16 => Format::F16,
            _ => Format::F32,
        };
        Ok((index, format.round(result), stored(before_store, result, format) + format.spacing(result)))
    }
}

pub(crate) fn read(t: &Tensor) -> Result<Vec<f64>> {
    Ok(match t.dtype() {
        DType::F16 => t.read::<f16>()?.into_iter().map(f64::from).collect(),
        DType::Bf16 => t.read::<bf16>()?.into_iter().map(f64::from).collect(),
        DType::I8 => t.read::<i8>()?.into_iter().map(f64::from).collect(),
        DType::U8 => t.read::<u8>()?.into_iter().map(f64::from).collect(),
        DType::I32 => t.read::<i32>()?.into_iter().map(f64::from).collect(),
        _ => t.read::<f32>()?.into_iter().map(f64::from).collect(),
    })
}

/// The reference's function of the same name.
fn reference(activation: Activation) -> tessl_oracle::Activation {
    match activation {
        Activation::Relu => tessl_oracle::Activation::Relu,
        Activation::Silu => tessl_oracle::Activation::Silu,
        Activation::Gelu => tessl_oracle::Activation::Gelu,
        Activation::GeluTanh => tessl_oracle::Activation::GeluTanh,
        _ => tessl_oracle::Activation::None,
    }
}
