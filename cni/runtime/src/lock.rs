// SPDX-License-Identifier: MIT OR Apache-2.0

//! Locks between processes. Calls for one container are serialised, and calls for different containers run in
//! parallel. GC of a network excludes all of them.
//!
//! An operation on a container takes the lock of the network, shared, and then the lock of the container. GC takes
//! the lock of the network exclusively, and then that of a container for each DEL. No operation that holds a
//! container's lock waits for a network's lock, so there is no deadlock.
//!
//! flock(2) grants a shared lock even if a process waits for the exclusive one. So GC holds a second lock, the gate,
//! while it waits, and an operation takes the gate, shared, and releases it before it takes the network's lock. GC
//! thus waits only for operations that have already passed the gate. The first GC makes the gate's file.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::lock::{FileLock, LockError};

use crate::error::NetworkError;
use crate::exec::CallOptions;

/// The directory of the lock files in the cache's directory.
pub const DIRECTORY: &str = "locks";
/// How many bytes of a name are part of a lock file's name, because a file name has at most 255. If longer names have
/// the same beginning, they share a lock.
const LONGEST: usize = 200;
/// How many lock files are deleted after one look at the attachments: each is a descriptor until then, and a look reads
/// all files of the cache.
const TOGETHER: usize = 100;
/// How often a wait checks the cancellation token.
const STEP: Duration = Duration::from_millis(50);

/// The locks of an operation. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Held {
    container: Option<FileLock>,
    /// Dropping it releases the lock.
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
    /// No lock, because the runtime does not want any.
    pub(crate) fn nothing() -> Self {
        Self { container: None, _network: None }
    }

    /// Deletes the container's lock file, because its last attachment is gone.
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

    /// The locks for ADD, DEL and CHECK.
    pub(crate) fn attachment(
        &self,
        network: &str,
        container: &str,
        options: &CallOptions,
    ) -> Result<Held, NetworkError> {
        let network = self.share(&file_name("network", network), options)?;
        let container = self.acquire(&file_name("container", container), Mode::Exclusive, options)?;
        Ok(Held { container: Some(container), _network: Some(network) })
    }

    /// The lock for GC.
    pub(crate) fn network(&self, network: &str, options: &CallOptions) -> Result<Held, NetworkError> {
        let network = self.exclude(&file_name("network", network), options)?;
        Ok(Held { container: None, _network: Some(network) })
    }

    /// The lock for a DEL inside a GC.
    pub(crate) fn container(&self, container: &str, options: &CallOptions) -> Result<Held, NetworkError> {
        let container = self.acquire(&file_name("container", container), Mode::Exclusive, options)?;
        Ok(Held { container: Some(container), _network: None })
    }

    /// The lock for an operation on a pod, which may have several attachments. It is acquired before the locks of the
    /// attachments.
    #[cfg(feature = "pods")]
    pub(crate) fn pod(&self, sandbox: &str, options: &CallOptions) -> Result<Held, NetworkError> {
        let all = self.share("pods", options)?;
        let pod = self.acquire(&file_name("pod", sandbox), Mode::Exclusive, options)?;
        Ok(Held { container: Some(pod), _network: Some(all) })
    }

    /// The lock for GC of all pods.
    #[cfg(feature = "pods")]
    pub(crate) fn pods(&self, options: &CallOptions) -> Result<Held, NetworkError> {
        let all = self.exclude("pods", options)?;
        Ok(Held { container: None, _network: Some(all) })
    }

    /// Deletes the lock files of all containers that have no attachments. Does not wait for a lock that is held.
    pub(crate) fn forget_others(
        &self,
        attached: impl Fn() -> Result<BTreeSet<String>, NetworkError>,
    ) -> Result<(), NetworkError> {
        let is_of_container = |name: &String| name.starts_with("container-");
        let files = self.dir.list()?.into_iter().filter_map(|name| name.into_string().ok());
        let kept = |ids: BTreeSet<String>| -> BTreeSet<String> {
            ids.iter().map(|id| file_name("container", id)).collect()
        };
        let first = kept(attached()?);
        let stale: Vec<String> = files.filter(is_of_container).filter(|name| !first.contains(name)).collect();
        for names in stale.chunks(TOGETHER) {
            let mut locked = Vec::new();
            for name in names {
                let lock = match self.try_lock(name, Mode::Exclusive, Duration::ZERO) {
                    Err(error) if error.is_timeout() => continue,
                    lock => lock?,
                };
                // A DEL may have deleted the file after it was opened, and the name may be another process's lock now.
                if !lock.is_deleted() {
                    locked.push((name, lock));
                }
            }
            if locked.is_empty() {
                continue;
            }
            // An ADD may have ended since the attachments were listed.
            let now = kept(attached()?);
            for (_, lock) in locked.into_iter().filter(|(name, _)| !now.contains(*name)) {
                Held { container: Some(lock), _network: None }.forget_container();
            }
        }
        Ok(())
    }

    /// Acquires a shared lock, after the processes that are waiting for the exclusive one.
    fn share(&self, name: &str, options: &CallOptions) -> Result<FileLock, NetworkError> {
        let gate = gate(name);
        if self.dir.exists(&gate)? {
            drop(self.acquire(&gate, Mode::Shared, options)?);
        }
        self.acquire(name, Mode::Shared, options)
    }

    /// Acquires an exclusive lock. From the beginning of the wait, no other process gets a shared lock.
    fn exclude(&self, name: &str, options: &CallOptions) -> Result<FileLock, NetworkError> {
        let _gate = self.acquire(&gate(name), Mode::Exclusive, options)?;
        self.acquire(name, Mode::Exclusive, options)
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
            // A DEL may have deleted the file after it was opened and before it was locked.
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

    /// Waits on a thread, because flock(2) has neither a time limit nor cancellation.
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
        // If the wait ends before, the lock is released when the value that the thread sends is dropped.
        let path = dir.join(&name);
        let wait = move || {
            let opened = DurableDir::open(&dir).map_err(LockError::from);
            let done = opened.and_then(|dir| Self { dir }.try_lock(&name, mode, patience));
            drop(sender.send(done));
        };
        let waiting = std::thread::Builder::new().spawn(wait);
        waiting.map_err(|source| LockError::Lock { path, source })?;
        loop {
            match receiver.recv_timeout(STEP) {
                Ok(done) => return Ok(done?),
                Err(RecvTimeoutError::Timeout) if !options.is_cancelled() => {}
                Err(_) => return Err(NetworkError::Cancelled),
            }
        }
    }
}

