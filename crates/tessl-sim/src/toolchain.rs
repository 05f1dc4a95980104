//! How a kernel text becomes C++ for the host, and with which compiler and flags.
//!
//! Shared by the build script, which compiles the repository's kernels, and by [`Module`](crate::Module), which
//! compiles texts at run time. Uses std only.

use std::fs;
use std::path::Path;

/// The headers put before each kernel, in order.
const PRELUDE: [&str; 8] =
    ["metal.h", "args.h", "pack.h", "rows.h", "activation.h", "turn.h", "weights.h", "epilogue.h"];

/// Flags for kernels and executor alike, except the language standard.
pub(crate) fn flags(cpp: &Path) -> Vec<String> {
    let mut flags: Vec<String> = [
        "-march=x86-64-v3",
        "-fPIC",
        "-fvisibility=hidden",
        // Round half and bfloat after every operation, as a GPU does.
        "-Xclang",
        "-ffloat16-excess-precision=none",
        "-Xclang",
        "-fbfloat16-excess-precision=none",
        "-Wno-unknown-attributes",
        "-Wno-pragma-once-outside-header",
        "-Wno-duplicate-decl-specifier",
        // Every kernel gets all thread indices.
        "-Wno-unused-parameter",
        "-Werror=implicit-float-conversion",
    ]
    .map(String::from)
    .into();
    flags.extend(["-isystem".into(), cpp.join("metal").display().to_string()]);
    flags.extend(["-I".into(), cpp.join("exec").display().to_string()]);
    flags
}

/// MSL 4 is C++17; only the stand-in for matmul2d needs more (a class as template argument).
pub(crate) fn standard(kernel: &str) -> &'static str {
    if kernel.contains("MetalPerformancePrimitives") { "c++20" } else { "c++17" }
}

/// The C++ source of one kernel file: prelude, text, one registration per `KERNEL`.
pub(crate) fn assemble(prelude: &Path, name: &str, text: &str) -> std::io::Result<String> {
    let mut out = String::new();
    for header in PRELUDE {
        let path = prelude.join(header);
        out += &format!("#line 1 \"{}\"\n{}\n", path.display(), fs::read_to_string(&path)?);
    }
    out += &format!("#line 1 \"{name}\"\n{text}\n#include \"register.h\"\n");
    for kernel in kernel_names(text) {
        out += &format!("EMU_REGISTER({kernel})\n");
    }
    Ok(out)
}

/// Names in lines that start with `KERNEL(`.
pub(crate) fn kernel_names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|l| l.strip_prefix("KERNEL(")).filter_map(|l| l.split(',').next())
}
