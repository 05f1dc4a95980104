//! Arguments, dispatch and exit codes.

use crate::commands;
use crate::error::Result;
use crate::{logging, ui};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tracing::level_filters::LevelFilter;

const AFTER: &str = "\
Exit codes: 0 ok | 1 a check failed, or the device did | 2 bad input or usage | 3 device not available
Environment: TESSL_DEVICE picks the device, TESSL_LOG=plan tells which kernel was chosen and why; \
`tessl doctor` lists what is set.";

/// Matrix products and neural-network kernels on Apple silicon, NVIDIA GPUs and CPUs.
///
/// Without a command: a demonstration of at most a minute.
#[derive(Debug, Parser)]
#[command(name = "tessl", version, after_help = AFTER, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Devices, a self-check at model sizes and a speed ladder, in at most a minute (the default)
    Demo(commands::demo::Args),
    /// Multiply matrices from npy or safetensors files
    Gemm(Box<commands::gemm::Args>),
    /// List the devices of this machine
    Devices(commands::devices::Args),
    /// Check devices, drivers and settings, and say how to mend what is broken
    Doctor(commands::doctor::Args),
    /// Show the kernel, tile and grid that a problem would get on any device
    Plan(commands::plan::Args),
    /// Run the conformance suite
    Verify(commands::verify::Args),
    /// Continue a text with a language model
    Generate(commands::generate::Args),
    /// Measure
    Bench(commands::bench::Args),
    /// Print the table of environment variables as Markdown
    #[command(hide = true)]
    Env,
}

/// Runs the `tessl` command with the process's arguments.
pub fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => run_at(cli.log_level(), || run(cli)),
        Err(e) => refuse(&e),
    }
}

impl Cli {
    /// What is told without `TESSL_LOG`. The conformance suite provokes faults; those that matter fail a case.
    fn log_level(&self) -> LevelFilter {
        if matches!(self.command, Some(Command::Verify(_))) { LevelFilter::OFF } else { LevelFilter::WARN }
    }
}

/// Runs `body` with logging set up; an error becomes one line and an exit code.
pub fn run_tool(body: impl FnOnce() -> Result<()>) -> ExitCode {
    run_at(LevelFilter::WARN, body)
}

fn run_at(level: LevelFilter, body: impl FnOnce() -> Result<()>) -> ExitCode {
    match logging::start(level).and_then(|()| body()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let code = e.exit_code();
            if code != 0 {
                ui::note(format_args!("error: {}", one_line(&e.to_string())));
            }
            ExitCode::from(code)
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command.unwrap_or_else(|| Command::Demo(commands::demo::Args::default())) {
        Command::Demo(args) => commands::demo::run(&args),
        Command::Gemm(args) => commands::gemm::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Generate(args) => commands::generate::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Env => ui::out(crate::env::markdown().trim_end()),
    }
}

/// Help and version go to stdout; a mistake becomes one line.
fn refuse(e: &clap::Error) -> ExitCode {
    let text = e.render().to_string();
    match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = ui::out(text.trim_end());
            ExitCode::SUCCESS
        }
        _ => {
            let told = text.split("\n\nUsage:").next().unwrap_or(&text).split("\n\nFor more").next().unwrap_or(&text);
            ui::note(format_args!("{} (try --help)", one_line(told)));
            ExitCode::from(2)
        }
    }
}

/// Text of several lines as one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
