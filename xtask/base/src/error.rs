// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of tasks.

use std::io;
use std::path::{Path, PathBuf};

/// Each variant names the operation and its object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program could not be started, or failed.
    #[error("`{command}` {how}{output}")]
    Command {
        /// The command line, for people.
        command: String,
        /// How the program ended: an exit status or a signal.
        how: String,
        /// The program's output, on indented lines; empty if it was already shown.
        output: String,
    },
    /// A system call failed on a file.
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: io::Error },
    /// Another system call failed.
    #[error("{operation}: {source}")]
    System { operation: String, source: io::Error },
    /// A check of the task failed.
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

pub type Result<T, E = Error> = std::result::Result<T, E>;
