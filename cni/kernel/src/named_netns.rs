// SPDX-License-Identifier: MIT OR Apache-2.0

//! Named network namespaces: files below `/run/netns` on which a namespace is mounted, as ip-netns(8) creates them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// The directory of the names.
const DIRECTORY: &str = "/run/netns";

/// A namespace could not be made or deleted.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}: {error}", path.display())]
pub struct NamedNetnsError {
    action: &'static str,
    path: PathBuf,
    error: io::Error,
}

/// The path of a name.
#[must_use]
pub fn path_of(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// Makes a namespace. The caller must have checked the name, because it becomes part of a path.
///
/// # Errors
/// [`NamedNetnsError`], for instance if the name is taken.
pub fn create(name: &str) -> Result<PathBuf, NamedNetnsError> {
    let path = path_of(name);
    let failed = |action, error| NamedNetnsError { action, path: path.clone(), error };
    fs::create_dir_all(DIRECTORY).map_err(|error| failed("create the directory of", error))?;
    File::create_new(&path).map_err(|error| failed("create network namespace", error))?;
    // unshare(2) moves only the calling thread, which ends afterwards. The mount keeps the namespace alive.
    let made = std::thread::scope(|scope| {
        let make = || -> Result<(), Errno> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let own = Path::new("/proc/thread-self/ns/net");
            mount(Some(own), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        };
        let thread = std::thread::Builder::new().spawn_scoped(scope, make)?;
        thread.join().unwrap_or(Err(Errno::ECANCELED)).map_err(io::Error::from)
    });
    if let Err(error) = made {
        drop(fs::remove_file(&path));
        return Err(failed("mount network namespace", error));
    }
    Ok(path)
}

/// Deletes a namespace's name, if it exists. The namespace itself ends with its last process or socket.
///
/// # Errors
/// [`NamedNetnsError`] if the namespace cannot be unmounted or its file cannot be removed.
pub fn delete(name: &str) -> Result<(), NamedNetnsError> {
    let path = path_of(name);
    let failed = |action, error| Err(NamedNetnsError { action, path: path.clone(), error });
    match umount2(&path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        // EINVAL means that this is a plain file, which a process that was killed has left.
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return failed("unmount network namespace", errno.into()),
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => failed("remove network namespace", error),
        _ => Ok(()),
    }
}

/// The names that begin with `prefix`, with the prefix removed.
///
/// # Errors
/// [`NamedNetnsError`] if the directory cannot be listed.
pub fn names(prefix: &str) -> Result<Vec<String>, NamedNetnsError> {
    let failed = |error| NamedNetnsError { action: "list", path: DIRECTORY.into(), error };
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        all.extend(name.to_str().and_then(|name| name.strip_prefix(prefix)).map(str::to_owned));
    }
    Ok(all)
}
