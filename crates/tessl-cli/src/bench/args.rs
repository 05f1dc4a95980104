//! Arguments of the GEMM benchmark, and the variables that stand for them.

use super::{Case, Mode, Shape, parse_shapes};
use crate::error::{CliError, Result};
use tessl::{DType, Device, DeviceKind, GemmBackend, GpuRuntime, Precision};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct GemmArgs {
    /// Shapes: MxNxK or names, with commas; `ladder` or `all` [default: BENCH_SHAPES, else ladder]
    #[arg(long)]
    shapes: Option<String>,
    /// Types of A and B, with commas
    #[arg(long, value_delimiter = ',', default_value = "f32,bf16")]
    dtype: Vec<DType>,
    /// Type of C [default: that of A and B, i32 for i8]
    #[arg(long, value_name = "DTYPE")]
    out: Option<DType>,
    /// Layouts of A and B, with commas: N is row-major, T a transposed view
    #[arg(long, value_delimiter = ',', default_value = "NN", value_parser = ["NN", "NT", "TN", "TT"])]
    layout: Vec<String>,
    /// Columns to measure, with commas
    #[arg(long, value_delimiter = ',', default_value = "solo,batched")]
    mode: Vec<Mode>,
    /// exact, split or relaxed (f32 only)
    #[arg(long, default_value = "exact")]
    precision: Precision,
    /// tensorops or simdgroup
    #[arg(long, default_value = "tensorops")]
    backend: GemmBackend,
    /// Pack B beforehand, as a loaded model does
    #[arg(long)]
    packed: bool,
    /// Calls before measuring [default: BENCH_WARMUP, else 10]
    #[arg(long)]
    warmup: Option<usize>,
    /// Calls measured [default: BENCH_ITERS, else 50]
    #[arg(long)]
    iters: Option<usize>,
    /// Device [default: TESSL_DEVICE, else the best present]
    #[arg(long)]
    device: Option<Device>,
    /// Threads of the CPU device
    #[arg(long)]
    threads: Option<usize>,
    /// Name of the lane: tessl, or tessl-cpu, tessl-cuda, tessl-metal to insist on the device
    #[arg(long, default_value = "tessl", value_parser = ["tessl", "tessl-cpu", "tessl-cuda", "tessl-metal"])]
    lane: String,
}

/// Arguments, read and checked.
pub(super) struct Settings {
    pub(super) rt: GpuRuntime,
    pub(super) cases: Vec<Case>,
    pub(super) modes: Vec<Mode>,
    pub(super) warmup: usize,
    pub(super) iters: usize,
    pub(super) threads: usize,
    pub(super) lane: String,
}

/// Calls before or in a measurement, at most.
const MAX_CALLS: usize = 100_000;

impl GemmArgs {
    pub(super) fn settings(&self) -> Result<Settings> {
        let shapes = match (&self.shapes, std::env::var("BENCH_SHAPES").ok()) {
            (Some(shapes), _) => parse_shapes(shapes)?,
            (None, Some(shapes)) => parse_shapes(&shapes).map_err(|e| CliError::Usage(format!("BENCH_SHAPES: {e}")))?,
            (None, None) => parse_shapes("ladder")?,
        };
        let warmup = count("BENCH_WARMUP", self.warmup, 10, 0)?;
        let iters = count("BENCH_ITERS", self.iters, 50, 1)?;
        let rt = self.open()?;
        let on_cpu = rt.info().kind == DeviceKind::Cpu;
        let threads = if on_cpu { crate::runtime::threads(self.threads) } else { 0 };
        let (modes, lane) = (self.mode.clone(), self.lane.clone());
        Ok(Settings { rt, cases: self.cases(&shapes), modes, warmup, iters, threads, lane })
    }

    /// The runtime; a lane that names another kind of device refuses it.
    pub(super) fn open(&self) -> Result<GpuRuntime> {
        let rt = crate::open(self.device.as_ref(), self.threads)?;
        let kind = rt.info().kind;
        match self.lane.strip_prefix("tessl-") {
            Some(wanted) if wanted != kind.name() => Err(tessl::Error::unavailable(
                wanted,
                format!("lane {} asks for it, but the device is {}", self.lane, rt.device()),
                Some(format!("give --device {wanted}, or --lane tessl to measure what is here")),
            )
            .into()),
            _ => Ok(rt),
        }
    }

    fn cases(&self, shapes: &[Shape]) -> Vec<Case> {
        let mut cases = Vec::new();
        for &input in &self.dtype {
            for layout in &self.layout {
                let turned = [layout.starts_with('T'), layout.ends_with('T')];
                for &shape in shapes {
                    let (output, backend) = (self.out.unwrap_or(super::result_of(input)), self.backend);
                    let precision = if input == DType::F32 { self.precision } else { Precision::Exact };
                    let packed = self.packed;
                    cases.push(Case { shape, input, output, turned, precision, backend, packed });
                }
            }
        }
        cases
    }
}

/// A number of calls from the flag, the variable or the default.
pub(super) fn count(variable: &str, flag: Option<usize>, default: usize, least: usize) -> Result<usize> {
    let text = std::env::var(variable).ok();
    let value = match (flag, &text) {
        (Some(n), _) => Some(n),
        (None, Some(text)) => text.trim().parse().ok(),
        (None, None) => Some(default),
    };
    value.filter(|n| (least..=MAX_CALLS).contains(n)).ok_or_else(|| {
        let given = flag.map_or_else(|| text.unwrap_or_default(), |n| n.to_string());
        CliError::Usage(format!("{variable}: `{given}` is not a whole number from {least} to {MAX_CALLS}"))
    })
}
