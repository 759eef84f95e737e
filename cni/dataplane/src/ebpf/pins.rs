// SPDX-License-Identifier: GPL-2.0-or-later

//! The pins of programs and maps in the BPF file system, by which they outlive a process.
//!
//! ```text
//! /sys/fs/bpf/slipway/<layout>/<map>                    made by the first version with this layout
//! /sys/fs/bpf/slipway/<layout>/programs-<digest>/<name> a folder for each version of the programs
//! ```
//!
//! Versions of the programs with the same layout of the maps share the maps: flows survive an upgrade. A
//! later layout takes over unchanged maps by a second pin for each, so that the programs of both share them
//! until the earlier programs are replaced.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::maps::{MapData, MapInfo};
use cni_kernel::lock::{FileLock, LockError};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use slipway_ebpf_abi::maps;

use super::{error, object};
use crate::{Error, lock};

/// Mount point of the BPF file system, by convention of the kernel and of systemd.
const FILE_SYSTEM: &str = "/sys/fs/bpf";
/// Our folder in it.
const FOLDER: &str = "slipway";
/// Time limit for the lock. Its holder makes at most a few thousand system calls.
const PATIENCE: Duration = Duration::from_secs(1);
/// Prefix of the folders of programs.
const PROGRAMS: &str = "programs-";

/// The folder of this version's layout.
#[derive(Debug, Clone)]
pub(super) struct Pins {
    base: PathBuf,
}

impl Pins {
    /// Finds the folder, or makes it if it can take over the containers of an earlier layout. On a node
    /// without programs this costs two system calls.
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

    /// Checks that a BPF file system can be mounted.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel has no such mount point.
    pub(super) fn mountable() -> Result<(), Error> {
        match fs::metadata(FILE_SYSTEM) {
            Ok(_) => Ok(()),
            Err(e) => {
                Err(Error::kernel(format!("find {FILE_SYSTEM}, where a BPF file system is mounted"), e))
            }
        }
    }

    /// Makes the folder, and mounts the file system if it is not mounted.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel has no BPF file system, or the folder cannot be made.
    pub(super) fn make() -> Result<Self, Error> {
        mount_file_system()?;
        let pins = Self::new();
        make(&pins.base)?;
        for earlier in others() {
            pins.take_over(&earlier);
        }
        Ok(pins)
    }

    /// Pins the unchanged maps of an earlier layout here, except those that exist.
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
                Ok(()) => log::info!("pinned {} as {}", from.display(), to.display()),
                // Another process was faster.
                Err(_) if to.exists() => {}
                Err(error) => log::warn!("{error}"),
            }
        }
    }

    /// Removes the folder if it is empty, after a failed set-up.
    pub(super) fn forget_if_empty(&self) {
        for folder in [Some(self.base.as_path()), self.base.parent()].into_iter().flatten() {
            // Fails if it is not empty.
            let _ = fs::remove_dir(folder);
        }
    }

    /// Locks the folder for a read and a write by which the programs begin to serve a container. The lock
    /// ends with the value. On failure the caller leaves the container to nftables, which serves it already.
    ///
    /// # Errors
    /// [`Error::Kernel`] if another process holds the lock for a second, or the folder is missing.
    pub(super) fn lock(&self) -> Result<FileLock, Error> {
        self.acquire().map_err(|e| Error::kernel("lock the BPF maps", e))
    }

    /// As [`Self::lock`], for changes by which the programs serve less, as of a DEL. These continue without
    /// the lock: else entries of a deleted container would stay, or a rate limit or isolation would be
    /// bypassed. What a concurrent writer loses then, nftables serves.
    pub(super) fn lock_or_log(&self) -> Option<FileLock> {
        lock::or_log(self.acquire(), "a concurrent change of the BPF maps may be lost")
    }

    fn acquire(&self) -> Result<FileLock, LockError> {
        let folder =
            File::open(&self.base).map_err(|source| LockError::Lock { path: self.base.clone(), source })?;
        FileLock::on(&folder, &self.base, PATIENCE)
    }

    /// The path of a map's pin.
    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// The folder of this binary's programs.
    pub(super) fn programs(&self) -> PathBuf {
        self.base.join(format!("{PROGRAMS}{}", object::version()))
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

    /// Removes the pins of other layouts.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a pin cannot be removed.
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

    /// True if another layout has pins.
    pub(super) fn has_others() -> bool {
        !others().is_empty()
    }

    /// The IDs of all pinned maps, of any layout.
    pub(super) fn map_ids() -> BTreeSet<u32> {
        let own = Self::new().base;
        let folders = others().into_iter().map(|layout| layout.folder).chain([own]);
        let entries = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten()).flatten();
        // Folders, and pins of other objects, are no maps.
        let found = entries.filter_map(|entry| MapInfo::from_pin(entry.path()).ok());
        found.map(|map| map.id()).collect()
    }

    /// True if every map is pinned: false while another process makes or removes them.
    pub(super) fn has_all_maps(&self) -> bool {
        maps::ALL.iter().all(|name| self.map(name).exists())
    }

    /// The folder of all layouts.
    pub(super) fn all() -> PathBuf {
        Path::new(FILE_SYSTEM).join(FOLDER)
    }

    /// True if any layout has pins.
    pub(super) fn is_there() -> bool {
        Self::all().is_dir()
    }

    /// Removes the pins of all layouts; true if there were any. Programs that are attached to an interface
    /// stay loaded until they are detached.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a pin cannot be removed.
    pub(super) fn remove_all() -> Result<bool, Error> {
        let folder = Self::all();
        // First: without it, no process takes the remaining maps for those of loaded programs.
        let _ = fs::remove_file(Self::new().map(maps::CONFIG));
        match fs::remove_dir_all(&folder) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::kernel(format!("remove {}", folder.display()), e)),
        }
    }
}

