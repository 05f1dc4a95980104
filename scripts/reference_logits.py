#!/usr/bin/env python3
"""What the models of tests compute in f64: the weights of a GGUF file dequantised, and every step written out in numpy.

    pip install gguf numpy
    python3 scripts/reference_logits.py GOLDEN FOLDER > crates/tessl-llm/tests/reference.json

GOLDEN names the prompts and the teacher-forced text as tokens (crates/tessl-llm/tests/golden-tokens.json), FOLDER holds the
GGUF files (`cargo xtask models`). For each model: the ten largest logits after each prompt, greedy tokens with the distance
between the two best logits, -ln p of each token of the text, and the digest of the file.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize

GREEDY = 24
TOP = 10
LOCAL_BASE = 10_000.0  # rotary base of Gemma 3's layers with a window
PATTERN = 6  # of so many layers of Gemma 3, the last one sees everything


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


class Model:
    def __init__(self, path):
        reader = GGUFReader(path)
        values = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer")}
        self.gemma = values["general.architecture"] == "gemma3"
        key = values["general.architecture"] + "."
        self.layers = values[key + "block_count"]
        self.heads, self.kv_heads = values[key + "attention.head_count"], values[key + "attention.head_count_kv"]
        self.width = values[key + "embedding_length"]
        self.head = values.get(key + "attention.key_length", self.width // self.heads)
        self.eps = values[key + "attention.layer_norm_rms_epsilon"]
        self.base = values[key + "rope.freq_base"]
        self.window = values.get(key + "attention.sliding_window")
        self.weights = {
            t.name.removesuffix(".weight"): dequantize(t.data, t.tensor_type)
            .astype(np.float64)
            .reshape([int(n) for n in t.shape][::-1])
            for t in reader.tensors
        }

    def is_local(self, layer):
        return self.gemma and (layer + 1) % PATTERN != 0

    def rope(self, x, positions, base):
        """x [T, H, D]. Llama files pair neighbours, Gemma pairs the halves of a head."""
        half = self.head // 2
        angles = positions[:, None] * base ** (-2 * np.arange(half) / self.head)
        c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = (slice(0, half), slice(half, None)) if self.gemma else (slice(0, None, 2), slice(1, None, 2))
        a, b = x[..., first], x[..., second]
        out = np.empty_like(x)
        out[..., first], out[..., second] = a * c - b * s, b * c + a * s
        return out

    def attention(self, layer, x, positions, cache):
        w = lambda name: self.weights[f"blk.{layer}.{name}"]
        local = self.is_local(layer)
        q, k, v = (
            (x @ w(name).T).reshape(len(x), heads, self.head)
            for name, heads in [("attn_q", self.heads), ("attn_k", self.kv_heads), ("attn_v", self.kv_heads)]
        )
        if self.gemma:
            q, k = rms_norm(q, w("attn_q_norm"), self.eps), rms_norm(k, w("attn_k_norm"), self.eps)
        base = LOCAL_BASE if local else self.base
        q, k = self.rope(q, positions, base), self.rope(k, positions, base)
        if layer in cache:
            k, v = (np.concatenate(pair) for pair in zip(cache[layer], (k, v)))
        cache[layer] = (k, v)
        keys = np.arange(len(k))
        k, v = (np.repeat(t, self.heads // self.kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.head)
        seen = keys <= positions[:, None]
        if local:
            seen &= keys > positions[:, None] - self.window
        p = np.exp(log_softmax(np.where(seen, scores, -np.inf)))
        return np.einsum("hqk,khd->qhd", p, v).reshape(len(x), -1) @ w("attn_output").T

    def feed_forward(self, layer, x):
        w = lambda name: self.weights[f"blk.{layer}.{name}"]
        act = gelu_tanh if self.gemma else silu
        return (act(x @ w("ffn_gate").T) * (x @ w("ffn_up").T)) @ w("ffn_down").T

    def logits(self, tokens, cache):
        """Logits [T, vocabulary] of tokens that follow those in `cache`, which takes them in."""
        past = len(cache[0][0]) if cache else 0
        positions = past + np.arange(len(tokens))
        x = self.weights["token_embd"][tokens] * (np.sqrt(self.width) if self.gemma else 1.0)
        for layer in range(self.layers):
            w = lambda name: self.weights[f"blk.{layer}.{name}"]
            after = lambda name, y: rms_norm(y, w(name), self.eps) if self.gemma else y
            y = self.attention(layer, rms_norm(x, w("attn_norm"), self.eps), positions, cache)
            x = x + after("post_attention_norm", y)
            y = self.feed_forward(layer, rms_norm(x, w("ffn_norm"), self.eps))
            x = x + after("post_ffw_norm", y)
        x = rms_norm(x, self.weights["output_norm"], self.eps)
        return x @ self.weights.get("output", self.weights["token_embd"]).T


def continued(model, prompt, prompt_tokens):
    cache, tokens, margins = {}, [], []
    last = first = model.logits(prompt_tokens, cache)[-1]
    for _ in range(GREEDY):
        second, best = np.argsort(last)[-2:]
        tokens.append(int(best))
        margins.append(round(float(last[best] - last[second]), 5))
        last = model.logits([best], cache)[-1]
    top = [{"id": int(i), "logit": round(float(first[i]), 5)} for i in np.argsort(-first)[:TOP]]
    return {
        "prompt": prompt,
        "prompt_tokens": prompt_tokens,
        "first_step_top10": top,
        "greedy_tokens": tokens,
        "top1_minus_top2": margins,
    }


def reference(path, golden):
    model = Model(path)
    rows = [continued(model, row["prompt"], row["prompt_tokens"]) for row in golden["rows"]]
    tokens = golden["teacher_forced"]["tokens"]
    likely = log_softmax(model.logits(tokens, {})[:-1])
    nll = -likely[np.arange(len(tokens) - 1), tokens[1:]]
    return {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "rows": rows,
        "teacher_forced": {
            "tokens": tokens,
            "nll": [round(float(x), 5) for x in nll],
            "mean_nll": round(float(nll.mean()), 6),
        },
    }


def main():
    if len(sys.argv) != 3:
        raise SystemExit("usage: reference_logits.py GOLDEN FOLDER")
    golden, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    models = {name: reference(folder / f"{name}.gguf", rows) for name, rows in golden["models"].items()}
    made_with = "scripts/reference_logits.py: f64, weights dequantised by the gguf package"
    json.dump({"made_with": made_with, "models": models}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
