// SPDX-License-Identifier: MIT OR Apache-2.0

//! An instance of procfs that only this process uses, for the settings of network namespaces.
//!
//! `/proc/sys/net/ipv6` is another directory in each network namespace, and the kernel's cache of names keeps them all
//! under the same hash, in one list (`proc_sys_compare`). A namespace whose settings were once looked up in `/proc` stays
//! in that list until it is deleted, and each look-up of the node's own settings walks the list: on a node with 5,000
//! namespaces it takes 5 to 9 ms. An instance of our own (Linux 5.8) has a cache of its own.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::sys::statvfs::FsFlags;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

thread_local! {
    static IS_ELSEWHERE: Cell<bool> = const { Cell::new(false) };
}

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

/// Tells that the calling thread has entered another network namespace, in which it ends.
pub(crate) fn enter() {
    IS_ELSEWHERE.set(true);
}

/// The root directory of the instance; none for a thread in the process's own namespace, or if `/proc` has to do.
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
    match mount() {
        Ok(root) => {
            let root = Arc::new(root);
            *instance = Instance::Open { root: Arc::clone(&root), lookups: 1 };
            Some(root)
        }
        Err(error) => {
            log::debug!("settings of other namespaces are looked up in /proc: no procfs of our own: {error}");
            *instance = Instance::Refused;
            None
        }
    }
}

/// The same for a thread in the process's own namespace. It saves the way through the list if other programs' look-ups have
/// made that long, so an instance is not opened for it. None if something is mounted over `/proc/sys/net`, or if that is
/// read-only.
pub(crate) fn at_home() -> Option<Arc<OwnedFd>> {
    let root = match &*INSTANCE.lock().unwrap_or_else(PoisonError::into_inner) {
        Instance::Open { root, .. } if !IS_ELSEWHERE.get() => Arc::clone(root),
        _ => return None,
    };
    let net = statfs("/proc/sys/net").ok()?;
    let is_plain = net.filesystem_type() == PROC_SUPER_MAGIC && !net.flags().contains(FsFlags::ST_RDONLY);
    is_plain.then_some(root)
}

fn mount() -> io::Result<OwnedFd> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}
