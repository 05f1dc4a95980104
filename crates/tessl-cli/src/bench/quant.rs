//! Products with quantised weights: decode by the bytes of the weights, prefill by arithmetic.

use super::args::count;
use super::{Data, Mode, NormArgs, Samples, Work, data, limits, measure};
use crate::error::{CliError, Result};
use serde_json::{Value, json};
use tessl::nn::{QuantOp, QuantizedMatmul};
use tessl::plan::{Desc, plan};
use tessl::{BufferKind, DType, DeviceKind, GpuRuntime, QFormat, QTensor, Stream, Tensor};

/// Rows of x, columns, depth where none are given: a layer of SmolLM2 135M and of Gemma 3 270M, layers of Llama 8B, a few rows, a prefill.
const SHAPES: [[usize; 3]; 8] = [
    [1, 576, 576],
    [1, 1536, 576],
    [1, 49_152, 576],
    [1, 2048, 640],
    [1, 4096, 4096],
    [1, 4096, 14_336],
    [4, 4096, 4096],
    [512, 4096, 4096],
];
const FORMATS: [QFormat; 5] = [QFormat::Q4_0, QFormat::Q4_1, QFormat::Q8_0, QFormat::Q4K, QFormat::Q6K];
/// Bytes and number of the copies, at most.
const MAX_BYTES: u64 = 512 << 20;
const MAX_SETS: u64 = 256;
/// Bytes of a working set that one layer after the other reads again from the last cache.
const NEAR_BYTES: u64 = 32 << 20;
/// Outputs compared after each measurement.
const CHECKED: usize = 8;

/// Copies of x, the weights and y.
struct Product {
    sets: Vec<(Tensor, QTensor, Tensor)>,
    shape: [usize; 3],
    at: usize,
}

/// Measures every shape, format and type, once from copies that pass the caches as far as memory allows, and for one row once
/// more from copies that a last cache of 32 MiB holds; `show` is told each line of the table.
///
/// # Errors
/// `Failed` for a wrong result, and what the library reports.
#[allow(clippy::cast_precision_loss)] // Rates.
pub fn quant_sweep(args: &NormArgs, mut show: impl FnMut(&str)) -> Result<Vec<Value>> {
    let warmup = count("BENCH_WARMUP", args.warmup, 10, 0)?;
    let iters = count("BENCH_ITERS", args.iters, 50, 1)?;
    let rt = crate::open(args.device.as_ref(), args.threads)?;
    let on_cpu = rt.info().kind == DeviceKind::Cpu;
    let threads = if on_cpu { crate::runtime::threads(args.threads) } else { 0 };
    let limit = |bytes: u64| on_cpu.then(|| limits::read_rate_of(threads, bytes) / 1e9);
    let limits = [limit(NEAR_BYTES), limit(MAX_BYTES)];
    show(
        "op                M x N x K           format  type  mode     copies  median us     min us     TF/s     GB/s  of limit",
    );
    let data = Data::new();
    let shapes = match &args.shapes {
        None => SHAPES.to_vec(),
        Some(text) => super::parse_shapes(text)?.into_iter().map(|s| [s.m, s.n, s.k].map(|d| d as usize)).collect(),
    };
    let mut rows = Vec::new();
    for format in FORMATS.into_iter().filter(|f| args.format.is_none_or(|only| only == *f)) {
        for shape in shapes.iter().copied().filter(|s| s[2].is_multiple_of(format.group())) {
            let near = (shape[0] == 1).then_some(NEAR_BYTES);
            for (most, limit) in near.into_iter().map(|b| (b, limits[0])).chain([(MAX_BYTES, limits[1])]) {
                for dtype in [DType::Bf16, DType::F32] {
                    let mut work = Product::new(&rt, &data, format, dtype, shape, most)?;
                    let mode = if shape[0] == 1 { Mode::Batched } else { Mode::Solo };
                    let samples = measure(&rt, &mut work, mode, warmup, iters)?;
                    work.check(&rt)?;
                    rows.push(work.row(format, dtype, mode, threads, &samples, limit, &mut show));
                }
            }
        }
    }
    Ok(rows)
}

