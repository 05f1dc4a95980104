//! Captured steps against live ones, bit for bit, and what sessions count of them.

mod gguf;
mod models;
mod session;
mod tiny;

use serde_json::Value;
use session::{PROMPT, WARM, continued, model};
use tessl::{Device, GpuRuntime};
use tessl_llm::{Model, Sampling, Session};

fn bits(session: &mut Session<'_>) -> Vec<u32> {
    session.logits().unwrap().iter().map(|x| x.to_bits()).collect()
}

/// Over two thousand steps, the buckets of 256 to 2048 keys, and 86 turns of Gemma's rings.
#[test]
fn two_thousand_replayed_steps_equal_live_ones() {
    const STEPS: usize = 2050;
    for tiny in [tiny::LLAMA, tiny::GEMMA3] {
        let model = model(tiny, 2);
        let (mut live, mut replayed) = (Session::new(&model, 2100).unwrap(), Session::new(&model, 2100).unwrap());
        live.capture(false);
        for session in [&mut live, &mut replayed] {
            session.extend(&PROMPT).unwrap();
        }
        let sampling = Sampling { repetition_penalty: 1.02, ..WARM };
        for step in 0..STEPS {
            let (a, b) = (live.generate(&sampling).unwrap(), replayed.generate(&sampling).unwrap());
            assert_eq!(a, b, "{}: step {step}", tiny.architecture);
        }
        assert_eq!(bits(&mut live), bits(&mut replayed), "{}", tiny.architecture);
        let stats = replayed.graph_stats();
        // The first token is chosen from the logits that are there. Two sides of 256, 512, 1024, 2048 and 2100 keys.
        assert_eq!((stats.captures, stats.replays, stats.fallbacks, stats.evictions), (10, STEPS as u64 - 1, 0, 0));
        assert_eq!(live.graph_stats().replays, 0);
    }
}

/// A chunk goes through a ring by putting it in order, a single token as it lies: both see the last positions.
#[test]
fn a_ring_is_the_window() {
    let model = model(tiny::GEMMA3, 2);
    let tokens: Vec<u32> = (0..700u32).map(|i| i * i % 65).collect();
    let ends = |pieces: &[usize]| {
        let mut session = Session::new(&model, 800).unwrap();
        let mut at = 0;
        for &n in pieces.iter().cycle() {
            let n = n.min(tokens.len() - at);
            session.extend(&tokens[at..at + n]).unwrap();
            at += n;
            if at == tokens.len() {
                break;
            }
        }
        session.logits().unwrap()
    };
    let one_by_one = ends(&[1]);
    for pieces in [&[700][..], &[511], &[24], &[25, 23], &[1, 2, 47], &[5, 1, 100]] {
        let most = ends(pieces).iter().zip(&one_by_one).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most < 1e-3, "{pieces:?}: {most}");
    }
    // A window that is never full needs no ring: the same sums over a contiguous cache with a mask.
    let wide = session::model(tiny::Tiny { window: 800, ..tiny::GEMMA3 }, 2);
    let (mut a, mut b) = (Session::new(&wide, 801).unwrap(), Session::new(&wide, 800).unwrap());
    for session in [&mut a, &mut b] {
        session.extend(&tokens).unwrap();
    }
    let most = a.logits().unwrap().iter().zip(b.logits().unwrap()).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    assert!(most < 1e-3, "{most}");
}

/// What a layer more costs a step: norm to cache, attention, its answer; norm, gate and up, down. The norms of both answers in
/// Gemma are part of the launches behind them.
#[test]
fn a_layer_is_six_launches() {
    for tiny in [tiny::LLAMA, tiny::GEMMA3] {
        let launches = |layers: u32| {
            let model = model(tiny::Tiny { layers, ..tiny }, 1);
            let mut session = Session::new(&model, 64).unwrap();
            session.extend(&PROMPT).unwrap();
            session.generate(&Sampling::GREEDY).unwrap();
            let before = model.runtime().dispatch_count();
            session.generate(&Sampling::GREEDY).unwrap();
            model.runtime().dispatch_count() - before
        };
        assert_eq!(launches(tiny.layers + 1) - launches(tiny.layers), 6, "{}", tiny.architecture);
    }
}