/// The pins of another layout.
struct Layout {
    number: u32,
    folder: PathBuf,
}

impl Layout {
    /// True if its map of this name has today's layout.
    fn has_todays(&self, name: &str) -> bool {
        (maps::unchanged_since(name)..slipway_ebpf_abi::VERSION).contains(&self.number)
    }

    /// True if all its maps of containers can be taken over.
    fn knows_containers(&self) -> bool {
        let of_containers =
            [maps::PODS, maps::POD_ADDRESSES4, maps::POD_ADDRESSES6, maps::PORTS4, maps::PORTS6];
        of_containers.into_iter().all(|name| self.has_todays(name) && self.folder.join(name).exists())
    }
}

/// Lists other layouts, later ones first.
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

/// Mounts the BPF file system if it is not mounted.
///
/// # Errors
/// [`Error::Kernel`] if the kernel has none.
pub(super) fn mount_file_system() -> Result<(), Error> {
    let root = Path::new(FILE_SYSTEM);
    if statfs(root).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("bpf"), root, Some("bpf"), flags, Some("mode=0700"))
        .map_err(|e| Error::kernel(format!("mount a BPF file system at {FILE_SYSTEM}"), e))
}

/// Makes a folder that only root can read.
///
/// # Errors
/// [`Error::Kernel`] if the folder cannot be made.
pub(super) fn make(path: &Path) -> Result<(), Error> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e: io::Error| Error::kernel(format!("make {}", path.display()), e))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Acquires the lock on a busy machine, whose writers need more than [`PATIENCE`] for their files.
    fn acquire(pins: &Pins) -> FileLock {
        let begin = Instant::now();
        loop {
            match pins.lock() {
                Ok(lock) => return lock,
                Err(error) => assert!(begin.elapsed() < Duration::from_secs(60), "{error}"),
            }
        }
    }

    #[test]
    fn concurrent_changes_under_the_lock_are_not_lost() {
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
                        let _lock = acquire(&pins);
                        let known: u32 = fs::read_to_string(&number).unwrap().parse().unwrap();
                        // Gives a writer that does not wait time to interfere.
                        thread::yield_now();
                        fs::write(&number, (known + 1).to_string()).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(&number).unwrap(), (WRITERS * TIMES).to_string());
    }

    #[test]
    fn without_the_lock_a_container_is_not_added_and_one_is_still_removed() {
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins { base: folder.path().to_owned() };
        let held = pins.lock().unwrap();
        let refused = pins.lock().unwrap_err().to_string();
        assert!(
            refused.starts_with("lock the BPF maps: ") && refused.contains("another process"),
            "{refused}"
        );
        assert!(pins.lock_or_log().is_none());
        drop(held);
        assert!(pins.lock_or_log().is_some());
    }
}
