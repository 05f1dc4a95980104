//! What a GGUF file says about its tokenizer, in the terms of the `tokenizers` crate.

use super::Tokenizer;
use super::chat::Template;
use crate::error::{LlmError, Result};
use crate::file::{Value, WeightFile};
use std::collections::HashMap;
use std::sync::Mutex;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace, Sequence as NormalizerSequence};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

/// Kinds of tokens, as `tokenizer.ggml.token_type` numbers them.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// The mark of a space in SentencePiece vocabularies.
const SPACE: &str = "\u{2581}";

// Patterns are those that the models were trained with: facts of the models, as given in their tokenizer files.

/// Words of Llama 3: letters with one leading sign, digits by threes, runs of signs, ends of lines.
const LLAMA3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words of Qwen 2 and 3: as Llama 3, digits one by one.
const QWEN2_WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The lists of a vocabulary, all of one length.
struct Vocabulary<'f> {
    file: &'f WeightFile,
    tokens: &'f [String],
    kinds: Option<&'f [i64]>,
}

pub(super) fn size_in(file: &WeightFile) -> Result<usize> {
    Ok(Vocabulary::read(file)?.tokens.len())
}

pub(super) fn from_gguf(file: &WeightFile) -> Result<Tokenizer> {
    let vocabulary = Vocabulary::read(file)?;
    let model = file.value("tokenizer.ggml.model").and_then(Value::as_str).unwrap_or("none");
    let mut inner = match model {
        "gpt2" => byte_level(&vocabulary)?,
        "llama" => sentence_piece(&vocabulary)?,
        other => {
            return Err(LlmError::unsupported(
                format!("{}: tokenizer `{other}`", file.path().display()),
                "byte-level BPE (gpt2) and SentencePiece (llama) are",
            ));
        }
    };
    let mut control = Vec::new();
    let mut defined = Vec::new();
    for (token, kind) in vocabulary.tokens.iter().zip(vocabulary.kinds.into_iter().flatten()) {
        match *kind {
            CONTROL => control.push(AddedToken::from(token.clone(), true)),
            USER_DEFINED => defined.push(AddedToken::from(token.clone(), false).normalized(false)),
            _ => {}
        }
    }
    inner.add_special_tokens(&control);
    inner.add_tokens(&defined);
    let wants_begin = file.value("tokenizer.ggml.add_bos_token").and_then(Value::as_bool).unwrap_or(model == "llama");
    let begin = vocabulary.id("tokenizer.ggml.bos_token_id")?.filter(|_| wants_begin);
    let mut end = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        end.extend(vocabulary.id(&format!("tokenizer.ggml.{key}"))?);
    }
    // Files name one end; chat models end a turn with another, which is a control token of a known name.
    for name in ["<|im_end|>", "<|eot_id|>", "<end_of_turn>"] {
        let is_control = |i: usize| vocabulary.kinds.is_some_and(|k| k[i] == CONTROL);
        end.extend(vocabulary.tokens.iter().position(|t| t == name).filter(|&i| is_control(i)).map(id));
    }
    end.sort_unstable();
    end.dedup();
    let text = |key: &str| -> Result<String> {
        Ok(vocabulary.id(key)?.map(|id| vocabulary.tokens[id as usize].clone()).unwrap_or_default())
    };
    let template = match file.value("tokenizer.chat_template").and_then(Value::as_str) {
        None => None,
        Some(source) => {
            let (begin, end) = (text("tokenizer.ggml.bos_token_id")?, text("tokenizer.ggml.eos_token_id")?);
            Some(Template { source: source.to_owned(), begin, end })
        }
    };
    Ok(Tokenizer { inner: Mutex::new(inner), vocabulary: vocabulary.tokens.len(), begin, end, template })
}

impl<'f> Vocabulary<'f> {
    fn read(file: &'f WeightFile) -> Result<Self> {
        let tokens = file.value("tokenizer.ggml.tokens").and_then(Value::as_texts);
        let tokens = tokens.ok_or_else(|| LlmError::file(file.path(), "has no vocabulary (tokenizer.ggml.tokens)"))?;
        let kinds = file.value("tokenizer.ggml.token_type").map(|value| value.as_integers().unwrap_or_default());
        let vocabulary = Vocabulary { file, tokens, kinds };
        if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
            return Err(vocabulary.wrong(format!("{} tokens", tokens.len())));
        }
        if let Some(kinds) = kinds.filter(|k| k.len() != tokens.len()) {
            return Err(vocabulary.wrong(format!("{} tokens but {} token types", tokens.len(), kinds.len())));
        }
        Ok(vocabulary)
    }

    fn wrong(&self, what: impl AsRef<str>) -> LlmError {
        LlmError::file(self.file.path(), format!("its vocabulary contradicts itself: {}", what.as_ref()))
    }

    /// A token that the metadata names by number.
    fn id(&self, key: &str) -> Result<Option<u32>> {
        let Some(value) = self.file.value(key) else { return Ok(None) };
        let number = value.as_u64().and_then(|v| u32::try_from(v).ok()).filter(|&v| (v as usize) < self.tokens.len());
        number.map(Some).ok_or_else(|| self.wrong(format!("{key} is {value:?} of {} tokens", self.tokens.len())))
    }

    fn ids(&self) -> Result<HashMap<&'f str, u32>> {
        let ids: HashMap<&str, u32> = self.tokens.iter().enumerate().map(|(i, t)| (t.as_str(), id(i))).collect();
        if ids.len() != self.tokens.len() {
            return Err(self.wrong("a token appears twice"));
        }
        Ok(ids)
    }

    fn model(&self, merges: Vec<(String, String)>, bytes: bool, whole: bool) -> Result<tokenizers::Tokenizer> {
        let ids: Vocab = self.ids()?.into_iter().map(|(token, id)| (token.to_owned(), id)).collect();
        let mut builder = BPE::builder().vocab_and_merges(ids, merges).byte_fallback(bytes).ignore_merges(whole);
        if bytes {
            builder = builder.fuse_unk(true);
            if let Some(unknown) = self.id("tokenizer.ggml.unknown_token_id")? {
                builder = builder.unk_token(self.tokens[unknown as usize].clone());
            }
        }
        let model = builder.build().map_err(|e| self.wrong(e.to_string()))?;
        Ok(tokenizers::Tokenizer::new(model))
    }
}

