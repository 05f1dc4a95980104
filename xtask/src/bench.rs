//! `cargo xtask bench`: runs benchmark binaries and keeps what they print.

use crate::context::Context;
use crate::process;
use crate::tree::{self, Tree};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

/// Those that `bench` runs when none is named; the tuning binaries have to be asked for.
const DEFAULT: [&str; 2] = ["bench_gemm_sweep", "bench_nn_kernels"];

pub(crate) fn run(cx: &Context, args: &[String]) -> Result<(), String> {
    let tree = Tree::load(cx)?;
    let sources = tree.below("crates/tessl-cli/src/bin", ".rs").map(|(path, _)| tree::stem(path));
    let known: Vec<&str> = sources.filter(|stem| stem.starts_with("bench_")).collect();
    let default = DEFAULT.map(str::to_owned);
    let chosen: Vec<&String> = if args.is_empty() { default.iter().collect() } else { args.iter().collect() };
    if let Some(unknown) = chosen.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("no benchmark `{unknown}`; there are: {}", known.join(" ")));
    }
    let commit = process::capture(cx.command("git").args(["describe", "--always", "--dirty", "--abbrev=12"]))?;
    let facts = [("commit", Some(commit.trim().to_owned())), ("machine", machine()), ("driver", driver())];
    for name in chosen {
        // Tables go to the terminal through stderr, JSON comes on stdout.
        let run = ["run", "--release", "-p", "tessl-cli", "--bin", name];
        let mut result: Value = serde_json::from_str(&process::capture(cx.cargo().args(run))?)
            .map_err(|e| format!("{name}: not JSON: {e}"))?;
        complete(&mut result, &facts);
        let folder = cx.root.join("bench/results").join(slug(result["device"].as_str().unwrap_or("unknown")));
        let file = folder.join(format!("{}.json", name.trim_start_matches("bench_")));
        let text = format!("{:#}\n", result);
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&file, text))
            .map_err(|e| format!("{}: {e}", file.display()))?;
        println!("{}", file.strip_prefix(&cx.root).unwrap_or(&file).display());
    }
    Ok(())
}

/// Adds what a binary does not say itself.
fn complete(result: &mut Value, facts: &[(&str, Option<String>)]) {
    for (key, value) in facts {
        if let (true, Some(value)) = (result[*key].is_null(), value) {
            result[*key] = json!(value);
        }
    }
}

/// A folder name: `NVIDIA H200` becomes `nvidia-h200`.
fn slug(device: &str) -> String {
    let words = device.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
}

/// The processor's name.
fn machine() -> Option<String> {
    let linux = fs::read_to_string("/proc/cpuinfo").ok();
    let named = linux.as_deref().and_then(|text| text.lines().find(|line| line.starts_with("model name")));
    match named.and_then(|line| line.split_once(": ")) {
        Some((_, name)) => Some(name.to_owned()),
        None => first_line(Command::new("sysctl").args(["-n", "machdep.cpu.brand_string"])),
    }
}

fn driver() -> Option<String> {
    first_line(Command::new("nvidia-smi").args(["--query-gpu=driver_version", "--format=csv,noheader"]))
        .or_else(|| first_line(Command::new("sw_vers").arg("-buildVersion")))
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_fill_gaps_only() {
        let mut result = json!({"driver": "570.1", "device": "NVIDIA H200"});
        complete(
            &mut result,
            &[("driver", Some("x".to_owned())), ("commit", Some("abc".to_owned())), ("machine", None)],
        );
        assert_eq!(result, json!({"driver": "570.1", "device": "NVIDIA H200", "commit": "abc"}));
    }

    #[test]
    fn device_names_become_folders() {
        assert_eq!(slug("NVIDIA H200"), "nvidia-h200");
        assert_eq!(slug("Apple M2 (10 cores)"), "apple-m2-10-cores");
    }
}
