// SPDX-License-Identifier: GPL-2.0-or-later

//! Reservations on disk, in the reference's format.
//!
//! `<dataDir>/<network>/` has one file for each reserved address, with the address as its name and the
//! owner as its content; `last_reserved_ip.N`, the address reserved last from range set N; and `lock`, a file
//! for flock(2). The reference takes every file there for a reservation if its text is an owner's, so nothing
//! else may be put there. Our own files are in `<dataDir>/.slipway/<network>/` (no network's name begins with
//! a dot): the index and temporary files. A killed process may leave a temporary file; the next one
//! overwrites it.
//!
//! A reservation is written and synced as an unnamed file (`O_TMPFILE`) before the lock is taken, and linked
//! to its name under the lock. So it is complete or missing at every moment, also after a power cut; two
//! callers cannot get the same name; and a killed process leaves nothing. ADD does not sync the directory: a power cut
//! that loses the name has ended the container, too. DEL and GC do, as nothing would remove a reservation that came
//! back.

use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_kernel::dir::{Access, DirError, DurableDir, TEMPORARY};
use cni_kernel::is_transient;
use cni_kernel::lock::{FileLock, LockError};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod, fstat, futimens};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::index::{Contents, Stamp};
use super::mark;
use super::owner::{self, Content};

/// The folder of our own files.
pub(super) const OURS: &str = ".slipway";
// The reference's names.
pub(super) const LOCK: &str = "lock";
pub(super) const LAST: &str = "last_reserved_ip.";
/// Our own file.
const INDEX: &str = "index";
const RESERVATION_MODE: u32 = 0o600;
const LOCK_MODE: u32 = 0o600;
/// The time limit for the lock. A process holds it for less than a millisecond, or for a second to rebuild
/// the index of tens of thousands of reservations.
const LOCK_LIMIT: Duration = Duration::from_secs(60);
/// The largest reservation, in bytes; a larger file is foreign.
const LARGEST: usize = 4096;

/// Why reservations could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Dir(#[from] DirError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("{operation} {path:?}: {errno}")]
    System { operation: &'static str, path: PathBuf, errno: Errno },
}

impl StoreError {
    /// True if the system lacked descriptors or memory at that moment.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Dir(error) => error.is_transient(),
            Self::System { errno, .. } => is_transient(*errno),
            Self::Lock(_) => false,
        }
    }
}

/// The directories of one network.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) dir: DurableDir,
    /// `<dataDir>/.slipway/<network>`; none if it cannot be made.
    pub(super) ours: Option<DurableDir>,
    /// The kernel's boot ID.
    pub(super) boot: [u8; 16],
}

/// A reservation that has no name yet.
#[derive(Debug)]
pub(super) enum Staged {
    /// Ready to be linked.
    Unnamed(OwnedFd),
    /// To be written under its name, as the file system has no unnamed files.
    Later,
}

/// The file of an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A reservation with this text, trimmed.
    Owned(Vec<u8>),
    /// A reservation whose writer died.
    Torn,
    /// A file that neither plugin set has written.
    Foreign,
}

/// The outcome of [`Store::link`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Linked {
    Done,
    /// The name is taken.
    Taken,
}

impl Store {
    /// Opens the network's directory; makes it if missing. Our own files come later, with
    /// [`Self::make_ours`]: if the disk has few inodes left, the reservation must get the first one.
    pub(super) fn create(data_dir: &Path, network: &str) -> Result<Self, StoreError> {
        Ok(Self::of(DurableDir::create(&data_dir.join(network), 0o755)?))
    }

