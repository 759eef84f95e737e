// SPDX-License-Identifier: MIT OR Apache-2.0

//! Namespaces that isolate a demo or a benchmark from the machine.
//!
//! The process moves into a new network namespace and a new mount namespace with private `/run` and
//! `/var/lib`. They end with the last process in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid};

use xtask_base::error::{Error, Result};
use xtask_base::files;

/// The folder of named namespaces, also for `ip netns`.
const NETNS_DIR: &str = "/run/netns";

/// The storage of the private `/var/lib`.
#[derive(Debug, Clone, Copy)]
pub enum State<'a> {
    Memory,
    /// In a folder, so that fsync(2) writes to its disk.
    Folder(&'a Path),
}

/// Moves this process into new namespaces, the node. Must be called before any thread is started. A user who
/// is not root becomes root in a user namespace, if the system allows that.
pub fn enter(state: State<'_>) -> Result<()> {
    if !Uid::effective().is_root() {
        become_root()?;
    }
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).map_err(|e| {
        Error::system("make a network and a mount namespace (this needs root: CAP_SYS_ADMIN)", e)
    })?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(|e| Error::system("make the mounts private", e))?;
    tmpfs("/run")?;
    match state {
        State::Memory => tmpfs("/var/lib")?,
        State::Folder(folder) => mount(Some(folder), "/var/lib", none, MsFlags::MS_BIND, none)
            .map_err(|e| Error::file("mount on /var/lib:", folder, e))?,
    }
    fs::create_dir(NETNS_DIR).map_err(|e| Error::file("create", Path::new(NETNS_DIR), e))
}

fn become_root() -> Result<()> {
    let (uid, gid) = (Uid::current(), Gid::current());
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|e| {
        Error::system(
            "make a user namespace (this task needs root, or a system that lets users make namespaces; \
             try `sudo --preserve-env=PATH,HOME cargo xtask …`)",
            e,
        )
    })?;
    // user_namespaces(7): setgroups must be denied before an unprivileged gid_map is written.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {uid} 1")),
        ("gid_map", format!("0 {gid} 1")),
    ] {
        let path = Path::new("/proc/self").join(file);
        files::write(&path, text)?;
    }
    Ok(())
}

fn tmpfs(on: &str) -> Result<()> {
    mount(Some("tmpfs"), on, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=755"))
        .map_err(|e| Error::file("mount a tmpfs on", Path::new(on), e))
}

/// The path of a named namespace.
pub fn netns_path(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

/// Makes a named network namespace, as `ip netns add` does: a bind mount keeps it.
pub fn add_netns(name: &str) -> Result<PathBuf> {
    let path = netns_path(name);
    fs::File::create_new(&path).map_err(|e| Error::file("create", &path, e))?;
    in_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|e| Error::file("make the namespace", &path, e))?;
        let none: Option<&str> = None;
        mount(Some("/proc/thread-self/ns/net"), &path, none, MsFlags::MS_BIND, none)
            .map_err(|e| Error::file("mount the namespace on", &path, e))
    })?;
    Ok(path)
}

/// Deletes a named network namespace. It ends with the last process and socket in it.
pub fn remove_netns(path: &Path) -> Result<()> {
    umount2(path, MntFlags::MNT_DETACH).map_err(|e| Error::file("unmount", path, e))?;
    fs::remove_file(path).map_err(|e| Error::file("remove", path, e))
}

/// Moves the calling thread, and processes that it starts, into a named namespace.
pub fn switch_to(path: &Path) -> Result<()> {
    let file = fs::File::open(path).map_err(|e| Error::file("open", path, e))?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|e| Error::file("enter", path, e))
}

/// Runs a function on a new thread, whose namespaces are its own.
pub fn in_thread<T: Send>(body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| scope.spawn(body).join())
        .unwrap_or_else(|_| Err(Error::Failed("a helper thread ended with a panic".to_owned())))
}
