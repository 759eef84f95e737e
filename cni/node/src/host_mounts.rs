// SPDX-License-Identifier: GPL-3.0-or-later

//! The mount namespace of the node, for an agent in a container with the node's PIDs: that of process 1. The node's own
//! programs and its containers' namespaces are there.

use std::fs::File;
use std::io;
use std::panic::resume_unwind;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};

const PATH: &str = "/proc/1/ns/mnt";

/// Enters it with the calling thread, for good. The thread no longer shares its root and working directory with others.
///
/// # Errors
/// The capabilities SYS_ADMIN, SYS_CHROOT or SYS_PTRACE are missing, or `/proc` is not the node's.
pub fn enter() -> io::Result<()> {
    let namespace = File::open(PATH)?;
    let entered = unshare(CloneFlags::CLONE_FS).and_then(|()| setns(namespace, CloneFlags::CLONE_NEWNS));
    entered.map_err(|errno: Errno| errno.into())
}

/// Does work in it, in a thread of its own.
///
/// # Errors
/// As [`enter`], or no thread can be started.
pub fn run<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().spawn_scoped(scope, || enter().map(|()| work()))?;
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
