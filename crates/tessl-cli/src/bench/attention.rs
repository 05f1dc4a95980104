//! Attention: prefill by arithmetic, decode by the bytes of the cache.

use super::args::count;
use super::{Data, Mode, NormArgs, Samples, Work, data, measure};
use crate::error::{CliError, Result};
use serde_json::{Value, json};
use tessl::nn::Attention;
use tessl::plan::{Desc, Plan};
use tessl::{BufferKind, DType, DeviceKind, GpuRuntime, Stream, Tensor};
use tessl_conformance::attention::weights_of;
use tessl_conformance::format_of;
use tessl_oracle::{Key, Scores, attention, bound};

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

/// One attention to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// Sequences, queries, keys, query heads, key heads, elements of a head.
    pub(super) shape: [usize; 6],
    /// Type of q, k, v and out.
    pub(super) dtype: DType,
    /// A query sees the keys up to its place; the last one stands at the last key.
    pub(super) causal: bool,
    /// And only so many.
    pub(super) window: Option<u32>,
}

impl Form {
    /// The keys that query `t` sees.
    fn seen(&self, t: usize) -> std::ops::Range<usize> {
        let [_, queries, keys, ..] = self.shape;
        if !self.causal {
            return 0..keys;
        }
        let end = (keys + t + 1).saturating_sub(queries);
        end.saturating_sub(self.window.map_or(end, |w| w as usize))..end
    }

    /// Two products of each head's elements for each score that is needed.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn flop(&self) -> f64 {
        let [batch, queries, _, heads, _, dim] = self.shape;
        4.0 * (0..queries).map(|t| self.seen(t).len()).sum::<usize>() as f64 * (batch * heads * dim) as f64
    }

    /// Bytes of q, k, v and out.
    pub(super) fn bytes(&self) -> u64 {
        let [batch, queries, keys, heads, kv_heads, dim] = self.shape;
        (batch * (2 * keys * kv_heads + 2 * queries * heads) * dim * self.dtype.size()) as u64
    }
}

/// Copies of q, k, v and out.
pub(super) struct Attend {
    form: Form,
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
            let form = Form { shape: [1, queries, keys, heads, kv_heads, dim], dtype, causal: true, window: None };
            let mut work = Attend::new(&rt, &data, form)?;
            let samples = measure(&rt, &mut work, mode, warmup, iters)?;
            let plan = tessl::plan::plan(&work.desc()?, rt.profile())?;
            rt.synchronize()?;
            work.check(work.at, &plan)?;
            let us = samples.median();
            let (tflops, gbps) = (form.flop() / us / 1e6, form.bytes() as f64 / us / 1e3);
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
    pub(super) fn new(rt: &GpuRuntime, data: &Data, form: Form) -> Result<Self> {
        let [batch, queries, keys, heads, kv_heads, dim] = form.shape;
        let copies = (2 * data::cache_bytes(rt)).min(MAX_BYTES).div_ceil(form.bytes().max(1)).clamp(2, MAX_SETS);
        let mut sets = Vec::new();
        for seed in 0..usize::try_from(copies).unwrap_or(2) {
            let new = |tokens, heads, salt| -> Result<Tensor> {
                let t = rt.uninit(form.dtype, &[batch, tokens, heads, dim], BufferKind::Hot)?;
                data.fill(&t, 3 * seed + salt)?;
                Ok(t)
            };
            let (q, k, v) = (new(queries, heads, 0)?, new(keys, kv_heads, 1)?, new(keys, kv_heads, 2)?);
            let out = rt.uninit(form.dtype, &[batch, queries, heads, dim], BufferKind::Hot)?;
            sets.push([q, k, v, out]);
        }
        let work = Attend { form, sets, at: 0 };
        work.poison()?;
        rt.synchronize()?;
        Ok(work)
    }

    pub(super) fn copies(&self) -> usize {
        self.sets.len()
    }

    /// Fills every result with NaN.
    pub(super) fn poison(&self) -> Result<()> {
        self.sets.iter().try_for_each(|[.., out]| data::poison_any(out))
    }

    pub(super) fn call(&self, i: usize) -> Attention<'_> {
        let [q, k, v, out] = &self.sets[i % self.sets.len()];
        let op = Attention::new(q, k, v, out);
        let op = if self.form.causal { op.causal_at_end() } else { op };
        match self.form.window {
            Some(window) => op.window(window),
            None => op,
        }
    }

    pub(super) fn desc(&self) -> Result<Desc> {
        Ok(Desc::Attention(self.call(0).desc()?))
    }

    /// Compares the first and the last row of a copy, which `plan` has computed.
    pub(super) fn check(&self, copy: usize, plan: &Plan) -> Result<()> {
        let [q, k, v, out] = &self.sets[copy];
        let [batch, queries, _, heads, kv_heads, dim] = self.form.shape;
        for (b, t, h) in [(0, 0, 0), (batch - 1, queries - 1, heads - 1)] {
            let rows = |x: &Tensor, h| -> Result<Vec<f64>> { crate::spotcheck::read(&x.select(0, b)?.select(1, h)?) };
            let (k, v) = (rows(k, h * kv_heads / heads)?, rows(v, h * kv_heads / heads)?);
            let key = |j: usize| Key { k: &k[j * dim..][..dim], v: &v[j * dim..][..dim], added: 0.0 };
            let all: Vec<Key<'_>> = self.form.seen(t).map(key).collect();
            #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
            let scale = f64::from((dim as f64).sqrt().recip() as f32);
            let scores = Scores { scale, softcap: None, sink: None };
            let (q, got) = (rows(q, h)?, rows(out, h)?);
            let (q, got) = (&q[t * dim..][..dim], &got[t * dim..][..dim]);
            let errors = bound::attention(q, &all, scores, weights_of(plan, self.form.dtype));
            let want = attention(q, &all, scores, dim);
            for (d, ((want, error), got)) in want.iter().zip(errors).zip(got).enumerate() {
                if got.is_nan() || (got - want).abs() > bound::stored(error, *want, format_of(self.form.dtype)) {
                    let message = format!("attention: out[{b}, {t}, {h}, {d}] is {got} but must be {want}");
                    return Err(CliError::Failed(message));
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
