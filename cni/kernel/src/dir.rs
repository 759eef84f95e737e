// SPDX-License-Identifier: MIT OR Apache-2.0

//! Files that are either complete or absent, even after a power cut.
//!
//! A [`DurableDir`] holds a directory open. Names are single components, which are resolved below that descriptor
//! without following symbolic links, so no name and no renamed parent leads elsewhere. When a method that writes
//! returns, the change is on disk, because both the file and the directory have been synced.

mod error;
pub(crate) mod removal;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, linkat, unlinkat};

pub use error::DirError;
use error::{io, system};
pub use removal::{is_fixed, remove_all, remove_empty};

/// Prefix of temporary files' names. [`DurableDir::list`] leaves them out.
pub const TEMPORARY: &str = ".slipway-tmp-";

/// From this age on, a temporary file counts as abandoned, because runtimes do not let a plugin run for minutes.
const STALE: Duration = Duration::from_secs(600);

/// An open directory.
#[derive(Debug)]
pub struct DurableDir {
    fd: OwnedFd,
    path: PathBuf,
    /// The directory in which temporary files are made. None for the directory itself.
    scratch: Option<OwnedFd>,
}

/// How [`DurableDir::open_file`] opens a file. A new file gets exactly the given mode, whatever the process's umask
/// is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading; the file must exist.
    Read,
    /// For reading; a missing file is created with this mode.
    ReadOrCreate(u32),
    /// For reading and writing; the file must exist.
    Write,
    /// For reading and writing; a missing file is created with this mode.
    WriteOrCreate(u32),
    /// For appending; a missing file is created with this mode.
    AppendOrCreate(u32),
}

/// The last change of a directory's entries, by its file system's clock.
///
/// File systems use the kernel's tick (1–10 ms), so two changes within one tick have the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtime {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanoseconds: i64,
}

impl DurableDir {
    /// Opens an existing directory.
    ///
    /// # Errors
    /// [`DirError::System`] if it does not exist or is not a directory.
    pub fn open(path: &Path) -> Result<Self, DirError> {
        let fd = openat(AT_FDCWD, path, DIRECTORY, Mode::empty())
            .map_err(|errno| system("open directory", path, errno))?;
        Ok(Self { fd, path: path.to_path_buf(), scratch: None })
    }

    /// Opens a directory. Creates it and missing parents with `mode`, and syncs each.
    ///
    /// # Errors
    /// [`DirError::System`] with the directory that could not be created.
    pub fn create(path: &Path, mode: u32) -> Result<Self, DirError> {
        match Self::open(path) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => {}
            opened => return opened,
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(system("make directory", path, Errno::ENOENT));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        Self::create(parent, mode)?.subdir(name, mode)
    }

