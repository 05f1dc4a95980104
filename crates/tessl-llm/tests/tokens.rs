//! Tokens of real models against those that llama.cpp made (golden-tokens.json).

mod models;

use serde_json::Value;
use tessl_llm::{TokenStream, Tokenizer};

fn numbers(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|v| u32::try_from(v.as_u64().unwrap()).unwrap()).collect()
}

fn tokens_are_those_of_the_reference(name: &str) {
    let Some(file) = models::open(name) else { return };
    let tokenizer = Tokenizer::from_file(&file).unwrap();
    let golden = &models::golden()["models"][name];
    for row in golden["rows"].as_array().unwrap() {
        let prompt = row["prompt"].as_str().unwrap();
        let ids = numbers(&row["prompt_tokens"]);
        assert_eq!(tokenizer.encode(prompt).unwrap(), ids, "{prompt:?}");
        assert_eq!(tokenizer.decode(&ids).unwrap(), prompt);
        let (greedy, text) = (numbers(&row["greedy_tokens"]), row["greedy_text"].as_str().unwrap());
        assert_eq!(tokenizer.decode(&greedy).unwrap(), text);
        let mut stream = TokenStream::new(&tokenizer);
        let pieces: String = greedy.iter().map(|&id| stream.push(id).unwrap()).collect();
        assert_eq!(pieces + &stream.finish().unwrap(), text);
    }
    let forced = &golden["teacher_forced"];
    assert_eq!(tokenizer.encode(forced["text"].as_str().unwrap()).unwrap(), numbers(&forced["tokens"]));
}

/// Texts that are easy to get wrong come back as they were, also piece by piece.
fn any_text_comes_back(name: &str) {
    let texts = [
        "",
        " ",
        "  two  spaces ",
        "\n\n\ttabs\r\n",
        "Zürich, 東京, Δx ≥ 3.14159",
        "👩‍👩‍👧 family",
        "a\u{0}b",
        "1234567890",
        "x\u{2581}y",
        "<|im_end|> <eos> <bos> </s>",
        "don't can't I'LL",
        "\u{301}combining",
    ];
    let Some(file) = models::open(name) else { return };
    let tokenizer = Tokenizer::from_file(&file).unwrap();
    for text in texts {
        let ids = tokenizer.encode(text).unwrap();
        let ids = if tokenizer.begin().is_some() { &ids[1..] } else { &ids[..] };
        assert!(!ids.iter().any(|id| tokenizer.end().contains(id)), "{name}: {text:?} ends a turn: {ids:?}");
        // SentencePiece cannot tell its mark of a space from a space.
        let expected = if name == models::GEMMA3 { text.replace('\u{2581}', " ") } else { text.to_owned() };
        assert_eq!(tokenizer.decode(ids).unwrap(), expected, "{name}: {ids:?}");
        let mut stream = TokenStream::new(&tokenizer);
        let pieces: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        assert_eq!(pieces + &stream.finish().unwrap(), expected, "{name}: {ids:?}");
    }
    let outside = u32::try_from(tokenizer.vocabulary()).unwrap();
    assert!(tokenizer.decode(&[outside]).is_err());
    let mut stream = TokenStream::new(&tokenizer);
    assert!(stream.push(outside).is_err() && stream.push(u32::MAX).is_err());
}

#[test]
fn smollm2() {
    tokens_are_those_of_the_reference(models::SMOLLM2);
    any_text_comes_back(models::SMOLLM2);
}

#[test]
fn gemma3() {
    tokens_are_those_of_the_reference(models::GEMMA3);
    any_text_comes_back(models::GEMMA3);
}

#[test]
fn control_tokens_count_in_templates_only() {
    let Some(file) = models::open(models::SMOLLM2) else { return };
    let tokenizer = Tokenizer::from_file(&file).unwrap();
    let end = tokenizer.end().to_vec();
    assert!(tokenizer.encode_template("hi<|im_end|>").unwrap().iter().any(|id| end.contains(id)));
    assert!(!tokenizer.encode("hi<|im_end|>").unwrap().iter().any(|id| end.contains(id)));
}
