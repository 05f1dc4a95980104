//! One measurement of a row-wise kernel per line of stdin, so that another program can interleave rounds.

use super::serve::{Replay, serve_lines};
use super::{Data, NormArgs, data};
use crate::error::{CliError, Result};
use serde_json::{Value, json};
use tessl::nn::{Activate, LayerNorm, RmsNorm, Softmax};
use tessl::{Activation, BufferKind, DType, GpuRuntime, Stream, Tensor};
use tessl_conformance::format_of;
use tessl_oracle::{bound, layer_norm, rms_norm, softmax};

const EPS: f32 = 1e-5;
/// Bytes and number of the copies, at most.
const MAX_BYTES: u64 = 512 << 20;
const MAX_SETS: u64 = 64;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Op {
    RmsNorm,
    LayerNorm,
    Softmax,
    Gelu,
}

/// A line, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    op: Op,
    shape: [usize; 2],
    dtype: DType,
}

/// Copies of x and y, a weight and a bias, and their calls as a graph.
struct Kept {
    form: Form,
    work: Rows,
    replay: Replay,
}

struct Rows {
    sets: Vec<[Tensor; 2]>,
    weight: Tensor,
    bias: Tensor,
}

/// Answers `OP MxN DTYPE ITERS` with a line of JSON each, after a first line about the device; OP is `rms-norm`, `layer-norm`,
/// `softmax` or `gelu`. Captured calls are replayed until there were ITERS of them; `us` is the mean.
///
/// # Errors
/// What opening the device reports, or a closed stdout.
pub fn serve_rows(args: &NormArgs) -> Result<()> {
    let rt = crate::open(args.device.as_ref(), args.threads)?;
    let data = Data::new();
    let mut kept: Option<Kept> = None;
    serve_lines(&rt, |line| answer(&rt, &data, &mut kept, line))
}

