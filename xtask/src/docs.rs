//! `cargo xtask docs`: rewrites what is generated and checked in.

use crate::context::Context;
use crate::tree::Tree;
use crate::{markers, process};
use std::fs;

pub(crate) fn run(cx: &Context) -> Result<(), String> {
    argument_header(cx)?;
    let tree = Tree::load(cx)?;
    for (path, text) in markers::updated(&tree)? {
        fs::write(cx.root.join(&path), text).map_err(|e| format!("{path}: {e}"))?;
        println!("rewrote the numbers of {path}");
    }
    Ok(())
}

/// The test that compares `kernels/prelude/args.h` writes it where this variable is set.
fn argument_header(cx: &Context) -> Result<(), String> {
    let header = cx.root.join("crates/tessl/kernels/prelude/args.h");
    let before = fs::read_to_string(&header).unwrap_or_default();
    let mut command = cx.cargo();
    command.args(["test", "--quiet", "--profile", "ci", "-p", "tessl", "--lib", "args::"]).env("TESSL_WRITE_ARGS", "1");
    if !process::stream(&mut command, cx.deadline)?.ok {
        return Err("the test that writes args.h failed".to_owned());
    }
    if fs::read_to_string(&header).unwrap_or_default() != before {
        println!("rewrote {}", header.display());
    }
    Ok(())
}
