//! `tessl generate` as a user meets it.

#[path = "../../tessl-llm/tests/gguf/mod.rs"]
mod gguf;
mod process;
#[path = "../../tessl-llm/tests/tiny/mod.rs"]
mod tiny;

use gguf::Scratch;
use process::{bad, command, good, json, tessl, text};
use std::io::Read;
use std::process::Stdio;

/// A model file, and the arguments that every run begins with.
fn model(tiny: tiny::Tiny) -> (Scratch, String) {
    let file = tiny.file();
    let path = file.0.display().to_string();
    (file, path)
}

#[test]
fn text_goes_to_stdout_and_figures_to_stderr() {
    let (_file, path) = model(tiny::LLAMA);
    let run = tessl(&["generate", "--model", &path, "--prompt", "abc", "--max-tokens", "12"]);
    let (out, err) = (text(&run.stdout), text(&run.stderr));
    assert!(run.status.success(), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    for figure in ["on cpu", "3 prompt tokens", "the first of", "tokens/s", "from 2 graphs"] {
        assert!(err.contains(figure), "{figure}: {err}");
    }
    let told = json(&["generate", "--model", &path, "--prompt", "abc", "--max-tokens", "12", "--json"]);
    assert_eq!(out, format!("{}\n", told["text"].as_str().unwrap()));
    assert_eq!((&told["device"], &told["schema"]), (&"cpu".into(), &1.into()));
    assert_eq!(told["prompt_tokens"], serde_json::json!([0, 1, 2]));
    let tokens = told["tokens"].as_array().unwrap();
    assert!(told["stop"] == "end" && tokens.len() < 12 || told["stop"] == "length" && tokens.len() == 12, "{told}");
    assert!(told["load_seconds"].as_f64().unwrap() > 0.0 && told["first_token_seconds"].as_f64().unwrap() > 0.0);
    assert!(told["tokens_per_second"].as_f64().unwrap() > 0.0);
    let graphs = &told["graphs"];
    assert!(graphs["captures"] == 2 && graphs["fallbacks"] == 0 && graphs["replays"].as_u64().unwrap() > 1, "{told}");
}

#[test]
fn the_seed_decides() {
    let (_file, path) = model(tiny::GEMMA3);
    let run = |more: &[&str]| {
        good(&[&["generate", "--model", &path, "--prompt", "Hello.", "--max-tokens", "40"][..], more].concat())
    };
    let warm = |more: &[&str]| run(&[&["--temperature", "1.3"], more].concat());
    let first = warm(&["--seed", "1"]);
    assert_eq!(first, warm(&["--seed", "1", "--threads", "1"]));
    assert_ne!(first, warm(&["--seed", "2"]));
    assert_ne!(first, warm(&["--seed", "1", "--repetition-penalty", "3"]));
    // One token to choose from is the greedy text.
    let greedy = run(&[]);
    for only in [["--top-k", "1"], ["--top-p", "1e-9"], ["--min-p", "1"]] {
        assert_eq!(warm(&only), greedy, "{only:?}");
    }
}

#[test]
fn a_conversation_and_the_end_of_the_context() {
    let (_file, path) = model(tiny::Tiny { context: 16, ..tiny::LLAMA });
    let told = json(&["generate", "--model", &path, "--prompt", "hi", "--chat", "--json", "--max-tokens", "0"]);
    assert_eq!(told["prompt_tokens"], serde_json::json!([46, 7, 8, tiny::END, 26]));
    assert!(told["tokens"].as_array().unwrap().is_empty() && told["tokens_per_second"].is_null());
    let told = json(&["generate", "--model", &path, "--prompt", "abcdefghij", "--json", "--max-tokens", "1000"]);
    // Sixteen places less ten, and a last token that needs none.
    assert!(told["tokens"].as_array().unwrap().len() <= 7, "{told}");
    let full = json(&["generate", "--model", &path, "--prompt", "abcdefghijklmnop", "--json"]);
    assert!(full["tokens"].as_array().unwrap().len() <= 1, "{full}");
}

#[test]
fn mistakes_are_one_line() {
    let (file, path) = model(tiny::Tiny { context: 8, ..tiny::LLAMA });
    let cut = Scratch::new("cut.gguf", &std::fs::read(&file.0).unwrap()[..20_000]);
    let cut = cut.0.display().to_string();
    for (arguments, hint) in [
        (vec!["--model", &path, "--prompt", ""], "0 tokens"),
        (vec!["--model", &path, "--prompt", "abcdefghijk"], "1 to 8"),
        (vec!["--model", &path], "--prompt"),
        (vec!["--prompt", "a"], "--model"),
        (vec!["--model", "/nowhere.gguf", "--prompt", "a"], "/nowhere.gguf"),
        (vec!["--model", "/", "--prompt", "a"], "not a file"),
        (vec!["--model", &cut, "--prompt", "a"], "truncated"),
        (vec!["--model", &path, "--prompt", "a", "--temperature", "-1"], "temperature"),
        (vec!["--model", &path, "--prompt", "a", "--temperature=-1"], "temperature"),
        (vec!["--model", &path, "--prompt", "a", "--top-p", "2"], "top_p"),
        (vec!["--model", &path, "--prompt", "a", "--min-p", "NaN"], "min_p"),
        (vec!["--model", &path, "--prompt", "a", "--repetition-penalty", "0"], "repetition_penalty"),
        (vec!["--model", &path, "--prompt", "a", "--seed", "x"], "--seed"),
        (vec!["--model", &path, "--prompt", "a<end>", "--chat"], "control token"),
        (vec!["--model", &path, "--prompt", "a", "--device", "tpu"], "cuda"),
    ] {
        let line = bad(2, &[&["generate"][..], &arguments].concat());
        assert!(line.contains(hint), "{arguments:?}: {line}");
    }
    let line = bad(3, &["generate", "--model", &path, "--prompt", "a", "--device", "metal:7"]);
    assert!(line.contains("metal:7"), "{line}");
}

/// Text comes while it is made, and a reader that goes away ends the run without a word.
#[test]
fn streams_and_stops_with_its_reader() {
    let (_file, path) = model(tiny::LLAMA);
    let arguments = [
        "generate",
        "--model",
        &path,
        "--prompt",
        "abc",
        "--max-tokens",
        "4000",
        "--temperature",
        "2",
        "--min-p",
        "0.01",
    ];
    let mut child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut one = [0; 1];
    out.read_exact(&mut one).unwrap();
    let running = child.try_wait().unwrap().is_none();
    drop(out);
    let end = child.wait_with_output().unwrap();
    assert!(end.status.success() && end.stderr.is_empty(), "{}", text(&end.stderr));
    assert!(running, "the first letter came only with the last");
}

#[test]
fn benchmarks_of_models() {
    let (_file, path) = model(tiny::GEMMA3);
    let common = ["--model", &path, "--prompt", "40", "--iters", "6", "--warmup", "1", "--json"];
    for suite in ["decode", "prefill"] {
        let told = json(&[&["bench", suite][..], &common].concat());
        assert_eq!((&told["schema"], &told["suite"], &told["iters"]), (&1.into(), &suite.into(), &6.into()));
        let (median, rate) = (told["median_us"].as_f64().unwrap(), told["tokens_per_second"].as_f64().unwrap());
        let tokens = if suite == "decode" { 1.0 } else { 40.0 };
        assert!((rate * median / 1e6 - tokens).abs() < 1e-6 * tokens, "{told}");
        assert_eq!(told["percent_of_limit"].is_null(), suite == "prefill");
    }
    let told = json(&[&["bench", "decode"][..], &common].concat());
    // Seven layers, the table of 66 tokens, and keys and values: 24 positions of six layers and 44 of the seventh.
    let layer = 32 * (64 + 32 + 32 + 64) + 3 * 32 * 64;
    let bytes = 4 * (7 * layer + 66 * 32 + 2 * 32 * (6 * 24 + 44));
    assert_eq!(told["bytes_per_token"], bytes);
    assert_eq!(told["graphs"]["replays"], 7);
    let line = good(&["bench", "prefill", "--model", &path, "--prompt", "8", "--iters", "1"]);
    assert!(line.contains("device: cpu") && line.contains("tokens/s"), "{line}");
    for (arguments, hint) in [
        (vec!["decode"], "--model"),
        (vec!["decode", "--shape", "llama1b"], "--random-weights"),
        (vec!["decode", "--shape", "llama9b", "--random-weights"], "llama8b"),
        (vec!["decode", "--shape", "gemma3-270m", "--random-weights", "--weights", "q9"], "q4_0"),
        (vec!["decode", "--model", &path, "--shape", "llama1b", "--random-weights"], "cannot be used"),
        (vec!["prefill", "--model", &path, "--iters", "0"], "--iters"),
        (vec!["decode", "--model", &path, "--prompt", "4096"], "4096"),
    ] {
        let line = bad(2, &[&["bench"][..], &arguments].concat());
        assert!(line.contains(hint), "{arguments:?}: {line}");
    }
}
