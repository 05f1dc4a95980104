//! Every kernel variant of the plan tables through NVRTC, where it is found; no device is needed.

use super::nvrtc::Nvrtc;
use super::tables::{GemmKernel, attention_tiles, gemm_rows, wgmma_rows};
use super::{elf, source};
use crate::plan::KernelKey;
use std::path::PathBuf;
use tessl_conformance::skip::skip;

fn nvrtc(test: &str) -> Option<Nvrtc> {
    let user = std::env::var_os("TESSL_CUDA_LIB").map(PathBuf::from);
    match Nvrtc::load(user.as_deref()) {
        Ok(nvrtc) => Some(nvrtc),
        Err(reason) => {
            skip("nvrtc", test, &format!("no NVRTC ({reason})"));
            None
        }
    }
}

/// Compiles one kernel; its log, which is returned, must be free of spills and warnings.
fn check(nvrtc: &Nvrtc, sm: u32, key: &KernelKey) -> String {
    let module = source::module(&key.module).unwrap();
    let mut options = source::options(sm, key, module.one_entry());
    if nvrtc.version.0 >= 13 {
        // Its own cache, used beside a driver, answers without a log.
        options.push("--no-cache".to_owned());
    }
    let compiled = nvrtc.compile(module.stem, &module.source(), &[], &options).unwrap();
    assert!(elf::kernels(&compiled.cubin).iter().any(|k| **k == *key.name), "{} is not in the cubin", key.name);
    for line in compiled.log.lines() {
        let spills = line.contains("spill") && !line.contains("0 bytes spill stores, 0 bytes spill loads");
        // C75xx: wgmma serialised, waits put in, setmaxnreg ignored.
        let bad = spills || line.contains("warning") || line.contains("C75") || line.contains("serializ");
        assert!(!bad, "sm_{sm} {} {:?}: {line}", key.name, key.constants);
    }
    compiled.log
}

fn gemm(stem: &'static str, name: &'static str, tile: u32, stages: u32, layout: u32, vec: [u32; 2]) -> KernelKey {
    let key = KernelKey::builtin(stem, name).constant("TILE", tile);
    let key = if stem == "gemm_mma" { key.constant("STAGES", stages) } else { key };
    let [a, b] = vec;
    key.constant("A_ROWS", layout & 1).constant("B_ROWS", layout >> 1).constant("VEC_A", a).constant("VEC_B", b)
}

#[test]
fn every_row_of_the_gemm_table_compiles_without_spills() {
    let Some(nvrtc) = nvrtc("device::cuda::compile_tests::every_row_of_the_gemm_table_compiles_without_spills") else {
        return;
    };
    // Every row once with the fast copies, on the oldest and the newest target; layouts and copies take turns.
    for (i, row) in (0u32..).zip(gemm_rows()) {
        for (turn, sm) in [(0, 80), (1, 90)] {
            let (name, slow) = match row.kernel {
                GemmKernel::Mma => (["gemm_mma_bf16_bf16", "gemm_mma_f16_f32"][turn], [2, 4]),
                GemmKernel::Simt => (["gemm_simt_f32_f32", "gemm_simt_f32_bf16"][turn], [4, 16]),
            };
            let vec = if turn == 0 { [16, 16] } else { slow };
            check(&nvrtc, sm, &gemm(row.kernel.stem(), name, row.index, row.stages, (i + sm / 10) % 4, vec));
        }
    }
}

#[test]
fn every_row_of_the_wgmma_table_compiles_without_spills_or_serialisation() {
    let Some(nvrtc) =
        nvrtc("device::cuda::compile_tests::every_row_of_the_wgmma_table_compiles_without_spills_or_serialisation")
    else {
        return;
    };
    let entries = ["bf16_bf16", "f16_f32", "bf16_f32", "f16_f16", "f16_bf16", "bf16_f16"];
    // Layouts, types and alignments of C take turns: all of them for the large tile, some for the others.
    for (i, row) in (0u32..).zip(wgmma_rows()) {
        let turns = if i == 0 { 0..6 } else { i..i + 2 };
        for turn in turns {
            let name = format!("gemm_wgmma_{}", entries[turn as usize % entries.len()]);
            let key = KernelKey::builtin("gemm_wgmma", name)
                .constant("TILE", row.index)
                .constant("STAGES", row.stages)
                .constant("A_ROWS", turn & 1)
                .constant("B_ROWS", turn >> 1 & 1)
                .constant("C_WIDE", u32::from(turn % 3 != 2))
                .constant("SPLIT", row.split)
                .constant("BAND", row.band);
            let log = check(&nvrtc, 90, &key);
            // What a block starts with: less than this, and the multiplying warps could not take what they need.
            let entry = if row.resident == 1 { "Used 168 registers" } else { "Used 128 registers" };
            assert!(log.contains(entry), "{row:?}: {log}");
        }
    }
}

