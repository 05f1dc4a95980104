//! `tessl doctor`: is this machine in order, and what to do where it is not.

use crate::error::{CliError, Result};
use crate::selfcheck::{self, Outcome};
use crate::ui::{self, Paint, Progress};
use crate::{commands, env, runtime};
use serde::Serialize;
use std::path::PathBuf;
use tessl::{Device, DeviceInfo, DeviceProfile, GpuRuntime, RuntimeOptions};

/// Time for the self-check of one device.
const SECONDS: f64 = 20.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check only this device
    #[arg(long)]
    device: Option<Device>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    schema: u32,
    version: &'static str,
    devices: Vec<DeviceInfo>,
    cache: CacheFolder,
    environment: Vec<(&'static str, String)>,
    checked: Vec<Checked>,
    problems: Vec<Problem>,
}

#[derive(Serialize)]
struct CacheFolder {
    path: Option<PathBuf>,
    state: String,
}

/// One device that could be opened, or should have been.
#[derive(Serialize)]
struct Checked {
    device: String,
    profile: Option<DeviceProfile>,
    checks: Vec<Outcome>,
}

#[derive(Serialize)]
struct Problem {
    what: String,
    fix: String,
    /// Whether it makes the command fail: a GPU that is not there does not.
    fatal: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // A bad variable is a finding, and must not keep the rest from being checked.
    let options = RuntimeOptions::new().from_env();
    let mut problems = Vec::new();
    if let Err(e) = &options {
        let fix = "unset the variable or correct it; docs/devices.md has the table".to_owned();
        problems.push(Problem { what: e.to_string(), fix, fatal: true });
    }
    let devices: Vec<DeviceInfo> = match &args.device {
        Some(device) => vec![device.info()],
        None => Device::enumerate(),
    };
    if let (Some(device), [DeviceInfo { missing: Some(missing), help, .. }]) = (&args.device, devices.as_slice()) {
        return Err(tessl::Error::unavailable(device.to_string(), missing.clone(), help.clone()).into());
    }
    if options.is_ok()
        && args.device.is_none()
        && let Err(e) = runtime::chosen(None)
    {
        let fix = "unset TESSL_DEVICE, or mend what the device needs".to_owned();
        problems.push(Problem { what: e.to_string(), fix, fatal: true });
    }
    let progress = Progress::new();
    let mut checked = Vec::new();
    for info in &devices {
        match &info.missing {
            Some(missing) => problems.push(Problem {
                what: format!("{}: {missing}", info.id),
                fix: info.help.clone().unwrap_or_else(|| "nothing to do unless you need this device".to_owned()),
                fatal: false,
            }),
            None => checked.push(check(info, &progress, &mut problems)),
        }
    }
    drop(progress);
    let report = Report {
        schema: 1,
        version: env!("CARGO_PKG_VERSION"),
        devices,
        cache: cache_folder(),
        environment: env::set(),
        checked,
        problems,
    };
    if args.json {
        ui::json(&report)?;
    } else {
        ui::out(report.text())?;
    }
    match report.problems.iter().filter(|p| p.fatal).count() {
        0 => Ok(()),
        n => Err(CliError::Failed(format!("doctor: {n} of the above must be mended"))),
    }
}

fn check(info: &DeviceInfo, progress: &Progress, problems: &mut Vec<Problem>) -> Checked {
    let open = || Ok::<_, CliError>(GpuRuntime::with_device(&info.id.parse()?)?);
    let (profile, checks) = match open() {
        Ok(rt) => {
            let checks = selfcheck::run(&rt, SECONDS, |name| progress.step(format!("{}: {name}", info.id)));
            (Some(rt.profile().clone()), checks)
        }
        Err(e) => {
            let fix = "the device was found but cannot be opened; check its driver".to_owned();
            problems.push(Problem { what: format!("{}: {e}", info.id), fix, fatal: true });
            (None, Vec::new())
        }
    };
    for outcome in checks.iter().filter(|o| !o.passed) {
        problems.push(Problem {
            what: format!("{}: {}: {}", info.id, outcome.name, outcome.detail),
            fix: format!(
                "do not use {} for results; run `tessl verify --device {}` and report its output",
                info.id, info.id
            ),
            fatal: true,
        });
    }
    Checked { device: info.id.clone(), profile, checks }
}

/// Where compiled kernels are kept, and whether that works.
fn cache_folder() -> CacheFolder {
    let set = std::env::var_os("TESSL_CACHE_DIR").map(PathBuf::from);
    let home = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let usual = || {
        let base = if cfg!(target_os = "macos") {
            home("HOME").map(|h| h.join("Library/Caches"))
        } else {
            home("XDG_CACHE_HOME").or_else(|| home("HOME").map(|h| h.join(".cache")))
        };
        base.map(|b| b.join("tessl"))
    };
    let path = set.or_else(usual);
    let state = match path.as_deref().map(std::fs::metadata) {
        None => "no home folder: kernels are compiled in every process".to_owned(),
        Some(Err(_)) => "not made yet".to_owned(),
        Some(Ok(meta)) if meta.is_dir() => "there".to_owned(),
        Some(Ok(_)) => "is a file: kernels are compiled in every process".to_owned(),
    };
    CacheFolder { path, state }
}

impl Report {
    fn text(&self) -> String {
        let mut lines = vec![format!("tessl {}", self.version), String::new(), Paint::Bold.text("Devices")];
        lines.push(commands::devices::listing(&self.devices));
        lines.extend([String::new(), Paint::Bold.text("Settings")]);
        let folder = self.cache.path.as_ref().map_or_else(|| "-".to_owned(), |p| p.display().to_string());
        lines.push(format!("kernel cache  {folder} ({})", self.cache.state));
        match self.environment.as_slice() {
            [] => lines.push("environment   no TESSL_* variable is set".to_owned()),
            set => lines.extend(set.iter().map(|(name, value)| format!("environment   {name}={value}"))),
        }
        for c in &self.checked {
            lines.extend([String::new(), Paint::Bold.text(format!("Self-check on {}", c.device))]);
            if let Some(p) = &c.profile {
                lines.push(format!("profile {}: {} cores, {} L2", p.name, p.cores, ui::bytes(p.l2_bytes)));
            }
            lines.extend(c.checks.iter().map(outcome));
        }
        lines.push(String::new());
        for p in &self.problems {
            let mark = if p.fatal { Paint::Red.text("problem") } else { "note".to_owned() };
            lines.extend([format!("{mark}: {}", p.what), format!("    fix: {}", p.fix)]);
        }
        if !self.problems.iter().any(|p| p.fatal) {
            lines.push(Paint::Green.text("Everything that is here works."));
        }
        lines.join("\n")
    }
}

/// One line of a self-check.
pub(crate) fn outcome(o: &Outcome) -> String {
    let mark = if o.passed { Paint::Green.text("ok    ") } else { Paint::Red.text("WRONG ") };
    let detail = if o.detail.is_empty() { String::new() } else { format!("  {}", o.detail) };
    format!("  {mark} {:<38} {:>11}{detail}", o.name, ui::seconds(o.seconds))
}
