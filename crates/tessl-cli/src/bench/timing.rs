//! Timing on the host, around work that has finished.

use super::{Case, Data, Rotation};
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use tessl::{GpuRuntime, Stream};

/// Calls packed between two waits, at most.
const BATCH: usize = 64;
/// A batch is no longer than this.
const BATCH_TIME: f64 = 0.02;
/// Batches measured, at least.
const MIN_BATCHES: usize = 5;
/// Memory for the copies of a quick measurement.
const QUICK_BYTES: u64 = 128 << 20;

/// Something to measure, with copies of its operands.
pub trait Work {
    /// Moves on to the next copy and names it.
    fn turn(&mut self) -> usize;

    /// Encodes the call on copy `i` (counted past the end from the start again), on `stream` or the default one.
    ///
    /// # Errors
    /// What the library reports.
    fn encode(&self, i: usize, stream: Option<&mut Stream>) -> tessl::Result<()>;

    /// Scratch memory of one call, which a capture does not allocate.
    ///
    /// # Errors
    /// What the library reports.
    fn scratch_bytes(&self) -> tessl::Result<u64> {
        Ok(0)
    }
}

/// How calls are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One call, one wait: what a caller sees who needs each result at once.
    Solo,
    /// Many calls, one wait: what a layer of a model sees.
    Batched,
    /// The same calls captured once and replayed.
    Graph,
}

/// Times of single calls.
#[derive(Clone, Debug)]
pub struct Samples {
    /// Microseconds of a call, sorted.
    pub us: Vec<f64>,
    /// Calls between two waits.
    pub batch: usize,
}

impl Samples {
    fn new(mut us: Vec<f64>, batch: usize) -> Self {
        us.sort_by(f64::total_cmp);
        Samples { us, batch }
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        self.us.get(self.us.len() / 2).copied().unwrap_or(0.0)
    }

    /// The shortest.
    pub fn min(&self) -> f64 {
        self.us.first().copied().unwrap_or(0.0)
    }

    /// The longest.
    pub fn max(&self) -> f64 {
        self.us.last().copied().unwrap_or(0.0)
    }
}

/// Measures about `iters` calls after `warmup` others.
///
/// # Errors
/// What the library reports.
pub fn measure(rt: &GpuRuntime, work: &mut impl Work, mode: Mode, warmup: usize, iters: usize) -> Result<Samples> {
    let mut one = || -> Result<f64> {
        let started = Instant::now();
        next(work)?;
        rt.synchronize()?;
        Ok(started.elapsed().as_secs_f64() * 1e6)
    };
    for _ in 0..warmup {
        one()?;
    }
    let typical = one()?.min(one()?);
    if mode == Mode::Solo {
        let us = (0..iters.max(1)).map(|_| one()).collect::<Result<Vec<f64>>>()?;
        return Ok(Samples::new(us, 1));
    }
    let batch = batch_of(typical);
    let batches = iters.div_ceil(batch).max(MIN_BATCHES.min(iters));
    let us = if mode == Mode::Batched { batched(rt, work, batch, batches)? } else { graph(rt, work, batch, batches)? };
    Ok(Samples::new(us, batch))
}

fn next(work: &mut impl Work) -> Result<()> {
    let copy = work.turn();
    Ok(work.encode(copy, None)?)
}

/// Calls of `us` microseconds that fit a batch.
fn batch_of(us: f64) -> usize {
    (1..=BATCH).rev().find(|&n| f64::from(u32::try_from(n).unwrap_or(1)) * us <= BATCH_TIME * 1e6).unwrap_or(1)
}

#[allow(clippy::cast_precision_loss)]
fn batched(rt: &GpuRuntime, work: &mut impl Work, batch: usize, batches: usize) -> Result<Vec<f64>> {
    let one = |_| {
        let started = Instant::now();
        for _ in 0..batch {
            next(work)?;
        }
        rt.synchronize()?;
        Ok(started.elapsed().as_secs_f64() * 1e6 / batch as f64)
    };
    (0..batches).map(one).collect()
}

#[allow(clippy::cast_precision_loss)]
fn graph(rt: &GpuRuntime, work: &impl Work, batch: usize, batches: usize) -> Result<Vec<f64>> {
    let mut stream = rt.stream()?;
    let scratch = work.scratch_bytes()?;
    if scratch > 0 {
        stream.reserve(scratch)?;
    }
    // One after the other: calls on different operands would run side by side.
    let graph = stream.capture(|s| {
        (0..batch).try_for_each(|i| {
            s.barrier();
            work.encode(i, Some(s))
        })
    })?;
    graph.replay(&mut stream)?.wait()?;
    let mut one = |_| {
        let started = Instant::now();
        graph.replay(&mut stream)?.wait()?;
        Ok(started.elapsed().as_secs_f64() * 1e6 / batch as f64)
    };
    (0..batches).map(&mut one).collect()
}

/// Seconds of one call, from one call to warm up and then about `goal` of measuring, but at least one call.
///
/// # Errors
/// As [`measure`]; a wrong result is an error too.
pub fn quick(rt: &GpuRuntime, case: &Case, data: &Data, goal: Duration) -> Result<f64> {
    let mut work = Rotation::new(rt, case, data, QUICK_BYTES)?;
    let started = Instant::now();
    next(&mut work)?;
    rt.synchronize()?;
    let first = started.elapsed().as_secs_f64() * 1e6;
    let calls = (1..=500).rev().find(|&n| f64::from(n) * first <= goal.as_secs_f64() * 1e6).unwrap_or(1);
    let batch = batch_of(first);
    let batches = usize::try_from(calls).unwrap_or(1).div_ceil(batch);
    let samples = Samples::new(batched(rt, &mut work, batch, batches)?, batch);
    work.check(work.last())?;
    Ok(samples.median() / 1e6)
}
