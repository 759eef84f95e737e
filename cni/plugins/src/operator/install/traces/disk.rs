//! What host-local has on disk beside the reservations, dhcp beside the leases, and the folders of tuning's
//! backups and flannel's saved configurations.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cni_kernel::dir::{DurableDir, TEMPORARY};

use super::{Trace, TraceError};
use crate::ipam::dhcp::leftovers as dhcp;
use crate::ipam::host_local::leftovers;
use crate::meta::{flannel, tuning};

/// The networks that our host-local has worked for. What the reference's has made is not ours.
pub(super) fn plan(data_dir: &Path) -> Result<Vec<Trace>, TraceError> {
    let mut traces = Vec::new();
    for kept in KEPT {
        traces.extend(kept.plan()?);
    }
    for network in leftovers::networks(data_dir)? {
        let folder = data_dir.join(&network);
        let why = leftovers::in_the_way(&folder)?;
        traces.push(judge(folder, why));
    }
    if leftovers::has_own(data_dir)? {
        traces.push(Trace::Folder(leftovers::own(data_dir)));
    }
    if dhcp::folder().is_dir() {
        traces.push(judge(
            dhcp::folder().to_owned(),
            dhcp::in_the_way().map_err(|e| TraceError::Disk(e.to_string()))?,
        ));
    }
    Ok(traces)
}

/// Removes a network's folder, our own with all that is in it, or that of leases.
pub(super) fn remove(folder: PathBuf) -> Result<Trace, TraceError> {
    if let Some(kept) = KEPT.iter().find(|kept| Path::new(kept.folder) == folder) {
        kept.remove()?;
        return Ok(match kept.plan()? {
            Some(Trace::Folder(folder)) => {
                let why = "a file is written there".to_owned();
                Trace::Leave { what: folder.display().to_string(), why }
            }
            Some(leave) => leave,
            None => Trace::Folder(folder),
        });
    }
    let why = if folder == dhcp::folder() {
        dhcp::remove().map_err(|e| TraceError::Disk(e.to_string()))?
    } else if leftovers::is_own(&folder) {
        leftovers::remove_own(&folder)?;
        None
    } else {
        leftovers::remove_network(&folder)?
    };
    Ok(judge(folder, why))
}

fn judge(folder: PathBuf, why: Option<String>) -> Trace {
    match why {
        None => Trace::Folder(folder),
        Some(why) => Trace::Leave { what: folder.display().to_string(), why },
    }
}

/// A folder, in its usual place, with a file for each container that has something.
struct Kept {
    folder: &'static str,
    /// One in it that only Slipway makes: without it the folder is the reference's.
    own: Option<&'static str>,
    /// What the files are.
    files: &'static str,
}

const KEPT: [Kept; 2] = [
    Kept { folder: flannel::DATA_DIR, own: Some(flannel::OURS), files: "saved configurations" },
    Kept { folder: tuning::DATA_DIR, own: None, files: "backups of links' settings" },
];

impl Kept {
    /// Our own folder in it.
    fn own(&self) -> Option<PathBuf> {
        self.own.map(|own| Path::new(self.folder).join(own))
    }

    /// None when there is nothing of ours.
    fn plan(&self) -> Result<Option<Trace>, TraceError> {
        let Some(names) = names(Path::new(self.folder))? else { return Ok(None) };
        let shared = names.iter().filter(|name| self.own.is_none_or(|own| *name != own)).count();
        let own = match self.own() {
            None => 0,
            Some(own) => match self::names(&own)? {
                None => return Ok(None),
                Some(own) => own.len(),
            },
        };
        // Each is in both.
        Ok(Some(match shared.max(own) {
            0 => Trace::Folder(self.folder.into()),
            files => {
                let why = format!("{}: {files}", self.files);
                Trace::Leave { what: self.folder.to_owned(), why }
            }
        }))
    }

    /// Removes what is empty, and the folder above it if that is empty then.
    fn remove(&self) -> Result<(), TraceError> {
        let folder = Path::new(self.folder);
        let own = self.own();
        for swept in own.as_deref().into_iter().chain([folder]) {
            if let Ok(dir) = DurableDir::open(swept) {
                dir.remove_stale_temporaries().map_err(|error| TraceError::Disk(error.to_string()))?;
            }
        }
        for empty in own.as_deref().into_iter().chain([folder]).chain(folder.parent()) {
            match std::fs::remove_dir(empty) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => break,
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed("remove", empty, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// What is in a folder, but for files of writers that were killed; none when there is no such folder.
fn names(folder: &Path) -> Result<Option<Vec<OsString>>, TraceError> {
    let read = std::fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>()
    });
    match read {
        Ok(mut names) => {
            names.retain(|name| !name.as_bytes().starts_with(TEMPORARY.as_bytes()));
            Ok(Some(names))
        }
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => Ok(None),
        Err(error) => Err(failed("list", folder, &error)),
    }
}

fn failed(what: &str, folder: &Path, error: &io::Error) -> TraceError {
    TraceError::Disk(format!("{what} {}: {error}", folder.display()))
}
