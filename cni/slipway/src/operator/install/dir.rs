// SPDX-License-Identifier: GPL-2.0-or-later

//! The plugin directory: every name is reached from one open, locked directory.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat, mkdirat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};

use slipway_cli::Failure;

use super::{BACKUP_DIR, BINARY, SHARE_LINK};

/// The name of a file or a link until it is complete and renamed. One name is enough, as the directory is
/// locked. The next installation removes what a killed one left under it.
const TEMPORARY: &str = ".slipway-new";

/// The failures of an installation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    /// A system call failed on a file.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A name is in use by something that is not replaced, or the directory cannot be changed.
    #[error("{} {why}; nothing was changed", path.display())]
    Taken {
        /// The file in the way.
        path: PathBuf,
        /// The kind of the file, and the remedy.
        why: &'static str,
    },
    /// Manual pages or completions cannot be written or removed.
    #[error(transparent)]
    Share(#[from] slipway_cli::ShareError),
    /// The steps cannot be printed.
    #[error("write the report: {0}")]
    Report(#[source] io::Error),
}

impl From<InstallError> for Failure {
    fn from(error: InstallError) -> Self {
        match error {
            InstallError::Report(error) => Self::Report(error),
            other => Self::failed(other),
        }
    }
}

/// The kind of a name in the plugin directory. Links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Missing,
    File,
    /// A link whose target is our binary.
    OurLink,
    OtherLink,
    Directory,
    Special,
}

/// An open plugin directory, locked against other installers until it is dropped.
#[derive(Debug)]
pub(super) struct PluginDir {
    fd: File,
    path: PathBuf,
}

