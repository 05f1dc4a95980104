//! Language models: tokens a second, one by one and a prompt at once.

use super::Samples;
use super::limits::read_rate;
use crate::error::{CliError, Result};
use crate::ui::{self, Progress};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;
use tessl::{DType, Device, DeviceKind, GpuRuntime, GraphStats, QFormat};
use tessl_llm::{LoadOptions, Model, Sampling, Session, Shape, WeightFile};

/// Sizes of a known model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Known {
    Llama1b,
    Llama8b,
    #[value(name = "gemma3-270m")]
    Gemma3270m,
}

/// Which model, and how often.
#[derive(Clone, Debug, clap::Args)]
pub struct LlmArgs {
    /// Model file
    #[arg(long, value_name = "FILE", required_unless_present = "shape", conflicts_with = "shape")]
    model: Option<PathBuf>,
    /// Sizes of a known model instead of a file
    #[arg(long, requires = "random_weights")]
    shape: Option<Known>,
    /// Fill the matrices of --shape with random numbers
    #[arg(long, requires = "shape")]
    random_weights: bool,
    /// Type of what stands between weights: f32, f16 or bf16 [default: bf16 where the weights are, else f32]
    #[arg(long, value_name = "TYPE")]
    activations: Option<DType>,
    /// Form of random weights: bf16, f32, or a format such as q4_0
    #[arg(long, value_name = "FORM", default_value = "bf16", requires = "shape")]
    weights: String,
    /// Tokens of the prompt: what prefill measures, and what stands before decode begins
    #[arg(long, value_name = "N", default_value_t = 512)]
    prompt: usize,
    /// Tokens (decode) or prompts (prefill) before measuring
    #[arg(long, default_value_t = 2)]
    warmup: usize,
    /// Tokens (decode) or prompts (prefill) measured [default: 64 or 5]
    #[arg(long)]
    iters: Option<usize>,
    /// Device [default: TESSL_DEVICE, else the best present]
    #[arg(long)]
    device: Option<Device>,
    /// Threads of the CPU device
    #[arg(long)]
    threads: Option<usize>,
}

/// Times of tokens or prompts, at most.
const MAX_ITERS: usize = 100_000;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LlmSuite {
    /// One token after the other.
    Decode,
    /// All tokens of a prompt at once.
    Prefill,
}

/// One result.
#[derive(Clone, Debug, Serialize)]
pub struct LlmReport {
    /// Version of these keys.
    pub schema: u32,
    /// What was measured.
    pub suite: LlmSuite,
    /// Product name of the device.
    pub device: String,
    /// Driver or instruction sets.
    pub driver: String,
    /// Commit measured; filled in by `cargo xtask bench`.
    pub commit: Option<String>,
    /// Version of tessl.
    pub version: &'static str,
    /// File or sizes.
    pub name: String,
    /// Type of what stands between weights.
    pub activations: DType,
    /// Threads of the CPU device; 0 elsewhere.
    pub threads: usize,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Times measured.
    pub iters: usize,
    /// From the middle time.
    pub tokens_per_second: f64,
    /// Middle time of a token or of the prompt.
    pub median_us: f64,
    /// Shortest.
    pub min_us: f64,
    /// Longest.
    pub max_us: f64,
    /// Weights, keys and values that a token reads (decode).
    pub bytes_per_token: Option<u64>,
    /// From the middle time.
    pub gbps: Option<f64>,
    /// Gigabytes that the machine reads per second, where it was measured.
    pub read_gbps: Option<f64>,
    /// Part of it.
    pub percent_of_limit: Option<f64>,
    /// Captures and replays of the session.
    pub graphs: GraphStats,
}

impl LlmReport {
    /// One line.
    pub fn line(&self) -> String {
        let what = match self.suite {
            LlmSuite::Decode => format!("decode after {} tokens", self.prompt),
            LlmSuite::Prefill => format!("prefill of {} tokens", self.prompt),
        };
        let threads = if self.threads > 0 { format!(", {} threads", self.threads) } else { String::new() };
        let mut line = format!(
            "{}, {}{threads}: {what}: {:.1} tokens/s ({} median, {} to {})",
            self.name,
            self.activations,
            self.tokens_per_second,
            ui::seconds(self.median_us / 1e6),
            ui::seconds(self.min_us / 1e6),
            ui::seconds(self.max_us / 1e6)
        );
        if let (Some(bytes), Some(gbps)) = (self.bytes_per_token, self.gbps) {
            line += &format!(", {} per token, {gbps:.1} GB/s", ui::bytes(bytes));
        }
        if let (Some(share), Some(limit)) = (self.percent_of_limit, self.read_gbps) {
            line += &format!(", {share:.0} % of the {limit:.1} GB/s that the machine reads");
        }
        line
    }
}

