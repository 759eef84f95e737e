// SPDX-License-Identifier: GPL-2.0-or-later

//! The driver's files, all below [`CACHE`]: records of attachments, notes of set-ups in progress, locks.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use cni_dataplane::RUN_DIR;
use cni_kernel::dir::{Access, DirError, DurableDir};
use cni_kernel::lock::{FileLock, LockError};
use cni_runtime::{Cache, Cached};
use cni_spec::Attachment;

/// The cache of attachments. A reboot empties it, as it ends all containers; podman tears none of them down after it.
/// Not libcni's directory, whose files are those of CNI runtimes.
pub(crate) const CACHE: &str = "/run/slipway/netavark";
/// The directory of the notes.
const PENDING: &str = "pending";
/// The directory of the locks. podman itself makes one call at a time.
const LOCKS: &str = "bridges";
/// The time limit for the lock of a bridge.
const PATIENCE: Duration = Duration::from_secs(120);

/// The driver's directories.
#[derive(Debug)]
pub(super) struct Store {
    pending: DurableDir,
    locks: DurableDir,
}

impl Store {
    pub(super) fn open() -> Result<Self, DirError> {
        // Others have their files there, too.
        DurableDir::create(Path::new(RUN_DIR), 0o755)?;
        let directory = |name: &str| DurableDir::create(&Path::new(CACHE).join(name), 0o700);
        Ok(Self { pending: directory(PENDING)?, locks: directory(LOCKS)? })
    }

    /// Locks a bridge, so that a teardown which deletes the bridge does not run concurrently with a set-up that joins
    /// it.
    pub(super) fn lock(&self, bridge: &str) -> Result<FileLock, LockError> {
        FileLock::acquire(&self.locks, bridge, 0o600, PATIENCE)
    }

    /// Notes that a set-up begins. Returns true if an earlier set-up of the attachment may have left something, because
    /// it was killed or was not torn down.
    pub(super) fn begin(&self, attachment: &Attachment) -> Result<bool, DirError> {
        let name = note(attachment);
        let was_noted = self.pending.exists(&name)?;
        self.pending.open_file(&name, Access::WriteOrCreate(0o600))?;
        // An unreadable record shows an earlier set-up as well.
        let is_recorded = || match Cache::open(Path::new(CACHE))? {
            Some(cache) => cache.remembers(attachment),
            None => Ok(false),
        };
        Ok(was_noted || is_recorded()?)
    }

    /// Removes the note, because the attachment is complete or nothing of it is left.
    pub(super) fn end(&self, attachment: &Attachment) -> Result<(), DirError> {
        self.pending.remove(note(attachment)).map(drop)
    }
}

/// The record of an attachment. An unreadable one is logged and counts as none.
pub(super) fn cached(attachment: &Attachment) -> Option<Cached> {
    let cache = Cache::open(Path::new(CACHE)).map_err(|error| log::warn!("{error}")).ok()??;
    cache.get(attachment).map_err(|error| log::warn!("record of {attachment}: {error}")).ok()?
}

/// The records of a container.
pub(super) fn of_container(id: &str) -> Result<Vec<Cached>, DirError> {
    match Cache::open(Path::new(CACHE))? {
        Some(cache) => cache.of_container(id),
        None => Ok(Vec::new()),
    }
}

fn note(attachment: &Attachment) -> OsString {
    format!("{}-{}-{}", attachment.network(), attachment.container_id(), attachment.ifname()).into()
}