impl PluginDir {
    /// Opens the directory, and creates it with its parents (mode 0755) if it is missing; a dry run gets
    /// `None` instead.
    pub(super) fn open_or_create(path: &Path, dry: bool) -> Result<Option<Self>, InstallError> {
        if let Some(dir) = Self::open(path)? {
            return Ok(Some(dir));
        }
        if dry {
            return Ok(None);
        }
        if path.is_symlink() {
            return Err(InstallError::Taken {
                path: path.to_owned(),
                why: "is a symbolic link that leads nowhere",
            });
        }
        DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|source| InstallError::Io {
            operation: "create the directory",
            path: path.to_owned(),
            source,
        })?;
        Self::open(path)
    }

    /// Checks that the directory is not on a read-only file system.
    pub(super) fn check_writable(&self) -> Result<(), InstallError> {
        match fstatvfs(&self.fd) {
            Ok(found) if found.flags().contains(FsFlags::ST_RDONLY) => {
                Err(InstallError::Taken { path: self.path.clone(), why: "is on a read-only file system" })
            }
            _ => Ok(()),
        }
    }

    /// Opens and locks the directory; `None` if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, InstallError> {
        let failed = |operation| move |source| InstallError::Io { operation, path: path.to_owned(), source };
        let fd = match fs::OpenOptions::new().read(true).custom_flags(OFlag::O_DIRECTORY.bits()).open(path) {
            Ok(fd) => fd,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed("open the directory")(e)),
        };
        fd.lock().map_err(failed("lock the directory"))?;
        Ok(Some(Self { fd, path: path.to_owned() }))
    }

    pub(super) fn taken(&self, name: &str, why: &'static str) -> InstallError {
        InstallError::Taken { path: self.path.join(name), why }
    }

    pub(super) fn entry(&self, name: &str) -> Result<Entry, InstallError> {
        let Some(stat) = self.stat(name)? else { return Ok(Entry::Missing) };
        Ok(match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFREG => Entry::File,
            SFlag::S_IFDIR => Entry::Directory,
            SFlag::S_IFLNK => {
                let target = readlinkat(&self.fd, name).map_err(|e| self.failed("read the link", name, e))?;
                if target == OsStr::new(BINARY) { Entry::OurLink } else { Entry::OtherLink }
            }
            _ => Entry::Special,
        })
    }

    fn stat(&self, name: &str) -> Result<Option<FileStat>, InstallError> {
        stat_in(&self.fd, name).map_err(|e| self.failed("look at", name, e))
    }

    /// True if the installed binary is the very file to install: an installed `slipway` that installs itself.
    pub(super) fn is_same_file(&self, binary: &Path) -> Result<bool, InstallError> {
        let source = fs::metadata(binary).map_err(|e| io_failed("look at", binary, e))?;
        Ok(self.stat(BINARY)?.is_some_and(|s| s.st_dev == source.dev() && s.st_ino == source.ino()))
    }

    /// Writes the binary under its name: complete and on disk before the name points to it.
    pub(super) fn copy_binary(&self, binary: &Path) -> Result<(), InstallError> {
        self.remove_temporary()?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let written = openat(&self.fd, TEMPORARY, flags, Mode::from_bits_truncate(0o700))
            .map_err(|e| self.failed("create", TEMPORARY, e))
            .and_then(|fd| self.fill(&mut File::from(fd), binary))
            .and_then(|()| self.rename_into_place(BINARY));
        if written.is_err() {
            // The first failure is returned; the next call removes a leftover.
            let _ = self.remove_temporary();
        }
        written
    }

    fn fill(&self, file: &mut File, binary: &Path) -> Result<(), InstallError> {
        let mut source = File::open(binary).map_err(|e| io_failed("open", binary, e))?;
        let failed = |operation| move |e| io_failed(operation, &self.path.join(TEMPORARY), e);
        io::copy(&mut source, file).map_err(failed("write"))?;
        // Set explicitly: the mode at creation went through the umask.
        file.set_permissions(Permissions::from_mode(0o755)).map_err(failed("set the mode of"))?;
        file.sync_all().map_err(failed("sync"))
    }

    /// Makes `name` a link to the binary, by one rename.
    pub(super) fn put_link(&self, name: &str) -> Result<(), InstallError> {
        self.remove_temporary()?;
        symlinkat(BINARY, &self.fd, TEMPORARY).map_err(|e| self.failed("create the link", TEMPORARY, e))?;
        self.rename_into_place(name)
    }

    fn rename_into_place(&self, name: &str) -> Result<(), InstallError> {
        renameat(&self.fd, TEMPORARY, &self.fd, name).map_err(|e| self.failed("put in place", name, e))
    }

    fn remove_temporary(&self) -> Result<(), InstallError> {
        self.remove(TEMPORARY)
    }

    /// Gives the plugin under `name` a second name in the backup directory. It keeps its first name until our
    /// link replaces it, so that a runtime can start it.
    pub(super) fn back_up(&self, name: &str) -> Result<(), InstallError> {
        match mkdirat(&self.fd, BACKUP_DIR, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(self.failed("create the directory", BACKUP_DIR, e)),
        }
        let backup = self.backup_dir()?.ok_or_else(|| self.failed("open", BACKUP_DIR, Errno::ENOENT))?;
        remove_from(&backup, TEMPORARY).map_err(|e| self.failed("remove an incomplete copy of", name, e))?;
        // An earlier call may have come this far: renaming a file to another name of its own does nothing.
        linkat(&self.fd, name, &backup, TEMPORARY, AtFlags::empty())
            .and_then(|()| renameat(&backup, TEMPORARY, &backup, name))
            .and_then(|()| remove_from(&backup, TEMPORARY))
            .map_err(|e| self.failed("keep a copy of", name, e))?;
        backup.sync_all().map_err(|e| io_failed("sync", &self.path.join(BACKUP_DIR), e))
    }

    /// Puts a backed up plugin in the place of our link.
    pub(super) fn restore(&self, name: &str) -> Result<(), InstallError> {
        let backup = self.backup_dir()?.ok_or_else(|| self.failed("open", BACKUP_DIR, Errno::ENOENT))?;
        // The second call is for two names of one file, where the first does nothing.
        renameat(&backup, name, &self.fd, name)
            .and_then(|()| remove_from(&backup, name))
            .map_err(|e| self.failed("restore", name, e))
    }

    /// True if a plugin and its copy are one file: our link has not replaced it yet.
    pub(super) fn is_backup(&self, name: &str) -> Result<bool, InstallError> {
        let Some(backup) = self.backup_dir()? else { return Ok(false) };
        let copy = stat_in(&backup, name).map_err(|e| self.failed("look at the copy of", name, e))?;
        let own = self.stat(name)?;
        Ok(own.zip(copy).is_some_and(|(own, copy)| (own.st_dev, own.st_ino) == (copy.st_dev, copy.st_ino)))
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), InstallError> {
        remove_from(&self.fd, name).map_err(|e| self.failed("remove", name, e))
    }

    /// Removes incomplete files, and the backup directory if it is empty.
    pub(super) fn remove_leftovers(&self) -> Result<(), InstallError> {
        self.remove_temporary()?;
        if let Some(backup) = self.backup_dir()? {
            remove_from(&backup, TEMPORARY)
                .map_err(|e| self.failed("remove an incomplete copy in", BACKUP_DIR, e))?;
        }
        match unlinkat(&self.fd, BACKUP_DIR, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
            Err(e) => Err(self.failed("remove the directory", BACKUP_DIR, e)),
        }
    }

    /// Writes the changed names to disk.
    pub(super) fn sync(&self) -> Result<(), InstallError> {
        self.fd.sync_all().map_err(|e| io_failed("sync", &self.path, e))
    }

    /// The names in the directory, sorted.
    pub(super) fn names(&self) -> Result<BTreeSet<String>, InstallError> {
        names_in(&self.fd).map_err(|e| self.failed("list", "", e))
    }

    /// The names of the plugins that were replaced, sorted.
    pub(super) fn backups(&self) -> Result<BTreeSet<String>, InstallError> {
        let Some(backup) = self.backup_dir()? else { return Ok(BTreeSet::new()) };
        let mut names = names_in(&backup).map_err(|e| self.failed("list", BACKUP_DIR, e))?;
        names.remove(TEMPORARY);
        Ok(names)
    }

    /// The directory of manual pages and completions, if an installation has written them.
    pub(super) fn share_dir(&self) -> Result<Option<PathBuf>, InstallError> {
        match readlinkat(&self.fd, SHARE_LINK) {
            Ok(target) => Ok(Some(target.into())),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(self.failed("read the link", SHARE_LINK, e)),
        }
    }

    /// Records the directory of manual pages and completions.
    pub(super) fn put_share_link(&self, share: &Path) -> Result<(), InstallError> {
        self.remove_temporary()?;
        symlinkat(share, &self.fd, TEMPORARY).map_err(|e| self.failed("create the link", TEMPORARY, e))?;
        self.rename_into_place(SHARE_LINK)
    }

    fn backup_dir(&self) -> Result<Option<File>, InstallError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(&self.fd, BACKUP_DIR, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(File::from(fd))),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(self.failed("open the directory", BACKUP_DIR, e)),
        }
    }

    fn failed(&self, operation: &'static str, name: &str, errno: Errno) -> InstallError {
        io_failed(operation, &self.path.join(name), errno.into())
    }
}

pub(super) fn io_failed(operation: &'static str, path: &Path, source: io::Error) -> InstallError {
    InstallError::Io { operation, path: path.to_owned(), source }
}

/// Removes a name, if it exists.
fn remove_from(dir: &File, name: &str) -> Result<(), Errno> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        done => done,
    }
}

fn stat_in(dir: &File, name: &str) -> Result<Option<FileStat>, Errno> {
    match fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The directory's entries without `.` and `..`, and without names that are not UTF-8, which no plugin has.
fn names_in(dir: &File) -> Result<BTreeSet<String>, Errno> {
    // Reading moves a descriptor's position, hence a descriptor of its own.
    let mut dir = Dir::openat(dir, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut names = BTreeSet::new();
    for entry in dir.iter() {
        if let Some(name) = OsStr::from_bytes(entry?.file_name().to_bytes()).to_str()
            && name != "."
            && name != ".."
        {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}