/// Ways to choose that alternate are captured once each; so are new numbers for the same way.
#[test]
fn alternating_forms_are_not_captured_again() {
    let model = model(tiny::LLAMA, 1);
    let mut session = Session::new(&model, 1100).unwrap();
    session.extend(&PROMPT).unwrap();
    let ways = [Sampling::GREEDY, WARM, Sampling { temperature: 0.7, seed: 3, ..WARM }];
    for turn in 0..200 {
        session.generate(&ways[turn % 3]).unwrap();
    }
    let early = session.graph_stats();
    assert_eq!((early.captures, early.replays), (4, 199));
    session.clear().unwrap();
    session.extend(&PROMPT).unwrap();
    for turn in 0..1000 {
        session.generate(&ways[turn % 3]).unwrap();
    }
    let stats = session.graph_stats();
    // Buckets of 256, 512 and 1024 keys, two sides, drawn or the largest.
    assert_eq!((stats.captures, stats.replays, stats.evictions), (3 * 4, 199 + 999, 0));
}

/// Steps that are queued before their token is read change nothing about the tokens, whatever comes in between.
#[test]
fn running_ahead_gives_the_same_tokens() {
    for tiny in [tiny::LLAMA, tiny::GEMMA3] {
        let model = model(tiny, 2);
        let run = |ahead: bool, captures: bool| {
            let mut session = Session::new(&model, 90).unwrap();
            session.run_ahead(ahead);
            session.capture(captures);
            let penalised = Sampling { repetition_penalty: 2.0, ..WARM };
            session.extend(&PROMPT).unwrap();
            let mut tokens = continued(&mut session, &WARM, 12);
            tokens.extend(continued(&mut session, &penalised, 8));
            tokens.extend(continued(&mut session, &Sampling { seed: 1, ..penalised }, 3));
            session.extend(&[4, 5]).unwrap();
            tokens.extend(continued(&mut session, &penalised, 10));
            tokens.push(session.best().unwrap());
            tokens.extend(continued(&mut session, &penalised, 10));
            let logits = bits(&mut session);
            session.clear().unwrap();
            session.extend(&PROMPT).unwrap();
            // To the last token there is room for, and one beyond.
            tokens.extend(continued(&mut session, &penalised, 86));
            assert!(session.generate(&penalised).is_err());
            (tokens, logits)
        };
        let want = run(false, false);
        for (ahead, captures) in [(false, true), (true, false), (true, true)] {
            assert_eq!(run(ahead, captures), want, "{}: ahead {ahead}, captures {captures}", tiny.architecture);
        }
    }
}

/// The tokens of the f64 reference, by replay.
#[test]
fn smollm2_by_replay() {
    let Some(file) = models::open(models::SMOLLM2) else { return };
    let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
    let model = Model::load(&rt, &file).unwrap();
    let mut session = Session::new(&model, 64).unwrap();
    let ids = |list: &Value| -> Vec<u32> {
        list.as_array().unwrap().iter().map(|v| u32::try_from(v.as_u64().unwrap()).unwrap()).collect()
    };
    let reference = models::reference();
    let rows = reference["models"][models::SMOLLM2]["rows"].as_array().unwrap();
    for row in rows {
        session.clear().unwrap();
        session.extend(&ids(&row["prompt_tokens"])).unwrap();
        let wanted = ids(&row["greedy_tokens"]);
        assert_eq!(continued(&mut session, &Sampling::GREEDY, wanted.len()), wanted, "{}", row["prompt"]);
    }
    let stats = session.graph_stats();
    assert_eq!((stats.captures, stats.replays, stats.fallbacks), (2, rows.len() as u64 * 23, 0));
}
