// SPDX-License-Identifier: MIT OR Apache-2.0

//! Locks between processes.

use std::fs::{File, TryLockError};
use std::os::fd::{AsFd as _, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use crate::dir::{Access, DirError, DurableDir};

/// A flock(2) lock on a file, either exclusive or shared. Dropping the value releases the lock, and the kernel does
/// so when the process ends.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    path: PathBuf,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Exclusive,
    Shared,
}

/// Why a lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("lock {path:?}: still held by another process after {} ms", .waited.as_millis())]
    TimedOut {
        /// The lock file.
        path: PathBuf,
        /// The time that this process waited.
        waited: Duration,
    },
    /// The lock file could not be opened or created.
    #[error(transparent)]
    Open(#[from] DirError),
    /// The system refused the lock.
    #[error("lock {path:?}: {source}")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl LockError {
    /// True if another process holds the lock, so that a later attempt may succeed.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }
}

impl FileLock {
    /// Acquires the exclusive lock on the file `name` in `dir`, waiting for at most `patience`. A missing
    /// file is created with `mode`. The kernel serves waiters in order.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] if another process holds the lock for all of `patience`; [`LockError::Open`]
    /// if the file cannot be opened or created.
    pub fn acquire(dir: &DurableDir, name: &str, mode: u32, patience: Duration) -> Result<Self, LockError> {
        let file = dir.open_file(name, Access::ReadOrCreate(mode))?;
        Self::lock(file, dir.path().join(name), patience, Mode::Exclusive)
    }

    /// Acquires the lock like [`FileLock::acquire`], but shared: other processes may share it, but none can hold it
    /// exclusively.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] if another process holds the exclusive lock for all of `patience`;
    /// [`LockError::Open`] if the file cannot be opened or created.
    pub fn share(dir: &DurableDir, name: &str, mode: u32, patience: Duration) -> Result<Self, LockError> {
        let file = dir.open_file(name, Access::ReadOrCreate(mode))?;
        Self::lock(file, dir.path().join(name), patience, Mode::Shared)
    }

    /// Acquires the exclusive lock on a file or directory that is already open. `path` is only for error messages.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] if another process holds the lock for all of `patience`; [`LockError::Lock`]
    /// if `/proc` is not mounted.
    pub fn on(file: &File, path: &Path, patience: Duration) -> Result<Self, LockError> {
        // The file is opened again, because flock(2) locks an open file description, so two locks on `file` would be
        // one.
        let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_err(|source| LockError::Lock { path: path.to_owned(), source })?;
        Self::lock(again, path.to_owned(), patience, Mode::Exclusive)
    }

    /// Acquires the exclusive lock on an open directory, without making a file in it. The lock belongs to the
    /// directory's descriptor, so drop the lock before you lock `dir` again.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] if other processes hold the lock for all of `patience`; [`LockError::Lock`] if the
    /// file system has no locks for directories.
    pub fn on_directory(dir: &DurableDir, patience: Duration) -> Result<Self, LockError> {
        Self::directory(dir, patience, Mode::Exclusive)
    }

    /// Acquires the lock as [`FileLock::on_directory`] does, but shared.
    ///
    /// # Errors
    /// As for [`FileLock::on_directory`].
    pub fn share_directory(dir: &DurableDir, patience: Duration) -> Result<Self, LockError> {
        Self::directory(dir, patience, Mode::Shared)
    }

    fn directory(dir: &DurableDir, patience: Duration, mode: Mode) -> Result<Self, LockError> {
        let path = dir.path().to_owned();
        match dir.as_fd().try_clone_to_owned() {
            Ok(descriptor) => Self::lock(File::from(descriptor), path, patience, mode),
            Err(source) => Err(LockError::Lock { path, source }),
        }
    }