/// The name of the gate's file for a shared lock. No other lock has this form of name.
fn gate(name: &str) -> String {
    format!("gate-{name}")
}

/// The name of a lock file. The IDs have been checked: they contain only letters, digits, `_`, `.` and `-`.
fn file_name(kind: &str, id: &str) -> String {
    let end = id.len().min(LONGEST);
    format!("{kind}-{}", id.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Operations with shared locks keep starting before others end, until `exclusive` has its lock. It must not have
    /// to wait for more operations than those that are running when it starts.
    fn gets_its_turn<T: std::fmt::Debug>(
        shared: impl Fn(&Locks, &str, &CallOptions) -> Result<Held, NetworkError> + Sync,
        exclusive: impl Fn(&Locks, &CallOptions) -> Result<T, NetworkError>,
    ) {
        let cache = tempfile::tempdir().unwrap();
        let (options, done) = (CallOptions::new().limit(Duration::from_secs(20)), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for stream in 0..4 {
                let (cache, options, shared, done) = (cache.path(), &options, &shared, &done);
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(10 * stream));
                    while !done.load(Ordering::Relaxed) {
                        let held = shared(&Locks::open(cache).unwrap(), &format!("c{stream}"), options);
                        let _held = held.unwrap();
                        std::thread::sleep(Duration::from_millis(40));
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(100));
            for _ in 0..5 {
                // The wait takes 40 ms. The limit is for machines that are busy with other work.
                let limit = CallOptions::new().limit(Duration::from_secs(2));
                let locked = exclusive(&Locks::open(cache.path()).unwrap(), &limit);
                if locked.is_err() {
                    // The threads must end before the test can fail.
                    done.store(true, Ordering::Relaxed);
                }
                drop(locked.unwrap());
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn gc_of_a_network_gets_the_lock_in_a_stream_of_adds() {
        gets_its_turn(
            |locks, container, options| locks.attachment("n", container, options),
            |locks, options| locks.network("n", options),
        );
    }

    #[cfg(feature = "pods")]
    #[test]
    fn gc_of_pods_gets_the_lock_in_a_stream_of_set_ups() {
        gets_its_turn(Locks::pod, Locks::pods);
    }

    #[test]
    fn many_lock_files_are_deleted_after_few_looks_at_the_attachments() {
        let cache = tempfile::tempdir().unwrap();
        let locks = Locks::open(cache.path()).unwrap();
        let options = CallOptions::new().limit(Duration::from_millis(50));
        let id = |number: usize| format!("c{number}");
        for number in 0..450 {
            drop(locks.container(&id(number), &options).unwrap());
        }
        let _in_use = locks.container(&id(7), &options).unwrap();
        let looks = std::cell::Cell::new(0);
        // The ADD of one container ends after the first look.
        let attached = || {
            looks.set(looks.get() + 1);
            let ids = (0..50).chain((looks.get() > 1).then_some(449));
            Ok(ids.filter(|number| *number != 7).map(id).collect())
        };
        locks.forget_others(attached).unwrap();
        let left: BTreeSet<String> =
            locks.dir.list().unwrap().into_iter().map(|name| name.into_string().unwrap()).collect();
        let expected: BTreeSet<String> =
            (0..50).chain([449]).map(|number| file_name("container", &id(number))).collect();
        assert_eq!(left, expected);
        assert_eq!(looks.get(), 6);
    }

    #[test]
    fn a_gc_that_gave_up_lets_adds_pass() {
        let cache = tempfile::tempdir().unwrap();
        let locks = Locks::open(cache.path()).unwrap();
        let short = CallOptions::new().limit(Duration::from_millis(50));
        let held = locks.attachment("n", "one", &short).unwrap();
        locks.network("n", &short).unwrap_err();
        drop(locks.attachment("n", "two", &short).unwrap());
        drop(held);
        drop(locks.network("n", &short).unwrap());
        drop(locks.attachment("n", "one", &short).unwrap());
    }
}
