//! Locks between processes.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use crate::dir::{DirError, DurableDir};

/// A flock(2) on a file, for one alone or shared with others. Freed when the value goes, and by the kernel when the process
/// ends in whatever way.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
    path: PathBuf,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Alone,
    Shared,
}

/// Why a lock was not got.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("lock {path:?}: still held by another process after {} ms", .waited.as_millis())]
    TimedOut {
        /// The lock file.
        path: PathBuf,
        /// How long this process waited.
        waited: Duration,
    },
    /// The lock file could not be opened or made.
    #[error(transparent)]
    Open(#[from] DirError),
    /// The system refused the lock.
    #[error("lock {path:?}: {source}")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl LockError {
    /// Whether another process holds the lock: a reason to try again later.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }
}

impl FileLock {
    /// Takes the lock on the file `name` in `dir`, which is made with `mode` if it is not there.
    /// Waiters are served in the kernel's order; nobody waits for longer than `patience`.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] when somebody else keeps it for all of `patience`.
    pub fn acquire(dir: &DurableDir, name: &str, mode: u32, patience: Duration) -> Result<Self, LockError> {
        let file = dir.open_file(name, crate::dir::Access::ReadOrCreate(mode))?;
        Self::lock(file, dir.path().join(name), patience, Kind::Alone)
    }

    /// As [`FileLock::acquire`], but others may share it: nobody acquires it for himself meanwhile.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] when somebody has it for himself for all of `patience`.
    pub fn share(dir: &DurableDir, name: &str, mode: u32, patience: Duration) -> Result<Self, LockError> {
        let file = dir.open_file(name, crate::dir::Access::ReadOrCreate(mode))?;
        Self::lock(file, dir.path().join(name), patience, Kind::Shared)
    }

    fn lock(file: File, path: PathBuf, patience: Duration, kind: Kind) -> Result<Self, LockError> {
        let at_once = match kind {
            Kind::Alone => file.try_lock(),
            Kind::Shared => file.try_lock_shared(),
        };
        match at_once {
            Ok(()) => return Ok(Self { _file: file, path }),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => return Err(LockError::Lock { path, source }),
        }
        // flock has no time limit, and polling would let late comers overtake; so a thread waits,
        // and is left behind when patience ends. Should it get the lock after that, nobody takes
        // what it sends, the file is closed and the lock is free again.
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new()
            .name("flock".to_owned())
            .spawn(move || {
                let locked = match kind {
                    Kind::Alone => file.lock(),
                    Kind::Shared => file.lock_shared(),
                };
                let result = locked.map(|()| file);
                let _nobody_waits_any_more = sender.send(result);
            })
            .map_err(|source| LockError::Lock { path: path.clone(), source })?;
        match receiver.recv_timeout(patience) {
            Ok(Ok(file)) => Ok(Self { _file: file, path }),
            Ok(Err(source)) => Err(LockError::Lock { path, source }),
            Err(_) => Err(LockError::TimedOut { path, waited: patience }),
        }
    }

    /// The lock file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Waits for the lock of a file, which its closing gives back, for a second at most: for what takes far less than
/// that, where whoever may read the file can hold it, and going on without it is better than not going on.
pub fn take_turns(file: &File) {
    const TRIES: u32 = 200;
    const PAUSE: Duration = Duration::from_millis(5);
    for _ in 0..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_times_out_and_a_freed_one_is_got() {
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
        let alone = FileLock::acquire(&dir, "other", 0o600, Duration::from_secs(20)).unwrap();
        assert!(shared().unwrap_err().is_timeout());
        drop(alone);

        let waiter = std::thread::spawn(move || {
            FileLock::acquire(&dir, "lock", 0o600, Duration::from_secs(20)).map(|lock| lock.path().to_owned())
        });
        std::thread::sleep(Duration::from_millis(30));
        drop(first);
        assert_eq!(waiter.join().unwrap().unwrap(), temp.path().join("lock"));
    }
}
