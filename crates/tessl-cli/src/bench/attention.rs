//! Attention: prefill by arithmetic, decode by the bytes of the cache.

use super::args::count;
use super::{Data, Mode, NormArgs, Samples, Work, data, measure};
use crate::error::{CliError, Result};
use serde_json::{Value, json};
use tessl::nn::Attention;
use tessl::{BufferKind, DType, DeviceKind, GpuRuntime, Stream, Tensor};
use tessl_oracle::{Format, Key, Scores, attention, bound};

/// Queries, keys, query heads, key heads, elements of a head. Prefills are causal.
const SHAPES: [[usize; 5]; 5] = [
    [512, 512, 8, 8, 128],
    [4096, 4096, 4, 4, 128],
    [2048, 2048, 8, 2, 64],
    [1, 4096, 32, 8, 128],
    [1, 32_768, 8, 8, 128],
];
const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
/// Bytes and number of the copies, at most.
const MAX_BYTES: u64 = 512 << 20;
const MAX_SETS: u64 = 64;

/// Copies of q, k, v and out.
struct Attend {
    sets: Vec<[Tensor; 4]>,
    at: usize,
}

/// Measures every shape and type; `show` is told each line of the table.
///
/// # Errors
/// `Failed` for a wrong result, and what the library reports.
#[allow(clippy::cast_precision_loss)] // Rates.
pub fn attention_sweep(args: &NormArgs, mut show: impl FnMut(&str)) -> Result<Vec<Value>> {
    let warmup = count("BENCH_WARMUP", args.warmup, 10, 0)?;
    let iters = count("BENCH_ITERS", args.iters, 50, 1)?;
    let rt = crate::open(args.device.as_ref(), args.threads)?;
    let threads = if rt.info().kind == DeviceKind::Cpu { crate::runtime::threads(args.threads) } else { 0 };
    show("op         Tq x Tkv x Hq x Hkv x D    type  mode       median us     min us     TF/s      GB/s");
    let data = Data::new();
    let mut rows = Vec::new();
    for shape in SHAPES {
        for (dtype, mode) in TYPES.into_iter().flat_map(|d| [Mode::Solo, Mode::Batched, Mode::Graph].map(|m| (d, m))) {
            let [queries, keys, heads, kv_heads, dim] = shape;
            let mut work = Attend::new(&rt, &data, dtype, shape)?;
            let samples = measure(&rt, &mut work, mode, warmup, iters)?;
            work.check(&rt, dtype)?;
            // Half of the scores of a causal prefill are not needed.
            let flop = if queries == 1 { 4.0 } else { 2.0 } * (queries * keys * heads * dim) as f64;
            let bytes = (2 * keys * kv_heads + 2 * queries * heads) * dim * dtype.size();
            let us = samples.median();
            let (tflops, gbps) = (flop / us / 1e6, bytes as f64 / us / 1e3);
            let name = format!("{mode:?}").to_lowercase();
            show(&format!(
                "attention  {:<24} {dtype:<5} {name:<9} {us:>10.2} {:>10.2} {tflops:>8.3} {gbps:>9.1}",
                shape.map(|n| n.to_string()).join("x"),
                samples.min()
            ));
            rows.push(row(shape, dtype, mode, threads, &work, &samples, [tflops, gbps]));
        }
    }
    Ok(rows)
}

fn row(
    [queries, keys, heads, kv_heads, dim]: [usize; 5],
    dtype: DType,
    mode: Mode,
    threads: usize,
    work: &Attend,
    samples: &Samples,
    [tflops, gbps]: [f64; 2],
) -> Value {
    json!({
        "suite": "nn", "name": if queries == 1 { "attention_decode" } else { "attention_prefill" }, "m": queries,
        "n": keys, "k": dim, "heads": heads, "kv_heads": kv_heads, "dtype": dtype, "out": dtype, "layout": "BTHD",
        "precision": "exact", "mode": mode, "batch": samples.batch, "backend": "simt", "packed": false, "lane": "tessl",
        "threads": threads, "copies": work.sets.len(), "median_us": samples.median(), "min_us": samples.min(),
        "max_us": samples.max(), "tflops": tflops, "gbps": gbps, "percent_of_limit": null, "ratio": {},
    })
}

