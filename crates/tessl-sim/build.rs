//! Compiles the executor and every kernel of `crates/tessl/kernels/{simt,metal}` with clang++.
//!
//! Without a fit clang++ or host the crate still builds; `tessl_sim::available` then says what is missing.

#[path = "src/toolchain.rs"]
mod toolchain;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// For kernels only: the executor switches stacks under the sanitizer's feet, and tells it about its arrays by hand.
const SANITIZE: [&str; 5] = [
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr,function",
    "-fno-sanitize-recover=all",
    "-fsanitize-address-use-after-return=never",
    "-DEMU_FLAT",
];

/// The oldest clang whose `_Float16`, `__bf16` and `ext_vector_type` do all that the kernels need.
const OLDEST_CLANG: u32 = 17;

fn main() {
    println!("cargo:rerun-if-env-changed=TESSL_SIM_CXX");
    println!("cargo:rerun-if-env-changed=TESSL_SIM_SANITIZE");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/toolchain.rs");
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let kernels = here.join("../tessl/kernels");
    for folder in [here.join("cpp"), kernels.join("prelude"), kernels.join("simt"), kernels.join("metal")] {
        println!("cargo:rerun-if-changed={}", folder.display());
    }

    let target = env::var("TARGET").expect("set by cargo");
    let clang = if target.starts_with("x86_64-") && target.contains("-linux-") {
        find_clang()
    } else {
        Err(format!(
            "the simulator switches fibers in x86-64 System V assembly and runs on x86-64 Linux only, not on {target}"
        ))
    };
    match clang {
        Ok(clang) => build(&here, &kernels, &clang),
        Err(reason) => {
            println!("cargo:rustc-env=TESSL_SIM_MISSING={reason}");
        }
    }
}

/// A clang++ that can build the simulator, or what to install.
fn find_clang() -> Result<PathBuf, String> {
    let mut candidates: Vec<String> = env::var("TESSL_SIM_CXX").into_iter().collect();
    candidates.extend((OLDEST_CLANG..=22).rev().map(|v| format!("clang++-{v}")));
    candidates.push("clang++".into());
    candidates.into_iter().find(|c| clang_version(c).is_some_and(|v| v >= OLDEST_CLANG)).map(PathBuf::from).ok_or_else(
        || {
            format!(
                "no clang++ of version {OLDEST_CLANG} or later found: install one (Debian, Ubuntu: `apt install clang-19`) \
                 or name it in TESSL_SIM_CXX, then `cargo clean -p tessl-sim`"
            )
        },
    )
}

fn clang_version(compiler: &str) -> Option<u32> {
    let out = Command::new(compiler).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let after = text.split("clang version ").nth(1)?;
    after.split('.').next()?.parse().ok()
}

fn build(here: &Path, kernels: &Path, clang: &Path) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let cpp = here.join("cpp");
    let sanitize = env::var("TESSL_SIM_SANITIZE").is_ok_and(|v| v != "0" && !v.is_empty());

    let mut executor = compiler(clang, &cpp, sanitize);
    executor.std("c++20").files(sources(&cpp.join("exec"), "cpp"));
    if sanitize {
        executor.define("TESSL_SIM_SANITIZE", None);
    }
    executor.compile("tessl_sim_exec");

    // Kernels register themselves from static objects, which a linker would drop from an ordinary archive.
    for standard in ["c++17", "c++20"] {
        let mut build = compiler(clang, &cpp, sanitize);
        if sanitize {
            build.flags(SANITIZE);
        }
        build.std(standard).link_lib_modifier("+whole-archive");
        let mut any = false;
        for folder in ["simt", "metal"] {
            for path in sources(&kernels.join(folder), "metal") {
                let text = fs::read_to_string(&path).expect("a readable kernel file");
                if toolchain::standard(&text) != standard {
                    continue;
                }
                let stem = path.file_stem().expect("a file name").to_string_lossy().into_owned();
                let name = format!("{folder}/{stem}.metal");
                let source = toolchain::assemble(&kernels.join("prelude"), &name, &text).expect("a readable prelude");
                let file = out.join(format!("{folder}_{stem}.cc"));
                fs::write(&file, source).expect("OUT_DIR is writable");
                build.file(file);
                any = true;
            }
        }
        if any {
            build.compile(&format!("tessl_sim_kernels_{}", standard.trim_start_matches("c++")));
        }
    }

    if sanitize {
        link_sanitizer(clang);
        println!("cargo:rustc-cfg=tessl_sim_sanitize");
    }
    println!("cargo:rustc-cfg=tessl_sim_kernels");
    println!("cargo:rustc-env=TESSL_SIM_CLANG={}", clang.display());
    println!("cargo:rustc-env=TESSL_SIM_ARCHIVE={}", out.join("libtessl_sim_exec.a").display());
}

fn compiler(clang: &Path, cpp: &Path, sanitize: bool) -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).compiler(clang).opt_level(if sanitize { 1 } else { 2 }).debug(sanitize).warnings(true);
    build.flags(toolchain::flags(cpp));
    build
}

fn sources(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .map(|entries| entries.filter_map(|e| e.ok().map(|e| e.path())).collect())
        .unwrap_or_default();
    files.retain(|p| p.extension().is_some_and(|e| e == extension));
    files.sort();
    files
}

/// Links clang's runtime into every executable that depends on this crate, so that stable Rust needs no flags. The
/// runtime replaces malloc, which puts red zones around Rust's own buffers.
fn link_sanitizer(clang: &Path) {
    let library = "libclang_rt.asan-x86_64.a";
    let found = Command::new(clang).arg(format!("-print-file-name={library}")).output().ok();
    let mut path = PathBuf::from(String::from_utf8_lossy(&found.map(|o| o.stdout).unwrap_or_default()).trim());
    if !path.is_absolute() {
        let dir = Command::new(clang).arg("-print-resource-dir").output().map(|o| o.stdout).unwrap_or_default();
        path = Path::new(String::from_utf8_lossy(&dir).trim()).join("lib/linux").join(library);
    }
    assert!(path.exists(), "TESSL_SIM_SANITIZE needs {library} (Debian, Ubuntu: `apt install libclang-rt-19-dev`)");
    println!("cargo:rustc-link-search=native={}", path.parent().expect("a folder").display());
    println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=clang_rt.asan-x86_64");
    for library in ["m", "dl", "rt", "pthread", "resolv"] {
        println!("cargo:rustc-link-lib={library}");
    }
}
