//! The GEMM sweep: a table on stderr, JSON on stdout. `bench_gemm_sweep serve` measures one line of stdin at a time.

#![forbid(unsafe_code)]

use clap::Parser;
use tessl_cli::bench::{self, GemmArgs, Row};
use tessl_cli::{run_tool, ui};

/// Measure matrix products: a table on stderr, JSON on stdout.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    sweep: GemmArgs,
    #[command(subcommand)]
    serve: Option<Serve>,
}

#[derive(Debug, clap::Subcommand)]
enum Serve {
    /// Answer `MxNxK DTYPE ITERS [OUT] [LAYOUT] [packed] [MODE] [plan=N]` on stdin with a line of JSON each
    Serve,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    run_tool(|| match args.serve {
        Some(Serve::Serve) => bench::serve(&args.sweep),
        None => {
            let begin = |rt: &tessl::GpuRuntime| {
                ui::note(format_args!("device: {} ({})", rt.device(), rt.device_name()));
                ui::note(Row::HEADING);
            };
            ui::json(&bench::sweep(&args.sweep, begin, |row| ui::note(row.line()))?)
        }
    })
}
