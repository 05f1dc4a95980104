//! One measurement per line of stdin, so that another program can interleave rounds.

use super::{Case, Data, GemmArgs, Mode, Rotation, measure};
use crate::error::{CliError, Result};
use crate::ui;
use serde_json::{Value, json};
use std::io::BufRead;
use tessl::{DType, DeviceKind, GpuRuntime};

/// Answers `MxNxK DTYPE ITERS [OUT] [LAYOUT] [solo|batched|graph]` with a line of JSON each, after a first line about
/// the device. A line that cannot be measured is answered with `{"error": ..}`; the next one works.
///
/// # Errors
/// What opening the device reports, or a closed stdout.
pub fn serve(args: &GemmArgs) -> Result<()> {
    let rt = args.open()?;
    let info = rt.info();
    let hello = json!({
        "schema": 1, "device": info.name, "id": rt.device(), "driver": info.driver, "kind": info.kind,
        "version": env!("CARGO_PKG_VERSION"),
    });
    ui::out(hello)?;
    let data = Data::new();
    let mut kept: Option<(String, Rotation)> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| CliError::file("stdin", e.to_string()))?;
        let answer = answer(&rt, &data, &mut kept, line.trim());
        ui::out(answer.unwrap_or_else(|e| json!({ "error": e.to_string() })))?;
    }
    Ok(())
}

fn answer(rt: &GpuRuntime, data: &Data, kept: &mut Option<(String, Rotation)>, line: &str) -> Result<Value> {
    let usage = || CliError::Usage(format!("`{line}` is not MxNxK DTYPE ITERS [OUT] [LAYOUT] [MODE]"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let [shape, dtype, iters, options @ ..] = words.as_slice() else { return Err(usage()) };
    let iters: usize = iters.parse().ok().filter(|n| (1..=100_000).contains(n)).ok_or_else(usage)?;
    let input: DType = dtype.parse()?;
    let mut case = Case { shape: shape.parse()?, input, output: input, ..Case::default() };
    // A GPU hides its launch cost only behind other launches; a CPU call is a call.
    let mut mode = if rt.info().kind == DeviceKind::Cpu { Mode::Solo } else { Mode::Batched };
    for option in options {
        match *option {
            "NN" | "NT" | "TN" | "TT" => case.turned = [option.starts_with('T'), option.ends_with('T')],
            "solo" => mode = Mode::Solo,
            "batched" => mode = Mode::Batched,
            "graph" => mode = Mode::Graph,
            out => case.output = out.parse()?,
        }
    }
    let key = format!("{shape} {dtype} {} {}", case.output, case.layout());
    let fresh = kept.as_ref().is_none_or(|(have, _)| *have != key);
    if fresh {
        // The old operands go before the new ones come.
        *kept = None;
        *kept = Some((key, Rotation::new(rt, &case, data, u64::MAX)?));
    }
    let Some((_, work)) = kept.as_mut() else { return Err(usage()) };
    let samples = measure(rt, work, mode, if fresh { 2 } else { 0 }, iters)?;
    if fresh {
        work.check(work.last())?;
    }
    Ok(json!({
        "shape": shape, "dtype": dtype, "out": case.output, "layout": case.layout(), "mode": mode, "iters": iters,
        "batch": samples.batch, "us": samples.median(), "min_us": samples.min(), "max_us": samples.max(),
        "tflops": case.shape.flop() / samples.median() / 1e6,
    }))
}
