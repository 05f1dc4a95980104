//! Real models, where `cargo xtask models` has put them.
#![allow(dead_code, unreachable_pub)]

use std::path::PathBuf;
use tessl_llm::WeightFile;

pub const SMOLLM2: &str = "smollm2-135m-instruct-q4_1";
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m";

/// The model of this name; without it the test counts as skipped.
pub fn open(name: &str) -> Option<WeightFile> {
    let folder = std::env::var_os("TESSL_MODELS")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/models")), PathBuf::from);
    let path = folder.join(format!("{name}.gguf"));
    if !path.exists() {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        tessl_conformance::skip::skip("models", &test, &format!("{name} is not here; `cargo xtask models` fetches it"));
        return None;
    }
    Some(WeightFile::open(path).unwrap())
}

/// Tokens and logits that llama.cpp made from the same files.
pub fn golden() -> serde_json::Value {
    serde_json::from_str(include_str!("../golden-tokens.json")).unwrap()
}

/// What an f64 reference computes of the same files.
pub fn reference() -> serde_json::Value {
    serde_json::from_str(include_str!("../reference.json")).unwrap()
}
