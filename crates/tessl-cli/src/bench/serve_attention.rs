//! One measurement of attention per line of stdin, so that another program can interleave rounds.

use super::attention::{Attend, Form};
use super::serve::{Replay, serve_lines};
use super::{Data, NormArgs};
use crate::error::{CliError, Result};
use serde_json::{Value, json};
use tessl::plan::{Plan, candidates, plan};
use tessl::{DType, GpuRuntime};

/// A line, read.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    form: Form,
    iters: usize,
    /// Number of the candidate to measure in place of the table's choice.
    candidate: Option<usize>,
}

/// Operands of the latest form, and its calls as a graph for each plan that was asked for.
struct Kept {
    form: Form,
    work: Attend,
    plans: Vec<Plan>,
    replays: Vec<(Option<usize>, Replay)>,
}

/// Answers `BxTQxTKVxHQxHKVxD DTYPE ITERS full|causal [window=N] [plan=N]` with a line of JSON each, after a first line
/// about the device. Captured calls are replayed until there were ITERS of them; `us` is the mean. `plan=N` measures
/// candidate N, of as many as `candidates` in any answer tells.
///
/// # Errors
/// What opening the device reports, or a closed stdout.
pub fn serve_attention(args: &NormArgs) -> Result<()> {
    let rt = crate::open(args.device.as_ref(), args.threads)?;
    let data = Data::new();
    let mut kept: Option<Kept> = None;
    serve_lines(&rt, |line| answer(&rt, &data, &mut kept, line))
}

fn parse(line: &str) -> Result<Request> {
    const USAGE: &str = "BxTQxTKVxHQxHKVxD DTYPE ITERS full|causal [window=N] [plan=N]";
    let usage = || CliError::Usage(format!("`{line}` is not {USAGE}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let [shape, dtype, iters, mask, options @ ..] = words.as_slice() else { return Err(usage()) };
    let sizes: Option<Vec<usize>> = shape.split('x').map(|n| n.parse().ok().filter(|n| *n > 0)).collect();
    let shape: [usize; 6] = sizes.and_then(|s| s.try_into().ok()).ok_or_else(usage)?;
    let dtype: DType = dtype.parse()?;
    let iters: usize = iters.parse().ok().filter(|n| (1..=1_000_000).contains(n)).ok_or_else(usage)?;
    let causal = match *mask {
        "causal" => true,
        "full" => false,
        _ => return Err(usage()),
    };
    let mut request = Request { form: Form { shape, dtype, causal, window: None }, iters, candidate: None };
    for option in options {
        match option.split_once('=') {
            Some(("window", n)) if causal => request.form.window = Some(n.parse().map_err(|_| usage())?),
            Some(("plan", n)) => request.candidate = Some(n.parse().map_err(|_| usage())?),
            _ => return Err(usage()),
        }
    }
    Ok(request)
}

fn answer(rt: &GpuRuntime, data: &Data, kept: &mut Option<Kept>, line: &str) -> Result<Value> {
    let Request { form, iters, candidate } = parse(line)?;
    if kept.as_ref().is_none_or(|have| have.form != form) {
        // The old operands go before the new ones come.
        *kept = None;
        let work = Attend::new(rt, data, form)?;
        let plans = candidates(&work.desc()?, rt.profile())?;
        *kept = Some(Kept { form, work, plans, replays: Vec::new() });
    }
    let Some(Kept { work, plans, replays, .. }) = kept.as_mut() else {
        return Err(CliError::Usage("nothing was asked for".to_owned()));
    };
    let chosen = match candidate {
        None => plan(&work.desc()?, rt.profile())?,
        Some(n) => plans.get(n).cloned().ok_or_else(|| CliError::Usage(format!("plan={n} of {}", plans.len())))?,
    };
    let mut at = replays.iter().position(|(of, _)| *of == candidate);
    if at.is_none() {
        let encode = |i, s: &mut tessl::Stream| work.call(i).with_plan(&chosen).run_on(s);
        let mut replay = Replay::new(rt, work.copies(), chosen.scratch_bytes, encode)?;
        work.poison()?;
        replay.run(1)?;
        work.check(0, &chosen)?;
        work.check(work.copies() - 1, &chosen)?;
        at = Some(replays.len());
        replays.push((candidate, replay));
    }
    let (_, replay) = &mut replays[at.unwrap_or_default()];
    let us = replay.run(iters)?;
    #[allow(clippy::cast_precision_loss)]
    let gbps = form.bytes() as f64 / us / 1e3;
    Ok(json!({
        "shape": form.shape, "dtype": form.dtype, "causal": form.causal, "window": form.window, "iters": iters,
        "kernel": chosen.kernel.name, "tile": chosen.tile, "split": chosen.split, "reason": chosen.reason,
        "note": chosen.note, "candidates": plans.len(), "copies": work.copies(), "batch": replay.calls, "us": us,
        "flop": form.flop(), "tflops": form.flop() / us / 1e6, "gbps": gbps,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_refused() {
        let r = parse("2x64x65x8x2x128 bf16 100 causal window=5 plan=1").unwrap();
        assert_eq!((r.form.shape, r.form.window, r.candidate), ([2, 64, 65, 8, 2, 128], Some(5), Some(1)));
        for bad in ["", "1x1x1x1x1 f32 1 full", "1x1x1x1x1x1 f32 0 full", "1x1x1x1x1x1 f32 1 full window=3"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn visible_scores_are_counted() {
        let flop = |line| parse(line).unwrap().form.flop();
        assert_eq!(flop("2x4x6x3x1x8 f32 1 full"), 4.0 * 24.0 * 48.0);
        assert_eq!(flop("2x4x6x3x1x8 f32 1 causal"), 4.0 * (3.0 + 4.0 + 5.0 + 6.0) * 48.0);
        assert_eq!(flop("2x4x6x3x1x8 f32 1 causal window=4"), 4.0 * (3.0 + 4.0 + 4.0 + 4.0) * 48.0);
    }

    #[test]
    fn a_form_is_measured_and_checked() {
        let rt = GpuRuntime::with_device(&tessl::Device::cpu()).unwrap();
        let mut kept = None;
        let answer = answer(&rt, &Data::new(), &mut kept, "2x20x30x4x2x16 bf16 40 causal plan=0").unwrap();
        assert!(answer["us"].as_f64().unwrap() > 0.0 && answer["candidates"] == 1, "{answer}");
    }
}
