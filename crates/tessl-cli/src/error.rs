//! Errors of the command line: one line each, with an exit code.

use std::path::{Path, PathBuf};

/// A `Result` of the command line.
pub type Result<T, E = CliError> = std::result::Result<T, E>;

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// The library refused or failed.
    #[error(transparent)]
    Library(#[from] tessl::Error),
    /// A model cannot be loaded or run.
    #[error(transparent)]
    Model(#[from] tessl_llm::LlmError),
    /// A file is not what the command needs.
    #[error("{}: {what}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong and what to do.
        what: String,
    },
    /// The arguments do not fit together.
    #[error("{0}")]
    Usage(String),
    /// A check found a wrong result.
    #[error("{0}")]
    Failed(String),
    /// Whoever read the output has closed it; nothing is left to say.
    #[error("the output was closed")]
    Closed,
}

impl CliError {
    /// A file that cannot be used.
    pub fn file(file: impl AsRef<Path>, what: impl Into<String>) -> Self {
        CliError::File { file: file.as_ref().to_owned(), what: what.into() }
    }

    /// The process's exit code; the table is part of `tessl --help`.
    pub fn exit_code(&self) -> u8 {
        use tessl::ErrorKind;
        use tessl_llm::LlmError;
        match self {
            CliError::Closed => 0,
            CliError::Failed(_) => 1,
            CliError::Library(e) | CliError::Model(LlmError::Library(e)) => match e.kind() {
                ErrorKind::Unavailable => 3,
                ErrorKind::Device | ErrorKind::Data | ErrorKind::State => 1,
                _ => 2,
            },
            CliError::File { .. } | CliError::Usage(_) | CliError::Model(_) => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_the_table() {
        let unavailable = tessl::Error::unavailable("cuda:0", "no driver", None);
        assert_eq!(CliError::from(unavailable).exit_code(), 3);
        let parse = "tpu".parse::<tessl::Device>().unwrap_err();
        assert_eq!(CliError::from(parse).exit_code(), 2);
        let device = tessl::Error::device("gemm", 700, "illegal address", tessl::Scope::Runtime);
        assert_eq!(CliError::from(device).exit_code(), 1);
        assert_eq!(CliError::file("a.npy", "empty").to_string(), "a.npy: empty");
    }
}
