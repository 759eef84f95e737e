//! One after the other: the chains of iptables and the zones of firewalld cannot be changed on the condition
//! that the record is still as it was. So who decides by the record what is to go there, and who adds to both,
//! does it while nobody else does.

use std::path::Path;
use std::time::Duration;

use cni_kernel::dir::DurableDir;
use cni_kernel::lock::{FileLock, LockError};

use super::{FirewallRequest, Held, IngressPolicy, Means, held};
use crate::Error;
use crate::run_dir::RUN_DIR;

/// The lock's name in [`RUN_DIR`].
const LOCK: &str = "firewall.lock";
/// How long an ADD waits: a hundred containers that come at the same moment are not refused.
const ADD_PATIENCE: Duration = Duration::from_secs(60);
/// How long a DEL waits before it goes on without.
const DEL_PATIENCE: Duration = Duration::from_secs(30);

/// The right to change what an attachment has, until it is dropped; it ends with the process, too.
#[derive(Debug)]
pub struct Turn {
    _lock: Option<FileLock>,
}

impl Turn {
    /// For an ADD. Sets of our own need no turn: a batch is refused when the ruleset has changed.
    ///
    /// # Errors
    /// [`Error::NoTurn`] when others keep it for a minute; nothing was made. What could not be read.
    pub fn to_add(request: &FirewallRequest) -> Result<Self, Error> {
        let before = held(&request.attachment)?;
        if request.means == Means::Nftables && before.as_ref().is_none_or(|before| !before.is_elsewhere()) {
            return Ok(Self { _lock: None });
        }
        Self::or_refuse(Path::new(RUN_DIR), ADD_PATIENCE)
    }

    /// For a DEL or a GC, which goes on without one when others keep it for half a minute: what is left may then
    /// be more, or less, than should be.
    #[must_use]
    pub fn to_remove() -> Self {
        Self::or_go_on(Path::new(RUN_DIR), DEL_PATIENCE)
    }

    /// For what touches nothing but sets of our own.
    #[must_use]
    pub fn unneeded() -> Self {
        Self { _lock: None }
    }

    fn or_refuse(folder: &Path, patience: Duration) -> Result<Self, Error> {
        match take(folder, patience) {
            Ok(lock) => Ok(Self { _lock: Some(lock) }),
            Err(error) if error.is_timeout() => Err(Error::NoTurn { source: error }),
            // Where there can be no such file, nobody else has the lock either.
            Err(error) => {
                log::debug!("{error}: others may change the firewall's rules meanwhile");
                Ok(Self { _lock: None })
            }
        }
    }

    fn or_go_on(folder: &Path, patience: Duration) -> Self {
        let lock = take(folder, patience).map_err(|error| {
            let level = if error.is_timeout() { log::Level::Warn } else { log::Level::Debug };
            log::log!(level, "{error}: the firewall's rules are changed without it");
        });
        Self { _lock: lock.ok() }
    }
}

fn take(folder: &Path, patience: Duration) -> Result<FileLock, LockError> {
    FileLock::acquire(&DurableDir::create(folder, 0o755)?, LOCK, 0o600, patience)
}

impl Held {
    /// Whether it has something else than elements of sets of our own, or something may go with it that has.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.means != Means::Nftables || self.policy != IngressPolicy::Open
    }
}

#[cfg(test)]
mod tests {
    use cni_spec::ErrorCode;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    #[test]
    fn an_add_is_refused_and_a_del_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let first = Turn::or_refuse(folder.path(), SOON).unwrap();
        assert!(first._lock.is_some());
        let error = Turn::or_refuse(folder.path(), SOON).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TryAgainLater, "{error}");
        assert!(Turn::or_go_on(folder.path(), SOON)._lock.is_none());
        drop(first);
        assert!(Turn::or_go_on(folder.path(), SOON)._lock.is_some());
    }

    #[test]
    fn who_cannot_have_a_lock_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(Turn::or_refuse(&file, SOON).unwrap()._lock.is_none());
        assert!(Turn::or_go_on(&file, SOON)._lock.is_none());
    }
}
