//! `tessl bench`

use crate::bench::{self, GemmArgs, LlmArgs, LlmSuite, Row};
use crate::error::Result;
use crate::ui;
use std::fmt::Display;
use tessl::GpuRuntime;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Matrix products: the ladder, or shapes of your own
    Gemm(Box<Gemm>),
    /// A language model, one token after the other
    Decode(Box<Llm>),
    /// A language model, all tokens of a prompt at once
    Prefill(Box<Llm>),
}

#[derive(Debug, clap::Args)]
struct Llm {
    #[command(flatten)]
    llm: LlmArgs,
    /// Print JSON on stdout, the line on stderr
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Gemm {
    #[command(flatten)]
    sweep: GemmArgs,
    /// Print JSON on stdout, the table on stderr
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::Gemm(args) => gemm(args),
        What::Decode(args) => llm(LlmSuite::Decode, args),
        What::Prefill(args) => llm(LlmSuite::Prefill, args),
    }
}

/// A line for people: where JSON goes to stdout, on stderr.
fn say(json: bool, line: &dyn Display) {
    if json {
        ui::note(line);
    } else {
        // A reader who has gone is noticed at the end.
        let _ = ui::out(line);
    }
}

fn begin(json: bool, rt: &GpuRuntime) {
    say(json, &format_args!("device: {} ({})", rt.device(), rt.device_name()));
}

fn gemm(args: &Gemm) -> Result<()> {
    let report = bench::sweep(
        &args.sweep,
        |rt| {
            begin(args.json, rt);
            say(args.json, &Row::HEADING);
        },
        |row| say(args.json, &row.line()),
    )?;
    if args.json { ui::json(&report) } else { Ok(()) }
}

fn llm(suite: LlmSuite, args: &Llm) -> Result<()> {
    let report = bench::llm(suite, &args.llm, |rt| begin(args.json, rt))?;
    say(args.json, &report.line());
    if args.json { ui::json(&report) } else { Ok(()) }
}
