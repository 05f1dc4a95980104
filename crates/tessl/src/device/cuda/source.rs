//! Kernel sources: prelude, argument blocks and kernel text become one translation unit without includes.

use crate::plan::KernelKey;

const CUDA: &str = include_str!("../../../kernels/prelude/cuda.h");
const ARGS: &str = include_str!("../../../kernels/prelude/args.h");
const PACK: &str = include_str!("../../../kernels/prelude/pack.h");
const ROWS: &str = include_str!("../../../kernels/prelude/rows.h");
const ACTIVATION: &str = include_str!("../../../kernels/prelude/activation.h");
const TURN: &str = include_str!("../../../kernels/prelude/turn.h");
const WEIGHTS: &str = include_str!("../../../kernels/prelude/weights.h");
const PTX: &str = include_str!("../../../kernels/cuda/ptx.cuh");
const HOPPER: &str = include_str!("../../../kernels/cuda/hopper.cuh");
const ATTENTION: &str = include_str!("../../../kernels/simt/attention.metal");
const EPILOGUE: &str = include_str!("../../../kernels/cuda/epilogue.cuh");

/// The header that a caller's source gets with `#include "tessl.h"`.
pub(super) const USER_HEADER: &str = "tessl.h";

/// One kernel file of the library.
pub(super) struct Module {
    /// File stem, as in [`KernelKey::module`].
    pub(super) stem: &'static str,
    /// File name, for compiler messages.
    file: &'static str,
    /// What comes between the prelude and the text.
    extra: &'static [&'static str],
    text: &'static str,
}

/// Every kernel file of this device.
pub(super) const MODULES: &[Module] = &[
    Module {
        stem: "gemm_mma",
        file: "gemm_mma.cu",
        extra: &[PTX, EPILOGUE],
        text: include_str!("../../../kernels/cuda/gemm_mma.cu"),
    },
    Module {
        stem: "gemm_simt",
        file: "gemm_simt.cu",
        extra: &[EPILOGUE],
        text: include_str!("../../../kernels/cuda/gemm_simt.cu"),
    },
    Module {
        stem: "gemm_fused",
        file: "gemm_fused.metal",
        extra: &[],
        text: include_str!("../../../kernels/simt/gemm_fused.metal"),
    },
    Module {
        stem: "gemm_wgmma",
        file: "gemm_wgmma.cu",
        extra: &[PTX, HOPPER, EPILOGUE],
        text: include_str!("../../../kernels/cuda/gemm_wgmma.cu"),
    },
    Module {
        stem: "attention_wgmma",
        file: "attention_wgmma.cu",
        // Of the other file only the functions: its kernels have names of their own.
        extra: &[PTX, HOPPER, ATTENTION],
        text: include_str!("../../../kernels/cuda/attention_wgmma.cu"),
    },
    Module {
        stem: "elementwise",
        file: "elementwise.metal",
        extra: &[],
        text: include_str!("../../../kernels/simt/elementwise.metal"),
    },
    Module {
        stem: "movement",
        file: "movement.metal",
        extra: &[],
        text: include_str!("../../../kernels/simt/movement.metal"),
    },
    Module {
        stem: "experts",
        file: "experts.metal",
        extra: &[],
        text: include_str!("../../../kernels/simt/experts.metal"),
    },
    Module {
        stem: "sample",
        file: "sample.metal",
        extra: &[],
        text: include_str!("../../../kernels/simt/sample.metal"),
    },
    Module { stem: "attention", file: "attention.metal", extra: &[], text: ATTENTION },
    Module { stem: "cache", file: "cache.metal", extra: &[], text: include_str!("../../../kernels/simt/cache.metal") },
    Module { stem: "embed", file: "embed.metal", extra: &[], text: include_str!("../../../kernels/simt/embed.metal") },
    Module { stem: "rope", file: "rope.metal", extra: &[], text: include_str!("../../../kernels/simt/rope.metal") },
    Module { stem: "mlp", file: "mlp.metal", extra: &[], text: include_str!("../../../kernels/simt/mlp.metal") },
    Module {
        stem: "reduce",
        file: "reduce.metal",
        extra: &[],
        text: include_str!("../../../kernels/simt/reduce.metal"),
    },
    Module { stem: "qkv", file: "qkv.metal", extra: &[], text: include_str!("../../../kernels/simt/qkv.metal") },
    Module { stem: "quant", file: "quant.metal", extra: &[], text: include_str!("../../../kernels/simt/quant.metal") },
    Module { stem: "norm", file: "norm.metal", extra: &[], text: include_str!("../../../kernels/simt/norm.metal") },
];

