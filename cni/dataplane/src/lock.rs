// SPDX-License-Identifier: GPL-2.0-or-later

//! Locks between processes, which are files in the run directory. A process waits for a lock up to a time limit. A
//! lock is released when its value is dropped or the process that holds it ends.

use std::path::Path;
use std::time::Duration;

use cni_kernel::dir::DurableDir;
use cni_kernel::lock::{FileLock, LockError};

use crate::run_dir::RUN_DIR;

/// The number of processes that can hold a lock at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    /// Any number, while no process holds it exclusively.
    Shared,
}

/// Takes the lock of this name.
///
/// # Errors
/// [`LockError::TimedOut`] if another process holds it for all of `patience`; the other variants if the lock
/// file cannot be made or locked.
pub(crate) fn take(name: &str, mode: Mode, patience: Duration) -> Result<FileLock, LockError> {
    take_in(Path::new(RUN_DIR), name, mode, patience)
}

pub(crate) fn take_in(
    folder: &Path,
    name: &str,
    mode: Mode,
    patience: Duration,
) -> Result<FileLock, LockError> {
    let directory = DurableDir::create(folder, 0o755)?;
    match mode {
        Mode::Exclusive => FileLock::acquire(&directory, name, 0o600, patience),
        Mode::Shared => FileLock::share(&directory, name, 0o600, patience),
    }
}

/// For operations that are better done without the lock than not at all: logs that the lock is missing, and what may
/// happen. If the lock file cannot be made, nothing is logged, because no other process can hold the lock either.
pub(crate) fn or_log(lock: Result<FileLock, LockError>, risk: &str) -> Option<FileLock> {
    let log = |error: &LockError| {
        let level = if error.is_timeout() { log::Level::Warn } else { log::Level::Debug };
        log::log!(level, "{error}: continuing without the lock: {risk}");
    };
    lock.inspect_err(log).ok()
}
