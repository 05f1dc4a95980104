//! `cargo xtask release-check`: what a release needs beyond passing tests.

use crate::context::Context;
use crate::process;
use std::fs;

/// What a downloaded package may hold, in bytes before compression.
const LARGEST: u64 = 10 << 20;

/// A cargo subcommand, how to get it, and how it is used here.
struct Tool {
    name: &'static str,
    install: &'static str,
    args: &'static [&'static str],
}

const TOOLS: [Tool; 3] = [
    Tool {
        name: "hack",
        install: "cargo install cargo-hack",
        args: &["hack", "check", "-p", "tessl", "--lib", "--feature-powerset", "--no-dev-deps"],
    },
    Tool { name: "deny", install: "cargo install cargo-deny", args: &["deny", "check"] },
    Tool {
        name: "semver-checks",
        install: "cargo install cargo-semver-checks",
        args: &["semver-checks", "-p", "tessl", "--baseline-rev"],
    },
];

pub(crate) fn run(cx: &Context) -> Result<(), String> {
    let mut problems = Vec::new();
    problems.extend(package(cx)?);
    for tool in &TOOLS {
        let mut args = tool.args.to_vec();
        let baseline = last_tag(cx);
        if tool.name == "semver-checks" {
            match &baseline {
                Some(tag) => args.push(tag),
                None => {
                    println!("semver-checks: no release tag yet, nothing to compare with");
                    continue;
                }
            }
        }
        if !process::quiet("cargo", &[tool.name, "--version"]) {
            println!("not run: cargo {}; install it with `{}`", tool.name, tool.install);
        } else if !process::stream(cx.cargo().args(args), cx.deadline)?.ok {
            problems.push(format!("cargo {} failed", tool.name));
        }
    }
    let mut docs = cx.cargo();
    docs.env("RUSTDOCFLAGS", "-D warnings").args([
        "doc",
        "--profile",
        "ci",
        "-p",
        "tessl",
        "--no-deps",
        "--all-features",
    ]);
    if !process::stream(&mut docs, cx.deadline)?.ok {
        problems.push("documentation with all features failed".to_owned());
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// What the package of the library would hold.
fn package(cx: &Context) -> Result<Vec<String>, String> {
    let list = process::capture(cx.cargo().args(["package", "--list", "--allow-dirty", "-p", "tessl"]))?;
    let mut bytes = 0;
    for name in list.lines() {
        println!("  {name}");
        // Some entries are made while packaging and have no file here.
        bytes += fs::metadata(cx.root.join("crates/tessl").join(name)).map_or(0, |data| data.len());
    }
    println!("package tessl: {} files, {} KiB", list.lines().count(), bytes >> 10);
    Ok(lacks(&list).into_iter().chain((bytes > LARGEST).then(|| "the package is too large".to_owned())).collect())
}

/// What has to be in the package and is not.
fn lacks(list: &str) -> Vec<String> {
    let wanted = ["src/lib.rs", "kernels/prelude/metal.h", "kernels/prelude/cuda.h", "kernels/prelude/args.h"];
    let missing = wanted.iter().filter(|name| !list.lines().any(|line| line == **name));
    missing.map(|name| format!("the package lacks {name}")).collect()
}

fn last_tag(cx: &Context) -> Option<String> {
    let tags = process::capture(cx.command("git").args(["tag", "--list", "v*", "--sort=-v:refname"])).ok()?;
    tags.lines().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_belong_to_the_package() {
        let whole = "src/lib.rs\nkernels/prelude/metal.h\nkernels/prelude/cuda.h\nkernels/prelude/args.h\n";
        assert!(lacks(whole).is_empty());
        assert_eq!(lacks("src/lib.rs\n").len(), 3);
    }
}
