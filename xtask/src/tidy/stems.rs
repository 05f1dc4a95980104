//! Same stem everywhere: an op is found by one name in each layer.

use super::{Finding, NotYet};
use crate::tree::{self, Tree};
use std::collections::BTreeSet;

/// Files of `src/nn` that are not a family of ops.
const NO_FAMILY: [&str; 3] = ["mod", "desc", "check"];

pub(super) fn same_stem(tree: &Tree, missing: &NotYet) -> Vec<Finding> {
    let families = tree.below("crates/tessl/src/nn", ".rs").filter_map(|(path, _)| family(path));
    let stems: BTreeSet<&str> = families.chain(["gemm"]).filter(|stem| !NO_FAMILY.contains(stem)).collect();
    let layers = stems.iter().flat_map(|stem| layers(stem));
    layers.filter_map(|(paths, why)| missing.require(tree, &paths, why)).collect()
}

/// `attention` for `nn/attention.rs` and for what lies in a folder `nn/attention`.
fn family(path: &str) -> Option<&str> {
    Some(tree::stem(path.strip_prefix("crates/tessl/src/nn/")?.split('/').next()?))
}

/// The other homes of a stem; one path of each list has to be there.
fn layers(stem: &str) -> Vec<(Vec<String>, &'static str)> {
    let rust = |folder: &str| vec![format!("{folder}/{stem}.rs"), format!("{folder}/{stem}/mod.rs")];
    let mut cpu = rust("crates/tessl/src/device/cpu/nn");
    cpu.extend(rust("crates/tessl/src/device/cpu"));
    let mut kernel = vec![format!("crates/tessl/kernels/simt/{stem}.metal")];
    if stem == "gemm" {
        // Its portable form needs matrix units, so it cannot be single-source.
        kernel.push("crates/tessl/kernels/metal/gemm_simdgroup.metal".to_owned());
    }
    vec![
        (kernel, "portable kernel"),
        (cpu, "CPU kernel"),
        (rust("crates/tessl-oracle/src"), "oracle"),
        (rust("crates/tessl-conformance/src"), "conformance cases"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layer_is_asked_for() {
        let mut files = vec![
            ("crates/tessl/src/nn/mod.rs", ""),
            ("crates/tessl/src/nn/norm.rs", ""),
            ("crates/tessl/kernels/simt/norm.metal", ""),
            ("crates/tessl/src/device/cpu/nn/norm.rs", ""),
            ("crates/tessl-oracle/src/norm.rs", ""),
            ("crates/tessl/kernels/metal/gemm_simdgroup.metal", ""),
            ("crates/tessl/src/device/cpu/gemm/mod.rs", ""),
            ("crates/tessl-oracle/src/gemm.rs", ""),
            ("crates/tessl-conformance/src/gemm.rs", ""),
        ];
        let findings = |files: &[(&str, &str)]| {
            let tree = Tree::of(files);
            same_stem(&tree, &NotYet::new(&tree))
        };
        let found = findings(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("tessl-conformance/src/norm.rs"));
        files.push(("xtask/not-yet.txt", "crates/tessl-conformance/src/norm.rs soon"));
        assert!(findings(&files).is_empty());
    }
}
