//! Decoder-only language models on tessl: a model file goes in, tokens come out.
//!
//! A consumer of the public API, and nothing else: what it needs and tessl lacks is a gap in tessl.

mod config;
mod error;
pub mod file;
mod model;
mod random;
mod session;
mod tokenizer;
mod weights;

pub use config::{Architecture, ModelConfig, RopeScaling};
pub use error::{LlmError, Result};
pub use file::WeightFile;
pub use model::{LoadOptions, Model};
pub use random::Shape;
pub use session::{Sampling, Session};
pub use tokenizer::{Message, Role, TokenStream, Tokenizer};
