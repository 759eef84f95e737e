// SPDX-License-Identifier: GPL-2.0-or-later

//! The folder of leases: leases that a daemon would keep, and the folder's removal by `slipway uninstall`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_kernel::dir::{self, DirError, DurableDir};
use cni_kernel::lock::FileLock;
use nix::errno::Errno;

use super::config::STATE;
use super::lease::Owner;
use super::leases::{FileError, LOCK, read};

/// Why the folder cannot be read or removed.
#[derive(Debug, thiserror::Error)]
pub enum LeftoversError {
    #[error(transparent)]
    Dir(#[from] DirError),
    #[error("remove {path:?}: {error}")]
    Remove { path: PathBuf, error: std::io::Error },
}

/// The folder of leases.
pub fn folder() -> &'static Path {
    Path::new(STATE)
}

/// The reason why the folder cannot be removed: leases, or a daemon. Changes nothing.
pub fn in_the_way() -> Result<Option<String>, LeftoversError> {
    match open(folder())? {
        Some(dir) => others(&dir, folder()),
        None => Ok(None),
    }
}

/// Removes the folder, or returns the reason why it cannot be removed.
pub fn remove() -> Result<Option<String>, LeftoversError> {
    remove_folder(folder())
}

fn remove_folder(path: &Path) -> Result<Option<String>, LeftoversError> {
    let Some(folder) = open(path)? else { return Ok(None) };
    if let Some(why) = others(&folder, path)? {
        return Ok(Some(why));
    }
    folder.remove(LOCK)?;
    // Fails if a daemon has started since and written a lease.
    match dir::remove_empty(path) {
        Err(errno) => Err(LeftoversError::Remove { path: path.to_path_buf(), error: errno.into() }),
        Ok(()) => Ok(None),
    }
}

/// True if the attachment has a lease on disk that a daemon would keep.
pub(super) fn has_lease(state: &Path, owner: &Owner) -> Result<bool, DirError> {
    match DurableDir::open(state) {
        Ok(dir) => is_lease(&dir, owner.file_name().as_ref()),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn has_leases(state: &Path, network: &str) -> Result<bool, DirError> {
    let dir = match DurableDir::open(state) {
        Ok(dir) => dir,
        Err(error) if error.is_not_found() => return Ok(false),
        Err(error) => return Err(error),
    };
    for name in dir.list()? {
        let owner = name.to_str().and_then(Owner::of_file);
        if owner.is_some_and(|owner| owner.network == network) && is_lease(&dir, &name)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True if a daemon would keep the lease. Leases of an earlier boot have ended, and malformed files are
/// ignored.
fn is_lease(dir: &DurableDir, name: &OsStr) -> Result<bool, DirError> {
    match read(dir, name) {
        Ok(lease) => Ok(lease.is_some_and(|lease| !lease.is_of_earlier_boot())),
        Err(FileError::File(error)) if error.errno().is_some() => Err(error),
        Err(error) => {
            log::warn!("{}: {error}", dir.path().join(name).display());
            Ok(false)
        }
    }
}

fn open(path: &Path) -> Result<Option<DurableDir>, DirError> {
    match DurableDir::open(path) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn others(dir: &DurableDir, path: &Path) -> Result<Option<String>, LeftoversError> {
    let names = dir.list()?;
    if let Some(name) = names.iter().find(|name| *name != LOCK) {
        return Ok(Some(format!("{} is a lease", path.join(name).display())));
    }
    // A daemon makes the file and locks it while it runs.
    if !names.is_empty() && FileLock::acquire(dir, LOCK, 0o600, Duration::ZERO).is_err() {
        return Ok(Some("slipway dhcp daemon runs".to_owned()));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_and_a_daemon_are_in_the_way() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("dhcp");
        assert_eq!(remove_folder(&path).unwrap(), None);
        let dir = DurableDir::create(&path, 0o700).unwrap();
        let daemon = FileLock::acquire(&dir, LOCK, 0o600, Duration::ZERO).unwrap();
        assert_eq!(remove_folder(&path).unwrap().unwrap(), "slipway dhcp daemon runs");
        drop(daemon);
        std::fs::write(path.join("n:c:eth0"), "{}").unwrap();
        assert_eq!(remove_folder(&path).unwrap().unwrap(), format!("{}/n:c:eth0 is a lease", path.display()));
        std::fs::remove_file(path.join("n:c:eth0")).unwrap();
        assert_eq!(remove_folder(&path).unwrap(), None);
        assert!(!path.exists());
    }
}
