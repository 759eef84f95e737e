// SPDX-License-Identifier: MIT OR Apache-2.0

//! Locks between processes: calls for one container are serialised, those for others are not, and GC of a
//! network excludes both.
//!
//! An operation on a container takes the lock of the network, shared, and then that of the container; GC takes
//! the network's exclusively, and the container's for each DEL. Nothing waits for a network's lock with a
//! container's lock in its hands, so there is no deadlock.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::lock::{FileLock, LockError};

use crate::error::NetworkError;
use crate::exec::CallOptions;

/// The directory of the lock files in the cache's directory.
pub const DIRECTORY: &str = "locks";
/// The longest part of a name in the name of a lock file, in bytes: a file name has 255 at most. Two longer names
/// with the same start share a lock.
const LONGEST: usize = 200;
/// The interval of looks at a token of cancellation during a wait.
const STEP: Duration = Duration::from_millis(50);

/// The locks of an operation. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Held {
    container: Option<FileLock>,
    /// Released by its drop.
    _network: Option<FileLock>,
}

/// The locks in a directory.
#[derive(Debug)]
pub(crate) struct Locks {
    dir: DurableDir,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Exclusive,
    Shared,
}

impl Held {
    /// No lock: the runtime does not want any.
    pub(crate) fn nothing() -> Self {
        Self { container: None, _network: None }
    }

    /// Deletes the container's lock file: its last attachment is gone.
    pub(crate) fn forget_container(&self) {
        if let Some(lock) = &self.container
            && let Err(error) = std::fs::remove_file(lock.path())
        {
            log::debug!("remove {}: {error}", lock.path().display());
        }
    }
}

impl Locks {
    /// The locks of the cache in a directory.
    pub(crate) fn open(cache: &Path) -> Result<Self, DirError> {
        Ok(Self { dir: DurableDir::create(&cache.join(DIRECTORY), 0o700)? })
    }

    /// For ADD, DEL and CHECK.
    pub(crate) fn attachment(
        &self,
        network: &str,
        container: &str,
        options: &CallOptions,
    ) -> Result<Held, NetworkError> {
        let network = self.acquire(&file_name("network", network), Mode::Shared, options)?;
        let container = self.acquire(&file_name("container", container), Mode::Exclusive, options)?;
        Ok(Held { container: Some(container), _network: Some(network) })
    }

    /// For GC.
    pub(crate) fn network(&self, network: &str, options: &CallOptions) -> Result<Held, NetworkError> {
        let network = self.acquire(&file_name("network", network), Mode::Exclusive, options)?;
        Ok(Held { container: None, _network: Some(network) })
    }

    /// For a DEL inside a GC.
    pub(crate) fn container(&self, container: &str, options: &CallOptions) -> Result<Held, NetworkError> {
        let container = self.acquire(&file_name("container", container), Mode::Exclusive, options)?;
        Ok(Held { container: Some(container), _network: None })
    }

    /// For an operation on a pod, which may have several attachments. Acquired before the locks of those.
    #[cfg(feature = "pods")]
    pub(crate) fn pod(&self, sandbox: &str, options: &CallOptions) -> Result<Held, NetworkError> {
        let all = self.acquire("pods", Mode::Shared, options)?;
        let pod = self.acquire(&file_name("pod", sandbox), Mode::Exclusive, options)?;
        Ok(Held { container: Some(pod), _network: Some(all) })
    }

    /// For GC of all pods.
    #[cfg(feature = "pods")]
    pub(crate) fn pods(&self, options: &CallOptions) -> Result<Held, NetworkError> {
        let all = self.acquire("pods", Mode::Exclusive, options)?;
        Ok(Held { container: None, _network: Some(all) })
    }

    fn acquire(&self, name: &str, mode: Mode, options: &CallOptions) -> Result<FileLock, NetworkError> {
        let begin = Instant::now();
        loop {
            let left = options.limit.saturating_sub(begin.elapsed());
            let lock = match self.try_lock(name, mode, Duration::ZERO) {
                Err(error) if error.is_timeout() && !left.is_zero() => {
                    self.wait(name, mode, left, options)?
                }
                done => done?,
            };
            // A DEL may have deleted the file between its opening and the lock.
            if !lock.is_deleted() {
                return Ok(lock);
            }
        }
    }

    fn try_lock(&self, name: &str, mode: Mode, patience: Duration) -> Result<FileLock, LockError> {
        match mode {
            Mode::Exclusive => FileLock::acquire(&self.dir, name, 0o600, patience),
            Mode::Shared => FileLock::share(&self.dir, name, 0o600, patience),
        }
    }

    /// Waits on a thread: flock(2) knows neither a time limit nor a cancellation. The kernel serves waiters in
    /// order.
    fn wait(
        &self,
        name: &str,
        mode: Mode,
        patience: Duration,
        options: &CallOptions,
    ) -> Result<FileLock, NetworkError> {
        if options.cancel.is_none() {
            return Ok(self.try_lock(name, mode, patience)?);
        }
        let (sender, receiver) = mpsc::channel();
        let (dir, name) = (self.dir.path().to_owned(), name.to_owned());
        // After the end of the wait, dropping what the thread sends releases the lock.
        std::thread::spawn(move || {
            let opened = DurableDir::open(&dir).map_err(LockError::from);
            let done = opened.and_then(|dir| Self { dir }.try_lock(&name, mode, patience));
            drop(sender.send(done));
        });
        loop {
            match receiver.recv_timeout(STEP) {
                Ok(done) => return Ok(done?),
                Err(RecvTimeoutError::Timeout) if !options.is_cancelled() => {}
                Err(_) => return Err(NetworkError::Cancelled),
            }
        }
    }
}

/// The name of a lock file. The IDs are checked: letters, digits, `_`, `.` and `-`.
fn file_name(kind: &str, id: &str) -> String {
    let end = id.len().min(LONGEST);
    format!("{kind}-{}", id.get(..end).unwrap_or_default())
}