fn parse(line: &str) -> Result<(Form, usize)> {
    let usage = || CliError::Usage(format!("`{line}` is not OP MxN DTYPE ITERS"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let [op, shape, dtype, iters] = words.as_slice() else { return Err(usage()) };
    let op = <Op as clap::ValueEnum>::from_str(op, false).map_err(|_| usage())?;
    let sizes: Option<Vec<usize>> = shape.split('x').map(|n| n.parse().ok().filter(|n| *n > 0)).collect();
    let shape: [usize; 2] = sizes.and_then(|s| s.try_into().ok()).ok_or_else(usage)?;
    let iters: usize = iters.parse().ok().filter(|n| (1..=1_000_000).contains(n)).ok_or_else(usage)?;
    Ok((Form { op, shape, dtype: dtype.parse()? }, iters))
}

#[allow(clippy::cast_precision_loss)] // Rates.
fn answer(rt: &GpuRuntime, data: &Data, kept: &mut Option<Kept>, line: &str) -> Result<Value> {
    let (form, iters) = parse(line)?;
    if kept.as_ref().is_none_or(|have| have.form != form) {
        // The old operands go before the new ones come.
        *kept = None;
        let work = Rows::new(rt, data, form)?;
        let mut replay = Replay::new(rt, work.sets.len(), 0, |i, s| work.encode(form.op, i, s))?;
        replay.run(1)?;
        work.check(form, 0)?;
        work.check(form, work.sets.len() - 1)?;
        *kept = Some(Kept { form, work, replay });
    }
    let Some(Kept { work, replay, .. }) = kept.as_mut() else {
        return Err(CliError::Usage("nothing was asked for".to_owned()));
    };
    let us = replay.run(iters)?;
    let bytes = (2 * form.shape[0] * form.shape[1] * form.dtype.size()) as f64;
    Ok(json!({
        "shape": form.shape, "dtype": form.dtype, "iters": iters, "copies": work.sets.len(), "batch": replay.calls,
        "us": us, "gbps": bytes / us / 1e3,
    }))
}

impl Rows {
    fn new(rt: &GpuRuntime, data: &Data, form: Form) -> Result<Self> {
        let bytes = (2 * form.shape[0] * form.shape[1] * form.dtype.size()) as u64;
        let copies = (2 * data::cache_bytes(rt)).min(MAX_BYTES).div_ceil(bytes).clamp(2, MAX_SETS);
        let mut sets = Vec::new();
        for seed in 0..usize::try_from(copies).unwrap_or(2) {
            let [x, y] = [(); 2].map(|()| rt.uninit(form.dtype, &form.shape, BufferKind::Hot));
            let (x, y) = (x?, y?);
            data.fill(&x, seed)?;
            data::poison_any(&y)?;
            sets.push([x, y]);
        }
        let [weight, bias] = [(); 2].map(|()| rt.uninit(DType::F32, &form.shape[1..], BufferKind::Hot));
        let (weight, bias) = (weight?, bias?);
        data.fill(&weight, 998)?;
        data.fill(&bias, 999)?;
        rt.synchronize()?;
        Ok(Rows { sets, weight, bias })
    }

    fn encode(&self, op: Op, i: usize, stream: &mut Stream) -> tessl::Result<()> {
        let [x, y] = &self.sets[i % self.sets.len()];
        match op {
            Op::RmsNorm => RmsNorm::new(x, &self.weight, y).eps(EPS).run_on(stream),
            Op::LayerNorm => LayerNorm::new(x, &self.weight, y).bias(&self.bias).eps(EPS).run_on(stream),
            Op::Softmax => Softmax::new(x, y).run_on(stream),
            Op::Gelu => Activate::new(x, y, Activation::Gelu).run_on(stream),
        }
    }

    /// Compares the first and the last row of a copy.
    fn check(&self, form: Form, copy: usize) -> Result<()> {
        let [x, y] = &self.sets[copy];
        let [rows, n] = form.shape;
        let (w, b) = (crate::spotcheck::read(&self.weight)?, crate::spotcheck::read(&self.bias)?);
        for row in [0, rows - 1] {
            let (x, y) = (crate::spotcheck::read(&x.select(0, row)?)?, crate::spotcheck::read(&y.select(0, row)?)?);
            let (want, errors): (Vec<f64>, Vec<f64>) = match form.op {
                Op::RmsNorm => {
                    let want = rms_norm(&x, |i| w[i], EPS.into(), 0.0);
                    let errors = want.iter().zip(&w).map(|(y, w)| bound::rms_norm(n, *y, *w, 0.0)).collect();
                    (want, errors)
                }
                Op::LayerNorm => {
                    let want = layer_norm(&x, |i| w[i], |i| b[i], EPS.into());
                    let errors = bound::layer_norm(&x, |i| w[i], &want, EPS.into());
                    (want, errors)
                }
                Op::Softmax => {
                    let scores: Vec<f64> = x.iter().map(|x| bound::score(*x, 1.0, None, None)).collect();
                    (softmax(&x, false), bound::softmax(&x, &scores, false))
                }
                Op::Gelu => {
                    let gelu = tessl_oracle::Activation::Gelu;
                    x.iter().map(|x| (gelu.apply(*x), gelu.error(*x))).unzip()
                }
            };
            for (i, ((want, error), got)) in want.iter().zip(errors).zip(&y).enumerate() {
                if got.is_nan() || (got - want).abs() > bound::stored(error, *want, format_of(form.dtype)) {
                    return Err(CliError::Failed(format!("{:?}: y[{row}, {i}] is {got} but must be {want}", form.op)));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_refused() {
        let (form, iters) = parse("layer-norm 512x4096 f32 50").unwrap();
        assert_eq!((form, iters), (Form { op: Op::LayerNorm, shape: [512, 4096], dtype: DType::F32 }, 50));
        for bad in ["", "gelu 4 f32 1", "tanh 4x4 f32 1", "gelu 4x0 f32 1", "gelu 4x4 f32 0", "gelu 4x4 f33 1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_op_is_measured_and_checked() {
        let rt = GpuRuntime::with_device(&tessl::Device::cpu()).unwrap();
        let mut kept = None;
        for op in ["rms-norm", "layer-norm", "softmax", "gelu"] {
            for dtype in ["f32", "bf16"] {
                let line = format!("{op} 3x100 {dtype} 10");
                let answer = answer(&rt, &Data::new(), &mut kept, &line).unwrap();
                assert!(answer["us"].as_f64().unwrap() > 0.0, "{answer}");
            }
        }
    }
}