    /// Opens the network's directories and makes none. None if there is no directory of reservations.
    pub(super) fn open(data_dir: &Path, network: &str) -> Result<Option<Self>, StoreError> {
        let dir = match DurableDir::open(&data_dir.join(network)) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(None),
            opened => opened?,
        };
        let mut store = Self::of(dir);
        match DurableDir::open(&data_dir.join(OURS).join(network)) {
            Ok(ours) => store.use_ours(ours),
            Err(error) => log::debug!("no index, every call reads all reservations: {error}"),
        }
        Ok(Some(store))
    }

    fn of(dir: DurableDir) -> Self {
        Self { dir, ours: None, boot: boot_id() }
    }

    /// Opens the directory of our own files; makes it if missing. Best effort: without it there is no index,
    /// and temporary files are made next to the reservations.
    pub(super) fn make_ours(&mut self, data_dir: &Path, network: &str) {
        let path = data_dir.join(OURS).join(network);
        let opened = DurableDir::open(&path).or_else(|_| {
            // The lock's file must get its inode before our own files do.
            self.dir.open_file(LOCK, Access::ReadOrCreate(LOCK_MODE))?;
            DurableDir::create(&path, 0o700)
        });
        match opened {
            Ok(ours) => self.use_ours(ours),
            Err(error) => log::warn!("no index, every call reads all reservations: {error}"),
        }
    }

    fn use_ours(&mut self, ours: DurableDir) {
        if let Err(error) = self.dir.use_scratch(&ours) {
            log::warn!("{error}");
        }
        self.ours = Some(ours);
    }

    /// Takes the lock, which the reference takes too.
    pub(super) fn lock(&self) -> Result<FileLock, StoreError> {
        Ok(FileLock::acquire(&self.dir, LOCK, LOCK_MODE, LOCK_LIMIT)?)
    }

    /// Writes an owner's text to an unnamed file, with the record of its namespace, and syncs it.
    pub(super) fn stage(&self, text: &str, record: Option<&[u8]>) -> Result<Staged, StoreError> {
        let failed = |operation| {
            move |errno| StoreError::System { operation, path: self.dir.path().to_path_buf(), errno }
        };
        let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(RESERVATION_MODE);
        let fd = match openat(&self.dir, ".", flags, mode) {
            Ok(fd) => fd,
            // Not every file system supports unnamed files, and older kernels take the flag for O_DIRECTORY.
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL) => return Ok(Staged::Later),
            Err(errno) => return Err(failed("make a file in")(errno)),
        };
        fchmod(&fd, mode).map_err(failed("set the mode of a file in"))?;
        let mut file = File::from(fd);
        file.write_all(text.as_bytes())
            .map_err(|error| errno(&error))
            .map_err(failed("write a reservation in"))?;
        if let Some(record) = record {
            mark::write(&file, record);
        }
        file.sync_all().map_err(|error| errno(&error)).map_err(failed("sync a reservation in"))?;
        Ok(Staged::Unnamed(file.into()))
    }

    /// Links a staged reservation to its address.
    pub(super) fn link(&self, staged: &Staged, text: &str, address: IpAddr) -> Result<Linked, StoreError> {
        let name = address.to_string();
        if let Staged::Unnamed(fd) = staged {
            let by_descriptor = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let linked = linkat(
                AT_FDCWD,
                by_descriptor.as_str(),
                &self.dir,
                name.as_str(),
                AtFlags::AT_SYMLINK_FOLLOW,
            );
            match linked {
                Ok(()) => return Ok(Linked::Done),
                Err(Errno::EEXIST) => return Ok(Linked::Taken),
                Err(Errno::ENOENT) => {} // No /proc: write it under its name.
                Err(errno) => return Err(self.system("reserve", &name, errno)),
            }
        }
        match self.dir.create_new_linked(&name, text.as_bytes(), RESERVATION_MODE) {
            Ok(()) => Ok(Linked::Done),
            Err(error) if error.already_exists() => Ok(Linked::Taken),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a reservation, unless it is gone already. The caller syncs the directory.
    pub(super) fn unlink(&self, address: IpAddr) -> Result<(), StoreError> {
        let name = address.to_string();
        match unlinkat(&self.dir, name.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.system("remove", &name, errno)),
        }
    }

    /// The file of an address; none if the address is free.
    pub(super) fn entry(&self, address: IpAddr) -> Result<Option<Entry>, StoreError> {
        let name = address.to_string();
        match self.dir.read(&name, LARGEST) {
            Ok(None) => Ok(None),
            Ok(Some(bytes)) => Ok(Some(match Content::of(&bytes) {
                Content::Torn => Entry::Torn,
                Content::Owned(text) => Entry::Owned(text),
            })),
            Err(error) => match error {
                DirError::NotAFile { .. } | DirError::TooLarge { .. } => Ok(Some(Entry::Foreign)),
                // A symbolic link or a socket.
                _ if matches!(error.errno(), Some(Errno::ELOOP | Errno::ENXIO)) => Ok(Some(Entry::Foreign)),
                _ => Err(error.into()),
            },
        }
    }

    /// Visits the file of every address in the directory.
    ///
    /// # Errors
    /// The directory cannot be listed, or the system lacks descriptors or memory to read a file. Otherwise the index would
    /// hold the address without its owner, whose DEL would find nothing.
    pub(super) fn scan(&self, mut visit: impl FnMut(IpAddr, Entry)) -> Result<(), StoreError> {
        let names = self.dir.list()?;
        for address in names.iter().filter_map(|name| owner::address(name.to_str()?)) {
            match self.entry(address) {
                Ok(Some(entry)) => visit(address, entry),
                Ok(None) => {}
                Err(error) if error.is_transient() => return Err(error),
                // A file that stays unreadable is neither free nor torn.
                Err(error) => {
                    log::warn!("{error}");
                    visit(address, Entry::Foreign);
                }
            }
        }
        Ok(())
    }

    /// The contents of an up-to-date index. Torn reservations count as free.
    pub(super) fn contents(&self) -> Result<Contents, StoreError> {
        let mut contents = Contents::default();
        self.scan(|address, entry| match entry {
            Entry::Owned(text) => contents.insert(Some(owner::OwnerKey::of(&text)), address),
            Entry::Foreign => contents.insert(None, address),
            Entry::Torn => log::info!("reservation of {address} is empty or torn: ignored"),
        })?;
        Ok(contents)
    }

    /// The address reserved last from a range set. None if it cannot be read: the search then begins with
    /// the first address.
    pub(super) fn last(&self, set: usize) -> Option<IpAddr> {
        let bytes = self.dir.read(format!("{LAST}{set}"), LARGEST).unwrap_or_else(|error| {
            log::warn!("{error}");
            None
        })?;
        std::str::from_utf8(&bytes).ok()?.trim().parse().ok().map(cni_state::host_local::canonical)
    }

    /// Writes the address reserved last, in one step. A power cut may leave the file empty or torn, and the next search
    /// then begins with the first address.
    pub(super) fn set_last(&self, set: usize, address: IpAddr) -> Result<(), StoreError> {
        let name = format!("{LAST}{set}");
        if self.overwrite_last(&name, address).is_some() {
            return Ok(());
        }
        if let Some(ours) = &self.ours {
            match self.replace_last(ours, &name, &name, address) {
                // The network's directory is a mount point or a symbolic link.
                Err(StoreError::System { errno: Errno::EXDEV, .. }) => {}
                done => return done,
            }
        }
        self.replace_last(&self.dir, &format!("{TEMPORARY}{name}"), &name, address)
    }

    /// Writes the file in place, which needs no new inode. None if the file is missing, or if it is longer than the new
    /// address and the rest of the old one would remain.
    fn overwrite_last(&self, name: &str, address: IpAddr) -> Option<()> {
        let file = self.dir.open_file(name, Access::Write).ok()?;
        let (data, text) = (file.metadata().ok()?, address.to_string());
        let fits = usize::try_from(data.len()).is_ok_and(|length| (1..=text.len()).contains(&length));
        // A file with further hard links must not be changed in place, because those names do not belong to host-local.
        let is_ours = data.nlink() == 1;
        (fits && is_ours && file.write_at(text.as_bytes(), 0).is_ok_and(|written| written == text.len()))
            .then_some(())
    }

    /// Runs under the lock, so one name for the temporary file is enough.
    fn replace_last(
        &self,
        via: &DurableDir,
        temporary: &str,
        name: &str,
        address: IpAddr,
    ) -> Result<(), StoreError> {
        let failed = |operation| move |errno| self.system(operation, name, errno);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let mode = Mode::from_bits_truncate(RESERVATION_MODE);
        let fd = openat(via, temporary, flags, mode).map_err(failed("make a new"))?;
        let mut file = File::from(fd);
        let written = fchmod(&file, mode)
            .and_then(|()| file.write_all(address.to_string().as_bytes()).map_err(|error| errno(&error)))
            .map_err(failed("write a new"))
            .and_then(|()| renameat(via, temporary, &self.dir, name).map_err(failed("replace")));
        if let Err(error) = written {
            if let Err(errno) = unlinkat(via, temporary, UnlinkatFlags::NoRemoveDir) {
                log::warn!("remove {:?}: {errno}", via.path().join(temporary));
            }
            return Err(error);
        }
        Ok(())
    }

    /// Syncs the directory.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        Ok(self.dir.sync()?)
    }

    /// Opens the index file, or makes it. None if that fails, or if the kernel has no boot ID.
    pub(super) fn index_file(&self) -> Option<File> {
        if self.boot == [0; 16] {
            return None;
        }
        let opened = self.ours.as_ref()?.open_file(INDEX, Access::WriteOrCreate(0o600));
        opened.inspect_err(|error| log::warn!("{error}")).ok()
    }

    /// Opens the index file for reading, if it exists.
    pub(super) fn present_index(&self) -> Option<File> {
        self.ours.as_ref().filter(|_| self.boot != [0; 16])?.open_file(INDEX, Access::Read).ok()
    }

    /// Removes an index that cannot be marked as unfinished.
    pub(super) fn remove_index(&self) {
        if let Some(ours) = &self.ours
            && let Err(errno) = unlinkat(ours, INDEX, UnlinkatFlags::NoRemoveDir)
            && errno != Errno::ENOENT
        {
            log::warn!("remove {:?}: {errno}", ours.path().join(INDEX));
        }
    }

    /// Removes temporary files of killed processes. Runs under the lock.
    pub(super) fn remove_leftovers(&self) {
        for dir in self.ours.iter().chain([&self.dir]) {
            if let Err(error) = dir.remove_temporaries() {
                log::warn!("{error}");
            }
        }
    }

    /// The current state of the directory.
    pub(super) fn stamp(&self) -> Result<Stamp, StoreError> {
        let data = fstat(&self.dir).map_err(|errno| self.system("stat", "", errno))?;
        Ok(Stamp {
            boot: self.boot,
            device: data.st_dev,
            inode: data.st_ino,
            mtime: (data.st_mtime, data.st_mtime_nsec),
            ctime: (data.st_ctime, data.st_ctime_nsec),
        })
    }

    /// Sets the directory's mtime back by the smallest step, so that every later change gives another mtime.
    /// Returns the new state; none if this had no effect.
    pub(super) fn mark(&self) -> Option<Stamp> {
        let before = self.stamp().ok()?;
        let (seconds, nanoseconds) = before.mtime;
        let past = if nanoseconds > 0 { (seconds, nanoseconds - 1) } else { (seconds - 1, 999_999_999) };
        futimens(&self.dir, &TimeSpec::UTIME_OMIT, &TimeSpec::new(past.0, past.1)).ok()?;
        let after = self.stamp().ok()?;
        (after.mtime < before.mtime).then_some(after)
    }

    fn system(&self, operation: &'static str, name: &str, errno: Errno) -> StoreError {
        StoreError::System { operation, path: self.dir.path().join(name), errno }
    }

    /// Makes an unnamed file, to test that a reservation can be written. The kernel removes it on close.
    pub(super) fn probe(&self) -> Result<Option<File>, StoreError> {
        let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        match openat(&self.dir, ".", flags, Mode::from_bits_truncate(RESERVATION_MODE)) {
            Ok(fd) => {
                let mut file = File::from(fd);
                file.write_all(&[b'x'; 128])
                    .map_err(|error| self.system("write a reservation in", "", errno(&error)))?;
                Ok(Some(file))
            }
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL) => nix::unistd::faccessat(
                self.dir.as_fd(),
                ".",
                nix::unistd::AccessFlags::W_OK,
                AtFlags::empty(),
            )
            .map(|()| None)
            .map_err(|errno| self.system("write to", "", errno)),
            Err(errno) => Err(self.system("make a file in", "", errno)),
        }
    }
}

