//! `cargo xtask bundle`: tests and benchmarks as one folder, for a GPU machine that has no Rust.

use crate::context::Context;
use crate::process;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What the archive may weigh to travel.
const LARGEST: u64 = 60 << 20;

/// The packages whose tests say something about a device.
const TESTED: [&str; 2] = ["tessl", "tessl-conformance"];

const RUN: &str = include_str!("../templates/run.sh");

pub(crate) fn run(cx: &Context, args: &[String]) -> Result<(), String> {
    let out = match args {
        [] => cx.root.join("bundle"),
        [flag, folder] if flag == "--out" => std::env::current_dir().map_err(|e| e.to_string())?.join(folder),
        _ => return Err("usage: cargo xtask bundle [--out DIR]".to_owned()),
    };
    let mut tests = vec!["test", "--profile", "ci", "--no-run", "--lib", "--tests"];
    tests.extend(TESTED.iter().flat_map(|package| ["-p", package]));
    let tests = executables(cx, &tests, true)?;
    let tools = executables(cx, &["build", "--release", "-p", "tessl-cli", "--bins"], false)?;
    if out.exists() {
        // Only ever a folder that an earlier run has made.
        if !out.join("run.sh").exists() {
            return Err(format!("{} exists and is no bundle", out.display()));
        }
        fs::remove_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    }
    for (folder, files) in [("tests", &tests), ("bin", &tools)] {
        let folder = out.join(folder);
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for (name, file) in files {
            copy_stripped(file, &folder.join(name))?;
        }
    }
    let commit = process::capture(cx.command("git").args(["describe", "--always", "--dirty", "--abbrev=12"]))?;
    write(&out.join("commit"), &commit)?;
    write(&out.join("run.sh"), RUN)?;
    let data = cx.root.join("crates/tessl/kernels");
    if data.exists() {
        copy_tree(&data, &out.join("kernels")).map_err(|e| format!("kernels: {e}"))?;
    }
    let archive = out.with_extension("tar.gz");
    let (place, name) = (out.parent().unwrap_or(Path::new(".")), out.file_name().unwrap_or_default());
    process::capture(cx.command("tar").arg("czf").arg(&archive).arg("-C").arg(place).arg(name))?;
    let bytes = fs::metadata(&archive).map_err(|e| format!("{}: {e}", archive.display()))?.len();
    println!("{}: {} tests, {} tools, {:.1} MiB", archive.display(), tests.len(), tools.len(), mib(bytes));
    println!("on the GPU machine: tar xzf {0}.tar.gz && sh {0}/run.sh", name.to_string_lossy());
    if bytes > LARGEST { Err(format!("larger than {:.0} MiB", mib(LARGEST))) } else { Ok(()) }
}

#[allow(clippy::cast_precision_loss)]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Builds, and gives the executables by name.
fn executables(cx: &Context, args: &[&str], tests: bool) -> Result<BTreeMap<String, PathBuf>, String> {
    let found = parse(&process::capture(cx.cargo().args(args).arg("--message-format=json-render-diagnostics"))?, tests);
    if found.is_empty() { Err(format!("cargo {} made no executable", args.join(" "))) } else { Ok(found) }
}

/// Executables in cargo's messages: tests as `PACKAGE-TARGET`, others by their target's name.
fn parse(messages: &str, tests: bool) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let (Some(file), Some(target)) = (message["executable"].as_str(), message["target"]["name"].as_str()) else {
            continue;
        };
        if message["profile"]["test"] != tests {
            continue;
        }
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let package = manifest.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let name = if tests { format!("{package}-{target}") } else { target.to_owned() };
        found.insert(name, PathBuf::from(file));
    }
    found
}

fn copy_stripped(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map_err(|e| format!("{}: {e}", to.display()))?;
    // Without binutils the bundle is only larger; the size is checked at the end.
    process::quiet("strip", &[&to.to_string_lossy()]);

    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_named_by_package_and_target() {
        let messages = r#"{"reason":"compiler-artifact","executable":null,"target":{"name":"tessl"},"profile":{"test":false}}
{"reason":"compiler-artifact","manifest_path":"/x/crates/tessl-conformance/Cargo.toml","executable":"/t/all-1","target":{"name":"all"},"profile":{"test":true}}
{"reason":"compiler-artifact","manifest_path":"/x/crates/tessl-cli/Cargo.toml","executable":"/t/tessl","target":{"name":"tessl"},"profile":{"test":false}}
plain text"#;
        let tests = parse(messages, true);
        assert_eq!(tests.keys().collect::<Vec<_>>(), ["tessl-conformance-all"]);
        assert_eq!(parse(messages, false)["tessl"], PathBuf::from("/t/tessl"));
    }

    #[test]
    fn the_script_parses() {
        assert!(process::quiet("sh", &["-n", concat!(env!("CARGO_MANIFEST_DIR"), "/templates/run.sh")]));
    }
}
