//! One measurement per line of stdin, so that another program can interleave rounds.

use super::{Case, Data, GemmArgs, Mode, Rotation, measure};
use crate::error::{CliError, Result};
use crate::ui;
use serde_json::{Value, json};
use std::io::BufRead;
use std::time::Instant;
use tessl::plan::{Desc, Plan, candidates, plan};
use tessl::{DType, DeviceKind, GpuRuntime, Graph, Stream};

/// Calls of one replay, at least: the gap between replays is shared by as many.
const CALLS: usize = 16;

/// A line, read.
struct Request {
    case: Case,
    iters: usize,
    mode: Mode,
    /// Number of the candidate to measure in place of the table's choice.
    candidate: Option<usize>,
}

/// Operands of the latest case, and its calls as a graph for each plan that was asked for.
struct Kept {
    key: String,
    work: Rotation,
    plans: Vec<Plan>,
    replays: Vec<(Option<usize>, Replay)>,
}

/// Captured calls.
pub(super) struct Replay {
    graph: Graph,
    stream: Stream,
    pub(super) calls: usize,
}

/// Answers `MxNxK DTYPE ITERS [OUT] [LAYOUT] [packed] [solo|batched|graph] [plan=N]` with a line of JSON each, after a first line
/// about the device. A line that cannot be measured is answered with `{"error": ..}`; the next one works.
///
/// `graph` replays captured calls until there were ITERS of them, waits once, and answers the mean as `us`; the others
/// answer medians. `plan=N` (with `graph`) measures candidate N, of as many as `candidates` in any answer tells.
///
/// # Errors
/// What opening the device reports, or a closed stdout.
pub fn serve(args: &GemmArgs) -> Result<()> {
    let rt = args.open()?;
    let data = Data::new();
    let mut kept: Option<Kept> = None;
    serve_lines(&rt, |line| answer(&rt, &data, &mut kept, line))
}

/// Tells about the device, then answers each line of stdin with a line.
pub(super) fn serve_lines(rt: &GpuRuntime, mut answer: impl FnMut(&str) -> Result<Value>) -> Result<()> {
    let info = rt.info();
    let hello = json!({
        "schema": 1, "device": info.name, "id": rt.device(), "driver": info.driver, "kind": info.kind,
        "version": env!("CARGO_PKG_VERSION"),
    });
    ui::out(hello)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| CliError::file("stdin", e.to_string()))?;
        ui::out(answer(line.trim()).unwrap_or_else(|e| json!({ "error": e.to_string() })))?;
    }
    Ok(())
}

