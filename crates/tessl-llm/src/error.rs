//! Errors of model files, tokenizers and generation: one line each.

use std::path::{Path, PathBuf};

/// A `Result` of this crate.
pub type Result<T, E = LlmError> = std::result::Result<T, E>;

/// Why a model cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LlmError {
    /// The library refused or failed.
    #[error(transparent)]
    Library(#[from] tessl::Error),
    /// The system could not read the file.
    #[error("{}: {source}", .file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is damaged, or not what its name says.
    #[error("{}: {what}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong and what to do.
        what: String,
    },
    /// The file is sound, but asks for something that is not there yet.
    #[error("{what} is not supported; {instead}")]
    Unsupported {
        /// An architecture, a block format, a tokenizer.
        what: String,
        /// What is supported.
        instead: String,
    },
    /// Text that the tokenizer does not take.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

impl LlmError {
    pub(crate) fn file(file: impl AsRef<Path>, what: impl Into<String>) -> Self {
        LlmError::File { file: file.as_ref().to_owned(), what: what.into() }
    }

    pub(crate) fn io(file: impl AsRef<Path>, source: std::io::Error) -> Self {
        LlmError::Io { file: file.as_ref().to_owned(), source }
    }

    pub(crate) fn unsupported(what: impl Into<String>, instead: impl Into<String>) -> Self {
        LlmError::Unsupported { what: what.into(), instead: instead.into() }
    }
}
