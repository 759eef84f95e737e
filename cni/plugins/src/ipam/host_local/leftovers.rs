// SPDX-License-Identifier: GPL-2.0-or-later

//! Files that stay when no address is reserved any more, and their removal by `slipway uninstall`.
//!
//! Covers only networks that this plugin has served: those with a folder in `<dataDir>/.slipway`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cni_kernel::dir::{self, DurableDir};
use nix::errno::Errno;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::config::DATA_DIR;
use super::owner;
use super::store::{Entry, LAST, LOCK, OURS, Store, StoreError};

/// The default folder of reservations.
pub const DEFAULT_DATA_DIR: &str = DATA_DIR;

/// The folder of our own files.
pub fn own(data_dir: &Path) -> PathBuf {
    data_dir.join(OURS)
}

pub fn is_own(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name == OURS)
}

/// True if there is a folder of our own files.
pub fn has_own(data_dir: &Path) -> Result<bool, StoreError> {
    Ok(open(&own(data_dir))?.is_some())
}

/// The networks that have reservation folders and that this plugin has served, sorted.
pub fn networks(data_dir: &Path) -> Result<Vec<OsString>, StoreError> {
    let Some(ours) = open(&own(data_dir))? else { return Ok(Vec::new()) };
    let mut names = ours.list()?;
    let mut present = Vec::new();
    names.sort();
    for name in names {
        if open(&data_dir.join(&name))?.is_some() {
            present.push(name);
        }
    }
    Ok(present)
}

/// The reason why a network's folder cannot be removed: reservations, or foreign files. None if it can.
pub fn in_the_way(folder: &Path) -> Result<Option<String>, StoreError> {
    match store(folder)? {
        Some(store) => others(&store),
        None => Ok(None),
    }
}

/// Removes a network's folder under its lock, against a concurrent ADD. Returns the reason if it cannot be
/// removed.
pub fn remove_network(folder: &Path) -> Result<Option<String>, StoreError> {
    let Some(store) = store(folder)? else { return Ok(None) };
    let lock = store.lock()?;
    if let Some(why) = others(&store)? {
        return Ok(Some(why));
    }
    remove_files(&store.dir)?;
    drop(lock);
    remove_folder(folder)?;
    Ok(None)
}

/// Removes the folder of our own files, and the folders above it if they are the default ones and empty.
pub fn remove_own(folder: &Path) -> Result<(), StoreError> {
    let Some(ours) = open(folder)? else { return Ok(()) };
    for name in ours.list()? {
        let network = folder.join(&name);
        if let Some(files) = open(&network)? {
            remove_files(&files)?;
        }
        remove_folder(&network)?;
    }
    remove_folder(folder)?;
    let usual = Path::new(DATA_DIR);
    if folder.parent() != Some(usual) {
        return Ok(());
    }
    for above in [Some(usual), usual.parent()].into_iter().flatten() {
        match dir::remove_empty(above) {
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::EBUSY) => break,
            other => other.map_err(|errno| failed("remove", above, errno))?,
        }
    }
    Ok(())
}

fn store(folder: &Path) -> Result<Option<Store>, StoreError> {
    match (folder.parent(), folder.file_name().and_then(|name| name.to_str())) {
        (Some(data_dir), Some(network)) => Store::open(data_dir, network),
        _ => Ok(None),
    }
}

/// The number of reservations, or else of foreign files, as a reason.
fn others(store: &Store) -> Result<Option<String>, StoreError> {
    let (mut reserved, mut foreign) = (0_usize, 0_usize);
    store.scan(|_, entry| match entry {
        Entry::Owned(_) => reserved += 1,
        Entry::Foreign => foreign += 1,
        Entry::Torn => {}
    })?;
    let known = |name: &OsString| {
        name.to_str()
            .is_some_and(|name| name == LOCK || name.starts_with(LAST) || owner::address(name).is_some())
    };
    foreign += store.dir.list()?.iter().filter(|name| !known(name)).count();
    Ok(match (reserved, foreign) {
        (0, 0) => None,
        (0, _) => Some(format!("not host-local's: {foreign}")),
        _ => Some(format!("reserved addresses: {reserved}")),
    })
}

fn remove_files(dir: &DurableDir) -> Result<(), StoreError> {
    for name in dir.list()? {
        match unlinkat(dir, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(failed("remove", &dir.path().join(&name), errno)),
        }
    }
    Ok(())
}

fn remove_folder(path: &Path) -> Result<(), StoreError> {
    dir::remove_empty(path).map_err(|errno| failed("remove", path, errno))
}

fn open(path: &Path) -> Result<Option<DurableDir>, StoreError> {
    match DurableDir::open(path) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::ENOTDIR)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn failed(operation: &'static str, path: &Path, errno: Errno) -> StoreError {
    StoreError::System { operation, path: path.to_path_buf(), errno }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A folder as host-local leaves it after the last release.
    fn network(data_dir: &Path, name: &str) -> PathBuf {
        Store::create(data_dir, name).unwrap().make_ours(data_dir, name);
        let folder = data_dir.join(name);
        for file in ["lock", "last_reserved_ip.0"] {
            fs::write(folder.join(file), "").unwrap();
        }
        fs::write(own(data_dir).join(name).join("index"), "x").unwrap();
        folder
    }

    #[test]
    fn nothing_is_left_of_networks_without_reservations() {
        let temp = tempfile::tempdir().unwrap();
        let folders = ["one", "two"].map(|name| network(temp.path(), name));
        // A torn reservation does not count.
        fs::write(folders[0].join("10.0.0.9"), "").unwrap();
        assert_eq!(networks(temp.path()).unwrap(), ["one", "two"]);
        for folder in &folders {
            assert_eq!(in_the_way(folder).unwrap(), None);
            assert_eq!(remove_network(folder).unwrap(), None);
        }
        assert!(has_own(temp.path()).unwrap());
        assert!(is_own(&own(temp.path())) && !is_own(&folders[0]));
        remove_own(&own(temp.path())).unwrap();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
        assert!(!has_own(temp.path()).unwrap() && networks(temp.path()).unwrap().is_empty());
        remove_own(&own(temp.path())).unwrap();
        std::os::unix::fs::symlink(OURS, own(temp.path())).unwrap();
        assert!(has_own(temp.path()).is_err(), "a folder that cannot be opened may have files");
    }

    #[test]
    fn reservations_and_foreign_files_stay() {
        let temp = tempfile::tempdir().unwrap();
        let (used, odd) = (network(temp.path(), "used"), network(temp.path(), "odd"));
        fs::write(used.join("10.0.0.2"), "c1\r\neth0").unwrap();
        fs::write(odd.join("notes"), "mine").unwrap();
        // A folder with the name of an address.
        fs::create_dir(odd.join("10.0.0.2")).unwrap();
        // Only the reference has served it.
        fs::create_dir(temp.path().join("theirs")).unwrap();
        assert_eq!(networks(temp.path()).unwrap(), ["odd", "used"]);
        for (folder, why) in [(&used, "reserved addresses: 1"), (&odd, "not host-local's: 2")] {
            assert_eq!(in_the_way(folder).unwrap().as_deref(), Some(why));
            assert_eq!(remove_network(folder).unwrap().as_deref(), Some(why));
        }
        remove_own(&own(temp.path())).unwrap();
        assert!(used.join("10.0.0.2").is_file() && used.join("last_reserved_ip.0").is_file());
        assert!(odd.join("notes").is_file() && temp.path().join("theirs").is_dir());
    }
}