impl Product {
    fn new(rt: &GpuRuntime, data: &Data, format: QFormat, dtype: DType, shape: [usize; 3], most: u64) -> Result<Self> {
        let [m, n, k] = shape;
        let dense = rt.uninit(DType::F32, &[n, k], BufferKind::Cold)?;
        data.fill(&dense, 7)?;
        let first = QTensor::quantize(&dense, format)?;
        drop(dense);
        let bytes = (first.storage_len() + m * k * dtype.size() + m * n * dtype.size()) as u64;
        let copies = (2 * data::cache_bytes(rt)).min(most).div_ceil(bytes).clamp(2, MAX_SETS);
        let codes = first.parts().next().ok_or_else(|| CliError::Failed("no codes".into()))?;
        let codes = codes.read::<u8>()?;
        let mut sets = Vec::new();
        for seed in 0..usize::try_from(copies).unwrap_or(2) {
            let x = rt.uninit(dtype, &[m, k], BufferKind::Hot)?;
            data.fill(&x, seed)?;
            let y = rt.uninit(dtype, &[m, n], BufferKind::Hot)?;
            data::poison_any(&y)?;
            let weights = if seed == 0 { first.clone() } else { QTensor::from_bytes(rt, format, &[n, k], &codes)? };
            sets.push((x, weights, y));
        }
        rt.synchronize()?;
        Ok(Product { sets, shape, at: 0 })
    }

    /// Compares some outputs of the copy used last with sums of decoded weights, in f64.
    #[allow(clippy::cast_precision_loss)]
    fn check(&self, rt: &GpuRuntime) -> Result<()> {
        rt.synchronize()?;
        let (x, weights, y) = &self.sets[self.at];
        let [m, n, _] = self.shape;
        for i in 0..CHECKED {
            let (row, column) = (i * (m - 1) / (CHECKED - 1), i * (n - 1) / (CHECKED - 1));
            let w = crate::spotcheck::read(&weights.narrow(0, column, 1)?.dequantize()?)?;
            let x = crate::spotcheck::read(&x.select(0, row)?)?;
            let got = crate::spotcheck::read(&y.select(0, row)?)?[column];
            let (mut want, mut size) = (0.0, 0.0);
            for (x, w) in x.iter().zip(&w) {
                (want, size) = (want + x * w, size + (x * w).abs());
            }
            // Half types round weights and results to 8 bits at worst.
            let allowed = size * if y.dtype() == DType::F32 { 1e-5 } else { 1e-2 };
            if got.is_nan() || (got - want).abs() > allowed {
                return Err(CliError::Failed(format!("quantized_matmul: y[{row}, {column}] is {got}, not {want}")));
            }
        }
        Ok(())
    }

    #[allow(clippy::cast_precision_loss, clippy::too_many_arguments)] // Rates; a row of a table.
    fn row(
        &self,
        format: QFormat,
        dtype: DType,
        mode: Mode,
        threads: usize,
        samples: &Samples,
        limit: Option<f64>,
        show: &mut impl FnMut(&str),
    ) -> Value {
        let [m, n, k] = self.shape;
        let (x, weights, y) = &self.sets[0];
        let bytes = weights.storage_len() + (x.len() + y.len()) * dtype.size();
        let (us, copies) = (samples.median(), self.sets.len());
        let (tflops, gbps) = ((2 * m * n * k) as f64 / us / 1e6, bytes as f64 / us / 1e3);
        let percent = limit.filter(|_| m <= 16).map(|l| 100.0 * gbps / l);
        let size = format!("{m}x{n}x{k}");
        let (name, share) =
            (format!("{mode:?}").to_lowercase(), percent.map_or(String::new(), |p| format!("{p:>6.1} %")));
        show(&format!(
            "quantized_matmul  {size:<19} {format:<7} {dtype:<5} {name:<8} {copies:>6} {us:>10.2} {:>10.2} {tflops:>8.3} {gbps:>8.1} {share}",
            samples.min()
        ));
        json!({
            "suite": "nn", "name": "quantized_matmul", "m": m, "n": n, "k": k, "format": format.to_string(), "dtype": dtype,
            "out": dtype, "layout": "NT", "precision": "exact", "mode": mode, "batch": samples.batch,
            "backend": self.kernel(), "packed": false, "lane": "tessl", "threads": threads, "copies": copies,
            "median_us": us, "min_us": samples.min(), "max_us": samples.max(), "tflops": tflops, "gbps": gbps,
            "percent_of_limit": percent, "ratio": {},
        })
    }

    fn call(&self, i: usize) -> QuantizedMatmul<'_> {
        let (x, weights, y) = &self.sets[i % self.sets.len()];
        QuantizedMatmul::new(x, weights, y)
    }

    /// The kernel that the plan names.
    fn kernel(&self) -> String {
        let rt = self.sets[0].0.runtime();
        let plan = self.call(0).desc().and_then(|d| plan(&Desc::Quant(d), rt.profile()));
        plan.map_or_else(|_| QuantOp::Matmul.name().into(), |p| p.kernel.name.to_string())
    }
}

impl Work for Product {
    fn turn(&mut self) -> usize {
        self.at = (self.at + 1) % self.sets.len();
        self.at
    }

    fn encode(&self, i: usize, stream: Option<&mut Stream>) -> tessl::Result<()> {
        match stream {
            Some(stream) => self.call(i).run_on(stream),
            None => self.call(i).run(),
        }
    }
}
