//! `tessl` without a command: in at most a minute, what is here, whether it works, and how fast it is.

use crate::bench::{self, Case, Data, Shape};
use crate::commands::{devices, doctor};
use crate::error::{CliError, Result};
use crate::ui::{self, Paint, Progress};
use crate::{runtime, selfcheck};
use std::time::{Duration, Instant};
use tessl::{DType, Device, GpuRuntime, Precision};

/// The demo ends within this time.
const BUDGET: Duration = Duration::from_secs(50);
/// Time for the self-checks of all devices together.
const CHECKS: f64 = 20.0;
const LADDER: [(&str, [u32; 3]); 6] = [
    ("square 512", [512, 512, 512]),
    ("square 1024", [1024, 1024, 1024]),
    ("qkv projection", [2048, 768, 768]),
    ("square 2048", [2048, 2048, 2048]),
    ("mlp up", [8192, 3072, 768]),
    ("square 4096", [4096, 4096, 4096]),
];
const TYPES: [DType; 2] = [DType::F32, DType::Bf16];
const BAR: u32 = 28;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Show only this device [default: TESSL_DEVICE, else all present]
    #[arg(long)]
    device: Option<Device>,
}

/// A finished rung of the ladder.
struct Rung {
    name: &'static str,
    shape: Shape,
    dtype: DType,
    rate: f64,
    seconds: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let begin = Instant::now();
    ui::out(format_args!("{}\n", Paint::Bold.text(format!("tessl {}", env!("CARGO_PKG_VERSION")))))?;
    ui::out(Paint::Bold.text("Devices"))?;
    ui::out(devices::listing(&Device::enumerate()))?;
    let usable = runtime::chosen(args.device.as_ref())?;
    let progress = Progress::new();
    let (mut checked, mut wrong, mut best) = (0, 0, None);
    for (i, device) in usable.iter().enumerate() {
        let rt = runtime::open(Some(device), None)?;
        let left = usable.len() - i;
        #[allow(clippy::cast_precision_loss)]
        let share = CHECKS.min(BUDGET.saturating_sub(begin.elapsed()).as_secs_f64() / 2.0) / left as f64;
        let title =
            format!("\nSelf-check on {} ({}): every element compared with the exact answer", device, rt.device_name());
        ui::out(Paint::Bold.text(title))?;
        let outcomes = selfcheck::run(&rt, share, |name| progress.step(name));
        for o in &outcomes {
            progress.pause(|| ui::out(doctor::outcome(o)))?;
        }
        checked += outcomes.len();
        wrong += outcomes.iter().filter(|o| !o.passed).count();
        let until = BUDGET.mul_f64(1.0 / f64::from(u32::try_from(left).unwrap_or(1)));
        let rungs = ladder(&rt, begin, until.max(begin.elapsed() + Duration::from_secs(5)).min(BUDGET), &progress)?;
        let top = rungs.iter().max_by(|x, y| x.rate.total_cmp(&y.rate));
        if let Some(top) = top {
            let line = format!("{} on {device} ({} {})", ui::flops(top.rate), top.dtype, top.shape);
            if best.as_ref().is_none_or(|(rate, _)| top.rate > *rate) {
                best = Some((top.rate, line));
            }
        }
    }
    drop(progress);
    conclude(checked, wrong, usable.len(), best.map(|(_, line)| line).as_deref(), begin.elapsed())
}

/// Times rungs from small to large while there is time for the next one.
fn ladder(rt: &GpuRuntime, begin: Instant, until: Duration, progress: &Progress) -> Result<Vec<Rung>> {
    ui::out(Paint::Bold.text(format!("\nSpeed on {}: C = A B on random data, middle of several runs", rt.device())))?;
    let mut rungs: Vec<Rung> = Vec::new();
    let mut skipped = Vec::new();
    let data = Data::new();
    for (name, [m, n, k]) in LADDER {
        for dtype in TYPES {
            let shape = Shape { m, n, k };
            let last = rungs.iter().rev().find(|r| r.dtype == dtype).map(|r| r.rate);
            // Two calls at least, the data and the check; the first rung has nothing to go by and is small.
            let expected = last.map_or(1.0, |rate| 3.0 * shape.flop() / rate + shape.elements() / 2e7);
            if (begin.elapsed() + Duration::from_secs_f64(expected)) > until {
                skipped.push(format!("{dtype} {shape}"));
                continue;
            }
            progress.step(format!("{name} {dtype} {shape}"));
            let case = Case { shape, input: dtype, output: dtype, precision: Precision::Exact, ..Case::default() };
            let goal = Duration::from_millis(400);
            let seconds = bench::quick(rt, &case, &data, goal)?;
            rungs.push(Rung { name, shape, dtype, rate: shape.flop() / seconds, seconds });
        }
    }
    let top = rungs.iter().map(|r| r.rate).fold(0.0, f64::max);
    for r in &rungs {
        let (bar, time) = (ui::bar(r.rate, top, BAR), ui::seconds(r.seconds));
        let line = format!(
            "  {:<15} {:<4} {:<15} {bar} {:>14} {time:>12}",
            r.name,
            r.dtype,
            r.shape.to_string(),
            ui::flops(r.rate)
        );
        progress.pause(|| ui::out(line))?;
    }
    if !skipped.is_empty() {
        ui::out(Paint::Dim.text(format!("  left out to stay within a minute: {}", skipped.join(", "))))?;
    }
    Ok(rungs)
}

fn conclude(checked: usize, wrong: usize, devices: usize, best: Option<&str>, took: Duration) -> Result<()> {
    let took = format!("{:.0} s", took.as_secs_f64());
    if wrong > 0 {
        let what = format!("{wrong} of {checked} checks gave wrong results; run `tessl doctor` for what to do");
        return Err(CliError::Failed(what));
    }
    let devices = if devices == 1 { "1 device".to_owned() } else { format!("{devices} devices") };
    ui::out(format_args!("\n{}", Paint::Green.text(format!("All {checked} checks passed on {devices}, in {took}."))))?;
    if let Some(best) = best {
        ui::out(format_args!("Fastest here: {best}."))?;
    }
    ui::out(
        "\nNext:\n  \
         tessl gemm a.npy b.npy -o c.npy            multiply your own matrices\n  \
         tessl plan gemm 4096 4096 4096 --dtype bf16 --profile h200\n  \
         \x20                                          which kernel any device would run, and why\n  \
         tessl doctor                               settings, drivers, and how to mend what is broken\n  \
         tessl bench gemm                           the full measurement; docs/benchmarking.md tells how to compare",
    )
}
