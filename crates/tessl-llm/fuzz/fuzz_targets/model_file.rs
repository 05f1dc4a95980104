//! Any bytes as a model file: an error or a file whose tensors can be read, never a panic and never more memory than a few times
//! the bytes. Run with `-rss_limit_mb=512`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use tessl_llm::{ModelConfig, Tokenizer, WeightFile};

fuzz_target!(|bytes: &[u8]| {
    let path: PathBuf = std::env::temp_dir().join(format!("tessl-fuzz-{}", std::process::id()));
    if std::fs::write(&path, bytes).is_err() {
        return;
    }
    if let Ok(file) = WeightFile::open(&path) {
        for tensor in file.tensors() {
            let mut some = vec![0; usize::try_from(tensor.bytes.min(4096)).unwrap_or(0)];
            file.read(tensor, 0, &mut some).expect("a checked tensor lies in the file");
        }
        let _ = ModelConfig::from_file(&file);
        let _ = Tokenizer::from_file(&file);
    }
});
