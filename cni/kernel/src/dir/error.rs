// SPDX-License-Identifier: MIT OR Apache-2.0

//! The errors of file operations.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::is_transient;

/// An error of a file operation.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// The system refused the operation.
    #[error("{operation} {path:?}: {errno}")]
    System {
        /// The operation.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        errno: Errno,
    },
    /// The name is not a single component of a path.
    #[error("invalid file name {name:?} in {dir:?}")]
    Name {
        /// The name.
        name: OsString,
        /// The file's directory.
        dir: PathBuf,
    },
    /// The file exceeds the caller's limit.
    #[error("read {path:?}: larger than {limit} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The caller's limit in bytes.
        limit: usize,
    },
    /// The file is not a regular one.
    #[error("open {path:?}: not a regular file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
}

impl DirError {
    /// The error of an operation on a file that was opened in the directory.
    #[must_use]
    pub fn of_file(operation: &'static str, path: &Path, error: &std::io::Error) -> Self {
        io(operation, path, error)
    }

    /// The system's error, if the system refused the operation.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::System { errno, .. } => Some(*errno),
            Self::Name { .. } | Self::TooLarge { .. } | Self::NotAFile { .. } => None,
        }
    }

    /// True if the file or directory does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno(), Some(Errno::ENOENT | Errno::ENOTDIR))
    }

    /// True if the system was short of something, and the same call may succeed later ([`is_transient`]).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.errno().is_some_and(is_transient)
    }

    /// True if the name is taken.
    #[must_use]
    pub fn already_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }
}

pub(super) fn system(operation: &'static str, path: &Path, errno: Errno) -> DirError {
    DirError::System { operation, path: path.to_path_buf(), errno }
}

pub(super) fn io(operation: &'static str, path: &Path, error: &std::io::Error) -> DirError {
    system(operation, path, Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO)))
}
