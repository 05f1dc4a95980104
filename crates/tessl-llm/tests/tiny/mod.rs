//! Models of a few thousand random weights, as files.
#![allow(dead_code, unreachable_pub)]

use crate::gguf::{Gguf, Scratch, list, pair, text};

/// What distinguishes one from another.
#[derive(Clone, Copy)]
pub struct Tiny {
    pub architecture: &'static str,
    pub layers: u32,
    /// Positions that layers with a window see; 0 for none.
    pub window: u32,
    pub context: u32,
    pub seed: u64,
    /// What rotary frequencies are divided by.
    pub stretch: Stretch,
}

/// How a file stretches its rotary embedding.
#[derive(Clone, Copy)]
pub enum Stretch {
    None,
    /// By its metadata.
    Linear(f32),
    /// By a factor for each pair.
    Factors(f32),
}

pub const LLAMA: Tiny =
    Tiny { architecture: "llama", layers: 2, window: 0, context: 4096, seed: 1, stretch: Stretch::None };
/// Six layers with a window and one without.
pub const GEMMA3: Tiny =
    Tiny { architecture: "gemma3", layers: 7, window: 24, context: 4096, seed: 2, stretch: Stretch::None };

const WIDTH: u64 = 32;
const FEED_FORWARD: u64 = 64;
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const HEAD: u64 = 16;
/// Letters, a space (as byte-level BPE writes it) and the end of a text.
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,";
/// Each message ends with the end of a text.
const TEMPLATE: &str = "\
{% for message in messages %}
{{ message['role'].upper()[0] + message['content'] + eos_token }}
{%- endfor %}
{% if add_generation_prompt %}A{% endif %}";
pub const END: u32 = 65;
pub const VOCABULARY: u64 = 66;

impl Tiny {
    pub fn file(&self) -> Scratch {
        let mut state = self.seed;
        let mut tensors = Vec::new();
        let mut data: Vec<u8> = Vec::new();
        let mut add = |name: String, axes: &[u64], spread: f32, around: f32| {
            tensors.push((name, axes.to_vec(), 0, data.len() as u64));
            for _ in 0..axes.iter().product::<u64>() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let unit = (state >> 40) as f32 / (1u64 << 24) as f32;
                data.extend((around + spread * (2.0 * unit - 1.0)).to_le_bytes());
            }
            data.resize(data.len().next_multiple_of(32), 0);
        };
        let normed = self.architecture != "llama";
        let gemma = self.architecture == "gemma3";
        add("token_embd.weight".into(), &[WIDTH, VOCABULARY], 0.3, 0.0);
        add("output_norm.weight".into(), &[WIDTH], 0.2, 1.0);
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            for (part, rows) in [("attn_q", HEADS * HEAD), ("attn_k", KV_HEADS * HEAD), ("attn_v", KV_HEADS * HEAD)] {
                add(name(part), &[WIDTH, rows], 0.4, 0.0);
            }
            add(name("attn_output"), &[HEADS * HEAD, WIDTH], 0.3, 0.0);
            add(name("ffn_gate"), &[WIDTH, FEED_FORWARD], 0.4, 0.0);
            add(name("ffn_up"), &[WIDTH, FEED_FORWARD], 0.4, 0.0);
            add(name("ffn_down"), &[FEED_FORWARD, WIDTH], 0.3, 0.0);
            let post = ["post_attention_norm", "post_ffw_norm"].into_iter().filter(|_| gemma);
            for part in ["attn_norm", "ffn_norm"].into_iter().chain(post) {
                add(name(part), &[WIDTH], 0.2, 1.0);
            }
            for part in ["attn_q_norm", "attn_k_norm"].into_iter().filter(|_| normed) {
                add(name(part), &[HEAD], 0.2, 1.0);
            }
        }
        if let Stretch::Factors(factor) = self.stretch {
            add("rope_freqs.weight".into(), &[HEAD / 2], 0.0, factor);
        }
        let a = self.architecture;
        let number = |key: &str, n: u64| pair(&format!("{a}.{key}"), 4, &u32::try_from(n).unwrap().to_le_bytes());
        let words: Vec<String> = LETTERS.chars().map(String::from).chain(["Ġ".into(), "<end>".into()]).collect();
        let kinds: Vec<u8> =
            (0..VOCABULARY).flat_map(|i| if i == u64::from(END) { 3i32 } else { 1 }.to_le_bytes()).collect();
        let words: Vec<u8> = words.iter().flat_map(|w| text(w.as_bytes())).collect();
        let tokenizer = |key: &str, kind: u32, value: &[u8]| pair(&format!("tokenizer.ggml.{key}"), kind, value);
        let linear = |factor: f32| {
            let value = |key: &str, kind, bytes: &[u8]| pair(&format!("{a}.rope.scaling.{key}"), kind, bytes);
            [value("type", 8, &text(b"linear")), value("factor", 6, &factor.to_le_bytes())]
        };
        let stretch = if let Stretch::Linear(factor) = self.stretch { Some(linear(factor)) } else { None };
        let mut file = Gguf {
            pairs: vec![
                pair("general.architecture", 8, &text(a.as_bytes())),
                number("block_count", self.layers.into()),
                number("embedding_length", WIDTH),
                number("feed_forward_length", FEED_FORWARD),
                number("attention.head_count", HEADS),
                number("attention.head_count_kv", KV_HEADS),
                number("attention.key_length", HEAD),
                number("attention.value_length", HEAD),
                number("attention.sliding_window", self.window.into()),
                number("context_length", self.context.into()),
                tokenizer("model", 8, &text(b"gpt2")),
                tokenizer("tokens", 9, &list(8, VOCABULARY, &words)),
                tokenizer("token_type", 9, &list(5, VOCABULARY, &kinds)),
                tokenizer("merges", 9, &list(8, 0, &[])),
                tokenizer("eos_token_id", 4, &END.to_le_bytes()),
                pair("tokenizer.chat_template", 8, &text(TEMPLATE.as_bytes())),
            ],
            tensors,
            data,
            ..Gguf::sound()
        };
        file.pairs.extend(stretch.into_iter().flatten());
        Scratch::new("tiny.gguf", &file.bytes())
    }
}
