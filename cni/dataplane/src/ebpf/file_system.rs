// SPDX-License-Identifier: GPL-2.0-or-later

//! The BPF file system, in which pins of programs and maps outlive a process.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::Error;
use crate::lock::{self, Mode};

/// Where the kernel's documentation and systemd mount the BPF file system.
const FILE_SYSTEM: &str = "/sys/fs/bpf";

/// The lock that is held while mounting, because a second mount on top would hide the pins in the first.
const LOCK: &str = "bpf-mount.lock";
const PATIENCE: Duration = Duration::from_secs(10);

/// Checks that the mount point exists, which the kernel creates if it has the BPF file system.
pub(super) fn mountable() -> Result<(), Error> {
    match fs::metadata(FILE_SYSTEM) {
        Ok(_) => Ok(()),
        Err(e) => Err(Error::kernel(format!("find {FILE_SYSTEM}, where a BPF file system is mounted"), e)),
    }
}

fn is_mounted() -> bool {
    statfs(FILE_SYSTEM).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

/// Mounts the BPF file system if it is not mounted, and makes a folder in it that only root can read.
pub(super) fn make(path: &Path) -> Result<(), Error> {
    if !is_mounted() {
        let lock = lock::take(LOCK, Mode::Exclusive, PATIENCE);
        let _lock = lock::or_log(lock, "a BPF file system may be mounted over another one, with its pins");
        if !is_mounted() {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(Some("bpf"), FILE_SYSTEM, Some("bpf"), flags, Some("mode=0700"))
                .map_err(|e| Error::kernel(format!("mount a BPF file system at {FILE_SYSTEM}"), e))?;
        }
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e: io::Error| Error::kernel(format!("make {}", path.display()), e))
}
