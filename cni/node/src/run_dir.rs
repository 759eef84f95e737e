// SPDX-License-Identifier: GPL-3.0-or-later

//! The agent's directory: the lock that one agent of a node holds, and its sockets.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::lock::{FileLock, LockError};
use nix::sys::stat::{Mode, umask};

/// The file that the running agent has locked.
const LOCK: &str = "slipwayd.lock";

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

/// Binds a socket that root alone may use, in place of one that an ended agent has left.
///
/// # Errors
/// Another file has the path, or the system refuses the socket.
pub fn bind<T>(path: &Path, bind: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        _ => {}
    }
    // The file has its mode from the start, so that no other user connects before a chmod(2).
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = bind(path);
    umask(before);
    bound
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixDatagram;

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

    #[test]
    fn a_socket_that_was_left_is_replaced_and_another_file_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("socket");
        for _ in 0..2 {
            bind(&path, |path| UnixDatagram::bind(path)).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "text").unwrap();
        assert_eq!(
            bind(&path, |path| UnixDatagram::bind(path)).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
    }
}