/// The kernel's boot ID; zeros if it cannot be read.
pub(super) fn boot_id() -> [u8; 16] {
    let mut id = [0; 16];
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d.to_le_bytes()[0]).collect();
    for (to, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *to = pair.iter().fold(0, |byte, digit| byte << 4 | digit);
    }
    id
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use cni_kernel::xattr;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn a_name_is_taken_once_also_without_unnamed_files() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::create(temp.path(), "net").unwrap();
        for staged in [store.stage("c1", None).unwrap(), Staged::Later] {
            assert_eq!(store.link(&staged, "c1", ADDRESS).unwrap(), Linked::Done);
            assert_eq!(store.link(&Staged::Later, "c2", ADDRESS).unwrap(), Linked::Taken);
            assert_eq!(store.entry(ADDRESS).unwrap(), Some(Entry::Owned(b"c1".to_vec())));
            store.unlink(ADDRESS).unwrap();
        }
        std::fs::remove_dir(temp.path().join("net")).unwrap();
        assert!(store.link(&Staged::Later, "c1", ADDRESS).is_err());
    }

    #[test]
    fn a_reservation_keeps_the_record_of_its_namespace() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::create(temp.path(), "net").unwrap();
        let netns = temp.path().join("netns");
        std::fs::write(&netns, "").unwrap();
        if xattr::set(File::open(&netns).unwrap(), mark::ATTRIBUTE, b"x").is_err() {
            // Without privileges, or on a file system without such attributes.
            return;
        }
        let record = mark::record(&store.boot, Some(&netns)).unwrap();
        let staged = store.stage("c1", Some(&record)).unwrap();
        store.link(&staged, "c1", ADDRESS).unwrap();
        let file = store.dir.open_file(ADDRESS.to_string(), Access::Read).unwrap();
        assert_eq!(mark::read(&file, &store.boot).unwrap().as_deref(), record.get(mark::BOOT_ID..));
    }

    #[test]
    fn the_mark_of_a_full_second_is_in_the_second_before() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::create(temp.path(), "net").unwrap();
        let dir = File::open(store.dir.path()).unwrap();
        for (milliseconds, least) in [(1_000_000, (999, 0)), (1_000_500, (1000, 0))] {
            let time = Duration::from_millis(milliseconds);
            dir.set_modified(SystemTime::UNIX_EPOCH + time).unwrap();
            let marked = store.mark().unwrap();
            assert!(
                marked.mtime < (1000, i64::from(time.subsec_nanos())) && marked.mtime >= least,
                "{marked:?}"
            );
            assert_eq!(marked, store.stamp().unwrap());
        }
    }

    #[test]
    fn the_boot_id_is_the_kernels() {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert_eq!(cni_spec::text::hex(&boot_id()), text.trim().replace('-', ""));
    }

    #[test]
    fn files_that_are_no_reservations_are_foreign() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::create(temp.path(), "net").unwrap();
        let path = |last: u8| temp.path().join(format!("net/10.0.0.{last}"));
        std::fs::create_dir(path(3)).unwrap();
        std::os::unix::fs::symlink("10.0.0.9", path(4)).unwrap();
        std::fs::write(path(5), vec![b'x'; LARGEST + 1]).unwrap();
        for last in [3, 4, 5] {
            let entry = store.entry(IpAddr::from([10, 0, 0, last])).unwrap();
            assert_eq!(entry, Some(Entry::Foreign), "{last}");
        }
        assert_eq!(store.entry(ADDRESS).unwrap(), None);
        std::os::unix::fs::symlink("loop", temp.path().join("loop")).unwrap();
        assert!(Store::open(temp.path(), "missing").unwrap().is_none());
        assert!(Store::open(temp.path(), "loop").is_err(), "it may have reservations");
    }

    #[test]
    fn the_last_address_needs_no_second_inode_and_a_killed_process_leaves_none() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::create(temp.path(), "net").unwrap();
        let inode = || std::fs::metadata(temp.path().join("net/last_reserved_ip.0")).unwrap().ino();
        store.set_last(0, ADDRESS).unwrap();
        let before = inode();
        store.set_last(0, IpAddr::from([10, 0, 0, 3])).unwrap();
        assert_eq!((inode(), store.last(0)), (before, Some(IpAddr::from([10, 0, 0, 3]))));
        let leftover = temp.path().join(format!("net/{TEMPORARY}last_reserved_ip.0"));
        std::fs::write(&leftover, "10.0.0.").unwrap();
        store.remove_leftovers();
        assert!(!leftover.exists());
    }

    #[test]
    fn an_index_that_cannot_be_used_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let mut store = Store::create(temp.path(), "net").unwrap();
        store.make_ours(temp.path(), "net");
        drop(store.index_file().unwrap());
        assert!(store.present_index().is_some());
        store.remove_index();
        assert!(store.present_index().is_none());
    }
}
