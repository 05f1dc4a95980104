//! Project tasks. `cargo xtask help` lists them.

mod audit;
mod bench;
mod bundle;
mod context;
mod docs;
mod install;
mod markers;
mod metal_check;
mod models;
mod new_op;
mod process;
mod release;
mod skips;
mod steps;
mod tally;
mod test;
mod tidy;
mod tree;

use context::Context;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask TASK

  test [--fast] [STEP..]       every check; --fast leaves out darwin, asan and scratch; names run only those steps
  test --list                  the steps that this tree has
  tidy                         rules on the tree: stems, lengths, words, documented variables, counts and figures
  docs                         rewrite what tidy compares: args.h, counts, figures
  audit                        tile geometry of plan tables against the constants in kernels
  metal-check                  what can be said about the Metal kernels and host code on this machine
  new-op NAME --family FAMILY  skeletons of a new op: API, oracle, CPU kernel, SIMT kernel, conformance
  bundle [--out DIR]           tests and benchmarks for a GPU machine without Rust
  models [NAME..]              fetch the small real models that tests use
  bench [BINARY..]             run the benchmark binaries, store JSON under bench/results
  release-check                package contents, features, semver, licences
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    let result = Context::new().and_then(|cx| match args.first().map(String::as_str) {
        Some("test") => test::run(&cx, rest),
        Some("tidy") => tidy::run(&cx),
        Some("docs") => docs::run(&cx),
        Some("audit") => audit::run(&cx),
        Some("metal-check") => metal_check::run(&cx),
        Some("new-op") => new_op::run(&cx, rest),
        Some("bundle") => bundle::run(&cx, rest),
        Some("models") => models::run(&cx, rest),
        Some("bench") => bench::run(&cx, rest),
        Some("release-check") => release::run(&cx),
        Some("help" | "--help" | "-h") => {
            print!("{USAGE}");
            Ok(())
        }
        Some(other) => Err(format!("unknown task `{other}`\n\n{USAGE}")),
        None => Err(USAGE.to_owned()),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // Empty where the task has told it all; the closing line of `test` stays the last.
            if !message.is_empty() {
                eprintln!("{}", message.trim_end());
            }
            ExitCode::FAILURE
        }
    }
}