    fn lock(file: File, path: PathBuf, patience: Duration, mode: Mode) -> Result<Self, LockError> {
        let attempt = match mode {
            Mode::Exclusive => file.try_lock(),
            Mode::Shared => file.try_lock_shared(),
        };
        match attempt {
            Ok(()) => return Ok(Self { file, path }),
            Err(TryLockError::WouldBlock) if patience.is_zero() => {
                return Err(LockError::TimedOut { path, waited: patience });
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => return Err(LockError::Lock { path, source }),
        }
        // flock(2) has no time limit, and with polling, later processes could overtake this one. So a thread waits,
        // and is abandoned after `patience`. If the thread acquires the lock later, the lock is released when the
        // value that it sends is dropped.
        let (sender, receiver) = mpsc::channel();
        let waiting = path.clone();
        std::thread::Builder::new()
            .name("flock".to_owned())
            .spawn(move || {
                let locked = match mode {
                    Mode::Exclusive => file.lock(),
                    Mode::Shared => file.lock_shared(),
                };
                let _abandoned = sender.send(match locked {
                    Ok(()) => Ok(Self { file, path: waiting }),
                    Err(source) => Err(LockError::Lock { path: waiting, source }),
                });
            })
            .map_err(|source| LockError::Lock { path: path.clone(), source })?;
        match receiver.recv_timeout(patience) {
            Ok(result) => result,
            Err(_) => Err(LockError::TimedOut { path, waited: patience }),
        }
    }

    /// True if the lock file was deleted, so that the next process that opens its name locks another file.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.file.metadata().is_ok_and(|data| data.nlink() == 0)
    }

    /// The lock file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing is not enough, because a child process between fork and exec has the file open as well.
        if let Err(error) = self.file.unlock() {
            log::warn!("unlock {:?}: {error}", self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_times_out_and_a_released_one_is_acquired() {
        let temp = tempfile::tempdir().unwrap();
        let dir = DurableDir::open(temp.path()).unwrap();
        let first = FileLock::acquire(&dir, "lock", 0o600, Duration::from_millis(10)).unwrap();
        let error = FileLock::acquire(&dir, "lock", 0o600, Duration::from_millis(20)).unwrap_err();
        assert!(error.is_timeout(), "{error}");
        assert!(error.to_string().contains("still held by another process after 20 ms"), "{error}");

        let shared = || FileLock::share(&dir, "other", 0o600, Duration::from_millis(20));
        let both = (shared().unwrap(), shared().unwrap());
        assert!(FileLock::acquire(&dir, "other", 0o600, Duration::from_millis(20)).unwrap_err().is_timeout());
        drop(both);
        let exclusive = FileLock::acquire(&dir, "other", 0o600, Duration::from_secs(20)).unwrap();
        assert!(shared().unwrap_err().is_timeout());
        assert!(!exclusive.is_deleted());
        std::fs::remove_file(exclusive.path()).unwrap();
        assert!(exclusive.is_deleted());
        drop(exclusive);

        let waiter = std::thread::spawn(move || {
            FileLock::acquire(&dir, "lock", 0o600, Duration::from_secs(20)).map(|lock| lock.path().to_owned())
        });
        std::thread::sleep(Duration::from_millis(30));
        drop(first);
        assert_eq!(waiter.join().unwrap().unwrap(), temp.path().join("lock"));
    }

    #[test]
    fn a_directory_is_locked_without_a_file_in_it() {
        let temp = tempfile::tempdir().unwrap();
        let open = || DurableDir::open(temp.path()).unwrap();
        let (one, two) = (open(), open());
        let shared = FileLock::share_directory(&one, Duration::ZERO).unwrap();
        drop(FileLock::share_directory(&two, Duration::ZERO).unwrap());
        assert!(FileLock::on_directory(&two, Duration::ZERO).unwrap_err().is_timeout());
        drop(shared);
        let exclusive = FileLock::on_directory(&two, Duration::ZERO).unwrap();
        assert!(FileLock::share_directory(&one, Duration::ZERO).unwrap_err().is_timeout());
        drop(exclusive);
        drop(FileLock::on_directory(&one, Duration::ZERO).unwrap());
        assert_eq!(one.list().unwrap().len(), 0);
    }

    #[test]
    fn a_lock_on_an_open_file_ends_with_the_lock_not_with_the_file() {
        let temp = tempfile::tempdir().unwrap();
        let open = || File::open(temp.path()).unwrap();
        let (one, two) = (open(), open());
        let lock = |file: &File, patience| FileLock::on(file, temp.path(), patience);
        let held = lock(&one, Duration::ZERO).unwrap();
        assert!(lock(&two, Duration::ZERO).unwrap_err().is_timeout());
        assert!(lock(&two, Duration::from_millis(20)).unwrap_err().is_timeout());
        drop(held);
        // The abandoned thread releases the lock that it acquires too late.
        drop(lock(&one, Duration::from_secs(20)).unwrap());
        drop(lock(&two, Duration::from_secs(20)).unwrap());
    }
}
