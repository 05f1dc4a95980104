//! `tessl verify`: the conformance suite.

use crate::error::{CliError, Result};
use crate::ui::{self, Paint, Progress};
use tessl::{Device, DeviceKind};
use tessl_conformance::{Case, Env, Outcome, Report, Suite};

#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code 1 when a case failed. Cases above the budget are cut to it, or skipped and listed.")]
pub(crate) struct Args {
    /// Device [default: TESSL_DEVICE, else the best present]
    #[arg(long)]
    device: Option<Device>,
    /// Only cases of this operation: gemm, rms_norm, tensor, api, ..
    #[arg(long)]
    op: Option<String>,
    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
    /// Only the tenth of the suite that is quickest to find a broken device
    #[arg(long)]
    quick: bool,
    /// Multiply-adds that one case may use, such as 20M or 2G [default: by device]
    #[arg(long, value_parser = multiply_adds)]
    budget: Option<u64>,
    /// Seed of random data, decimal or 0x..
    #[arg(long, value_parser = seed)]
    seed: Option<u64>,
    /// Threads of the CPU device
    #[arg(long)]
    threads: Option<usize>,
    /// Cases that run at once, each on a runtime of its own [default: 1; on a GPU as many as cores, up to 8]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
    /// List the cases and run none
    #[arg(long)]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let all = Suite::all();
    if let Some(op) = &args.op
        && !all.cases.iter().any(|c| c.op == op)
    {
        let ops: std::collections::BTreeSet<&str> = all.cases.iter().map(|c| c.op).collect();
        let ops = ops.into_iter().collect::<Vec<_>>().join(", ");
        return Err(CliError::Usage(format!("verify: there are no cases of `{op}`; there are {ops}")));
    }
    let chosen = |c: &Case| {
        args.op.as_deref().is_none_or(|op| c.op == op)
            && args.case.as_deref().is_none_or(|text| c.name.contains(text))
            && (!args.quick || c.is("quick"))
    };
    let suite = all.filter(chosen);
    if suite.cases.is_empty() {
        return Err(CliError::Usage("verify: no case fits; `tessl verify --list` shows their names".into()));
    }
    if args.list {
        let names: Vec<&str> = suite.cases.iter().map(|c| c.name.as_str()).collect();
        return if args.json { ui::json(&names) } else { ui::out(names.join("\n")) };
    }
    let first = environment(args)?;
    let jobs = args.jobs.map_or_else(|| jobs(&first), usize::from).min(suite.cases.len());
    let mut envs = vec![first];
    for _ in 1..jobs {
        envs.push(environment(args)?);
    }
    // Some cases panic on purpose; one that should not have is a failure with the panic's text.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let progress = Progress::new();
    let (mut done, total) = (0, suite.cases.len());
    let report = suite.run_in(&envs, |case, outcome| {
        done += 1;
        if let Outcome::Failed(message) = outcome {
            let line = format!("{} {}: {message}", Paint::Red.text("FAILED"), case.name);
            progress.pause(|| ui::note(line));
        }
        progress.step(format!("{done}/{total} {}", case.name));
    });
    drop(progress);
    std::panic::set_hook(hook);
    if args.json {
        ui::json(&report)?;
    } else {
        ui::out(text(&report))?;
    }
    match report.failed.as_slice() {
        [] => Ok(()),
        failed => Err(CliError::Failed(format!(
            "verify: {} of {total} cases failed on {}; the first is {} (seed {:#x})",
            failed.len(),
            report.device,
            failed[0].name,
            report.seed
        ))),
    }
}

/// A runtime of its own with what the flags say.
fn environment(args: &Args) -> Result<Env> {
    let mut env = Env::new(crate::open(args.device.as_ref(), args.threads)?);
    if let Some(mac) = args.budget {
        env = env.budget(mac);
    }
    if let Some(seed) = args.seed {
        env = env.seed(seed);
    }
    Ok(env)
}

/// GPUs leave the processor to compile kernels and reference results; the CPU device needs it for itself.
fn jobs(env: &Env) -> usize {
    match env.rt.info().kind {
        DeviceKind::Cuda | DeviceKind::Metal => std::thread::available_parallelism().map_or(1, |n| n.get().min(8)),
        _ => 1,
    }
}

fn text(report: &Report) -> String {
    let mut lines = vec![format!("{} ({}), profile {}", report.device, report.device_name, report.profile)];
    lines.extend(report.skipped.iter().map(|e| format!("skipped {}: {}", e.name, e.message)));
    lines.extend(report.uncovered.iter().map(|row| format!("no case takes the plan row {row:?}")));
    let summary = report.summary();
    lines.push(if report.is_ok() { Paint::Green.text(summary) } else { Paint::Red.text(summary) });
    if !report.computes {
        lines.push("This device computes nothing: calls were checked, numbers were not.".to_owned());
    }
    lines.join("\n")
}

fn multiply_adds(text: &str) -> Result<u64, String> {
    let (digits, scale) = match text.strip_suffix(['K', 'k', 'M', 'm', 'G', 'g']) {
        Some(digits) if text.ends_with(['K', 'k']) => (digits, 1_000),
        Some(digits) if text.ends_with(['M', 'm']) => (digits, 1_000_000),
        Some(digits) => (digits, 1_000_000_000),
        None => (text, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(scale));
    number.ok_or_else(|| "not a whole number, optionally with K, M or G".to_owned())
}

fn seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "not a whole number, decimal or 0x..".to_owned())
}
