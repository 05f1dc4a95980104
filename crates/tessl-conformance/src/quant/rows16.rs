//! Sixteen rows of weights side by side: products and lookups where the device has them, a typed error elsewhere.

use super::{FLOATS, QuantEmbedProblem, QuantProblem, Residual};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::nn::{QuantOp, QuantizedMatmul};
use tessl::{Activation, BufferKind, DType, ErrorKind, QFormat, QLayout, QTensor};

const LAYOUT: QLayout = QLayout::Rows16;
const FORMATS: [QFormat; 5] = [QFormat::Q4_0, QFormat::Q4_1, QFormat::Q5_0, QFormat::Q5_1, QFormat::Q8_0];

/// Whether the device multiplies with such weights; it must refuse them if not.
fn here(env: &Env) -> Result<bool, String> {
    let text = |e: tessl::Error| e.to_string();
    let w = QTensor::from_bytes_as(&env.rt, QFormat::Q4_0, LAYOUT, &[16, 32], &[0; 16 * 18]).map_err(text)?;
    let x = env.rt.zeros(DType::F32, &[1, 32], BufferKind::Cold).map_err(text)?;
    let y = env.rt.zeros(DType::F32, &[1, 16], BufferKind::Cold).map_err(text)?;
    match QuantizedMatmul::new(&x, &w, &y).run() {
        Ok(()) => Ok(true),
        Err(e)
            if e.kind() == ErrorKind::Unsupported
                && QTensor::best_layout(&env.rt, QFormat::Q4_0, 16) == QLayout::Rows =>
        {
            Ok(false)
        }
        Err(e) => Err(format!("weights in layout {} gave {e}", LAYOUT.name())),
    }
}

/// Rows of x around those of one pass and of a decoded product, sums of every number of blocks behind whole quads.
fn products(env: &Env, op: QuantOp, format: QFormat, input: DType) -> Outcome {
    let sizes = [
        (1, [32, 16, 48], 576),
        (2, [16, 16, 16], 32),
        (3, [48, 16, 32], 224),
        (4, [16, 32, 16], 96),
        (16, [32; 3], 160),
    ];
    let sizes = sizes.into_iter().chain([(1, [304, 64, 64], 2048), (17, [16, 48, 32], 64), (33, [48, 16, 16], 96)]);
    let run = |(i, (m, mut n, k)): (usize, (usize, [usize; 3], usize))| {
        if op == QuantOp::Glu {
            n[1] = n[0];
        }
        let p = QuantProblem { layout: LAYOUT, seed: i as u64 + 1, ..QuantProblem::new(op, m, n, k, format, input) };
        let output = FLOATS[(i + 1) % 3];
        let bias = [None, Some(DType::F32), Some(output)][i % 3].filter(|_| op != QuantOp::Glu);
        let residual = if op == QuantOp::Matmul && i % 2 == 1 { Residual::InPlace } else { Residual::None };
        let pads = if i % 3 == 1 { [1, 3] } else { [0, 0] };
        QuantProblem { output, bias, residual, pads, offset: i % 2, ..p.clone() }.check(env)?;
        let activation = if op == QuantOp::Glu { Activation::Relu } else { Activation::None };
        QuantProblem { whole: true, output: DType::F32, activation, ..p }.check(env)
    };
    let all = || if here(env)? { sizes.enumerate().try_for_each(run) } else { Ok(()) };
    all().into()
}

fn lookups(env: &Env, format: QFormat, output: DType) -> Outcome {
    let run = |(i, n): (usize, usize)| {
        let p = QuantEmbedProblem { layout: LAYOUT, ..QuantEmbedProblem::new(9, 48, n, format, output) };
        QuantEmbedProblem { scaled: i % 2 == 1, seed: i as u64, pad: i, offset: i, ..p }.check(env)
    };
    let all = || if here(env)? { [32, 96, 576].into_iter().enumerate().try_for_each(run) } else { Ok(()) };
    all().into()
}

/// Every case of this page.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (format, dtype) in FORMATS.into_iter().flat_map(|f| FLOATS.map(|d| (f, d))) {
        for op in QuantOp::ALL {
            let name = format!("{}/rows16/{}/{dtype}", op.name(), format.code());
            cases.push(Case::new(name, op.name(), move |env| products(env, op, format, dtype)));
        }
        let name = format!("quantized_embedding/rows16/{}/{dtype}", format.code());
        cases.push(Case::new(name, "quantized_embedding", move |env| lookups(env, format, dtype)));
    }
    cases
}
