//! Text to token ids and back, from the vocabulary in a model file. The `tokenizers` crate does the work; this module
//! tells it what the file means.

mod build;
mod chat;
mod stream;

pub use chat::{Message, Role};
pub use stream::TokenStream;

use crate::error::{LlmError, Result};
use crate::file::WeightFile;
use chat::Template;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokenizers::models::bpe::BPE;

/// The tokenizer of a model.
///
/// ```no_run
/// use tessl_llm::{Tokenizer, WeightFile};
///
/// # fn main() -> Result<(), tessl_llm::LlmError> {
/// let tokenizer = Tokenizer::from_file(&WeightFile::open("model.gguf")?)?;
/// let ids = tokenizer.encode("The capital of France is")?;
/// println!("{ids:?} = {}", tokenizer.decode(&ids)?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    /// Behind a lock because whether control tokens are read in text is a state of the library's tokenizer.
    inner: Mutex<tokenizers::Tokenizer>,
    vocabulary: usize,
    begin: Option<u32>,
    end: Vec<u32>,
    template: Option<Template>,
}

impl Tokenizer {
    /// The tokenizer that a GGUF file holds: byte-level BPE (`gpt2`) or SentencePiece (`llama`).
    ///
    /// # Errors
    /// `File` for a vocabulary that is missing or contradicts itself, `Unsupported` for another kind.
    pub fn from_file(file: &WeightFile) -> Result<Self> {
        build::from_gguf(file)
    }

    /// Number of tokens in the vocabulary of a file, without the work of building the tokenizer.
    pub(crate) fn size_in(file: &WeightFile) -> Result<usize> {
        build::size_in(file)
    }

    /// For models without one: no text has tokens, and no token has text.
    pub(crate) fn of_no_text(vocabulary: usize) -> Self {
        let inner = Mutex::new(tokenizers::Tokenizer::new(BPE::default()));
        Tokenizer { inner, vocabulary, begin: None, end: Vec::new(), template: None }
    }

    fn lock(&self) -> MutexGuard<'_, tokenizers::Tokenizer> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ids of a text, after the token that the model wants at the beginning, if it wants one. Text that looks like a
    /// control token stays text: what a user types cannot end a turn.
    ///
    /// # Errors
    /// `Tokenizer`.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_with(text, true)
    }

    /// As [`encode`](Self::encode), but control tokens in the text count as such: for templates of a conversation.
    ///
    /// # Errors
    /// `Tokenizer`.
    pub fn encode_template(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_with(text, false)
    }

    fn encode_with(&self, text: &str, control_is_text: bool) -> Result<Vec<u32>> {
        let mut inner = self.lock();
        inner.set_encode_special_tokens(control_is_text);
        let encoding = inner.encode_fast(text, false).map_err(|e| LlmError::Tokenizer(e.to_string()))?;
        let begin = self.begin.filter(|b| encoding.get_ids().first() != Some(b));
        Ok(begin.into_iter().chain(encoding.get_ids().iter().copied()).collect())
    }

    /// The text of ids; control tokens have none.
    ///
    /// # Errors
    /// `Tokenizer` for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.vocabulary) {
            return Err(LlmError::Tokenizer(format!("token {id} is not one of {}", self.vocabulary)));
        }
        self.lock().decode(ids, true).map_err(|e| LlmError::Tokenizer(e.to_string()))
    }

    /// Number of tokens.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The token that begins a text, when the model wants one.
    pub fn begin(&self) -> Option<u32> {
        self.begin
    }

    /// Tokens that end a text or a turn.
    pub fn end(&self) -> &[u32] {
        &self.end
    }
}
