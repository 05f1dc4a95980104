//! The `tessl` command as a process.
#![allow(dead_code)]

use serde_json::Value;
use std::process::{Command, Output};

/// The binary, without what the environment says.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessl"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TESSL_") || name.starts_with("BENCH_")) {
        command.env_remove(name);
    }
    command.args(arguments).env("TESSL_DEVICE", "cpu").env("TESSL_THREADS", "2");
    command
}

/// One run to its end.
pub(crate) fn tessl(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the binary runs")
}

/// Output as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Stdout of a run that must succeed.
pub(crate) fn good(arguments: &[&str]) -> String {
    let output = tessl(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The JSON that a run prints.
pub(crate) fn json(arguments: &[&str]) -> Value {
    let out = good(arguments);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {out}"))
}

/// The one line of a run that must fail with `code`.
pub(crate) fn bad(code: i32, arguments: &[&str]) -> String {
    let output = tessl(arguments);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}{err}");
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 1, "{arguments:?}: {err}");
    assert!(lines[0].starts_with("error: "), "{arguments:?}: {err}");
    assert!(!err.contains("panicked"), "{arguments:?}: {err}");
    lines[0].to_owned()
}
