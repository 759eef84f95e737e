// SPDX-License-Identifier: GPL-2.0-or-later

//! The lock for changes of the chains of iptables and the zones of firewalld. Unlike our table, these cannot be
//! changed on the condition that the record has not changed, so a process that decides by the record what to change
//! there holds this lock.

use std::time::Duration;

use cni_kernel::lock::{FileLock, LockError};

use super::{FirewallRecord, FirewallRequest, Means, held};
use crate::Error;
use crate::lock::{self, Mode};

/// The lock's name in the run directory.
const NAME: &str = "firewall.lock";
/// How long an ADD waits: long enough for a hundred containers that are added at once.
const ADD_PATIENCE: Duration = Duration::from_secs(60);
const DEL_PATIENCE: Duration = Duration::from_secs(30);
/// What may happen if rules are changed without the lock.
const RISK: &str = "too many or too few rules of the firewall may be left";

/// The right to change what an attachment has, until it is dropped or the process ends.
#[derive(Debug)]
pub struct FirewallLock {
    _lock: Option<FileLock>,
}

impl FirewallLock {
    /// Takes the lock for an ADD that needs it. For our own table it is not needed, because the kernel refuses
    /// batches that were made for another generation of the ruleset. If the lock file cannot be made, no other
    /// process holds the lock either, and the ADD continues.
    ///
    /// # Errors
    /// [`Error::FirewallLocked`] if other processes hold the lock for a minute, in which case nothing was changed.
    /// [`Error::Kernel`] if the record cannot be read.
    pub fn for_add(request: &FirewallRequest) -> Result<Self, Error> {
        let before = held(&request.attachment)?;
        if request.means == Means::Nftables && before.as_ref().is_none_or(|before| !before.needs_lock()) {
            return Ok(Self::not_needed());
        }
        Self::or_refuse(lock::take(NAME, Mode::Exclusive, ADD_PATIENCE))
    }

    /// Takes the lock for a DEL or a GC. If other processes hold it for half a minute, logs a warning and continues
    /// without it.
    #[must_use]
    pub fn for_del() -> Self {
        Self { _lock: lock::or_log(lock::take(NAME, Mode::Exclusive, DEL_PATIENCE), RISK) }
    }

    /// Takes the place of the lock when only our own table is changed.
    #[must_use]
    pub fn not_needed() -> Self {
        Self { _lock: None }
    }

    fn or_refuse(lock: Result<FileLock, LockError>) -> Result<Self, Error> {
        match lock {
            Err(source) if source.is_timeout() => Err(Error::FirewallLocked { source }),
            lock => Ok(Self { _lock: lock::or_log(lock, RISK) }),
        }
    }
}

impl FirewallRecord {
    /// True if the request may change rules outside our own table.
    #[must_use]
    pub fn needs_lock(&self) -> bool {
        self.means != Means::Nftables || self.isolates_in_chains()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use cni_spec::ErrorCode;

    use super::*;

    fn take(folder: &Path) -> Result<FileLock, LockError> {
        lock::take_in(folder, NAME, Mode::Exclusive, Duration::from_millis(20))
    }

    #[test]
    fn an_add_without_the_lock_is_refused_and_a_del_continues() {
        let folder = tempfile::tempdir().unwrap();
        let first = FirewallLock::or_refuse(take(folder.path())).unwrap();
        assert!(first._lock.is_some());
        let error = FirewallLock::or_refuse(take(folder.path())).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TryAgainLater, "{error}");
        assert!(lock::or_log(take(folder.path()), RISK).is_none());
        drop(first);
        assert!(take(folder.path()).is_ok());
    }

    #[test]
    fn an_add_continues_where_no_lock_file_can_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(FirewallLock::or_refuse(take(&file)).unwrap()._lock.is_none());
    }
}
