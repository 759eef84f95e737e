// SPDX-License-Identifier: GPL-2.0-or-later

//! The lock between commands that move running containers' objects from one backend to another, or put them back.
//!
//! To `slipway restore`, a place that a migration is about to empty looks like one that a flush has emptied. If
//! `restore` put an object back there, and removed it from the destination as an ADD does, the object would be in
//! neither place once the migration continues.

use std::path::Path;
use std::time::Duration;

use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::lock::{FileLock, LockError};

/// The directory of the lock.
const DIRECTORY: &str = "/run/slipway";
/// The lock file.
const NAME: &str = "migrate.lock";

/// The lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub(super) enum MigrationLockError {
    #[error("another `slipway migrate` or `slipway restore` is running: try again when it has ended")]
    Held,
    #[error(transparent)]
    Lock(LockError),
    #[error(transparent)]
    Directory(#[from] DirError),
}

/// Acquires the lock, waiting for at most `patience`.
///
/// # Errors
/// [`MigrationLockError::Held`] if another process holds it for so long; others if its file cannot be made or locked.
pub(super) fn acquire(patience: Duration) -> Result<FileLock, MigrationLockError> {
    let directory = DurableDir::create(Path::new(DIRECTORY), 0o755)?;
    FileLock::acquire(&directory, NAME, 0o600, patience).map_err(|error| {
        if error.is_timeout() { MigrationLockError::Held } else { MigrationLockError::Lock(error) }
    })
}
