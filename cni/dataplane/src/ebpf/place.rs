//! Where programs and maps live between processes: pins in the BPF file system.
//!
//! ```text
//! /sys/fs/bpf/slipway/<layout>/<map>                    made by whichever version came first
//! /sys/fs/bpf/slipway/<layout>/programs-<digest>/<name> one folder for each version of the programs
//! ```
//!
//! Versions of the programs that share a layout of the maps share the maps, too: flows outlive an upgrade.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use sha2::{Digest, Sha256};

use crate::Error;

/// Where the BPF file system is mounted, by convention of the kernel and of systemd.
const FILE_SYSTEM: &str = "/sys/fs/bpf";
/// Ours in it.
const FOLDER: &str = "slipway";
/// How the folders of programs begin.
const PROGRAMS: &str = "programs-";

/// The folder of one layout of the maps.
#[derive(Debug, Clone)]
pub(super) struct Place {
    base: PathBuf,
}

impl Place {
    /// The folder, if it is there: one system call on a node that has no such programs.
    pub(super) fn find() -> Option<Self> {
        let place = Self::new();
        place.base.is_dir().then_some(place)
    }

    fn new() -> Self {
        let layout = slipway_ebpf_abi::VERSION.to_string();
        Self { base: Path::new(FILE_SYSTEM).join(FOLDER).join(layout) }
    }

    /// Whether there is a place for a BPF file system.
    ///
    /// # Errors
    /// The kernel has none.
    pub(super) fn mountable() -> Result<(), Error> {
        match fs::metadata(FILE_SYSTEM) {
            Ok(_) => Ok(()),
            Err(e) => {
                Err(Error::kernel(format!("find {FILE_SYSTEM}, where a BPF file system is mounted"), e))
            }
        }
    }

    /// Makes the folder, and mounts the file system if nobody has.
    ///
    /// # Errors
    /// The kernel has no BPF file system, or the folder cannot be made.
    pub(super) fn make() -> Result<Self, Error> {
        let root = Path::new(FILE_SYSTEM);
        let is_mounted = statfs(root).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
        if !is_mounted {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(Some("bpf"), root, Some("bpf"), flags, Some("mode=0700"))
                .map_err(|e| Error::kernel(format!("mount a BPF file system at {FILE_SYSTEM}"), e))?;
        }
        let place = Self::new();
        make(&place.base)?;
        Ok(place)
    }

    /// Removes the folder if nothing is in it: what could not be set up is not there.
    pub(super) fn forget_if_empty(&self) {
        for folder in [Some(self.base.as_path()), self.base.parent()].into_iter().flatten() {
            // An error says that something is in it.
            let _ = fs::remove_dir(folder);
        }
    }

    /// Where a map is pinned.
    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// The folder of the programs that this binary has.
    pub(super) fn programs(&self, object: &[u8]) -> PathBuf {
        let digest: String = Sha256::digest(object).iter().take(8).map(|b| format!("{b:02x}")).collect();
        self.base.join(format!("{PROGRAMS}{digest}"))
    }

    /// The folders of other versions' programs.
    pub(super) fn other_programs(&self, own: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.base).into_iter().flatten().filter_map(Result::ok);
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(PROGRAMS))
            .map(|entry| entry.path())
            .filter(|path| path != own)
            .collect()
    }

    /// Whether anything is pinned, of any layout.
    pub(super) fn is_there() -> bool {
        Path::new(FILE_SYSTEM).join(FOLDER).is_dir()
    }

    /// Takes everything away that is pinned here, of every layout. What is attached to an interface stays
    /// loaded until it is detached.
    ///
    /// # Errors
    /// A pin that cannot be removed.
    pub(super) fn remove_all() -> Result<bool, Error> {
        let folder = Path::new(FILE_SYSTEM).join(FOLDER);
        match fs::remove_dir_all(&folder) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::kernel(format!("remove {}", folder.display()), e)),
        }
    }
}

/// Makes a folder that only root may look into.
///
/// # Errors
/// The folder's path, and what the kernel said.
pub(super) fn make(path: &Path) -> Result<(), Error> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e: io::Error| Error::kernel(format!("make {}", path.display()), e))
}
