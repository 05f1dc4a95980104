//! Writes every kernel as one self-contained source (prelude, argument blocks, kernel) to `OUT_DIR/kernels` and tells
//! dependent build scripts where that is (`DEP_TESSL_KERNELS`). Nothing is compiled here.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// What stands before a kernel's text, in order, after the compiler's own prelude.
const SHARED: [&str; 3] = ["args.h", "pack.h", "activation.h"];

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("kernels");
    fs::create_dir_all(&out).expect("OUT_DIR is writable");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels");
    let kernels = here.join("kernels");
    for folder in ["simt", "metal"] {
        for path in sources(&kernels.join(folder), "metal") {
            write(&kernels, "metal.h", &path, &out);
        }
    }
    println!("cargo::metadata=kernels={}", out.display());
}

fn sources(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == extension));
    files.sort();
    files
}

fn write(kernels: &Path, prelude: &str, path: &Path, out: &Path) {
    let read = |p: &Path| fs::read_to_string(p).unwrap_or_else(|e| panic!("{}: {e}", p.display()));
    let name = path.file_name().expect("a file").to_string_lossy();
    let mut text = String::new();
    for part in std::iter::once(prelude).chain(SHARED) {
        // `#pragma once` in a main file is a warning.
        text.extend(read(&kernels.join("prelude").join(part)).lines().filter(|l| *l != "#pragma once").flat_map(|l| [l, "\n"]));
    }
    text += &format!("#line 1 \"{name}\"\n{}", read(path));
    fs::write(out.join(&*name), text).expect("OUT_DIR is writable");
}