    /// Opens a directory in this one. Creates it with `mode` if it is missing.
    ///
    /// # Errors
    /// [`DirError::System`]: ELOOP or ENOTDIR if the name is a symbolic link or a file.
    pub fn subdir(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<Self, DirError> {
        let name = self.component(name.as_ref())?;
        let path = self.path.join(name);
        let open = || openat(&self.fd, name, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty());
        let fd = match open() {
            Err(Errno::ENOENT) => {
                match mkdirat(&self.fd, name, Mode::from_bits_truncate(mode)) {
                    Ok(()) => {
                        let fd = open().map_err(|errno| system("open directory", &path, errno))?;
                        fchmod(&fd, Mode::from_bits_truncate(mode))
                            .map_err(|errno| system("set mode of directory", &path, errno))?;
                        self.sync()?;
                        return Ok(Self { fd, path, scratch: None });
                    }
                    Err(Errno::EEXIST) => {} // Another process created it.
                    Err(errno) => return Err(system("make directory", &path, errno)),
                }
                open()
            }
            other => other,
        };
        let fd = fd.map_err(|errno| system("open directory", &path, errno))?;
        Ok(Self { fd, path, scratch: None })
    }

    /// From now on, makes temporary files in `scratch`, which must be on the same file system. This is meant for
    /// directories in which other programs use every file.
    ///
    /// # Errors
    /// [`DirError::System`] if the process is out of descriptors.
    pub fn use_scratch(&mut self, scratch: &Self) -> Result<(), DirError> {
        let fd = scratch.fd.try_clone().map_err(|error| {
            system("hold directory", &scratch.path, Errno::from_raw(error.raw_os_error().unwrap_or(0)))
        })?;
        self.scratch = Some(fd);
        Ok(())
    }

    /// The path by which the directory was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file for a caller that reads or writes parts of it. Syncs nothing.
    ///
    /// # Errors
    /// [`DirError::System`]: ENOENT if it is missing, ELOOP if it is a symbolic link; [`DirError::NotAFile`].
    pub fn open_file(&self, name: impl AsRef<OsStr>, access: Access) -> Result<File, DirError> {
        let name = self.component(name.as_ref())?;
        let path = self.path.join(name);
        // Non-blocking, because a FIFO with this name must not block the plugin.
        let always = OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let (flags, mode) = match access {
            Access::Read => (OFlag::O_RDONLY, None),
            Access::Write => (OFlag::O_RDWR, None),
            Access::ReadOrCreate(mode) => (OFlag::O_RDONLY, Some(mode)),
            Access::WriteOrCreate(mode) => (OFlag::O_RDWR, Some(mode)),
            Access::AppendOrCreate(mode) => (OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NOCTTY, Some(mode)),
        };
        let opened = match openat(&self.fd, name, always | flags, Mode::empty()) {
            Err(Errno::ENOENT) => match mode.map(Mode::from_bits_truncate) {
                None => Err(Errno::ENOENT),
                Some(mode) => {
                    let create = always | flags | OFlag::O_CREAT;
                    match openat(&self.fd, name, create | OFlag::O_EXCL, mode) {
                        Ok(fd) => fchmod(&fd, mode).map(|()| fd),
                        Err(Errno::EEXIST) => openat(&self.fd, name, create, mode),
                        Err(errno) => Err(errno),
                    }
                }
            },
            other => other,
        };
        let file = File::from(opened.map_err(|errno| system("open", &path, errno))?);
        match file.metadata() {
            Ok(data) if data.is_file() => Ok(file),
            Ok(_) => Err(DirError::NotAFile { path }),
            Err(error) => Err(io("stat", &path, &error)),
        }
    }

    /// Creates a file that gets its name only when its content is on disk, so after a crash it is complete or absent.
    /// If the call fails, there is no file with this name.
    ///
    /// # Errors
    /// [`DirError::already_exists`] if the name is taken.
    pub fn create_new_linked(
        &self,
        name: impl AsRef<OsStr>,
        content: &[u8],
        mode: u32,
    ) -> Result<(), DirError> {
        let name = self.component(name.as_ref())?;
        let path = self.path.join(name);
        match self.link_unnamed(name, content, mode) {
            Err(Unnamed::Unsupported) => {}
            Ok(()) => return self.sync_or_remove(name).inspect(|()| log::debug!("create {path:?}")),
            Err(Unnamed::Failed(operation, errno)) => return Err(system(operation, &path, errno)),
        }
        let temporary = self.write_temporary(content, mode)?;
        let linked = linkat(self.scratch(), temporary.as_os_str(), &self.fd, name, AtFlags::empty());
        self.drop_temporary(&temporary);
        linked.map_err(|errno| system("create", &path, errno))?;
        self.sync_or_remove(name).inspect(|()| log::debug!("create {path:?}"))
    }

    /// Replaces or creates a file atomically: readers, as well as the disk after a crash, have either the old content
    /// or the new one.
    ///
    /// # Errors
    /// [`DirError::System`]. The old content stays, unless only the sync of the directory fails.
    pub fn replace(&self, name: impl AsRef<OsStr>, content: &[u8], mode: u32) -> Result<(), DirError> {
        let name = self.component(name.as_ref())?;
        let temporary = self.write_temporary(content, mode)?;
        if let Err(errno) = renameat(self.scratch(), temporary.as_os_str(), &self.fd, name) {
            self.drop_temporary(&temporary);
            return Err(system("replace", &self.path.join(name), errno));
        }
        log::debug!("replace {:?}", self.path.join(name));
        self.sync()
    }

    /// Creates a file with [`DurableDir::create_new_linked`], or replaces one that exists. So a caller that fails because a
    /// new file could not be stored leaves none behind.
    ///
    /// # Errors
    /// The errors of [`DurableDir::replace`].
    pub fn put(&self, name: impl AsRef<OsStr>, content: &[u8], mode: u32) -> Result<(), DirError> {
        let name = name.as_ref();
        // For a file that exists, the attempt to create it would store the content once more.
        if !self.exists(name)? {
            match self.create_new_linked(name, content, mode) {
                Err(error) if error.already_exists() => {} // Another process has created it since.
                done => return done,
            }
        }
        self.replace(name, content, mode)
    }

    /// Renames a file, replacing any file that has the new name. Syncs nothing.
    ///
    /// # Errors
    /// [`DirError::System`]: ENOENT if there is no such file.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> Result<(), DirError> {
        let (from, to) = (self.component(from.as_ref())?, self.component(to.as_ref())?);
        renameat(&self.fd, from, &self.fd, to).map_err(|errno| system("rename", &self.path.join(from), errno))
    }

