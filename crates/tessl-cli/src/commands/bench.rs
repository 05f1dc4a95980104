//! `tessl bench`

use crate::bench::{self, GemmArgs, Row};
use crate::error::Result;
use crate::ui;
use std::fmt::Display;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Matrix products: the ladder, or shapes of your own
    Gemm(Box<Gemm>),
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
    let What::Gemm(gemm) = &args.what;
    let say = |line: &dyn Display| {
        if gemm.json {
            ui::note(line);
        } else {
            // A reader who has gone is noticed at the end.
            let _ = ui::out(line);
        }
    };
    let report = bench::sweep(
        &gemm.sweep,
        |rt| {
            say(&format_args!("device: {} ({})", rt.device(), rt.device_name()));
            say(&Row::HEADING);
        },
        |row| say(&row.line()),
    )?;
    if gemm.json { ui::json(&report) } else { Ok(()) }
}
