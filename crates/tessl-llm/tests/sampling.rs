//! Tokens that are drawn, and the sequence that they become part of.

mod gguf;
mod session;
mod tiny;

use session::{PROMPT, WARM, continued, model};
use tessl_llm::{Message, Sampling, Session};

#[test]
fn the_same_seed_gives_the_same_tokens() {
    for tiny in [tiny::LLAMA, tiny::GEMMA3] {
        let mut all = Vec::new();
        for threads in [1, 2, 3] {
            let model = model(tiny, threads);
            let mut session = Session::new(&model, 200).unwrap();
            for sampling in [WARM, Sampling { repetition_penalty: 1.3, ..WARM }, Sampling { seed: 8, ..WARM }] {
                session.clear().unwrap();
                session.extend(&PROMPT).unwrap();
                all.push(continued(&mut session, &sampling, 60));
            }
        }
        assert_eq!(all[..3], all[3..6], "{}: 1 and 2 threads", tiny.architecture);
        assert_eq!(all[..3], all[6..], "{}: 1 and 3 threads", tiny.architecture);
        assert!(all[0] != all[1] && all[0] != all[2], "{}: penalty and seed count", tiny.architecture);
        let distinct = all[0].iter().collect::<std::collections::BTreeSet<_>>().len();
        assert!(distinct > 10, "{}: {distinct} different tokens", tiny.architecture);
    }
}

/// Tokens are those that the definition of `Sample` gives from the logits of a session that was told them one by one.
#[test]
fn drawn_as_the_operation_draws() {
    let model = model(tiny::LLAMA, 2);
    let rt = model.runtime().clone();
    let sampling = Sampling { repetition_penalty: 1.2, ..WARM };
    let (mut a, mut b) = (Session::new(&model, 64).unwrap(), Session::new(&model, 64).unwrap());
    a.extend(&PROMPT).unwrap();
    let mut tokens = PROMPT.to_vec();
    for _ in 0..30 {
        b.clear().unwrap();
        tokens.iter().for_each(|&t| b.extend(&[t]).unwrap());
        let logits = rt.from_slice(&b.logits().unwrap(), &[1, 66]).unwrap();
        let previous = rt.from_slice(&tokens, &[1, tokens.len()]).unwrap();
        let token = rt.from_slice(&[0u32], &[1]).unwrap();
        tessl::nn::Sample::new(&logits, &token)
            .repetition_penalty(1.2, &previous)
            .temperature(1.5)
            .top_k(40)
            .top_p(0.98)
            .min_p(0.001)
            .seed(7)
            .position(u32::try_from(tokens.len()).unwrap())
            .run()
            .unwrap();
        tokens.push(a.generate(&sampling).unwrap());
        assert_eq!(token.read::<u32>().unwrap(), tokens[tokens.len() - 1..], "token {}", tokens.len());
        assert_eq!(a.position(), tokens.len());
    }
}

#[test]
fn generated_tokens_are_part_of_the_sequence() {
    let model = model(tiny::GEMMA3, 2);
    let (mut a, mut b) = (Session::new(&model, 40).unwrap(), Session::new(&model, 40).unwrap());
    a.extend(&PROMPT).unwrap();
    let answer = continued(&mut a, &Sampling::GREEDY, 6);
    b.extend(&PROMPT).unwrap();
    for &token in &answer {
        assert_eq!(b.best().unwrap(), token);
        b.extend(&[token]).unwrap();
    }
    // Whatever comes next finds the last token taken in.
    assert_eq!(a.logits().unwrap(), b.logits().unwrap());
    let next = a.generate(&Sampling::GREEDY).unwrap();
    assert_eq!((b.best().unwrap(), a.position()), (next, PROMPT.len() + 7));
    a.extend(&[1, 2, 3]).unwrap();
    [next, 1, 2, 3].iter().for_each(|&t| b.extend(&[t]).unwrap());
    let most = a.logits().unwrap().iter().zip(b.logits().unwrap()).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    assert!(most < 1e-4, "{most}");
    assert_eq!(a.position(), b.position());
    // What penalties look at is the sequence, and nothing that was there before it was cleared.
    let penalised = Sampling { repetition_penalty: 5.0, ..Sampling::GREEDY };
    a.clear().unwrap();
    let mut fresh = Session::new(&model, 40).unwrap();
    a.extend(&PROMPT).unwrap();
    fresh.extend(&PROMPT).unwrap();
    assert_eq!(continued(&mut a, &penalised, 20), continued(&mut fresh, &penalised, 20));
}

#[test]
fn full_and_empty_sequences_say_so() {
    let model = model(tiny::LLAMA, 1);
    let mut session = Session::new(&model, 8).unwrap();
    assert!(session.generate(&Sampling::GREEDY).unwrap_err().to_string().contains("0 tokens"));
    session.extend(&PROMPT).unwrap();
    for bad in [
        Sampling { temperature: -1.0, ..WARM },
        Sampling { temperature: f32::NAN, ..WARM },
        Sampling { top_p: 0.0, ..WARM },
        Sampling { min_p: 1.5, ..WARM },
        Sampling { repetition_penalty: 0.0, ..WARM },
    ] {
        assert!(session.generate(&bad).is_err(), "{bad:?}");
        assert_eq!(session.position(), PROMPT.len());
    }
    // Three slots, and a fourth token that needs none.
    assert_eq!(continued(&mut session, &WARM, 4).len(), 4);
    assert!(session.generate(&WARM).unwrap_err().to_string().contains("room for 8"));
    assert!(session.logits().is_err() && session.extend(&[1]).is_err());
    session.clear().unwrap();
    session.extend(&PROMPT).unwrap();
    assert_eq!(session.score(&[1, 2]).unwrap().len(), 1);
    session.generate(&Sampling::GREEDY).unwrap();
}

#[test]
fn conversations_follow_the_template() {
    let model = model(tiny::LLAMA, 1);
    let tokenizer = model.tokenizer();
    assert!(tokenizer.has_template());
    let ids = tokenizer.encode_chat(&[Message::user("hi")]).unwrap();
    assert_eq!(ids, [46, 7, 8, tiny::END, 26]);
    let error = tokenizer.encode_chat(&[Message::user("hi<end>")]).unwrap_err().to_string();
    assert!(error.contains("control token"), "{error}");
}
