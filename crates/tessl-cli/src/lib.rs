//! What the `tessl` command and the benchmark binaries are made of.

#![forbid(unsafe_code)]

pub mod bench;
mod cli;
mod commands;
pub mod env;
mod error;
pub mod format;
mod logging;
mod runtime;
pub mod selfcheck;
mod spotcheck;
pub mod ui;

pub use cli::{main, run_tool};
pub use error::{CliError, Result};
pub use runtime::open;
