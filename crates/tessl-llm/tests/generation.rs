//! What real models compute, against an f64 reference of the same weights (reference.json, made by
//! scripts/reference_logits.py), and against llama.cpp on the same files (golden-tokens.json).

mod models;

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::cell::Cell;
use tessl::{DType, Device, GpuRuntime};
use tessl_llm::{LoadOptions, Model, Session};

/// How far from another implementation results may be.
struct Tolerance {
    /// Of each of the ten largest logits of the first step.
    logit: f64,
    /// Tokens are equal up to the first step at which the two best logits are closer than this.
    margin: f64,
    /// Of -ln p of one token of a text, and of their mean.
    nll: f64,
    mean_nll: f64,
}

/// Sums of f32 in another order than those of the reference.
const REFERENCE: Tolerance = Tolerance { logit: 5e-4, margin: 4e-3, nll: 5e-4, mean_nll: 1e-4 };
/// llama.cpp quantises activations to 8 bits, tessl keeps them: the f64 reference is as far from llama.cpp as tessl is, to
/// four digits. That rounding alone takes the mean difference of Gemma's logits beyond the 0.15 that golden-tokens.json
/// states, and makes SmolLM2 take another token at a margin of 0.33; what is here of its tolerance holds.
const LLAMA_CPP: Tolerance = Tolerance { logit: 0.5, margin: 0.35, nll: 0.6, mean_nll: 0.02 };

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|v| u32::try_from(v.as_u64().unwrap()).unwrap()).collect()
}

fn floats(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn follows(session: &mut Session<'_>, name: &str, golden: &Value, t: &Tolerance) {
    for row in golden["rows"].as_array().unwrap() {
        let prompt = row["prompt"].as_str().unwrap();
        session.clear().unwrap();
        session.extend(&ids(&row["prompt_tokens"])).unwrap();
        let logits = session.logits().unwrap();
        let off = |v: &Value| {
            let id = usize::try_from(v["id"].as_u64().unwrap()).unwrap();
            (f64::from(logits[id]) - v["logit"].as_f64().unwrap()).abs()
        };
        let most = row["first_step_top10"].as_array().unwrap().iter().map(off).fold(0.0, f64::max);
        println!("{name}: {prompt:?}: logits within {most:.5}");
        assert!(most <= t.logit, "{prompt:?}: {most}");
        let wanted = ids(&row["greedy_tokens"]);
        let count = floats(&row["top1_minus_top2"]).iter().take_while(|m| **m >= t.margin).count();
        let mut got = Vec::new();
        for _ in 0..count {
            let next = session.best().unwrap();
            got.push(next);
            session.extend(&[next]).unwrap();
        }
        assert_eq!(got, wanted[..count], "{prompt:?}");
    }
    let forced = &golden["teacher_forced"];
    session.clear().unwrap();
    let nll = session.score(&ids(&forced["tokens"])).unwrap();
    let mean = nll.iter().map(|&x| f64::from(x)).sum::<f64>() / nll.len() as f64;
    let wanted = forced["mean_nll"].as_f64().unwrap();
    let each = floats(&forced["nll"]);
    assert_eq!(each.len(), nll.len());
    let off: Vec<f64> = nll.iter().zip(&each).map(|(x, wanted)| (f64::from(*x) - wanted).abs()).collect();
    let most = off.iter().copied().fold(0.0, f64::max);
    println!("{name}: -ln p within {most:.5}, mean {mean:.6} and {wanted:.6}");
    assert!(most <= t.nll, "{off:?}");
    assert!((mean - wanted).abs() <= t.mean_nll, "{mean} and {wanted}");
}

fn agrees(name: &str) {
    let Some(file) = models::open(name) else { return };
    let reference = &models::reference()["models"][name];
    let digest = Sha256::digest(std::fs::read(file.path()).unwrap());
    let digest: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(digest, reference["sha256"].as_str().unwrap(), "{} is another file", file.path().display());
    let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
    let model = Model::load(&rt, &file).unwrap();
    let mut session = Session::new(&model, 256).unwrap();
    follows(&mut session, name, reference, &REFERENCE);
    follows(&mut session, name, &models::golden()["models"][name], &LLAMA_CPP);
}

#[test]
fn smollm2() {
    agrees(models::SMOLLM2);
}

#[test]
fn gemma3() {
    agrees(models::GEMMA3);
}

/// All bytes are told of. With activations of three digits, results are as near to llama.cpp as those of its own 8 bits.
fn agrees_in_bf16(name: &str) {
    let Some(file) = models::open(name) else { return };
    let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
    let options = LoadOptions { activations: Some(DType::Bf16) };
    let read = Cell::new(0);
    let model = Model::load_with(&rt, &file, options, &|bytes| read.set(read.get() + bytes)).unwrap();
    assert_eq!(read.get(), file.bytes(), "{name}");
    let mut session = Session::new(&model, 256).unwrap();
    follows(&mut session, name, &models::golden()["models"][name], &LLAMA_CPP);
    let integers = LoadOptions { activations: Some(DType::I32) };
    assert!(Model::load_with(&rt, &file, integers, &|_| ()).is_err());
}

#[test]
fn smollm2_in_bf16() {
    agrees_in_bf16(models::SMOLLM2);
}

#[test]
fn gemma3_in_bf16() {
    agrees_in_bf16(models::GEMMA3);
}

/// A prompt taken in at once, in pieces and token by token ends in the same place.
#[test]
fn smollm2_in_pieces() {
    let Some(file) = models::open(models::SMOLLM2) else { return };
    let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
    let model = Model::load(&rt, &file).unwrap();
    let tokens = model.tokenizer().encode("One two three four five six seven eight nine ten eleven").unwrap();
    let run = |pieces: usize| {
        let mut session = Session::new(&model, 64).unwrap();
        tokens.chunks(pieces).for_each(|piece| session.extend(piece).unwrap());
        assert_eq!(session.position(), tokens.len());
        (session.best().unwrap(), session.logits().unwrap())
    };
    let (next, logits) = run(tokens.len());
    for pieces in [1, 3, 5] {
        let (other, near) = run(pieces);
        assert_eq!(other, next, "pieces of {pieces}");
        let most = logits.iter().zip(&near).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most < 1e-3, "pieces of {pieces}: {most}");
    }
    let mut session = Session::new(&model, 4).unwrap();
    for bad in [&[][..], &[u32::MAX], &[1; 5]] {
        assert!(session.extend(bad).is_err());
        assert_eq!(session.position(), 0);
    }
    session.extend(&[1, 2, 3, 4]).unwrap();
    assert!(session.extend(&[5]).is_err());
    assert!(Session::new(&model, 0).is_err() && Session::new(&model, 1 << 20).is_err());
}
