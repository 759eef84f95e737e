// SPDX-License-Identifier: MIT OR Apache-2.0

//! An instance of procfs that only this process uses, for the settings of network namespaces.
//!
//! `/proc/sys/net/ipv6` is another directory in each network namespace, and the kernel's cache of names keeps them all
//! under the same hash, in one list (`proc_sys_compare`). A namespace whose settings were once looked up in `/proc` stays
//! in that list until it is deleted, and each look-up of the node's own settings walks the list: on a node with 5,000
//! namespaces it takes 5 to 9 ms. An instance of our own (Linux 5.8) has a cache of its own. It costs 0.2 ms, so the first
//! namespaces of a node do without.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::sys::statvfs::FsFlags;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

thread_local! {
    /// True in another namespace than the process's, on a node with many.
    static IS_ELSEWHERE: Cell<bool> = const { Cell::new(false) };
}

/// The inode number from which a namespace is one of many. The kernel gives out the lowest free number from 0xf0000000 on,
/// to each network namespace about seventy with the files of its `/proc/net` (`proc_alloc_inum`), so this is about the
/// 140th. In another kernel that numbers in another way, only speed would be lost.
const MANY: u64 = 0xf000_0000 + 10_000;

/// The number of look-ups after which another instance takes the place of one whose list may have become long.
const LOOKUPS: u32 = 256;

enum Instance {
    Untried,
    /// The kernel does not have it, or does not permit it.
    Refused,
    Open {
        root: Arc<OwnedFd>,
        lookups: u32,
    },
}

static INSTANCE: Mutex<Instance> = Mutex::new(Instance::Untried);

/// Tells that the calling thread has entered the network namespace with this inode number, in which it ends.
pub(crate) fn enter(namespace: u64) {
    IS_ELSEWHERE.set(namespace >= MANY);
}

/// The root directory of the instance for a thread in another namespace; none if `/proc` has to do.
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
    // The kernel may take milliseconds to remove a mount.
    drop(former);
    root
}

/// The same for a thread in the process's own namespace, for settings below `net`. It saves the way through the list if
/// other programs' look-ups have made that long, so an instance is not opened for it. None if something is mounted over
/// `/proc/sys/net`, or if that is read-only; mounts below it are not seen.
pub(crate) fn at_home() -> Option<Arc<OwnedFd>> {
    let root = match &*INSTANCE.lock().unwrap_or_else(PoisonError::into_inner) {
        Instance::Open { root, .. } if !IS_ELSEWHERE.get() => Arc::clone(root),
        _ => return None,
    };
    let net = statfs("/proc/sys/net").ok()?;
    let is_plain = net.filesystem_type() == PROC_SUPER_MAGIC && !net.flags().contains(FsFlags::ST_RDONLY);
    is_plain.then_some(root)
}

/// Tells that what `/proc` permits is refused here, for example by a profile of AppArmor, to which these are other paths.
pub(crate) fn is_refused() {
    *INSTANCE.lock().unwrap_or_else(PoisonError::into_inner) = Instance::Refused;
}

fn mount() -> io::Result<OwnedFd> {
    // To remove the mount, the kernel waits for an expedited grace period, which here would be a normal one of 20 to 80 ms.
    // Real-time kernels are set like this.
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
