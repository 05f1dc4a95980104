//! The kernels of `nn`: rms_norm here, attention and quantised products beside.

use super::args::count;
use super::{Data, Mode, Samples, Work, data, measure};
use crate::error::{CliError, Result};
use serde_json::{Value, json};
use tessl::nn::RmsNorm;
use tessl::{BufferKind, DType, Device, DeviceKind, GpuRuntime, QFormat, Stream, Tensor};
use tessl_oracle::{Format, bound, rms_norm};

/// Rows and elements of a row: decode, prefill, and what passes the caches.
const SHAPES: [(usize, usize); 4] = [(1, 4096), (64, 4096), (512, 4096), (4096, 4096)];
const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const MODES: [Mode; 3] = [Mode::Solo, Mode::Batched, Mode::Graph];
const EPS: f32 = 1e-6;
/// Bytes and number of the copies of x and y, at most.
const MAX_BYTES: u64 = 512 << 20;
const MAX_SETS: u64 = 256;

/// A family of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Family {
    /// rms_norm.
    Norm,
    /// Prefill and decode.
    Attention,
    /// Products with quantised weights.
    Quant,
}

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct NormArgs {
    /// One family alone
    #[arg(long)]
    pub family: Option<Family>,
    /// One format of the family `quant` alone, for instance q4_0
    #[arg(long)]
    pub format: Option<QFormat>,
    /// Shapes of the family `quant`, with commas: MxNxK [default: layers of models]
    #[arg(long)]
    pub shapes: Option<String>,
    /// Calls before measuring [default: BENCH_WARMUP, else 10]
    #[arg(long)]
    pub(super) warmup: Option<usize>,
    /// Calls measured [default: BENCH_ITERS, else 50]
    #[arg(long)]
    pub(super) iters: Option<usize>,
    /// Device [default: TESSL_DEVICE, else the best present]
    #[arg(long)]
    pub(super) device: Option<Device>,
    /// Threads of the CPU device
    #[arg(long)]
    pub(super) threads: Option<usize>,
}

/// Copies of x and y, and one weight.
struct Norm {
    sets: Vec<(Tensor, Tensor)>,
    weight: Tensor,
    at: usize,
}

/// Measures every shape, type and mode; `show` is told each line of the table.
///
/// # Errors
/// `Failed` for a wrong result, and what the library reports.
pub fn norm_sweep(args: &NormArgs, mut show: impl FnMut(&str)) -> Result<Value> {
    let warmup = count("BENCH_WARMUP", args.warmup, 10, 0)?;
    let iters = count("BENCH_ITERS", args.iters, 50, 1)?;
    let rt = crate::open(args.device.as_ref(), args.threads)?;
    let threads = if rt.info().kind == DeviceKind::Cpu { crate::runtime::threads(args.threads) } else { 0 };
    show(&format!("device: {} ({})", rt.device(), rt.device_name()));
    show("op        rows x n        type  mode       median us     min us      GB/s");
    let data = Data::new();
    let mut rows = Vec::new();
    let wanted = |family| args.family.is_none_or(|only| only == family);
    for (count, n) in SHAPES.into_iter().filter(|_| wanted(Family::Norm)) {
        for dtype in TYPES {
            for mode in MODES {
                let mut work = Norm::new(&rt, &data, dtype, [count, n])?;
                let samples = measure(&rt, &mut work, mode, warmup, iters)?;
                work.check(&rt, [count, n])?;
                let size = format!("{count}x{n}");
                let (us, gbps) = (samples.median(), gbps(&samples, dtype, count * n));
                let name = format!("{mode:?}").to_lowercase();
                show(&format!(
                    "rms_norm  {size:<15} {dtype:<5} {name:<9} {us:>10.2} {:>10.2} {gbps:>9.1}",
                    samples.min()
                ));
                rows.push(json!({
                    "suite": "nn", "name": "rms_norm", "m": count, "n": n, "k": 1, "dtype": dtype, "out": dtype,
                    "layout": "N", "precision": "exact", "mode": mode, "batch": samples.batch, "backend": "simt",
                    "packed": false, "lane": "tessl", "threads": threads, "copies": work.sets.len(), "median_us": us,
                    "min_us": samples.min(), "max_us": samples.max(), "tflops": null, "gbps": gbps,
                    "percent_of_limit": null, "ratio": {},
                }));
            }
        }
    }
    if wanted(Family::Attention) {
        rows.extend(super::attention_sweep(args, &mut show)?);
    }
    if wanted(Family::Quant) {
        rows.extend(super::quant_sweep(args, &mut show)?);
    }
    let info = rt.info();
    Ok(json!({
        "schema": 1, "device": info.name, "driver": info.driver, "commit": null, "version": env!("CARGO_PKG_VERSION"),
        "rows": rows, "summary": [],
    }))
}

/// From the middle time, with each element read and written once.
#[allow(clippy::cast_precision_loss)]
fn gbps(samples: &Samples, dtype: DType, elements: usize) -> f64 {
    2.0 * (elements * dtype.size()) as f64 / samples.median() / 1e3
}

impl Norm {
    fn new(rt: &GpuRuntime, data: &Data, dtype: DType, shape: [usize; 2]) -> Result<Self> {
        let bytes = 2 * (shape[0] * shape[1] * dtype.size()) as u64;
        let copies = (2 * data::cache_bytes(rt)).min(MAX_BYTES).div_ceil(bytes).clamp(2, MAX_SETS);
        let mut sets = Vec::new();
        for seed in 0..usize::try_from(copies).unwrap_or(2) {
            let x = rt.uninit(dtype, &shape, BufferKind::Hot)?;
            data.fill(&x, seed)?;
            let y = rt.uninit(dtype, &shape, BufferKind::Hot)?;
            data::poison_any(&y)?;
            sets.push((x, y));
        }
        let weight = rt.uninit(DType::F32, &shape[1..], BufferKind::Hot)?;
        data.fill(&weight, 999)?;
        rt.synchronize()?;
        Ok(Norm { sets, weight, at: 0 })
    }

    /// Compares the first and the last row of the copy used last.
    fn check(&self, rt: &GpuRuntime, [rows, n]: [usize; 2]) -> Result<()> {
        rt.synchronize()?;
        let (x, y) = &self.sets[self.at];
        let weight = self.weight.read::<f32>()?;
        let format = match x.dtype() {
            DType::F16 => Format::F16,
            DType::Bf16 => Format::BF16,
            _ => Format::F32,
        };
        for row in [0, rows - 1] {
            let (x, y) = (crate::spotcheck::read(&x.select(0, row)?)?, crate::spotcheck::read(&y.select(0, row)?)?);
            let want = rms_norm(&x, |j| f64::from(weight[j]), EPS.into(), 0.0);
            for (j, (want, got)) in want.iter().zip(&y).enumerate() {
                let allowed = bound::stored(bound::rms_norm(n, *want, f64::from(weight[j]), 0.0), *want, format);
                if got.is_nan() || (got - want).abs() > allowed {
                    return Err(CliError::Failed(format!("rms_norm: y[{row}, {j}] is {got} but must be {want}")));
                }
            }
        }
        Ok(())
    }
}

impl Work for Norm {
    fn turn(&mut self) -> usize {
        self.at = (self.at + 1) % self.sets.len();
        self.at
    }

    fn encode(&self, i: usize, stream: Option<&mut Stream>) -> tessl::Result<()> {
        let (x, y) = &self.sets[i % self.sets.len()];
        let call = RmsNorm::new(x, &self.weight, y).eps(EPS);
        match stream {
            Some(stream) => call.run_on(stream),
            None => call.run(),
        }
    }
}