/// The library's module with this stem.
pub(super) fn module(stem: &str) -> Option<&'static Module> {
    MODULES.iter().find(|m| m.stem == stem)
}

/// The prelude that all kernels share.
pub(super) fn prelude() -> String {
    [CUDA, ARGS, PACK, ROWS, ACTIVATION, TURN, WEIGHTS].join("\n")
}

impl Module {
    /// The whole translation unit; compiler messages point into the kernel's own file.
    pub(super) fn source(&self) -> String {
        let mut source = prelude();
        for part in self.extra {
            source.push('\n');
            source.push_str(part);
        }
        source + "\n#line 1 \"" + self.file + "\"\n" + self.text
    }

    /// Whether every kernel of the file waits for its predecessors itself, so that it may be launched before they end.
    /// scripts/nvrtc_check.py looks for the wait in each entry point.
    pub(super) fn waits(&self) -> bool {
        self.text.contains("GRID_WAIT")
    }

    /// Whether each entry point is compiled by itself: `ENTRY_<name>` selects it.
    pub(super) fn one_entry(&self) -> bool {
        self.text.contains("ENTRY_")
    }
}

/// Whether kernels of this text report faults. Per file, hence conservative: the price of a wrong yes is one small copy.
pub(super) fn declares_status(text: &str) -> bool {
    text.contains("STATUS(") || text.contains("gpu_status")
}

/// Whether the library's own module reports faults.
pub(super) fn module_declares_status(module: &Module) -> bool {
    declares_status(module.text)
}

/// The first compute capability, times ten, whose kernels can be launched before their predecessors end.
pub(super) const DEPENDENT_LAUNCH: u32 = 90;

/// Compiler options. `sm` is the compute capability times ten; 9.0 has instructions under its own name only.
pub(super) fn options(sm: u32, key: &KernelKey, one_entry: bool) -> Vec<String> {
    let suffix = if sm == 90 { "a" } else { "" };
    let mut options: Vec<String> = ["-std=c++17", "-default-device", "--diag-suppress=177", "--ptxas-options=-v"]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("-arch=sm_{sm}{suffix}")])
        .collect();
    if sm >= DEPENDENT_LAUNCH {
        options.push("-DGPU_PDL".to_owned());
    }
    options.extend(key.constants.iter().map(|(name, value)| format!("-DFC_{name}={value}")));
    if one_entry {
        options.extend(["-DONE_ENTRY".to_owned(), format!("-DENTRY_{}", key.name)]);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_self_contained_and_keeps_its_file_name() {
        for module in MODULES {
            let source = module.source();
            assert!(!source.contains("#include"), "{}", module.stem);
            assert!(source.contains(&format!("#line 1 \"{}\"", module.file)));
            let order = ["typedef unsigned int uint", "struct GemmArgs", "float activate("].map(|s| source.find(s));
            assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{order:?}");
        }
    }

    #[test]
    fn options_name_the_architecture_the_constants_and_the_entry() {
        let key = KernelKey::builtin("gemm_mma", "gemm_mma_bf16_f32").constant("TILE", 3);
        let hopper = options(90, &key, true);
        assert!(hopper.contains(&"-arch=sm_90a".to_owned()) && hopper.contains(&"-DFC_TILE=3".to_owned()));
        assert!(hopper.contains(&"-DENTRY_gemm_mma_bf16_f32".to_owned()));
        assert!(options(80, &key, false).contains(&"-arch=sm_80".to_owned()));
        assert!(!hopper.iter().any(|o| o.contains("fast_math") || o.contains("fast-math")));
    }

    #[test]
    fn each_gemm_instruction_stands_in_a_function_of_its_own() {
        for function in PTX.split("DEVFN").skip(1).chain(HOPPER.split("DEVFN").skip(1)) {
            assert!(function.matches("asm").count() <= 1, "{function}");
        }
        assert!(MODULES.iter().all(|m| !m.text.contains("asm")), "PTX belongs in ptx.cuh and hopper.cuh");
    }

    #[test]
    fn status_is_seen_in_the_text() {
        assert!(!module_declares_status(module("gemm_mma").unwrap()));
        assert!(declares_status("KERNEL(f, 32, IN(uint, x, 0), STATUS(1)) {}"));
    }
}
