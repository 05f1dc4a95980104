//! `tessl generate`: text from a model file.

use crate::error::{CliError, Result};
use crate::runtime;
use crate::ui::{self, Progress};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tessl::{DType, Device, GraphStats};
use tessl_llm::{LoadOptions, Message, Model, Sampling, Session, TokenStream, WeightFile};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The text goes to stdout as it comes, all else to stderr. Without --temperature it is the most probable one; the same --seed \
gives the same text.")]
pub(crate) struct Args {
    /// Model file: GGUF with a tokenizer (llama, gemma3, qwen3)
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Text to continue
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// Take the prompt as a message and answer it, by the template of the model file
    #[arg(long)]
    chat: bool,
    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    /// Divides the logits; 0 takes the most probable token
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Choose among the N most probable tokens, 0 for all
    #[arg(long, value_name = "N", default_value_t = 0)]
    top_k: u32,
    /// Choose among the fewest tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,
    /// Choose among tokens of at least this part of the largest probability
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,
    /// Makes tokens that are in the text already less probable, above 1
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    repetition_penalty: f32,
    /// Of the random numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// cpu, cuda[:N] or metal[:N] [default: TESSL_DEVICE, else the best present]
    #[arg(long)]
    device: Option<Device>,
    /// Type of what stands between weights: f32, f16 or bf16 [default: bf16 where the weights are, else f32]
    #[arg(long, value_name = "TYPE")]
    activations: Option<DType>,
    /// Threads of the CPU device
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print JSON when done, and no text before
    #[arg(long)]
    json: bool,
}

impl Args {
    fn sampling(&self) -> Sampling {
        Sampling {
            repetition_penalty: self.repetition_penalty,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
        }
    }
}

/// What was generated, and how long it took.
struct Answer {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    text: String,
    /// Why it ends: the model said so, or there is no room for more.
    stop: &'static str,
    first: Duration,
    rest: Duration,
    graphs: GraphStats,
}

impl Answer {
    /// Tokens a second after the first one.
    #[allow(clippy::cast_precision_loss)]
    fn rate(&self) -> Option<f64> {
        let steps = self.tokens.len().checked_sub(1).filter(|n| *n > 0)?;
        Some(steps as f64 / self.rest.as_secs_f64().max(1e-9))
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let file = WeightFile::open(&args.model)?;
    let rt = runtime::open(args.device.as_ref(), args.threads)?;
    let begin = Instant::now();
    let progress = Progress::new();
    let options = LoadOptions { activations: args.activations };
    progress.bytes(format!("loading {} onto {}", args.model.display(), rt.device()), file.bytes());
    let model = Model::load_with(&rt, &file, options, &|bytes| progress.advance(bytes))?;
    rt.synchronize()?;
    drop(progress);
    let load = begin.elapsed();
    let answer = answer(args, &model)?;
    if args.json {
        return ui::json(&json!({
            "schema": 1,
            "device": rt.device(),
            "device_name": rt.device_name(),
            "model": args.model,
            "prompt_tokens": answer.prompt,
            "tokens": answer.tokens,
            "text": answer.text,
            "stop": answer.stop,
            "load_seconds": load.as_secs_f64(),
            "first_token_seconds": answer.first.as_secs_f64(),
            "tokens_per_second": answer.rate(),
            "graphs": answer.graphs,
        }));
    }
    let rate = answer.rate().map_or_else(String::new, |rate| format!(", then {rate:.1} tokens/s"));
    ui::note(format_args!(
        "{} on {}: loaded in {}; {} prompt tokens, the first of {} new ones after {}{rate}; {} steps replayed from {} graphs",
        args.model.display(),
        rt.device(),
        ui::seconds(load.as_secs_f64()),
        answer.prompt.len(),
        answer.tokens.len(),
        ui::seconds(answer.first.as_secs_f64()),
        answer.graphs.replays,
        answer.graphs.captures,
    ));
    Ok(())
}

fn answer(args: &Args, model: &Model) -> Result<Answer> {
    let tokenizer = model.tokenizer();
    let prompt = match args.chat {
        true => tokenizer.encode_chat(&[Message::user(&args.prompt)])?,
        false => tokenizer.encode(&args.prompt)?,
    };
    let context = model.config().context;
    if prompt.is_empty() || prompt.len() > context {
        let what = format!("generate: the prompt has {} tokens; this model takes 1 to {context}", prompt.len());
        return Err(CliError::Usage(what));
    }
    // The last token of an answer needs no room.
    let most = args.max_tokens.min(context - prompt.len() + 1);
    let mut session = Session::new(model, (prompt.len() + most.saturating_sub(1)).max(1))?;
    let (sampling, mut stream) = (args.sampling(), TokenStream::new(tokenizer));
    let (mut tokens, mut text, mut stop) = (Vec::new(), String::new(), "length");
    let tell = |piece: &str| if args.json { Ok(()) } else { ui::piece(piece) };
    let begin = Instant::now();
    session.extend(&prompt)?;
    let (mut first, mut after) = (None, Instant::now());
    while tokens.len() < most {
        let token = session.generate(&sampling)?;
        if first.is_none() {
            first = Some(begin.elapsed());
            after = Instant::now();
        }
        if tokenizer.end().contains(&token) {
            stop = "end";
            break;
        }
        tokens.push(token);
        let piece = stream.push(token)?;
        tell(&piece)?;
        text += &piece;
    }
    let rest = after.elapsed();
    let last = stream.finish()?;
    tell(&last)?;
    tell("\n")?;
    text += &last;
    Ok(Answer { prompt, tokens, text, stop, first: first.unwrap_or_default(), rest, graphs: session.graph_stats() })
}
