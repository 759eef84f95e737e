// SPDX-License-Identifier: GPL-3.0-or-later

//! Named network namespaces: a file below `/run/netns` that the namespace is mounted on, as by ip-netns(8).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

const DIRECTORY: &str = "/run/netns";
/// The beginning of the names: namespaces of other programs are left alone.
const PREFIX: &str = "slipwayd-";

/// A namespace could not be made or deleted.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}: {error}", path.display())]
pub(crate) struct NetnsError {
    action: &'static str,
    path: PathBuf,
    error: io::Error,
}

/// The path of a sandbox's namespace.
pub(crate) fn path_of(sandbox: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{PREFIX}{sandbox}"))
}

/// Makes the namespace of a sandbox. The ID is checked by the caller: it is a part of a path.
///
/// # Errors
/// [`NetnsError`], also if it exists already.
pub(crate) fn create(sandbox: &str) -> Result<PathBuf, NetnsError> {
    let path = path_of(sandbox);
    let failed = |action| {
        let path = path.clone();
        move |error| NetnsError { action, path, error }
    };
    fs::create_dir_all(DIRECTORY).map_err(failed("create the directory of"))?;
    drop(File::create_new(&path).map_err(failed("create network namespace"))?);
    let target = path.clone();
    // unshare(2) moves a thread: it ends, and the mount keeps the namespace.
    let made = std::thread::spawn(move || -> Result<(), Errno> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let own = Path::new("/proc/thread-self/ns/net");
        mount(Some(own), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
    });
    let made = made.join().unwrap_or(Err(Errno::ECANCELED));
    if let Err(errno) = made {
        drop(fs::remove_file(&path));
        return Err(failed("mount network namespace")(errno.into()));
    }
    Ok(path)
}

/// Deletes the namespace of a sandbox, if it exists. It ends when its last process and socket do.
///
/// # Errors
/// [`NetnsError`] if it cannot be unmounted or its file not be removed.
pub(crate) fn delete(sandbox: &str) -> Result<(), NetnsError> {
    let path = path_of(sandbox);
    match umount2(&path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        // EINVAL: a plain file, of a set-up that was killed.
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => {
            return Err(NetnsError { action: "unmount network namespace", path, error: errno.into() });
        }
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(NetnsError { action: "remove network namespace", path, error })
        }
        _ => Ok(()),
    }
}

/// The sandboxes that have a namespace of [`create`].
///
/// # Errors
/// [`NetnsError`] if the directory cannot be listed.
pub(crate) fn sandboxes() -> Result<Vec<String>, NetnsError> {
    let failed = |error| NetnsError { action: "list", path: DIRECTORY.into(), error };
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        all.extend(name.to_str().and_then(|name| name.strip_prefix(PREFIX)).map(str::to_owned));
    }
    Ok(all)
}