fn parse(line: &str, on_cpu: bool) -> Result<Request> {
    let usage =
        || CliError::Usage(format!("`{line}` is not MxNxK DTYPE ITERS [OUT] [LAYOUT] [packed] [MODE] [plan=N]"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let [shape, dtype, iters, options @ ..] = words.as_slice() else { return Err(usage()) };
    let iters: usize = iters.parse().ok().filter(|n| (1..=100_000).contains(n)).ok_or_else(usage)?;
    let input: DType = dtype.parse()?;
    let case = Case { shape: shape.parse()?, input, output: super::result_of(input), ..Case::default() };
    // A GPU hides its launch cost only behind other launches; a CPU call is a call.
    let mode = if on_cpu { Mode::Solo } else { Mode::Batched };
    let mut request = Request { case, iters, mode, candidate: None };
    for option in options {
        match *option {
            "NN" | "NT" | "TN" | "TT" => request.case.turned = [option.starts_with('T'), option.ends_with('T')],
            "packed" => request.case.packed = true,
            "solo" => request.mode = Mode::Solo,
            "batched" => request.mode = Mode::Batched,
            "graph" => request.mode = Mode::Graph,
            other => match other.strip_prefix("plan=") {
                Some(number) => request.candidate = Some(number.parse().map_err(|_| usage())?),
                None => request.case.output = other.parse()?,
            },
        }
    }
    if request.candidate.is_some() && request.mode != Mode::Graph { Err(usage()) } else { Ok(request) }
}

fn answer(rt: &GpuRuntime, data: &Data, kept: &mut Option<Kept>, line: &str) -> Result<Value> {
    let Request { case, iters, mode, candidate } = parse(line, rt.info().kind == DeviceKind::Cpu)?;
    let key = format!("{} {} {} {} {}", case.shape, case.input, case.output, case.layout(), case.packed);
    let fresh = kept.as_ref().is_none_or(|have| have.key != key);
    if fresh {
        // The old operands go before the new ones come.
        *kept = None;
        let work = Rotation::new(rt, &case, data, u64::MAX)?;
        let plans = candidates(&Desc::Gemm(work.call(0).desc()?), rt.profile())?;
        *kept = Some(Kept { key, work, plans, replays: Vec::new() });
    }
    let Some(Kept { work, plans, replays, .. }) = kept.as_mut() else {
        return Err(CliError::Usage("nothing was asked for".to_owned()));
    };
    let chosen = match candidate {
        None => plan(&Desc::Gemm(work.call(0).desc()?), rt.profile())?,
        Some(n) => plans.get(n).cloned().ok_or_else(|| CliError::Usage(format!("plan={n} of {}", plans.len())))?,
    };
    let mut answer = json!({
        "shape": case.shape.to_string(), "dtype": case.input, "out": case.output, "layout": case.layout(), "packed": case.packed,
        "mode": mode,
        "iters": iters, "kernel": chosen.kernel.name, "tile": chosen.tile, "split": chosen.split, "reason": chosen.reason,
        "candidates": plans.len(), "copies": work.copies(),
    });
    let (us, min, max, batch) = if mode == Mode::Graph {
        let mut at = replays.iter().position(|(of, _)| *of == candidate);
        if at.is_none() {
            let mut replay = Replay::new(rt, work.copies(), 0, |i, s| work.call(i).with_plan(&chosen).run_on(s))?;
            work.poison()?;
            replay.run(1)?;
            work.check(0)?;
            work.check(work.copies() - 1)?;
            at = Some(replays.len());
            replays.push((candidate, replay));
        }
        let (_, replay) = &mut replays[at.unwrap_or_default()];
        let us = replay.run(iters)?;
        (us, us, us, replay.calls)
    } else {
        let samples = measure(rt, work, mode, if fresh { 2 } else { 0 }, iters)?;
        if fresh {
            work.check(work.last())?;
        }
        (samples.median(), samples.min(), samples.max(), samples.batch)
    };
    let measured = [("us", us), ("min_us", min), ("max_us", max), ("tflops", case.shape.flop() / us / 1e6)];
    measured.into_iter().for_each(|(name, value)| answer[name] = json!(value));
    answer["batch"] = json!(batch);
    Ok(answer)
}

impl Replay {
    /// Captures one call on each copy of the operands, or more, on a stream with so much scratch memory.
    pub(super) fn new(
        rt: &GpuRuntime,
        copies: usize,
        scratch: u64,
        encode: impl Fn(usize, &mut Stream) -> tessl::Result<()>,
    ) -> Result<Self> {
        let calls = copies * CALLS.div_ceil(copies);
        let mut stream = rt.stream()?;
        if scratch > 0 {
            stream.reserve(scratch)?;
        }
        // One after the other, as the peer's stream runs them: calls on different operands would run side by side.
        let graph = stream.capture(|s| {
            (0..calls).try_for_each(|i| {
                s.barrier();
                encode(i, s)
            })
        })?;
        Ok(Replay { graph, stream, calls })
    }

    /// Microseconds of a call, from as many replays as it takes for `iters` calls.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn run(&mut self, iters: usize) -> Result<f64> {
        let replays = iters.div_ceil(self.calls);
        let started = Instant::now();
        for _ in 1..replays {
            self.graph.replay(&mut self.stream)?;
        }
        self.graph.replay(&mut self.stream)?.wait()?;
        Ok(started.elapsed().as_secs_f64() * 1e6 / (replays * self.calls) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_refused() {
        let r = parse("64x32x16 bf16 100 f32 TN graph plan=3", false).unwrap();
        assert_eq!((r.case.shape.n, r.case.output, r.iters, r.candidate), (32, DType::F32, 100, Some(3)));
        assert_eq!((r.case.layout(), r.mode), ("TN".to_owned(), Mode::Graph));
        assert_eq!(parse("1x1x1 f32 1", true).unwrap().mode, Mode::Solo);
        for bad in ["", "1x1x1", "1x1x1 f32", "1x1x1 f32 0", "1x1x1 f32 1 plan=x graph", "1x1x1 f32 1 plan=1"] {
            assert!(parse(bad, false).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_replay_is_checked_and_takes_the_time_of_its_calls() {
        let rt = GpuRuntime::with_device(&tessl::Device::cpu()).unwrap();
        let mut kept = None;
        let data = Data::new();
        let answer = answer(&rt, &data, &mut kept, "64x32x16 f32 40 graph plan=0").unwrap();
        assert!(answer["us"].as_f64().unwrap() > 0.0 && answer["candidates"] == 1, "{answer}");
    }
}