fn id(index: usize) -> u32 {
    u32::try_from(index).expect("INVARIANT: the number of tokens was checked")
}

/// Byte-level BPE: words by a pattern, bytes as printable characters, merges in the order of the file.
fn byte_level(v: &Vocabulary<'_>) -> Result<tokenizers::Tokenizer> {
    let merges = v.file.value("tokenizer.ggml.merges").and_then(Value::as_texts);
    let merges = merges.ok_or_else(|| v.wrong("byte-level BPE without merges"))?;
    let pair = |line: &String| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
    let merges: Option<Vec<_>> = merges.iter().map(pair).collect();
    let merges = merges.ok_or_else(|| v.wrong("a merge is not two tokens"))?;
    let kind = v.file.value("tokenizer.ggml.pre").and_then(Value::as_str).unwrap_or("gpt-2");
    let words = |pattern: &str| {
        let pattern = SplitPattern::Regex(pattern.to_owned());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
            .map(PreTokenizerWrapper::from)
            .map_err(|e| LlmError::Tokenizer(e.to_string()))
    };
    let prefix = v.file.value("tokenizer.ggml.add_space_prefix").and_then(Value::as_bool).unwrap_or(false);
    let bytes = |words: bool| PreTokenizerWrapper::from(ByteLevel::new(prefix, true, words));
    let (steps, whole) = match kind {
        "gpt-2" | "default" => (vec![bytes(true)], false),
        "smollm" => (vec![Digits::new(true).into(), bytes(true)], false),
        "llama-bpe" | "llama3" => (vec![words(LLAMA3_WORDS)?, bytes(false)], true),
        "qwen2" => (vec![words(QWEN2_WORDS)?, bytes(false)], false),
        other => {
            let what = format!("{}: word pattern `{other}`", v.file.path().display());
            return Err(LlmError::unsupported(what, "gpt-2, smollm, llama-bpe and qwen2 are"));
        }
    };
    let mut tokenizer = v.model(merges, false, whole)?;
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    Ok(tokenizer)
}

/// SentencePiece BPE: spaces become marks, the best-scored merge goes first, unknown characters fall back to bytes.
fn sentence_piece(v: &Vocabulary<'_>) -> Result<tokenizers::Tokenizer> {
    let scores = v.file.value("tokenizer.ggml.scores").and_then(Value::as_floats);
    let scores = scores.filter(|s| s.len() == v.tokens.len() && s.iter().all(|x| !x.is_nan()));
    let scores = scores.ok_or_else(|| v.wrong("SentencePiece without a score for each token"))?;
    let mut tokenizer = v.model(merges_of(v, scores)?, true, false)?;
    let replace = |from: &str, to: &str| Replace::new(from, to).map_err(|e| LlmError::Tokenizer(e.to_string()));
    let mut steps = vec![NormalizerWrapper::from(replace(" ", SPACE)?)];
    let prefix = v.file.value("tokenizer.ggml.add_space_prefix").and_then(Value::as_bool).unwrap_or(true);
    if prefix {
        steps.insert(0, Prepend::new(SPACE.to_owned()).into());
    }
    tokenizer.with_normalizer(Some(NormalizerSequence::new(steps)));
    let mut decoders = vec![DecoderWrapper::from(replace(SPACE, " ")?), ByteFallback::new().into(), Fuse::new().into()];
    if prefix {
        decoders.push(tokenizers::decoders::strip::Strip::new(' ', 1, 0).into());
    }
    tokenizer.with_decoder(Some(DecoderSequence::new(decoders)));
    Ok(tokenizer)
}

/// Scores say how good a token is as the result of a merge. A list of merges says the same: every way to make a token of
/// two others, best token first; among the ways to make one token, the one whose parts stand earlier in the vocabulary.
fn merges_of(v: &Vocabulary<'_>, scores: &[f64]) -> Result<Vec<(String, String)>> {
    let ids = v.ids()?;
    let mut merges = Vec::new();
    for (token, score) in v.tokens.iter().zip(scores) {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&a), Some(&b)) = (ids.get(left), ids.get(right)) {
                merges.push((*score, a, b));
            }
        }
    }
    merges.sort_by(|x, y| y.0.total_cmp(&x.0).then((x.1, x.2).cmp(&(y.1, y.2))));
    let text = |i: u32| v.tokens[i as usize].clone();
    Ok(merges.into_iter().map(|(_, a, b)| (text(a), text(b))).collect())
}
