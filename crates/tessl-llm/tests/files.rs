//! Model files, sound and damaged.

mod gguf;

use gguf::{Gguf, Scratch, list, pair, text};
use proptest::prelude::*;
use tessl_llm::file::{Element, Value};
use tessl_llm::{LlmError, Tokenizer, WeightFile};

/// The error of opening these bytes, which has to name the file and be one line.
fn refused(name: &str, bytes: &[u8]) -> String {
    let file = Scratch::new(name, bytes);
    let error = WeightFile::open(&file.0).expect_err(name).to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn a_sound_file_says_what_is_in_it() {
    let file = Scratch::new("sound.gguf", &Gguf::sound().bytes());
    let file = WeightFile::open(&file.0).unwrap();
    let value = |key: &str| file.value(key).unwrap();
    assert_eq!(value("general.architecture").as_str(), Some("llama"));
    assert_eq!(value("a.u8").as_u64(), Some(200));
    assert_eq!((value("a.i16").as_u64(), value("a.i16").as_f64()), (None, Some(-7.0)));
    assert_eq!((value("a.f64").as_f64(), value("a.bool").as_bool()), (Some(0.5), Some(true)));
    assert_eq!(value("a.words").as_texts().unwrap(), ["Zürich", ""]);
    assert_eq!(value("a.ints"), &Value::Integers(vec![1, -1]));
    assert!(file.value("a").is_none() && file.metadata().count() == 7);
    let (w, q) = (file.tensor("w").unwrap(), file.tensor("q").unwrap());
    assert_eq!((w.shape.as_slice(), w.element, w.bytes), (&[2, 2][..], Element::F32, 16));
    assert_eq!((q.shape.as_slice(), q.element, q.bytes), (&[1, 32][..], Element::Q8_0, 34));
    let mut bytes = [0; 8];
    file.read(w, 4, &mut bytes).unwrap();
    assert_eq!(bytes, [(-2.0f32).to_le_bytes(), 0.25f32.to_le_bytes()].concat()[..]);
    file.read(q, 30, &mut bytes[..4]).unwrap();
    assert_eq!(bytes[..4], [30, 31, 32, 33]);
    assert!(file.read(q, 31, &mut bytes[..4]).is_err() && file.read(q, u64::MAX, &mut bytes).is_err());
}

#[test]
fn damage_is_told() {
    let sound = Gguf::sound();
    let with = |change: &dyn Fn(&mut Gguf)| {
        let mut file = sound.clone();
        change(&mut file);
        file.bytes()
    };
    let q = |f: &mut Gguf, axes: Vec<u64>, kind, offset| f.tensors[1] = ("q".into(), axes, kind, offset);
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", Vec::new(), "too short"),
        ("foreign", b"PK\x03\x04 some archive, not a model".to_vec(), "neither a GGUF nor a safetensors"),
        ("version 1", with(&|f| f.version = 1), "version 1 is not supported"),
        ("version 9", with(&|f| f.version = 9), "version 9 is not supported"),
        ("big endian", with(&|f| f.version = 3u32.swap_bytes()), "big-endian"),
        ("many pairs", with(&|f| f.pair_count = Some(u64::MAX)), "do not fit"),
        ("many tensors", with(&|f| f.tensor_count = Some(1 << 40)), "do not fit"),
        ("one pair more", with(&|f| f.pair_count = Some(8)), "bytes"),
        ("pair twice", with(&|f| f.pairs.push(pair("a.u8", 0, &[1]))), "appears twice"),
        ("no truth", with(&|f| f.pairs.push(pair("b", 7, &[2]))), "no truth value"),
        ("type", with(&|f| f.pairs.push(pair("b", 13, &[2]))), "unknown type 13"),
        ("nested", with(&|f| f.pairs.push(pair("b", 9, &list(9, 1, &[0; 32])))), "array of arrays"),
        ("long text", with(&|f| f.pairs.push(pair("b", 8, &(u64::MAX - 4).to_le_bytes()))), "left"),
        ("long list", with(&|f| f.pairs.push(pair("b", 9, &list(10, 1 << 61, &[0; 8])))), "do not fit"),
        ("not utf-8", with(&|f| f.pairs.push(pair("b", 8, &text(&[0xff, 0xfe])))), "not UTF-8"),
        ("alignment", with(&|f| f.pairs.push(pair("general.alignment", 4, &12u32.to_le_bytes()))), "power of two"),
        ("alignment 0", with(&|f| f.pairs.push(pair("general.alignment", 4, &[0; 4]))), "power of two"),
        ("tensor twice", with(&|f| f.tensors[1].0 = "w".into()), "appears twice"),
        ("axes", with(&|f| q(f, vec![1; 5], 0, 32)), "5 axes"),
        ("form", with(&|f| q(f, vec![32, 1], 4, 32)), "storage form 4"),
        ("blocks", with(&|f| q(f, vec![33, 1], 8, 32)), "blocks of 32"),
        ("overflow", with(&|f| q(f, vec![1 << 40, 1 << 40], 0, 32)), "cannot be"),
        ("unaligned", with(&|f| q(f, vec![32, 1], 8, 33)), "not aligned"),
        ("outside", with(&|f| q(f, vec![32, 1], 8, 64)), "truncated or damaged"),
        ("far outside", with(&|f| q(f, vec![32, 1], 8, u64::MAX - 31)), "truncated or damaged"),
        ("overlap", with(&|f| q(f, vec![32, 1], 8, 0)), "overlap"),
    ];
    for (name, bytes, expected) in &cases {
        let error = refused(name, bytes);
        assert!(error.contains(expected), "{name}: {error}");
    }
    let whole = sound.bytes();
    for length in 0..whole.len() {
        refused("cut", &whole[..length]);
    }
    let folder = WeightFile::open(env!("CARGO_TARGET_TMPDIR")).unwrap_err().to_string();
    assert!(folder.contains("not a file"), "{folder}");
    assert!(matches!(WeightFile::open("/nowhere/model.gguf"), Err(LlmError::Io { .. })));
}

