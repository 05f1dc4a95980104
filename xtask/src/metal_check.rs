//! `cargo xtask metal-check`: what can be said about Metal on this machine.

use crate::context::Context;
use crate::{process, test};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// On macOS with Xcode: Apple's compiler on every kernel. Elsewhere: the simulator, the mock driver, the host code on
/// its real target.
pub(crate) fn run(cx: &Context) -> Result<(), String> {
    if std::env::consts::OS != "macos" {
        let known = test::names(cx)?;
        let metal = |name: &String| ["sim", "nested", "darwin", "asan"].iter().any(|start| name.starts_with(start));
        return test::run(cx, &known.into_iter().filter(metal).collect::<Vec<_>>());
    }
    if !process::quiet("xcrun", &["-sdk", "macosx", "-find", "metal"]) {
        return Err("needs Apple's Metal compiler: install Xcode, then `xcodebuild -downloadComponent MetalToolchain`"
            .to_owned());
    }
    let sources = sources(cx)?;
    let mut failed = Vec::new();
    for source in &sources {
        let object = source.with_extension("air");
        let mut compiler = cx.command("xcrun");
        compiler.args([
            "-sdk",
            "macosx",
            "metal",
            "-std=metal4.0",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fno-fast-math",
            "-c",
        ]);
        if !process::stream(compiler.arg(source).arg("-o").arg(object), cx.deadline)?.ok {
            failed.push(source.display().to_string());
        }
    }
    println!("{} kernel files compiled, {} failed", sources.len() - failed.len(), failed.len());
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// The self-contained sources that the build script of `tessl` writes to `OUT_DIR/kernels`.
fn sources(cx: &Context) -> Result<Vec<PathBuf>, String> {
    let build = ["check", "--quiet", "--profile", "ci", "-p", "tessl", "--lib", "--message-format=json"];
    let messages = process::capture(cx.cargo().args(build))?;
    let folder = out_dir(&messages).ok_or("the build script of tessl did not run")?.join("kernels");
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "metal"));
    files.sort();
    Ok(files)
}

/// `OUT_DIR` of the package `tessl` in cargo's messages.
fn out_dir(messages: &str) -> Option<PathBuf> {
    messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let ours = message["reason"] == "build-script-executed" && message["package_id"].as_str()?.contains("/tessl#");
        ours.then(|| message["out_dir"].as_str().map(PathBuf::from))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_tessl_is_found() {
        let messages = r#"{"reason":"build-script-executed","package_id":"registry+x#libc@0.2","out_dir":"/a"}
{"reason":"compiler-artifact"}
{"reason":"build-script-executed","package_id":"path+file:///x/crates/tessl#0.3.0","out_dir":"/b"}"#;
        assert_eq!(out_dir(messages), Some(PathBuf::from("/b")));
    }
}