/// Measures; `begin` is told the device first.
///
/// # Errors
/// `Usage` for bad arguments, what the model and the library report.
pub fn llm(suite: LlmSuite, args: &LlmArgs, begin: impl FnOnce(&GpuRuntime)) -> Result<LlmReport> {
    let iters = args.iters.unwrap_or(if suite == LlmSuite::Decode { 64 } else { 5 });
    if !(1..=MAX_ITERS).contains(&iters) || args.warmup > MAX_ITERS || args.prompt == 0 {
        let what = format!("bench: --iters and --prompt are at least 1, and none above {MAX_ITERS}");
        return Err(CliError::Usage(what));
    }
    let rt = crate::open(args.device.as_ref(), args.threads)?;
    begin(&rt);
    let (name, model) = args.load(&rt)?;
    // A prompt and the tokens that are generated after it.
    let room = args.prompt + if suite == LlmSuite::Decode { args.warmup + iters + 1 } else { 0 };
    let mut session = Session::new(&model, room)?;
    let vocabulary = u32::try_from(model.tokenizer().vocabulary()).unwrap_or(u32::MAX);
    // Fixed tokens all over the vocabulary.
    let prompt: Vec<u32> = (0..args.prompt as u64)
        .map(|i| u32::try_from(i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33).unwrap_or(0) % vocabulary)
        .collect();
    let run = |session: &mut Session<'_>| -> Result<f64> {
        if suite == LlmSuite::Prefill {
            session.clear()?;
        }
        let started = Instant::now();
        match suite {
            LlmSuite::Decode => {
                session.generate(&Sampling::GREEDY)?;
            }
            LlmSuite::Prefill => {
                session.extend(&prompt)?;
                rt.synchronize()?;
            }
        }
        Ok(started.elapsed().as_secs_f64() * 1e6)
    };
    if suite == LlmSuite::Decode {
        session.extend(&prompt)?;
        // Chosen from the logits that are there: not a step.
        session.generate(&Sampling::GREEDY)?;
    }
    for _ in 0..args.warmup {
        run(&mut session)?;
    }
    let mut us = (0..iters).map(|_| run(&mut session)).collect::<Result<Vec<f64>>>()?;
    us.sort_by(f64::total_cmp);
    let samples = Samples { us, batch: 1 };
    let on_cpu = rt.info().kind == DeviceKind::Cpu;
    let threads = if on_cpu { crate::runtime::threads(args.threads) } else { 0 };
    let bytes = (suite == LlmSuite::Decode).then(|| model.bytes_per_token(args.prompt + args.warmup + iters / 2));
    let read_gbps = (on_cpu && bytes.is_some()).then(|| read_rate(threads) / 1e9);
    #[allow(clippy::cast_precision_loss)]
    let gbps = bytes.map(|bytes| bytes as f64 / samples.median() / 1e3);
    #[allow(clippy::cast_precision_loss)]
    let tokens = if suite == LlmSuite::Decode { 1.0 } else { args.prompt as f64 };
    let info = rt.info();
    Ok(LlmReport {
        schema: 1,
        suite,
        device: info.name.clone(),
        driver: info.driver.clone(),
        commit: None,
        version: env!("CARGO_PKG_VERSION"),
        name,
        activations: model.config().activations,
        threads,
        prompt: args.prompt,
        iters,
        tokens_per_second: tokens * 1e6 / samples.median(),
        median_us: samples.median(),
        min_us: samples.min(),
        max_us: samples.max(),
        bytes_per_token: bytes,
        gbps,
        read_gbps,
        percent_of_limit: gbps.zip(read_gbps).map(|(gbps, limit)| 100.0 * gbps / limit),
        graphs: session.graph_stats(),
    })
}

impl LlmArgs {
    fn load(&self, rt: &GpuRuntime) -> Result<(String, Model)> {
        let progress = Progress::new();
        if let Some(path) = &self.model {
            let file = WeightFile::open(path)?;
            progress.bytes(format!("loading {}", path.display()), file.bytes());
            let model = Model::load_with(rt, &file, LoadOptions { activations: self.activations }, &|bytes| {
                progress.advance(bytes)
            })?;
            let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
            return Ok((name, model));
        }
        let Some(known) = self.shape else {
            return Err(CliError::Usage("bench: give --model FILE, or --shape and --random-weights".to_owned()));
        };
        let (name, shape) = match known {
            Known::Llama1b => ("llama1b", Shape::LLAMA_1B),
            Known::Llama8b => ("llama8b", Shape::LLAMA_8B),
            Known::Gemma3270m => ("gemma3-270m", Shape::GEMMA3_270M),
        };
        let (dtype, format) = match self.weights.as_str() {
            "bf16" => (DType::Bf16, None),
            "f32" => (DType::F32, None),
            other => {
                let format: QFormat =
                    other.parse().map_err(|e| CliError::Usage(format!("--weights bf16, f32 or {e}")))?;
                (self.activations.unwrap_or(DType::F32), Some(format))
            }
        };
        if self.activations.is_some_and(|activations| format.is_none() && activations != dtype) {
            let what = format!("bench: weights in {dtype} have activations of that type; leave --activations out");
            return Err(CliError::Usage(what));
        }
        progress.step(format!("random weights of {name}"));
        let model = Model::random(rt, &Shape { dtype, ..shape }, format)?;
        rt.synchronize()?;
        Ok((format!("{name}-{}", self.weights), model))
    }
}
