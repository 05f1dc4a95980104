//! Results as data, with the keys that docs/benchmarking.md promises.

use super::{Case, Mode, Samples};
use serde::Serialize;
use std::collections::BTreeMap;
use tessl::GemmBackend;

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of these keys.
    pub schema: u32,
    /// Product name of the device.
    pub device: String,
    /// Driver or instruction sets.
    pub driver: String,
    /// Commit measured; filled in by `cargo xtask bench`.
    pub commit: Option<String>,
    /// Version of tessl.
    pub version: &'static str,
    /// What the machine can do, measured.
    pub limits: Limits,
    /// Results.
    pub rows: Vec<Row>,
    /// Comparisons with peers; filled in by paired runs.
    pub summary: Vec<serde_json::Value>,
}

/// Measured limits of the machine.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Limits {
    /// Gigabytes read per second, where it was measured.
    pub read_gbps: Option<f64>,
}

/// One result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Family of operations.
    pub suite: &'static str,
    /// Name of the shape.
    pub name: String,
    /// Rows of C.
    pub m: u32,
    /// Columns of C.
    pub n: u32,
    /// Length of the sums.
    pub k: u32,
    /// Type of A and B.
    pub dtype: &'static str,
    /// Type of C.
    pub out: &'static str,
    /// `NN`, `NT`, `TN` or `TT`.
    pub layout: String,
    /// How exact.
    pub precision: tessl::Precision,
    /// How calls were grouped.
    pub mode: Mode,
    /// Calls between two waits.
    pub batch: usize,
    /// Matrix units or the portable path.
    pub backend: &'static str,
    /// Kernel that ran.
    pub kernel: String,
    /// Whether B was packed beforehand.
    pub packed: bool,
    /// Who ran.
    pub lane: String,
    /// Threads of the CPU device; 0 elsewhere.
    pub threads: usize,
    /// Copies of the operands, used in turn.
    pub copies: usize,
    /// Middle time of a call.
    pub median_us: f64,
    /// Shortest.
    pub min_us: f64,
    /// Longest.
    pub max_us: f64,
    /// From the middle time.
    pub tflops: f64,
    /// From the middle time, each operand counted once.
    pub gbps: f64,
    /// Part of the measured read rate, for memory-bound shapes.
    pub percent_of_limit: Option<f64>,
    /// Peer time over this time, by peer.
    pub ratio: BTreeMap<String, f64>,
}

/// Arithmetic operations per byte below which reading is what limits.
const MEMORY_BOUND: f64 = 8.0;

impl Row {
    /// A result from its samples.
    pub fn new(case: &Case, mode: Mode, samples: &Samples, limits: &Limits) -> Self {
        let us = samples.median();
        #[allow(clippy::cast_precision_loss)]
        let bytes = case.bytes() as f64;
        let gbps = bytes / us / 1e3;
        let bound = case.shape.flop() / bytes < MEMORY_BOUND;
        Row {
            suite: "gemm",
            name: case.shape.name(),
            m: case.shape.m,
            n: case.shape.n,
            k: case.shape.k,
            dtype: case.input.name(),
            out: case.output.name(),
            layout: case.layout(),
            precision: case.precision,
            mode,
            batch: samples.batch,
            backend: backend_name(case.backend),
            kernel: String::new(),
            packed: case.packed,
            lane: String::new(),
            threads: 0,
            copies: 0,
            median_us: us,
            min_us: samples.min(),
            max_us: samples.max(),
            tflops: case.shape.flop() / us / 1e6,
            gbps,
            percent_of_limit: limits.read_gbps.filter(|_| bound).map(|limit| 100.0 * gbps / limit),
            ratio: BTreeMap::new(),
        }
    }

    /// The heading of [`Row::line`].
    pub const HEADING: &str = "shape              m x n x k          type         layout mode       median us     \
                               min us    GFLOP/s      GB/s";

    /// One line of a table.
    pub fn line(&self) -> String {
        let size = format!("{}x{}x{}", self.m, self.n, self.k);
        let types = format!("{}->{}", self.dtype, self.out);
        let mode = format!("{:?}", self.mode).to_lowercase();
        format!(
            "{:<18} {size:<18} {types:<12} {:<6} {mode:<8} {:>11.1} {:>10.1} {:>10.1} {:>9.1}",
            self.name,
            self.layout,
            self.median_us,
            self.min_us,
            self.tflops * 1e3,
            self.gbps
        )
    }
}

fn backend_name(backend: GemmBackend) -> &'static str {
    match backend {
        GemmBackend::TensorOps => "tensorops",
        GemmBackend::Simdgroup => "simdgroup",
    }
}
