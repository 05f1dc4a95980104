//! Conversations as text, by the template that a model was trained with.

use super::Tokenizer;
use crate::error::{LlmError, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, context};
use serde::Serialize;

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// How the model should answer.
    System,
    /// Whoever asks.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// What the user says.
    pub fn user(content: impl Into<String>) -> Self {
        Message { role: Role::User, content: content.into() }
    }
}

/// A Jinja template from a model file. It is a program of strangers: it can do no more than make text, and not for ever.
#[derive(Debug)]
pub(super) struct Template {
    pub(super) source: String,
    /// Texts of the tokens that begin and end a text.
    pub(super) begin: String,
    pub(super) end: String,
}

/// Steps of a template, at most.
const FUEL: u64 = 1 << 20;

impl Template {
    fn render(&self, messages: &[Message]) -> Result<String, Error> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |what: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, what))
        });
        environment.template_from_str(&self.source)?.render(context! {
            messages => Serde(messages),
            bos_token => self.begin.as_str(),
            eos_token => self.end.as_str(),
            add_generation_prompt => true,
        })
    }
}

impl Tokenizer {
    /// Whether the file brought a template for conversations.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Ids of a conversation up to where the model's answer begins.
    ///
    /// # Errors
    /// `Unsupported` for a file without a template; `Tokenizer` for a template that fails, and for a message that contains a
    /// control token: what a user types cannot end a turn.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let Some(template) = &self.template else {
            return Err(LlmError::unsupported(
                "a conversation with this model",
                "its file has no template; give plain text",
            ));
        };
        for message in messages {
            if self.encode(&message.content)? != self.encode_template(&message.content)? {
                return Err(LlmError::Tokenizer("a message contains a control token of the model".to_owned()));
            }
        }
        let text = template.render(messages).map_err(|e| LlmError::Tokenizer(format!("the file's template: {e}")))?;
        self.encode_template(&text)
    }
}