    /// Removes a file. Returns false if it did not exist.
    ///
    /// # Errors
    /// [`DirError::System`] if it cannot be removed.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> Result<bool, DirError> {
        let name = self.component(name.as_ref())?;
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => {
                log::debug!("remove {:?}", self.path.join(name));
                self.sync().map(|()| true)
            }
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(system("remove", &self.path.join(name), errno)),
        }
    }

    /// Reads a whole file. None if the file does not exist.
    ///
    /// # Errors
    /// [`DirError::TooLarge`] for more than `limit` bytes, otherwise the errors of [`DurableDir::open_file`].
    pub fn read(&self, name: impl AsRef<OsStr>, limit: usize) -> Result<Option<Vec<u8>>, DirError> {
        let name = name.as_ref();
        let file = match self.open_file(name, Access::Read) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let path = self.path.join(name);
        let mut content = Vec::new();
        let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        file.take(bound).read_to_end(&mut content).map_err(|error| io("read", &path, &error))?;
        if content.len() > limit {
            return Err(DirError::TooLarge { path, limit });
        }
        Ok(Some(content))
    }

    /// The names in the directory, unordered, without `.`, `..` and temporary files.
    ///
    /// # Errors
    /// [`DirError::System`] if the directory cannot be read.
    pub fn list(&self) -> Result<Vec<OsString>, DirError> {
        Ok(self.entries()?.into_iter().filter(|name| !is_temporary(name)).collect())
    }

    /// True if a file or directory with this name exists. A symbolic link counts, too.
    ///
    /// # Errors
    /// [`DirError::System`] if the kernel cannot look it up.
    pub fn exists(&self, name: impl AsRef<OsStr>) -> Result<bool, DirError> {
        let name = self.component(name.as_ref())?;
        match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(system("stat", &self.path.join(name), errno)),
        }
    }

    /// The last change of the directory's entries.
    ///
    /// # Errors
    /// [`DirError::System`] if the kernel cannot look it up.
    pub fn mtime(&self) -> Result<Mtime, DirError> {
        let data = fstat(&self.fd).map_err(|errno| system("stat", &self.path, errno))?;
        Ok(Mtime { seconds: data.st_mtime, nanoseconds: data.st_mtime_nsec })
    }

    /// Writes the directory's entries to disk.
    ///
    /// # Errors
    /// [`DirError::System`] if that fails.
    pub fn sync(&self) -> Result<(), DirError> {
        match fsync(&self.fd) {
            // Some network and overlay file systems cannot sync a directory.
            Ok(()) | Err(Errno::EINVAL) => Ok(()),
            Err(errno) => Err(system("sync directory", &self.path, errno)),
        }
    }

    /// Removes temporary files of killed processes, and returns their number. The caller must hold a lock
    /// under which all temporary files of the directory are written.
    ///
    /// # Errors
    /// [`DirError::System`] if the directory cannot be read.
    pub fn remove_temporaries(&self) -> Result<usize, DirError> {
        let left = self.entries()?.into_iter().filter(|name| is_temporary(name));
        Ok(left
            .filter(|name| unlinkat(&self.fd, name.as_os_str(), UnlinkatFlags::NoRemoveDir).is_ok())
            .count())
    }

    /// Removes temporary files that are older than any running plugin, and returns their number. This is meant for
    /// directories without a lock.
    ///
    /// # Errors
    /// [`DirError::System`] if the directory cannot be read.
    pub fn remove_stale_temporaries(&self) -> Result<usize, DirError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let written = |name: &OsString| {
            let data = fstatat(&self.fd, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
            u64::try_from(data.st_mtime).ok().map(Duration::from_secs)
        };
        let left = self.entries()?.into_iter().filter(|name| is_temporary(name));
        let stale = left.filter(|name| written(name).is_some_and(|written| written + STALE < now));
        Ok(stale
            .filter(|name| unlinkat(&self.fd, name.as_os_str(), UnlinkatFlags::NoRemoveDir).is_ok())
            .count())
    }

    fn entries(&self) -> Result<Vec<OsString>, DirError> {
        let failed = |errno| system("list directory", &self.path, errno);
        let mut dir = nix::dir::Dir::openat(&self.fd, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        for entry in dir.iter() {
            let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    fn scratch(&self) -> BorrowedFd<'_> {
        self.scratch.as_ref().unwrap_or(&self.fd).as_fd()
    }

    /// Creates the file without a name first (O_TMPFILE), so that a process that is killed leaves nothing behind, and
    /// no reader of the directory sees the file.
    fn link_unnamed(&self, name: &OsStr, content: &[u8], mode: u32) -> Result<(), Unnamed> {
        let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let fd = match openat(&self.fd, ".", flags, Mode::from_bits_truncate(mode)) {
            Ok(fd) => fd,
            // Not all file systems support O_TMPFILE, and older kernels mistake the flag for O_DIRECTORY.
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL) => return Err(Unnamed::Unsupported),
            Err(errno) => return Err(Unnamed::Failed("create", errno)),
        };
        let file = fill(fd, content, mode).map_err(|errno| Unnamed::Failed("write", errno))?;
        let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        match linkat(AT_FDCWD, &by_descriptor, &self.fd, name, AtFlags::AT_SYMLINK_FOLLOW) {
            Ok(()) => Ok(()),
            Err(Errno::ENOENT) => Err(Unnamed::Unsupported), // No /proc.
            Err(errno) => Err(Unnamed::Failed("create", errno)),
        }
    }

    fn write_temporary(&self, content: &[u8], mode: u32) -> Result<OsString, DirError> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        loop {
            // The name is unique among running processes, but a process that has ended may have left a file with that
            // name.
            let count = COUNTER.fetch_add(1, Ordering::Relaxed);
            let name = OsString::from(format!("{TEMPORARY}{}-{count}", std::process::id()));
            let fd = match openat(self.scratch(), name.as_os_str(), flags, Mode::from_bits_truncate(mode)) {
                Ok(fd) => fd,
                Err(Errno::EEXIST) => continue,
                Err(errno) => return Err(system("create", &self.path.join(&name), errno)),
            };
            return match fill(fd, content, mode) {
                Ok(_) => Ok(name),
                Err(errno) => {
                    self.drop_temporary(&name);
                    Err(system("write", &self.path.join(&name), errno))
                }
            };
        }
    }

    /// Removes a temporary file. A failure is only logged, because the caller has either a finished file or an error
    /// of its own.
    fn drop_temporary(&self, name: &OsStr) {
        if let Err(errno) = unlinkat(self.scratch(), name, UnlinkatFlags::NoRemoveDir) {
            log::warn!("remove {:?}: {errno}", self.path.join(name));
        }
    }

    fn sync_or_remove(&self, name: &OsStr) -> Result<(), DirError> {
        self.sync().inspect_err(|_| {
            if let Err(errno) = unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
                log::warn!("remove {:?}: {errno}", self.path.join(name));
            }
        })
    }

    fn component<'a>(&self, name: &'a OsStr) -> Result<&'a OsStr, DirError> {
        let bytes = name.as_bytes();
        if matches!(bytes, b"" | b"." | b"..") || bytes.iter().any(|b| matches!(b, b'/' | 0)) {
            return Err(DirError::Name { name: name.to_owned(), dir: self.path.clone() });
        }
        Ok(name)
    }
}

