// SPDX-License-Identifier: GPL-2.0-or-later

//! Leftovers on disk: host-local's files other than reservations, dhcp's directory without leases, and the
//! directories of tuning's backups, flannel's saved configurations and slipwayd's pending set-ups.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cni_kernel::dir::{DurableDir, TEMPORARY, is_fixed, remove_empty};
use nix::errno::Errno;

use super::{Leftover, LeftoverError};
use cni_plugins::ipam::dhcp::leftovers as dhcp;
use cni_plugins::ipam::host_local::leftovers;
use cni_plugins::meta::{flannel, tuning};

/// Finds the networks of our host-local, not of the reference's, and the other directories.
pub(super) fn plan(data_dir: &Path) -> Result<Vec<Leftover>, LeftoverError> {
    let mut leftovers = Vec::new();
    for kept in KEPT {
        leftovers.extend(kept.plan()?);
    }
    for network in leftovers::networks(data_dir)? {
        let folder = data_dir.join(&network);
        let why = leftovers::in_the_way(&folder)?;
        leftovers.push(kept_or_removed(folder, why));
    }
    if leftovers::has_own(data_dir)? {
        leftovers.push(Leftover::Directory(leftovers::own(data_dir)));
    }
    if is_directory(dhcp::folder())? {
        leftovers.push(kept_or_removed(dhcp::folder().to_owned(), dhcp::in_the_way()?));
    }
    Ok(leftovers)
}

/// Removes a directory of the plan, or returns it with the reason why it is kept.
pub(super) fn remove(folder: PathBuf) -> Result<Leftover, LeftoverError> {
    if let Some(kept) = KEPT.iter().find(|kept| Path::new(kept.folder) == folder) {
        kept.remove()?;
        return Ok(match kept.plan()? {
            Some(Leftover::Directory(folder)) if is_fixed(&folder).is_none() => {
                let why = "a file is written there".to_owned();
                Leftover::Keep { what: folder.display().to_string(), why }
            }
            Some(leave) => leave,
            None => Leftover::Directory(folder),
        });
    }
    let why = if folder == dhcp::folder() {
        dhcp::remove()?
    } else if leftovers::is_own(&folder) {
        leftovers::remove_own(&folder)?;
        None
    } else {
        leftovers::remove_network(&folder)?
    };
    Ok(kept_or_removed(folder, why))
}

fn kept_or_removed(folder: PathBuf, why: Option<String>) -> Leftover {
    match why {
        None => Leftover::Directory(folder),
        Some(why) => Leftover::Keep { what: folder.display().to_string(), why },
    }
}

/// slipwayd's pending set-ups in the usual cache directory.
const PENDING: &str = "/var/lib/cni/pending";

/// A directory in its usual place, with a file for each container.
struct Kept {
    folder: &'static str,
    /// A subdirectory that only Slipway makes. Without it, everything in the directory belongs to the reference.
    own: Option<&'static str>,
    /// A word for the files.
    files: &'static str,
}

const KEPT: [Kept; 3] = [
    Kept { folder: flannel::DATA_DIR, own: Some(flannel::OURS), files: "saved configurations" },
    Kept { folder: tuning::DATA_DIR, own: None, files: "backups of links' settings" },
    Kept { folder: PENDING, own: None, files: "pending set-ups of pods" },
];

impl Kept {
    /// Our own directory in it.
    fn own(&self) -> Option<PathBuf> {
        self.own.map(|own| Path::new(self.folder).join(own))
    }

    /// Plans the removal. None if nothing in the directory belongs to Slipway.
    fn plan(&self) -> Result<Option<Leftover>, LeftoverError> {
        let Some(names) = names(Path::new(self.folder))? else { return Ok(None) };
        let shared = names.iter().filter(|name| self.own.is_none_or(|own| *name != own)).count();
        let own = match self.own() {
            None => 0,
            Some(own) => match self::names(&own)? {
                None => return Ok(None),
                Some(own) => own.len(),
            },
        };
        // Each container has a file in both.
        Ok(Some(match shared.max(own) {
            0 => Leftover::Directory(self.folder.into()),
            files => {
                let why = format!("{}: {files}", self.files);
                Leftover::Keep { what: self.folder.to_owned(), why }
            }
        }))
    }

    /// Removes the directories that are empty, and then their parent if it is empty.
    fn remove(&self) -> Result<(), LeftoverError> {
        let folder = Path::new(self.folder);
        let own = self.own();
        for swept in own.as_deref().into_iter().chain([folder]) {
            if let Ok(dir) = DurableDir::open(swept) {
                dir.remove_stale_temporaries()?;
            }
        }
        for empty in own.as_deref().into_iter().chain([folder]).chain(folder.parent()) {
            match remove_empty(empty) {
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => break,
                other => other.map_err(|errno| failed("remove", empty, errno.into()))?,
            }
        }
        Ok(())
    }
}

/// True for a directory, false if there is nothing or something else at the path.
pub(super) fn is_directory(path: &Path) -> Result<bool, LeftoverError> {
    match path.metadata() {
        Ok(found) => Ok(found.is_dir()),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(failed("look at", path, error)),
    }
}

fn is_missing(error: &io::Error) -> bool {
    [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind())
}

/// The names in a directory, without temporary files of killed writers; none if there is no such directory.
fn names(folder: &Path) -> Result<Option<Vec<OsString>>, LeftoverError> {
    let read = std::fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>()
    });
    match read {
        Ok(mut names) => {
            names.retain(|name| !name.as_bytes().starts_with(TEMPORARY.as_bytes()));
            Ok(Some(names))
        }
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(failed("list", folder, error)),
    }
}

fn failed(operation: &'static str, folder: &Path, source: io::Error) -> LeftoverError {
    LeftoverError::Directory { operation, path: folder.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use cni_runtime::cache;

    use super::*;

    #[test]
    fn a_directory_that_cannot_be_looked_at_is_not_taken_for_missing() {
        let temp = tempfile::tempdir().unwrap();
        let (file, looped) = (temp.path().join("file"), temp.path().join("loop"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&looped, &looped).unwrap();
        assert!(is_directory(temp.path()).unwrap());
        for none in [file.join("below"), temp.path().join("none"), file] {
            assert!(!is_directory(&none).unwrap(), "{none:?}");
        }
        assert!(is_directory(&looped).unwrap_err().to_string().starts_with("look at "));
    }

    #[test]
    fn pending_set_ups_are_searched_where_the_runtime_keeps_them() {
        assert_eq!(Path::new(cache::DIRECTORIES[0]).join(cache::PENDING), Path::new(PENDING));
        assert!(KEPT.iter().any(|kept| kept.folder == PENDING));
    }
}
