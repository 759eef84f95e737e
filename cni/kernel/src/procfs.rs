// SPDX-License-Identifier: MIT OR Apache-2.0

//! An instance of procfs that only this process uses, for the settings of network namespaces.
//!
//! `/proc/sys/net/ipv6` is a different directory in each network namespace, but the kernel's dentry cache keeps all
//! of them under the same hash, in one list (`proc_sys_compare`). A namespace whose settings were once looked up in
//! `/proc` stays in that list until it is deleted, and each lookup of the node's own settings walks the list: on a
//! node with 5,000 namespaces, that takes 5 to 9 ms. An instance of our own (Linux 5.8) has a cache of its own. The
//! instance costs 0.2 ms, so it is not used for the first namespaces of a node.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::sys::statvfs::FsFlags;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

thread_local! {
    /// True while the thread is in another namespace than the process, on a node with many namespaces.
    static IS_ELSEWHERE: Cell<bool> = const { Cell::new(false) };
}

/// From this inode number on, a node counts as having many namespaces. The kernel assigns the lowest free number,
/// starting at 0xf0000000. Each network namespace takes about seventy, for the files of its `/proc/net`
/// (`proc_alloc_inum`), so this is about the 140th namespace. If a kernel numbered in another way, only speed would
/// be lost.
const MANY: u64 = 0xf000_0000 + 10_000;

/// After this many lookups, a new instance replaces the old one, whose list may have become long.
const LOOKUPS: u32 = 256;

enum Instance {
    Untried,
    /// The kernel does not support it, or does not permit it.
    Refused,
    Open {
        root: Arc<OwnedFd>,
        lookups: u32,
    },
}

static INSTANCE: Mutex<Instance> = Mutex::new(Instance::Untried);

/// Must be called when the calling thread has entered the network namespace with this inode number and will stay in
/// it.
pub(crate) fn enter(namespace: u64) {
    IS_ELSEWHERE.set(namespace >= MANY);
}

/// The root directory of the instance, for a thread in another namespace. None if `/proc` must be used.
pub(crate) fn elsewhere() -> Option<Arc<OwnedFd>> {
    if !IS_ELSEWHERE.get() {
        return None;
    }
    let mut instance = INSTANCE.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *instance {
        Instance::Refused => return None,
        Instance::Open { root, lookups } if *lookups < LOOKUPS => {
            *lookups += 1;
            return Some(Arc::clone(root));
        }
        Instance::Untried | Instance::Open { .. } => {}
    }
    let (next, root) = match mount() {
        Ok(root) => {
            let root = Arc::new(root);
            (Instance::Open { root: Arc::clone(&root), lookups: 1 }, Some(root))
        }
        Err(error) => {
            log::debug!("settings of other namespaces are looked up in /proc: no procfs of our own: {error}");
            (Instance::Refused, None)
        }
    };
    let former = std::mem::replace(&mut *instance, next);
    drop(instance);
    // Dropping it may take milliseconds, because the kernel has to remove a mount.
    drop(former);
    root
}

/// The same for a thread in the process's own namespace, for settings below `net`. If lookups by other programs have
/// made the list in `/proc` long, this avoids walking the list, but no instance is opened only for this purpose. None
/// if something is mounted over `/proc/sys/net`, or if that is read-only. Mounts further below are not noticed.
pub(crate) fn at_home() -> Option<Arc<OwnedFd>> {
    let root = match &*INSTANCE.lock().unwrap_or_else(PoisonError::into_inner) {
        Instance::Open { root, .. } if !IS_ELSEWHERE.get() => Arc::clone(root),
        _ => return None,
    };
    let net = statfs("/proc/sys/net").ok()?;
    let is_plain = net.filesystem_type() == PROC_SUPER_MAGIC && !net.flags().contains(FsFlags::ST_RDONLY);
    is_plain.then_some(root)
}

/// Must be called if something that `/proc` permits is refused here, for example by an AppArmor profile, for which
/// these are other paths.
pub(crate) fn is_refused() {
    *INSTANCE.lock().unwrap_or_else(PoisonError::into_inner) = Instance::Refused;
}

fn mount() -> io::Result<OwnedFd> {
    // To remove the mount, the kernel waits for an expedited grace period. With this setting, which real-time kernels
    // have, it would be a normal one of 20 to 80 ms.
    if std::fs::read("/sys/kernel/rcu_normal").is_ok_and(|value| value.starts_with(b"1")) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel expedites no grace periods"));
    }
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}
