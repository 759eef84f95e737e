//! What stays on disk when there is no lease any more, and how `slipway uninstall` takes it away.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use cni_kernel::boot;
use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::lock::FileLock;
use nix::errno::Errno;

use super::config::STATE;
use super::lease::Owner;
use super::leases::{LOCK, ReadError, read};

/// The folder of leases.
pub(crate) fn folder() -> &'static Path {
    Path::new(STATE)
}

/// What keeps the folder from being removed: leases, or a daemon. Nothing is changed.
///
/// # Errors
/// What could not be read.
pub(crate) fn in_the_way() -> Result<Option<String>, String> {
    match open(folder())? {
        Some(dir) => others(&dir, folder()),
        None => Ok(None),
    }
}

/// Removes the folder; or says what is in the way.
///
/// # Errors
/// What could not be removed.
pub(crate) fn remove() -> Result<Option<String>, String> {
    remove_folder(folder())
}

fn remove_folder(path: &Path) -> Result<Option<String>, String> {
    let Some(dir) = open(path)? else { return Ok(None) };
    if let Some(why) = others(&dir, path)? {
        return Ok(Some(why));
    }
    dir.remove(LOCK).map_err(|e| e.to_string())?;
    // A lease of a daemon that has started just now keeps the folder there.
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("remove {}: {error}", path.display()))
        }
        _ => Ok(None),
    }
}

/// Whether an attachment has a lease on the disk that a daemon would keep.
///
/// # Errors
/// What the disk did not give: it may be one.
pub(super) fn has_lease(state: &Path, owner: &Owner) -> Result<bool, DirError> {
    match DurableDir::open(state) {
        Ok(dir) => is_lease(&dir, owner.file_name().as_ref()),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a network has such leases.
///
/// # Errors
/// What the disk did not give.
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

/// One of before a restart of the machine is over, and one that says nothing no daemon would give back.
fn is_lease(dir: &DurableDir, name: &OsStr) -> Result<bool, DirError> {
    match read(dir, name) {
        Ok(lease) => Ok(lease.is_some_and(|lease| lease.boot == boot::id())),
        Err(ReadError::File(error)) if error.errno().is_some() => Err(error),
        Err(error) => {
            log::warn!("{}: {error}", dir.path().join(name).display());
            Ok(false)
        }
    }
}

fn open(path: &Path) -> Result<Option<DurableDir>, String> {
    match DurableDir::open(path) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn others(dir: &DurableDir, path: &Path) -> Result<Option<String>, String> {
    let failed = |e: DirError| e.to_string();
    let names = dir.list().map_err(failed)?;
    if let Some(name) = names.iter().find(|name| *name != LOCK) {
        return Ok(Some(format!("{} is a lease", path.join(name).display())));
    }
    // Made by a daemon, and held as long as it runs.
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