impl Attend {
    fn new(
        rt: &GpuRuntime,
        data: &Data,
        dtype: DType,
        [queries, keys, heads, kv_heads, dim]: [usize; 5],
    ) -> Result<Self> {
        let bytes = ((2 * keys * kv_heads + 2 * queries * heads) * dim * dtype.size()) as u64;
        let copies = (2 * data::cache_bytes(rt)).min(MAX_BYTES).div_ceil(bytes).clamp(2, MAX_SETS);
        let mut sets = Vec::new();
        for seed in 0..usize::try_from(copies).unwrap_or(2) {
            let new = |tokens, heads, salt| -> Result<Tensor> {
                let t = rt.uninit(dtype, &[1, tokens, heads, dim], BufferKind::Hot)?;
                data.fill(&t, 3 * seed + salt)?;
                Ok(t)
            };
            let (q, k, v) = (new(queries, heads, 0)?, new(keys, kv_heads, 1)?, new(keys, kv_heads, 2)?);
            let out = rt.uninit(dtype, &[1, queries, heads, dim], BufferKind::Hot)?;
            data::poison_any(&out)?;
            sets.push([q, k, v, out]);
        }
        rt.synchronize()?;
        Ok(Attend { sets, at: 0 })
    }

    fn call(&self, i: usize) -> Attention<'_> {
        let [q, k, v, out] = &self.sets[i % self.sets.len()];
        Attention::new(q, k, v, out).causal_at_end()
    }

    /// Compares the first and the last row of the copy used last.
    fn check(&self, rt: &GpuRuntime, dtype: DType) -> Result<()> {
        rt.synchronize()?;
        let [q, k, v, out] = &self.sets[self.at];
        let (queries, heads) = (q.shape()[1], q.shape()[2]);
        let (keys, kv_heads, dim) = (k.shape()[1], k.shape()[2], k.shape()[3]);
        let format = match dtype {
            DType::F16 => Format::F16,
            DType::Bf16 => Format::BF16,
            _ => Format::F32,
        };
        for (t, h) in [(0, 0), (queries - 1, heads - 1)] {
            let rows = |x: &Tensor, h| -> Result<Vec<f64>> { crate::spotcheck::read(&x.select(0, 0)?.select(1, h)?) };
            let (k, v) = (rows(k, h * kv_heads / heads)?, rows(v, h * kv_heads / heads)?);
            let seen = keys - queries + t + 1;
            let all: Vec<Key<'_>> =
                (0..seen).map(|j| Key { k: &k[j * dim..][..dim], v: &v[j * dim..][..dim], added: 0.0 }).collect();
            #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
            let scale = f64::from((dim as f64).sqrt().recip() as f32);
            let scores = Scores { scale, softcap: None, sink: None };
            let (q, got) = (rows(q, h)?, rows(out, h)?);
            let (q, got) = (&q[t * dim..][..dim], &got[t * dim..][..dim]);
            let (want, errors) =
                (attention(q, &all, scores, dim), bound::attention(q, &all, scores, dtype == DType::Bf16));
            for (d, ((want, error), got)) in want.iter().zip(errors).zip(got).enumerate() {
                if got.is_nan() || (got - want).abs() > bound::stored(error, *want, format) {
                    return Err(CliError::Failed(format!("attention: out[{t}, {h}, {d}] is {got} but must be {want}")));
                }
            }
        }
        Ok(())
    }
}

impl Work for Attend {
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

    fn scratch_bytes(&self) -> tessl::Result<u64> {
        self.call(0).scratch_bytes()
    }
}
