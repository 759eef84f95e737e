//! What can go wrong in a task.

use std::io;
use std::path::{Path, PathBuf};

/// Every variant names what was done and to what.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program could not be started or did not succeed.
    #[error("`{command}` {how}{output}")]
    Command {
        /// The command line, for people.
        command: String,
        /// How it ended.
        how: String,
        /// What it printed, indented on lines of its own; empty when it was shown already.
        output: String,
    },
    /// A system call failed on a file.
    #[error("{operation} {}: {source}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A system call failed on something that is no file.
    #[error("{operation}: {source}")]
    System {
        /// What was tried, with its object.
        operation: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The task itself found something wrong.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// An operation on a file that failed.
    pub fn file(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::File { operation, path: path.to_owned(), source: source.into() }
    }

    /// An operation, with its object, that failed.
    pub fn system(operation: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { operation: operation.into(), source: source.into() }
    }
}

/// What a task returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
