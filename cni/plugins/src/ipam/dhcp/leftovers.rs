//! What stays on disk when there is no lease any more, and how `slipway uninstall` takes it away.

use std::path::Path;
use std::time::Duration;

use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::lock::FileLock;
use nix::errno::Errno;

use super::daemon::STATE;
use super::leases::LOCK;

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
