//! The kernel files as texts: lint, what the simulator found in them, constants that the tile audit reads.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

fn files() -> Vec<PathBuf> {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tessl/kernels");
    let folders = ["simt", "metal"].map(|f| kernels.join(f));
    let mut files: Vec<PathBuf> =
        folders.iter().flat_map(|f| fs::read_dir(f).unwrap().map(|e| e.unwrap().path())).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "metal"));
    files.sort();
    assert!(files.len() >= 2, "{files:?}");
    files
}

#[test]
fn every_kernel_file_passes_the_lint() {
    for path in files() {
        let findings = tessl_sim::lint::lint(&fs::read_to_string(&path).unwrap());
        let text: Vec<String> = findings.iter().map(|f| format!("{}, {f}", path.display())).collect();
        assert!(findings.is_empty(), "{}", text.join("\n"));
    }
}

#[test]
fn every_kernel_is_registered_with_its_parameters() {
    if common::skipped("every_kernel_is_registered_with_its_parameters") {
        return;
    }
    let list = tessl_sim::kernels();
    assert!(list.is_sorted_by(|a, b| a.name < b.name), "sorted, no duplicates");
    for path in files() {
        for line in fs::read_to_string(&path).unwrap().lines().filter_map(|l| l.strip_prefix("KERNEL(")) {
            let name = line.split(',').next().unwrap();
            assert!(list.iter().any(|k| k.name == name), "{name} of {}", path.display());
        }
    }
    let find = |name: &str| list.iter().find(|k| k.name == name).map(|k| (k.nargs, k.writes_mask));
    assert_eq!(find("rms_norm_f16_f32"), Some((4, 0b100)));
    assert_eq!(find("gemm_simd_bf16_f32"), Some((5, 0b100)));
}
