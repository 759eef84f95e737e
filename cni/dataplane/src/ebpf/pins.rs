//! Where programs and maps live between processes: pins in the BPF file system.
//!
//! ```text
//! /sys/fs/bpf/slipway/<layout>/<map>                    made by whichever version came first
//! /sys/fs/bpf/slipway/<layout>/programs-<digest>/<name> one folder for each version of the programs
//! ```
//!
//! Versions of the programs that share a layout of the maps share the maps, too: flows outlive an upgrade. A later
//! layout takes over the maps that it has not changed, by a second pin for each: the programs of both have the
//! same map, until the earlier ones are replaced.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::maps::{MapData, MapInfo};
use cni_kernel::lock::FileLock;
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use sha2::{Digest, Sha256};
use slipway_ebpf_abi::maps;

use super::error;
use crate::Error;

/// Where the BPF file system is mounted, by convention of the kernel and of systemd.
const FILE_SYSTEM: &str = "/sys/fs/bpf";
/// Ours in it.
const FOLDER: &str = "slipway";
/// How the folders of programs begin.
const PROGRAMS: &str = "programs-";

/// The folder of one layout of the maps.
#[derive(Debug, Clone)]
pub(super) struct Pins {
    base: PathBuf,
}

impl Pins {
    /// The folder, if it is there, or can take over what an earlier version has told its programs: two system calls
    /// on a node that has no such programs.
    pub(super) fn find() -> Option<Self> {
        let pins = Self::new();
        if pins.base.is_dir() {
            return Some(pins);
        }
        let earlier = others().into_iter().find(Layout::knows_containers)?;
        if let Err(error) = make(&pins.base).map(|()| pins.take_over(&earlier)) {
            log::warn!("{error}");
            return None;
        }
        Some(pins)
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
        let pins = Self::new();
        make(&pins.base)?;
        for earlier in others() {
            pins.take_over(&earlier);
        }
        Ok(pins)
    }

    /// Pins the maps of an earlier layout here that are the same in this one, unless there are such already.
    fn take_over(&self, earlier: &Layout) {
        for name in maps::ALL.into_iter().filter(|name| earlier.has_todays(name)) {
            let (from, to) = (earlier.folder.join(name), self.map(name));
            if to.exists() || !from.exists() {
                continue;
            }
            let pinned = MapData::from_pin(&from)
                .map_err(|e| error::failed(format!("open the BPF map {}", from.display()), e))
                .and_then(|map| {
                    map.pin(&to).map_err(|e| error::failed(format!("pin the BPF map {}", to.display()), e))
                });
            match pinned {
                Ok(()) => log::info!("{} is {} from now on", from.display(), to.display()),
                // Another process that was quicker has pinned it, too.
                Err(_) if to.exists() => {}
                Err(error) => log::warn!("{error}"),
            }
        }
    }

    /// Removes the folder if nothing is in it: what could not be set up is not there.
    pub(super) fn forget_if_empty(&self) {
        for folder in [Some(self.base.as_path()), self.base.parent()].into_iter().flatten() {
            // An error says that something is in it.
            let _ = fs::remove_dir(folder);
        }
    }

    /// A lock on the folder, for what is read and written again; it ends with the value.
    pub(super) fn lock(&self) -> Option<FileLock> {
        let folder = File::open(&self.base).ok()?;
        let lock = FileLock::on(&folder, &self.base, Duration::from_secs(1));
        lock.inspect_err(|error| log::warn!("{error}; continuing without the lock")).ok()
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

    /// Removes what is pinned of other layouts.
    ///
    /// # Errors
    /// A pin that cannot be removed.
    pub(super) fn remove_others() -> Result<(), Error> {
        for Layout { folder, .. } in others() {
            match fs::remove_dir_all(&folder) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(Error::kernel(format!("remove {}", folder.display()), e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether there is anything of another layout.
    pub(super) fn has_others() -> bool {
        !others().is_empty()
    }

    /// The numbers of all maps that are pinned here, of any layout.
    pub(super) fn map_ids() -> BTreeSet<u32> {
        let own = Self::new().base;
        let folders = others().into_iter().map(|layout| layout.folder).chain([own]);
        let entries = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten()).flatten();
        // Folders among them, and what is no map.
        let found = entries.filter_map(|entry| MapInfo::from_pin(entry.path()).ok());
        found.map(|map| map.id()).collect()
    }

    /// The folder of all layouts.
    pub(super) fn all() -> PathBuf {
        Path::new(FILE_SYSTEM).join(FOLDER)
    }

    /// Whether anything is pinned, of any layout.
    pub(super) fn is_there() -> bool {
        Self::all().is_dir()
    }

    /// Takes everything away that is pinned here, of every layout. What is attached to an interface stays
    /// loaded until it is detached.
    ///
    /// # Errors
    /// A pin that cannot be removed.
    pub(super) fn remove_all() -> Result<bool, Error> {
        let folder = Self::all();
        match fs::remove_dir_all(&folder) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::kernel(format!("remove {}", folder.display()), e)),
        }
    }
}

/// What a version with another layout of the maps has pinned.
struct Layout {
    number: u32,
    folder: PathBuf,
}

impl Layout {
    /// Whether its map of this name is what today's is.
    fn has_todays(&self, name: &str) -> bool {
        (maps::unchanged_since(name)..slipway_ebpf_abi::VERSION).contains(&self.number)
    }

    /// Whether what it was told of containers can be taken over as a whole.
    fn knows_containers(&self) -> bool {
        let told = [maps::PODS, maps::POD_ADDRESSES4, maps::POD_ADDRESSES6, maps::PORTS4, maps::PORTS6];
        told.into_iter().all(|name| self.has_todays(name) && self.folder.join(name).exists())
    }
}

/// What is pinned of other layouts, later ones first.
fn others() -> Vec<Layout> {
    let Ok(entries) = fs::read_dir(Path::new(FILE_SYSTEM).join(FOLDER)) else { return Vec::new() };
    let mut others: Vec<Layout> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some(Layout { number, folder: entry.path() })
        })
        .filter(|layout| layout.number != slipway_ebpf_abi::VERSION)
        .collect();
    others.sort_by_key(|layout| std::cmp::Reverse(layout.number));
    others
}

/// Makes a folder that only root may look into.
///
/// # Errors
/// The folder's path, and what the kernel said.
pub(super) fn make(path: &Path) -> Result<(), Error> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e: io::Error| Error::kernel(format!("make {}", path.display()), e))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn who_reads_and_writes_again_takes_turns() {
        const WRITERS: u32 = 4;
        const TIMES: u32 = 50;
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins { base: folder.path().to_owned() };
        let number = pins.map("number");
        fs::write(&number, "0").unwrap();
        thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    for _ in 0..TIMES {
                        let lock = pins.lock();
                        assert!(lock.is_some(), "the folder is there");
                        let known: u32 = fs::read_to_string(&number).unwrap().parse().unwrap();
                        // Wide enough for another that does not wait.
                        thread::yield_now();
                        fs::write(&number, (known + 1).to_string()).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(&number).unwrap(), (WRITERS * TIMES).to_string());
    }
}
