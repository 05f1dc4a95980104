//! Dimensions of models, from sound and contradictory metadata.

mod gguf;
mod models;

use gguf::{Gguf, Scratch, pair, text};
use tessl_llm::{Architecture, ModelConfig, Result, WeightFile};

/// What `general.architecture` and these integers of it say.
fn config(architecture: &str, numbers: &[(&str, u32)], floats: &[(&str, f32)]) -> Result<ModelConfig> {
    let mut pairs = vec![pair("general.architecture", 8, &text(architecture.as_bytes()))];
    pairs.extend(numbers.iter().map(|(key, n)| pair(&format!("{architecture}.{key}"), 4, &n.to_le_bytes())));
    pairs.extend(floats.iter().map(|(key, x)| pair(&format!("{architecture}.{key}"), 6, &x.to_le_bytes())));
    let file = Scratch::new("config.gguf", &Gguf { pairs, ..Gguf::sound() }.bytes());
    ModelConfig::from_file(&WeightFile::open(&file.0).unwrap())
}

const SOUND: [(&str, u32); 6] = [
    ("block_count", 3),
    ("embedding_length", 64),
    ("feed_forward_length", 96),
    ("attention.head_count", 4),
    ("attention.head_count_kv", 2),
    ("context_length", 128),
];

#[test]
fn what_is_not_said_has_its_usual_value() {
    let c = config("llama", &SOUND, &[]).unwrap();
    assert_eq!((c.architecture, c.layers, c.width, c.feed_forward), (Architecture::Llama, 3, 64, 96));
    assert_eq!((c.heads, c.kv_heads, c.head_dim, c.rotary_dim, c.context), (4, 2, 16, 16, 128));
    assert_eq!((c.rope_base, c.rope_base_local, c.window), (10_000.0, 10_000.0, None));
    assert!((0..3).all(|layer| !c.has_window(layer)));
    let windowed = [&SOUND[..], &[("attention.sliding_window", 32)]].concat();
    let c = config("llama", &windowed, &[]).unwrap();
    assert!((0..3).all(|layer| c.has_window(layer)), "one window for all layers");
    let c = config("gemma3", &windowed, &[("rope.freq_base", 1e6)]).unwrap();
    assert_eq!((c.rope_base, c.rope_base_local), (1e6, 1e4));
    assert_eq!((0..12).filter(|&layer| !c.has_window(layer)).collect::<Vec<_>>(), [5, 11]);
}

#[test]
fn contradictions_are_refused() {
    for (what, key, value) in [
        ("0", "block_count", 0),
        ("0", "embedding_length", 0),
        ("over", "attention.head_count_kv", 3),
        ("0", "attention.head_count_kv", 0),
        ("is 4294967295", "feed_forward_length", u32::MAX),
        ("is 4294967295", "block_count", u32::MAX),
        ("rotary", "rope.dimension_count", 18),
        ("rotary", "rope.dimension_count", 15),
        ("one size", "attention.value_length", 8),
        ("0", "attention.head_count", 0),
    ] {
        let numbers: Vec<_> = SOUND.into_iter().filter(|(k, _)| *k != key).chain([(key, value)]).collect();
        let error = config("llama", &numbers, &[]).expect_err(key).to_string();
        assert!(error.contains(what), "{key}: {error}");
    }
    for missing in SOUND.map(|(key, _)| key).into_iter().filter(|key| *key != "attention.head_count_kv") {
        let numbers: Vec<_> = SOUND.into_iter().filter(|(k, _)| *k != missing).collect();
        let error = config("llama", &numbers, &[]).expect_err(missing).to_string();
        assert!(error.contains(missing) && error.contains("missing"), "{error}");
    }
    for (key, value) in
        [("rope.freq_base", f32::NAN), ("rope.freq_base", 0.0), ("attention.layer_norm_rms_epsilon", 0.0)]
    {
        assert!(config("llama", &SOUND, &[(key, value)]).is_err(), "{key} {value}");
    }
    assert!(config("mamba", &SOUND, &[]).unwrap_err().to_string().contains("architecture `mamba` is not supported"));
}

#[test]
fn smollm2() {
    let Some(file) = models::open(models::SMOLLM2) else { return };
    let c = ModelConfig::from_file(&file).unwrap();
    assert_eq!((c.layers, c.width, c.feed_forward, c.heads, c.kv_heads, c.head_dim), (30, 576, 1536, 9, 3, 64));
    assert_eq!((c.context, c.rope_base, c.window), (8192, 1e5, None));
}

#[test]
fn gemma3() {
    let Some(file) = models::open(models::GEMMA3) else { return };
    let c = ModelConfig::from_file(&file).unwrap();
    assert_eq!((c.layers, c.width, c.feed_forward, c.heads, c.kv_heads, c.head_dim), (18, 640, 2048, 4, 1, 256));
    assert_eq!((c.context, c.rope_base, c.rope_base_local, c.window), (32_768, 1e6, 1e4, Some(512)));
}