impl AsFd for DurableDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// Failure of [`DurableDir::link_unnamed`].
enum Unnamed {
    /// The file system has no O_TMPFILE, or `/proc` is not mounted: use a named temporary file.
    Unsupported,
    /// A failure that would also occur with a named file.
    Failed(&'static str, Errno),
}

fn is_temporary(name: &OsStr) -> bool {
    name.as_bytes().starts_with(TEMPORARY.as_bytes())
}

fn fill(fd: OwnedFd, content: &[u8], mode: u32) -> Result<File, Errno> {
    let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO));
    fchmod(&fd, Mode::from_bits_truncate(mode))?;
    let mut file = File::from(fd);
    file.write_all(content).map_err(errno)?;
    file.sync_all().map_err(errno)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn fixture() -> (tempfile::TempDir, DurableDir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = DurableDir::create(&temp.path().join("a/b"), 0o750).unwrap();
        (temp, dir)
    }

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn missing_parents_are_made_with_the_mode_given() {
        let (temp, dir) = fixture();
        assert_eq!(mode(&temp.path().join("a")), 0o750);
        assert_eq!(mode(dir.path()), 0o750);
        assert!(DurableDir::open(&temp.path().join("c")).unwrap_err().is_not_found());
    }

    #[test]
    fn a_new_file_is_exclusive_and_leaves_no_temporary_file() {
        let (_temp, dir) = fixture();
        dir.create_new_linked("x", b"first", 0o600).unwrap();
        let error = dir.create_new_linked("x", b"second", 0o600).unwrap_err();
        assert!(error.already_exists(), "{error}");
        assert_eq!(dir.read("x", 100).unwrap().unwrap(), b"first");
        assert_eq!(mode(&dir.path().join("x")), 0o600);
        assert_eq!(dir.entries().unwrap(), ["x"]);
    }

    #[test]
    fn a_named_temporary_file_has_the_same_result() {
        let (temp, mut dir) = fixture();
        let scratch = DurableDir::create(&temp.path().join("scratch"), 0o700).unwrap();
        dir.use_scratch(&scratch).unwrap();
        let temporary = dir.write_temporary(b"content", 0o640).unwrap();
        assert!(dir.entries().unwrap().is_empty());
        assert_eq!(scratch.entries().unwrap(), std::slice::from_ref(&temporary));
        assert!(scratch.list().unwrap().is_empty());
        assert_eq!(scratch.remove_stale_temporaries().unwrap(), 0, "it may be in use");
        let file = File::options().write(true).open(temp.path().join("scratch").join(&temporary)).unwrap();
        file.set_modified(SystemTime::now() - 2 * STALE).unwrap();
        assert_eq!(scratch.remove_stale_temporaries().unwrap(), 1);
        std::fs::write(temp.path().join("scratch").join(&temporary), "").unwrap();
        assert_eq!(scratch.remove_temporaries().unwrap(), 1);
        dir.replace("x", b"content", 0o644).unwrap();
        assert!(scratch.entries().unwrap().is_empty());
        assert_eq!(dir.read("x", 100).unwrap().unwrap(), b"content");
    }

    #[test]
    fn a_file_is_replaced_and_removed() {
        let (_temp, dir) = fixture();
        dir.put("x", b"first", 0o600).unwrap();
        dir.put("x", b"second", 0o644).unwrap();
        assert_eq!(dir.read("x", 100).unwrap().unwrap(), b"second");
        assert_eq!(mode(&dir.path().join("x")), 0o644);
        assert_eq!(dir.list().unwrap(), ["x"]);
        assert!(dir.remove("x").unwrap());
        assert!(!dir.remove("x").unwrap());
        assert_eq!(dir.read("x", 100).unwrap(), None);
    }

    #[test]
    fn names_with_more_than_one_component_are_refused() {
        let (_temp, dir) = fixture();
        for name in ["", ".", "..", "a/b", "../x", "/etc/passwd", "a\0b"] {
            assert!(matches!(dir.read(name, 1), Err(DirError::Name { .. })), "{name:?}");
            assert!(matches!(dir.replace(name, b"", 0o600), Err(DirError::Name { .. })), "{name:?}");
            assert!(matches!(dir.subdir(name, 0o700), Err(DirError::Name { .. })), "{name:?}");
        }
    }

    #[test]
    fn symbolic_links_fifos_and_large_files_are_refused() {
        let (temp, dir) = fixture();
        std::fs::write(temp.path().join("secret"), "secret").unwrap();
        std::os::unix::fs::symlink(temp.path().join("secret"), dir.path().join("link")).unwrap();
        assert_eq!(dir.read("link", 100).unwrap_err().errno(), Some(Errno::ELOOP));
        assert!(dir.create_new_linked("link", b"", 0o600).unwrap_err().already_exists());
        nix::unistd::mkfifo(&dir.path().join("fifo"), Mode::S_IRUSR).unwrap();
        assert!(matches!(dir.read("fifo", 100), Err(DirError::NotAFile { .. })));
        dir.replace("large", &[0; 11], 0o600).unwrap();
        assert!(matches!(dir.read("large", 10), Err(DirError::TooLarge { limit: 10, .. })));
        assert_eq!(dir.read("large", 11).unwrap().unwrap().len(), 11);
    }

    #[test]
    fn opening_makes_a_missing_file_with_the_mode_given() {
        let (_temp, dir) = fixture();
        assert!(dir.open_file("lock", Access::Read).unwrap_err().is_not_found());
        dir.open_file("lock", Access::ReadOrCreate(0o666)).unwrap();
        assert_eq!(mode(&dir.path().join("lock")), 0o666, "the umask is not applied");
        assert!(dir.exists("lock").unwrap() && !dir.exists("other").unwrap());
    }

    #[test]
    fn a_new_entry_changes_the_time() {
        let (_temp, dir) = fixture();
        let before = dir.mtime().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        dir.replace("x", b"", 0o600).unwrap();
        assert!(dir.mtime().unwrap() > before);
    }
}
