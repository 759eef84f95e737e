// SPDX-License-Identifier: GPL-2.0-or-later

//! The BPF file system, in which pins of programs and maps outlive a process.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::Error;

/// Its mount point, by convention of the kernel and of systemd.
const FILE_SYSTEM: &str = "/sys/fs/bpf";

/// Checks that a BPF file system can be mounted.
///
/// # Errors
/// [`Error::Kernel`] if the kernel has no such mount point.
pub(super) fn mountable() -> Result<(), Error> {
    match fs::metadata(FILE_SYSTEM) {
        Ok(_) => Ok(()),
        Err(e) => Err(Error::kernel(format!("find {FILE_SYSTEM}, where a BPF file system is mounted"), e)),
    }
}

/// Mounts the BPF file system if it is not mounted, and makes a folder in it that only root can read.
///
/// # Errors
/// [`Error::Kernel`] if the kernel has no BPF file system, or the folder cannot be made.
pub(super) fn make(path: &Path) -> Result<(), Error> {
    let root = Path::new(FILE_SYSTEM);
    if !statfs(root).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("bpf"), root, Some("bpf"), flags, Some("mode=0700"))
            .map_err(|e| Error::kernel(format!("mount a BPF file system at {FILE_SYSTEM}"), e))?;
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e: io::Error| Error::kernel(format!("make {}", path.display()), e))
}
