//! Text of tokens as they come.

use super::Tokenizer;
use crate::error::Result;

/// Turns tokens into text one by one. A character may take several tokens; its text comes with the last of them.
#[derive(Debug)]
pub struct TokenStream<'t> {
    tokenizer: &'t Tokenizer,
    /// Tokens whose text has been given out and that the following ones may depend on, then those without text yet.
    window: Vec<u32>,
    /// Text of the window that has been given out, in bytes.
    told: usize,
}

/// Tokens kept for context when a long stream is cut.
const CONTEXT: usize = 8;

impl<'t> TokenStream<'t> {
    /// An empty stream.
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        TokenStream { tokenizer, window: Vec::new(), told: 0 }
    }

    /// The text that `id` completes; empty while a character is incomplete.
    ///
    /// # Errors
    /// `Tokenizer` for an id outside the vocabulary; the stream is as before.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.window.push(id);
        let text = match self.tokenizer.decode(&self.window) {
            Ok(text) => text,
            Err(error) => {
                self.window.pop();
                return Err(error);
            }
        };
        // Bytes of an unfinished character decode to the replacement character.
        if text.ends_with('\u{fffd}') || text.len() <= self.told {
            return Ok(String::new());
        }
        let fresh = text.get(self.told..).unwrap_or_default().to_owned();
        self.told = text.len();
        if self.window.len() > 4 * CONTEXT {
            self.window.drain(..self.window.len() - CONTEXT);
            self.told = self.tokenizer.decode(&self.window)?.len();
        }
        Ok(fresh)
    }

    /// What is left at the end: an unfinished character as replacement characters.
    ///
    /// # Errors
    /// `Tokenizer`.
    pub fn finish(self) -> Result<String> {
        let text = self.tokenizer.decode(&self.window)?;
        Ok(text.get(self.told..).unwrap_or_default().to_owned())
    }
}