#[test]
fn safetensors_files_are_read_and_checked() {
    let file =
        |head: &str, data: usize| [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &vec![7; data]].concat();
    let head = r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"i":{"dtype":"I64","shape":[1],"data_offsets":[12,20]}}"#;
    let sound = Scratch::new("sound.safetensors", &file(head, 20));
    let sound = WeightFile::open(&sound.0).unwrap();
    let w = sound.tensor("w").unwrap();
    assert_eq!((w.shape.as_slice(), w.element, w.bytes), (&[2, 3][..], Element::Bf16, 12));
    assert!(matches!(sound.tensor("i").unwrap().element, Element::Other { .. }));
    assert_eq!(sound.value("format").unwrap().as_str(), Some("pt"));
    for (name, bytes) in [
        ("cut.safetensors", file(head, 19)),
        ("no json.safetensors", file("{", 0)),
        ("shape.safetensors", file(&head.replace("[2,3]", "[2,4]"), 20)),
        ("order.safetensors", file(&head.replace("[0,12]", "[12,0]"), 20)),
        ("huge.safetensors", [&u64::MAX.to_le_bytes()[..], b"{}"].concat()),
    ] {
        refused(name, &bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Bytes that were changed anywhere in the head give an error or a file, never a panic.
    #[test]
    fn any_damage_is_survived(changes in prop::collection::vec((0usize..600, any::<u8>()), 1..6)) {
        let mut bytes = Gguf::sound().bytes();
        for (at, byte) in changes {
            let length = bytes.len();
            bytes[at % length] = byte;
        }
        let file = Scratch::new("damaged.gguf", &bytes);
        if let Ok(file) = WeightFile::open(&file.0) {
            for tensor in file.tensors() {
                let mut whole = vec![0; usize::try_from(tensor.bytes).unwrap()];
                file.read(tensor, 0, &mut whole).unwrap();
            }
            let _ = Tokenizer::from_file(&file);
        }
    }
}

#[test]
fn vocabularies_that_contradict_themselves_are_refused() {
    let words = |words: &[&str]| {
        list(8, words.len() as u64, &words.iter().flat_map(|w| text(w.as_bytes())).collect::<Vec<_>>())
    };
    let floats = |n: u64| list(6, n, &vec![0; 4 * usize::try_from(n).unwrap()]);
    let open = |pairs: Vec<Vec<u8>>| {
        let file = Gguf { pairs, ..Gguf::sound() };
        let file = Scratch::new("vocabulary.gguf", &file.bytes());
        Tokenizer::from_file(&WeightFile::open(&file.0).unwrap())
    };
    let key = |name: &str, kind: u32, value: &[u8]| pair(&format!("tokenizer.ggml.{name}"), kind, value);
    let model = |name: &str| key("model", 8, &text(name.as_bytes()));
    let tokens = key("tokens", 9, &words(&["a", "b", "ab"]));
    let merges = key("merges", 9, &words(&["a b"]));
    let good = open(vec![model("gpt2"), tokens.clone(), merges.clone()]).unwrap();
    assert_eq!(good.encode("abba").unwrap(), [2, 1, 0]);
    for (what, pairs) in [
        ("no vocabulary", vec![model("gpt2")]),
        ("kind", vec![model("t5"), tokens.clone()]),
        ("no kind", vec![tokens.clone()]),
        ("no merges", vec![model("gpt2"), tokens.clone()]),
        ("half a merge", vec![model("gpt2"), tokens.clone(), key("merges", 9, &words(&["ab"]))]),
        ("foreign merge", vec![model("gpt2"), tokens.clone(), key("merges", 9, &words(&["a x"]))]),
        ("twice", vec![model("gpt2"), key("tokens", 9, &words(&["a", "a"])), merges.clone()]),
        ("types", vec![model("gpt2"), tokens.clone(), merges.clone(), key("token_type", 9, &list(5, 1, &[0; 4]))]),
        ("pattern", vec![model("gpt2"), tokens.clone(), merges.clone(), key("pre", 8, &text(b"unheard-of"))]),
        ("begin", vec![model("gpt2"), tokens.clone(), merges.clone(), key("bos_token_id", 4, &3u32.to_le_bytes())]),
        ("no scores", vec![model("llama"), tokens.clone()]),
        ("scores", vec![model("llama"), tokens.clone(), key("scores", 9, &floats(2))]),
    ] {
        let error = open(pairs).expect_err(what).to_string();
        assert!(!error.is_empty() && !error.contains('\n'), "{what}: {error}");
    }
}
