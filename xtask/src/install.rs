//! Tools that steps need: installed where that is possible, named where it is not.

use crate::context::Context;
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};

/// Debian packages of one purpose.
#[derive(Clone, Copy)]
pub(crate) enum Packages {
    /// The compiler of the simulator.
    Clang,
    /// Its sanitizer runtime.
    Sanitizer,
    /// A second Rust whose library sources are packaged: the darwin check builds a sysroot from them.
    Darwin,
    /// That Rust, a linker for arm64 Linux, and what runs its programs here.
    Arm64,
}

impl Packages {
    fn names(self) -> &'static [&'static str] {
        match self {
            Packages::Clang => &["clang-19"],
            Packages::Sanitizer => &["clang-19", "libclang-rt-19-dev"],
            Packages::Darwin => &["rustc-web", "rust-web-src", "rust-web-clippy"],
            Packages::Arm64 => &["rustc-web", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"],
        }
    }

    /// What proves that the packages are there, also where another way than apt brought them.
    fn present(self) -> bool {
        match self {
            Packages::Clang => process::quiet("clang++-19", &["--version"]),
            Packages::Sanitizer => Packages::Clang.present() && installed("libclang-rt-19-dev"),
            Packages::Darwin => {
                let files = ["bin/rustc", "bin/cargo-clippy", "lib/rustlib/src/rust/library/std/Cargo.toml"];
                files.iter().all(|file| Path::new("/usr").join(file).exists())
            }
            Packages::Arm64 => {
                let files =
                    ["bin/rustc", "bin/aarch64-linux-gnu-gcc", "bin/qemu-aarch64", "aarch64-linux-gnu/lib/libc.so.6"];
                files.iter().all(|file| Path::new("/usr").join(file).exists())
            }
        }
    }
}

/// Makes sure that the packages are there. The error says what to install.
pub(crate) fn apt(cx: &Context, packages: Packages) -> Result<(), String> {
    if packages.present() {
        return Ok(());
    }
    let names = packages.names().join(" ");
    let advice = format!("apt-get install {names}");
    if !process::quiet("apt-get", &["--version"]) {
        return Err(format!("needs, on Debian or Ubuntu: {advice}"));
    }
    if !process::quiet("sh", &["-c", "test \"$(id -u)\" = 0"]) {
        return Err(format!("needs root, or: {advice}"));
    }
    // A fresh machine has no package lists, and a registry may fail once.
    for attempt in 0..3 {
        if attempt > 0 {
            process::stream(cx.command("apt-get").args(["-qq", "update"]), cx.deadline)?;
        }
        let mut install = cx.command("apt-get");
        install.env("DEBIAN_FRONTEND", "noninteractive");
        install.args(["-qq", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends"]);
        if process::stream(install.args(packages.names()), cx.deadline)?.ok && packages.present() {
            return Ok(());
        }
    }
    Err(format!("failed: {advice}"))
}

fn installed(package: &str) -> bool {
    process::quiet("sh", &["-c", &format!("dpkg -s {package} | grep -q '^Status: install ok installed'")])
}

/// A Python environment with the packages of `xtask/requirements.txt`; gives its `bin` folder.
pub(crate) fn venv(cx: &Context) -> Result<PathBuf, String> {
    let list = cx.root.join("xtask/requirements.txt");
    let wanted = fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
    let folder = cx.target.join("venv");
    let stamp = folder.join("installed.txt");
    let bin = folder.join("bin");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) && bin.join("python").exists() {
        return Ok(bin);
    }
    if !process::quiet("python3", &["-c", "import venv, ensurepip"]) {
        return Err("needs python3 with the venv module (apt-get install python3-venv)".to_owned());
    }
    let made = process::stream(cx.command("python3").args(["-m", "venv"]).arg(&folder), cx.deadline)?;
    let mut pip = cx.command(&bin.join("python").to_string_lossy());
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&list);
    if !made.ok || !process::stream(&mut pip, cx.deadline)?.ok {
        return Err("pip could not install xtask/requirements.txt".to_owned());
    }
    fs::write(&stamp, wanted).map_err(|e| e.to_string())?;
    Ok(bin)
}
