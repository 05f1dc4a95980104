//! Writes each kernel as one self-contained source to `OUT_DIR/kernels` and exports that folder as `DEP_TESSL_KERNELS`.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let kernels = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("kernels");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("kernels");
    println!("cargo:rerun-if-changed={}", kernels.display());
    for (folder, language) in [("simt", "metal"), ("metal", "metal"), ("simt", "cuda"), ("cuda", "cuda")] {
        assemble(&kernels, folder, language, &out);
    }
    println!("cargo:kernels={}", out.display());
    metal_modules(&kernels, &out);
}

/// The table of Metal kernel files that the library embeds: stem, file name, text.
fn metal_modules(kernels: &Path, out: &Path) {
    let mut rows = Vec::new();
    for path in ["simt", "metal"].iter().filter_map(|f| fs::read_dir(kernels.join(f)).ok()).flatten() {
        let path = path.expect("a readable folder").path();
        if path.extension().is_some_and(|e| e == "metal") {
            let [stem, file] = [path.file_stem(), path.file_name()].map(|n| n.expect("a file name").to_string_lossy());
            rows.push(format!("({stem:?}, {file:?}, include_str!({:?})),\n", path.display().to_string()));
        }
    }
    rows.sort();
    let table = format!("&[\n{}]\n", rows.concat());
    fs::write(out.join("metal_modules.rs"), table).expect("OUT_DIR is writable");
}

/// Prelude and text of each kernel file in `folder`, for one compiler.
fn assemble(kernels: &Path, folder: &str, language: &str, out: &Path) {
    fs::create_dir_all(out).expect("OUT_DIR is writable");
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (prelude, extension) = (kernels.join("prelude"), if language == "metal" { "metal" } else { "cu" });
    let Ok(entries) = fs::read_dir(kernels.join(folder)) else { return };
    for path in entries.map(|e| e.expect("a readable folder").path()) {
        if !path.extension().is_some_and(|e| e == "metal" || e == "cu") {
            continue;
        }
        let mut text = String::new();
        for header in [&format!("{language}.h"), "args.h", "pack.h", "rows.h", "activation.h", "turn.h", "weights.h"] {
            text += &read(&prelude.join(header));
        }
        if language == "metal" {
            text += &read(&prelude.join("epilogue.h"));
        }
        if folder == "cuda" {
            for header in ["ptx.cuh", "hopper.cuh", "epilogue.cuh"] {
                text += &read(&kernels.join(folder).join(header));
            }
        }
        text += &read(&path);
        let name = Path::new(path.file_stem().expect("a file name")).with_extension(extension);
        fs::write(out.join(name), text).expect("OUT_DIR is writable");
    }
}
