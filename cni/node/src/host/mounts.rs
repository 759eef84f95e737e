// SPDX-License-Identifier: GPL-3.0-or-later

//! The mounts of the node, for an agent in a container with the node's PIDs: the mount namespace of process 1, with its
//! root directory. The node's own programs and its containers' namespaces are there.

use std::fs::File;
use std::io;
use std::panic::resume_unwind;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{chroot, fchdir};

const NAMESPACE: &str = "/proc/1/ns/mnt";
const ROOT: &str = "/proc/1/root";

/// Enters the mount namespace and root directory of process 1 with the calling thread, for good. The thread no longer
/// shares its root and working directory with others.
///
/// # Errors
/// The capabilities SYS_ADMIN, SYS_CHROOT or SYS_PTRACE are missing, or `/proc` is not the node's.
pub fn enter() -> io::Result<()> {
    let namespace = File::open(NAMESPACE)?;
    // setns(2) changes to the root directory of the namespace, which differs from that of process 1 after a chroot.
    let root = File::open(ROOT)?;
    let entered = unshare(CloneFlags::CLONE_FS)
        .and_then(|()| setns(namespace, CloneFlags::CLONE_NEWNS))
        .and_then(|()| fchdir(&root))
        .and_then(|()| chroot("."));
    entered.map_err(|errno: Errno| errno.into())
}

/// Runs `work` in the mount namespace of process 1, in a thread of its own.
///
/// # Errors
/// As [`enter`], or no thread can be started.
pub fn run<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().spawn_scoped(scope, || enter().map(|()| work()))?;
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