#[test]
fn every_tile_of_attention_compiles_without_spills_or_serialisation() {
    let Some(nvrtc) =
        nvrtc("device::cuda::compile_tests::every_tile_of_attention_compiles_without_spills_or_serialisation")
    else {
        return;
    };
    for (tile, dtype) in attention_tiles().iter().flat_map(|t| ["bf16", "f16"].map(|d| (t, d))) {
        let key = KernelKey::builtin("attention_wgmma", format!("attention_wgmma_{dtype}"))
            .constant("SIZE", tile.size)
            .constant("CONSUMERS", tile.consumers)
            .constant("BLOCK", tile.block)
            .constant("STAGES", tile.stages)
            .constant("VEC16", 1)
            .constant("CODED", 0);
        let log = check(&nvrtc, 90, &key);
        let entry = if tile.consumers == 2 { "Used 168 registers" } else { "Used 128 registers" };
        assert!(log.contains(entry), "{tile:?}: {log}");
    }
}

#[test]
fn every_gemm_entry_and_the_norms_compile() {
    let Some(nvrtc) = nvrtc("device::cuda::compile_tests::every_gemm_entry_and_the_norms_compile") else { return };
    let mma = ["bf16_f32", "bf16_bf16", "bf16_f16", "f16_f32", "f16_f16", "f16_bf16"].map(|t| format!("gemm_mma_{t}"));
    for name in mma {
        let key = gemm("gemm_mma", "", 3, 2, 3, [16, 8]);
        check(&nvrtc, 89, &KernelKey { name: name.into(), ..key });
    }
    for name in ["f32_f32", "f32_bf16", "f32_f16"].map(|t| format!("gemm_simt_{t}")) {
        let key = gemm("gemm_simt", "", 1, 2, 0, [16, 4]);
        check(&nvrtc, 89, &KernelKey { name: name.into(), ..key });
    }
    for vec16 in [0, 1] {
        for types in ["f32_f32", "f16_f16", "bf16_bf16", "f16_f32", "bf16_f32"] {
            check(&nvrtc, 90, &KernelKey::builtin("norm", format!("rms_norm_{types}")).constant("VEC16", vec16));
        }
    }
}

#[test]
fn every_file_of_row_kernels_compiles() {
    let Some(nvrtc) = nvrtc("device::cuda::compile_tests::every_file_of_row_kernels_compiles") else { return };
    let kernels = [
        ("attention", "attention_tiles_bf16_128"),
        ("cache", "kv_store_16"),
        ("cache", "kv_store_coded_bf16"),
        ("elementwise", "add_bf16"),
        ("embed", "embedding_bf16"),
        ("experts", "sort_by_expert"),
        ("experts", "combine_experts_bf16"),
        ("mlp", "glu_bf16"),
        ("movement", "scatter_add_bf16"),
        ("norm", "add_rms_norm_bf16_bf16"),
        ("norm", "rms_norm_add_rms_norm_bf16_f32"),
        ("norm", "layer_norm_bf16_f32"),
        ("norm", "qk_norm_bf16_bf16"),
        ("reduce", "softmax_bf16"),
        ("sample", "sample_bf16"),
        ("sample", "top_k_bf16"),
        ("rope", "rope_half_bf16"),
    ];
    for (stem, name) in kernels {
        // Attention alone has codes.
        check(&nvrtc, 90, &KernelKey::builtin(stem, name).constant("VEC16", 1).constant("CODED", 1));
    }
}

#[test]
fn every_quantised_format_compiles() {
    let Some(nvrtc) = nvrtc("device::cuda::compile_tests::every_quantised_format_compiles") else { return };
    for format in 0..12 {
        let key = KernelKey::builtin("quant", "quantized_glu_f16");
        check(&nvrtc, 90, &key.constant("FORMAT", format).constant("VEC16", format & 1));
    }
}

#[test]
fn an_error_carries_the_compiler_s_log_with_the_kernel_s_own_line() {
    let Some(nvrtc) =
        nvrtc("device::cuda::compile_tests::an_error_carries_the_compiler_s_log_with_the_kernel_s_own_line")
    else {
        return;
    };
    let text = "\n\n#include \"tessl.h\"\nKERNEL(f, 32, OUT(float, y, 0)) { *y = oops; }\n";
    let prelude = source::prelude();
    let options = source::options(80, &KernelKey::builtin("user", ""), false);
    let headers = [(source::USER_HEADER, prelude.as_str())];
    let error = nvrtc.compile("user", text, &headers, &options).unwrap_err().to_string();
    assert!(error.contains("oops") && error.contains("(4)"), "{error}");
    let good = nvrtc.compile("user", &text.replace("oops", "1.0f"), &headers, &options).unwrap();
    assert_eq!(elf::kernels(&good.cubin), ["f"]);
}
