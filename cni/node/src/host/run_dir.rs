// SPDX-License-Identifier: GPL-3.0-or-later

//! The agent's directory: the lock that one agent of a node holds, and its sockets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::lock::{FileLock, LockError};
use cni_state::agent::LOCK;

/// The socket of the running agent, for its own commands: HTTP, for root only.
pub const SOCKET: &str = "slipwayd.sock";

/// The directory of the running agent. Dropping it releases the lock.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: FileLock,
}

/// The agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Another agent holds the lock.
    #[error("another slipwayd runs on this node: it holds the lock {0:?}")]
    Running(PathBuf),
    /// The lock file cannot be opened or locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The directory cannot be made.
    #[error(transparent)]
    Dir(#[from] DirError),
}

impl RunDir {
    /// Makes the directory if it is missing, and locks it.
    ///
    /// # Errors
    /// [`RunDirError::Running`] if another agent holds the lock; others if directory or lock file cannot be made.
    pub fn lock(path: &Path) -> Result<Self, RunDirError> {
        let dir = DurableDir::create(path, 0o755)?;
        match FileLock::acquire(&dir, LOCK, 0o600, Duration::ZERO) {
            Ok(lock) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(error) if error.is_timeout() => Err(RunDirError::Running(path.join(LOCK))),
            Err(error) => Err(error.into()),
        }
    }

    /// The path of the agent's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_agent_has_the_directory() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("run/slipway");
        let first = RunDir::lock(&path).unwrap();
        let second = RunDir::lock(&path).unwrap_err();
        let lock = path.join("slipwayd.lock");
        assert_eq!(
            second.to_string(),
            format!("another slipwayd runs on this node: it holds the lock {lock:?}")
        );
        drop(first);
        assert_eq!(RunDir::lock(&path).unwrap().socket(), path.join("slipwayd.sock"));
    }
}
