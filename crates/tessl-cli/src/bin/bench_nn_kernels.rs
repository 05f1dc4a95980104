//! The kernels of `nn`, solo, batched and replayed: a table on stderr, JSON on stdout.

#![forbid(unsafe_code)]

use clap::Parser;
use tessl_cli::bench::{NormArgs, norm_sweep};
use tessl_cli::{run_tool, ui};

/// Measure the nn kernels: a table on stderr, JSON on stdout.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    sweep: NormArgs,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    run_tool(|| ui::json(&norm_sweep(&args.sweep, |line| ui::note(line))?))
}
