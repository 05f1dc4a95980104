//! Where things are, and in which mode the task runs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A run on CI stops its steps in time to print its closing line.
const CI_LIMIT: Duration = Duration::from_secs(80 * 60);

pub(crate) struct Context {
    /// The workspace.
    pub(crate) root: PathBuf,
    /// Cargo's target folder.
    pub(crate) target: PathBuf,
    /// `CI=true`: nothing may be skipped without being listed.
    pub(crate) ci: bool,
    /// When steps have to stop.
    pub(crate) deadline: Option<Instant>,
}

impl Context {
    pub(crate) fn new() -> Result<Self, String> {
        // Set by `cargo run`; the value at compile time may name another checkout that shares the target folder.
        let manifest = env::var_os("CARGO_MANIFEST_DIR").ok_or("run this as `cargo xtask`")?;
        let root = Path::new(&manifest).parent().ok_or("the xtask crate has no parent folder")?.to_owned();
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        let ci = env::var("CI").is_ok_and(|v| v == "true" || v == "1");
        let deadline = ci.then(|| Instant::now() + CI_LIMIT);
        Ok(Context { root, target, ci, deadline })
    }

    /// A command in the workspace, without what `cargo run` adds for its child: build scripts of the commands below
    /// would see other values than under a plain `cargo` and run again each time.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        for (name, _) in env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO_BIN_NAME" {
                command.env_remove(&name);
            }
        }
        if let Some(paths) = env::var_os("LD_LIBRARY_PATH") {
            let kept = env::split_paths(&paths).filter(|p| !p.starts_with(&self.target) && !in_toolchain(p));
            match env::join_paths(kept) {
                Ok(kept) if !kept.is_empty() => command.env("LD_LIBRARY_PATH", kept),
                _ => command.env_remove("LD_LIBRARY_PATH"),
            };
        }
        command
    }

    /// The cargo that runs this task.
    pub(crate) fn cargo(&self) -> Command {
        self.command(&env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
    }
}

fn in_toolchain(path: &Path) -> bool {
    path.components().any(|c| c.as_os_str() == "toolchains") && path.components().any(|c| c.as_os_str() == "lib")
}
