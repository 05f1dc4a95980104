//! The kernels of `nn`, solo, batched and replayed: a table on stderr, JSON on stdout. `bench_nn_kernels attention`
//! measures one attention for each line of stdin, `bench_nn_kernels rows` one row-wise kernel.

#![forbid(unsafe_code)]

use clap::Parser;
use tessl_cli::bench::{NormArgs, norm_sweep, serve_attention, serve_rows};
use tessl_cli::{run_tool, ui};

/// Measure the nn kernels: a table on stderr, JSON on stdout.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    sweep: NormArgs,
    #[command(subcommand)]
    serve: Option<Serve>,
}

#[derive(Debug, clap::Subcommand)]
enum Serve {
    /// Answer `BxTQxTKVxHQxHKVxD DTYPE ITERS full|causal [window=N] [plan=N]` on stdin with a line of JSON each
    Attention,
    /// Answer `OP MxN DTYPE ITERS` on stdin with a line of JSON each; OP is rms-norm, layer-norm, softmax or gelu
    Rows,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    run_tool(|| match args.serve {
        Some(Serve::Attention) => serve_attention(&args.sweep),
        Some(Serve::Rows) => serve_rows(&args.sweep),
        None => ui::json(&norm_sweep(&args.sweep, |line| ui::note(line))?),
    })
}
