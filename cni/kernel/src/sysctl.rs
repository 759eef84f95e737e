// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kernel settings below `/proc/sys`.
//!
//! Names are written with slashes (`net/ipv4/conf/br0.100/arp_notify`), because names of links may contain dots.
//! Settings below `net` are those of the calling thread's network namespace, whichever `/proc` is mounted. For those
//! of another namespace, see [`get_in`] and [`set_in`]. On a node with many namespaces, these settings are looked up
//! in a procfs that only this process uses, if the kernel permits one. Such a procfs may be writable although
//! `/proc/sys` is mounted read-only. A process that has it also looks up the settings of its own namespace there, but
//! writing to a read-only `/proc/sys/net` fails.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek as _, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;

use crate::lock::FileLock;
use crate::netns::{Netns, NetnsError};
use crate::procfs;

/// The directory of the settings.
pub const DIRECTORY: &str = "/proc/sys";

/// The longest wait for the lock of a setting's file.
const PATIENCE: Duration = Duration::from_secs(10);

/// An error of a setting.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The name has an empty component, `.` or `..`, and could lead outside of `/proc/sys`.
    #[error("invalid sysctl name {0:?}")]
    Name(String),
    /// Reading failed: `NotFound` if this kernel has no such setting.
    #[error("read sysctl {name}: {source}")]
    Read {
        /// The setting.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Writing failed: `ReadOnlyFilesystem` if `/proc/sys` is mounted read-only.
    #[error("set sysctl {name} to {value}: {source}")]
    Write {
        /// The setting.
        name: String,
        /// The value to be written.
        value: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The namespace could not be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

impl SysctlError {
    /// True if `/proc/sys` is mounted read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::Write { source, .. } if source.kind() == std::io::ErrorKind::ReadOnlyFilesystem)
    }

    /// True if this kernel has no such setting, for instance because IPv6 is switched off or the link does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => {
                source.kind() == std::io::ErrorKind::NotFound
            }
            Self::Name(_) | Self::Netns(_) => false,
        }
    }
}

/// Reads a setting, without its newline.
///
/// # Errors
/// [`SysctlError::Read`], or [`SysctlError::Name`] for an invalid name.
pub fn get(name: &str) -> Result<String, SysctlError> {
    get_below(DIRECTORY.as_ref(), name)
}

/// Like [`get`], with another directory than [`DIRECTORY`].
///
/// # Errors
/// The errors of [`get`].
pub fn get_below(directory: &Path, name: &str) -> Result<String, SysctlError> {
    let mut value = String::new();
    open(directory, name, OFlag::O_RDONLY)?
        .and_then(|mut file| file.read_to_string(&mut value))
        .map_err(|source| SysctlError::Read { name: name.to_owned(), source })?;
    value.truncate(value.trim_end().len());
    Ok(value)
}

/// Writes a setting. If the setting cannot be written, for instance because `/proc/sys` is read-only, this succeeds
/// all the same if it already has the value.
///
/// # Errors
/// [`SysctlError::Write`], or [`SysctlError::Name`] for an invalid name.
pub fn set(name: &str, value: &str) -> Result<(), SysctlError> {
    let written = open(DIRECTORY.as_ref(), name, OFlag::O_WRONLY)?
        .and_then(|mut file| file.write_all(value.as_bytes()));
    match written {
        Err(source) if get(name).is_ok_and(|present| present == value) => {
            log::debug!("sysctl {name} cannot be written, and is {value:?} already: {source}");
            Ok(())
        }
        Err(source) => Err(SysctlError::Write { name: name.to_owned(), value: value.to_owned(), source }),
        Ok(()) => {
            log::debug!("set sysctl {name} to {value:?}");
            Ok(())
        }
    }
}

/// Writes a setting, unless it already has the value. Returns true if it was written. This is meant for settings of
/// the whole namespace: writing `ip_forward` resets other settings even if its value stays the same, and a read-only
/// `/proc/sys` does no harm if everything is already set.
///
/// Concurrent writers must be kept apart. The kernel stores a new value of `ip_forward` before it tries to take the
/// lock under which it configures all links, and restores the old value if it does not get that lock. A second writer
/// that reads the stored value changes nothing, and neither does the second attempt of the first writer, so the
/// setting is 1 but no link forwards (`devinet_sysctl_forward`, seen on 6.18). So this function holds a lock on the
/// setting's file for as long as the kernel waits for its own lock, which can be seconds on a node where many links
/// come and go. Any process that may read the file can hold our lock, too, so after ten seconds the setting is
/// written without it, and a warning is logged.
///
/// # Errors
/// [`SysctlError::Read`] or [`SysctlError::Write`], or [`SysctlError::Name`] for an invalid name.
pub fn ensure(name: &str, value: &str) -> Result<bool, SysctlError> {
    ensure_below(DIRECTORY.as_ref(), name, value)
}

/// Like [`ensure`], with another directory than [`DIRECTORY`]. In a container, that one is read-only, but the host's
/// settings can be mounted at another path.
///
/// # Errors
/// The errors of [`ensure`].
pub fn ensure_below(directory: &Path, name: &str, value: &str) -> Result<bool, SysctlError> {
    ensure_after(directory, name, value, || Ok(()))
}

/// Like [`ensure_below`], but first does some work if the setting will change. The work runs under the lock, so that
/// little time passes before the setting is written.
///
/// # Errors
/// The errors of [`ensure`], and those of the work, in which case nothing is written.
pub fn ensure_after<E: From<SysctlError>>(
    directory: &Path,
    name: &str,
    value: &str,
    before: impl FnOnce() -> Result<(), E>,
) -> Result<bool, E> {
    if get(name)? == value {
        return Ok(false);
    }
    let failed = |source| SysctlError::Write { name: name.to_owned(), value: value.to_owned(), source };
    let mut file = open_to_lock(directory, name)?.map_err(failed)?;
    let _lock = FileLock::on(&file, &directory.join(name), PATIENCE)
        .inspect_err(|error| log::warn!("{error}; setting {name} without the lock"));
    let mut now = String::new();
    file.read_to_string(&mut now).map_err(failed)?;
    if now.trim_end() == value {
        return Ok(false);
    }
    before()?;
    file.rewind().and_then(|()| file.write_all(value.as_bytes())).map_err(failed)?;
    log::debug!("set sysctl {name} to {value:?}");
    Ok(true)
}

/// Raises a number that is lower than `least`, and returns the former one. None if the number was high enough.
/// Concurrent callers never lower what another one has raised, because they take the lock of [`ensure`].
///
/// # Errors
/// [`SysctlError::Write`] if the setting cannot be written, or is not a number; [`SysctlError::Name`].
pub fn raise_below(directory: &Path, name: &str, least: u64) -> Result<Option<u64>, SysctlError> {
    // If the value is high enough, no permission to write is needed, because /proc/sys may be read-only.
    if get_below(directory, name).is_ok_and(|now| now.parse::<u64>().is_ok_and(|now| now >= least)) {
        return Ok(None);
    }
    let failed = |source| SysctlError::Write { name: name.to_owned(), value: least.to_string(), source };
    let mut file = open_to_lock(directory, name)?.map_err(failed)?;
    let _lock = FileLock::on(&file, &directory.join(name), PATIENCE)
        .inspect_err(|error| log::warn!("{error}; setting {name} without the lock"));
    let mut now = String::new();
    file.read_to_string(&mut now).map_err(failed)?;
    let now =
        now.trim_end().parse().map_err(|error| failed(io::Error::new(ErrorKind::InvalidData, error)))?;
    if now >= least {
        return Ok(None);
    }
    file.rewind().and_then(|()| file.write_all(least.to_string().as_bytes())).map_err(failed)?;
    Ok(Some(now))
}

/// [`get`] in another namespace.
///
/// # Errors
/// The errors of [`get`]; [`SysctlError::Netns`] if the namespace cannot be entered.
pub fn get_in(netns: &Netns, name: &str) -> Result<String, SysctlError> {
    netns.run(|| get(name))?
}

/// [`set`] in another namespace.
///
/// # Errors
/// The errors of [`set`]; [`SysctlError::Netns`] if the namespace cannot be entered.
pub fn set_in(netns: &Netns, name: &str, value: &str) -> Result<(), SysctlError> {
    netns.run(|| set(name, value))?
}

/// [`ensure`] in another namespace.
///
/// # Errors
/// The errors of [`ensure`]; [`SysctlError::Netns`] if the namespace cannot be entered.
pub fn ensure_in(netns: &Netns, name: &str, value: &str) -> Result<bool, SysctlError> {
    netns.run(|| ensure(name, value))?
}

/// The directory `/proc/sys/net`, held open. No name leads outside of it, wherever the name comes from.
#[derive(Debug)]
pub struct NetSettings {
    fd: OwnedFd,
}

impl NetSettings {
    /// Opens the directory. Reads and writes apply to the namespace of the thread that makes them.
    ///
    /// # Errors
    /// [`SysctlError::Read`] if `/proc` is not mounted.
    pub fn open() -> Result<Self, SysctlError> {
        let opened = open(DIRECTORY.as_ref(), "net", OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        let file = opened.map_err(|source| SysctlError::Read { name: "net".to_owned(), source })?;
        Ok(Self { fd: file.into() })
    }

    /// Reads the setting `net/{name}`, without its newline.
    ///
    /// # Errors
    /// [`SysctlError::Read`], or [`SysctlError::Name`] for an invalid name.
    pub fn get(&self, name: &str) -> Result<String, SysctlError> {
        let mut value = String::new();
        self.file(name, OFlag::O_RDONLY)?
            .and_then(|mut file| file.read_to_string(&mut value))
            .map_err(|source| SysctlError::Read { name: format!("net/{name}"), source })?;
        value.truncate(value.trim_end().len());
        Ok(value)
    }

    /// Writes the setting `net/{name}`.
    ///
    /// # Errors
    /// [`SysctlError::Write`], or [`SysctlError::Name`] for an invalid name.
    pub fn set(&self, name: &str, value: &str) -> Result<(), SysctlError> {
        self.file(name, OFlag::O_WRONLY)?.and_then(|mut file| file.write_all(value.as_bytes())).map_err(
            |source| SysctlError::Write { name: format!("net/{name}"), value: value.to_owned(), source },
        )
    }

    fn file(&self, name: &str, flags: OFlag) -> Result<std::io::Result<File>, SysctlError> {
        path(DIRECTORY.as_ref(), name)?;
        let flags = flags | OFlag::O_CLOEXEC;
        let how = OpenHow::new()
            .flags(flags)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        let opened = match openat2(&self.fd, name, how) {
            // openat2(2) exists since Linux 5.6. Without it, this is safe because the name has no `..`, and procfs
            // has no symbolic links here.
            Err(Errno::ENOSYS) => openat(&self.fd, name, flags | OFlag::O_NOFOLLOW, Mode::empty()),
            other => other,
        };
        Ok(opened.map(File::from).map_err(std::io::Error::from))
    }
}

/// The directory of the IPv6 settings of a namespace's links, `/proc/sys/net/ipv6/conf`, held open.
///
/// The settings are those of the namespace in which the directory was opened, whichever namespace the writing thread
/// is in, because the kernel finds them by the directory's inode (`proc_sys_lookup`). So a plugin that has opened the
/// directory once needs no thread in the container's namespace for each setting. A single use is cheap, but the
/// kernel keeps an entry for each, because its cache does not find those of other namespaces (`proc_sys_compare`).
#[derive(Debug)]
pub struct Ipv6Settings {
    fd: OwnedFd,
}

impl Ipv6Settings {
    /// Opens the directory of the calling thread's namespace.
    ///
    /// # Errors
    /// [`SysctlError::Read`]: `NotFound` in a kernel without IPv6.
    pub fn open() -> Result<Self, SysctlError> {
        const NAME: &str = "net/ipv6/conf";
        let opened = open(DIRECTORY.as_ref(), NAME, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        let file = opened.map_err(|source| SysctlError::Read { name: NAME.to_owned(), source })?;
        Ok(Self { fd: file.into() })
    }

    /// Writes a setting of a link.
    ///
    /// # Errors
    /// [`SysctlError::Write`], or [`SysctlError::Name`] for an invalid name.
    pub fn set(&self, link: &str, setting: &str, value: &str) -> Result<(), SysctlError> {
        let below = path("".as_ref(), &format!("{link}/{setting}"))?;
        let name = || format!("net/ipv6/conf/{link}/{setting}");
        let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        openat(&self.fd, &below, flags, Mode::empty())
            .map_err(std::io::Error::from)
            .and_then(|fd| File::from(fd).write_all(value.as_bytes()))
            .map_err(|source| SysctlError::Write { name: name(), value: value.to_owned(), source })
            .inspect(|()| log::debug!("set sysctl {} to {value:?}", name()))
    }
}

/// Opens a setting, or a directory of settings. `directory` is [`DIRECTORY`], or a faster one with the same content
/// (see [`procfs`]).
fn open(directory: &Path, name: &str, flags: OFlag) -> Result<io::Result<File>, SysctlError> {
    let path = path(directory, name)?;
    let flags = flags | OFlag::O_CLOEXEC;
    let is_net = directory == Path::new(DIRECTORY) && (name == "net" || name.starts_with("net/"));
    if let Some(root) = is_net.then(|| procfs::elsewhere().or_else(procfs::at_home)).flatten() {
        match openat(&*root, &Path::new("sys").join(name), flags, Mode::empty()) {
            Err(Errno::EACCES | Errno::EPERM) => procfs::is_refused(),
            other => return Ok(other.map(File::from).map_err(io::Error::from)),
        }
    }
    Ok(openat(AT_FDCWD, &path, flags, Mode::empty()).map(File::from).map_err(io::Error::from))
}

/// Opens a setting's file for locking. Other processes must lock the same file, so this is always the one below the
/// directory itself.
fn open_to_lock(directory: &Path, name: &str) -> Result<io::Result<File>, SysctlError> {
    let opened = openat(AT_FDCWD, &path(directory, name)?, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty());
    Ok(opened.map(File::from).map_err(io::Error::from))
}

fn path(directory: &Path, name: &str) -> Result<PathBuf, SysctlError> {
    if name.split('/').any(|part| matches!(part, "" | "." | "..") || part.contains('\0')) {
        return Err(SysctlError::Name(name.to_owned()));
    }
    Ok(directory.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_raised_and_never_lowered() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("backlog");
        std::fs::write(&file, "1000\n").unwrap();
        let raise = |least| raise_below(dir.path(), "backlog", least);
        assert_eq!(raise(4096).unwrap(), Some(1000));
        assert_eq!(raise(4096).unwrap(), None);
        assert_eq!(raise(2000).unwrap(), None);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "4096\n");
        // A setting that nobody may write, like all settings below a read-only `/proc/sys`.
        let constant = |least| raise_below(Path::new("/proc/sys"), "kernel/ngroups_max", least);
        assert_eq!(constant(1).unwrap(), None);
        assert!(matches!(constant(u64::MAX), Err(SysctlError::Write { .. })));
        std::fs::write(&file, "many\n").unwrap();
        assert!(matches!(raise(1), Err(SysctlError::Write { .. })));
        assert!(matches!(raise_below(dir.path(), "../backlog", 1), Err(SysctlError::Name(_))));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", "/etc/passwd", "net/../../../etc/passwd", "net//ipv4", "net/./ipv4", "a\0b"] {
            assert!(matches!(get(name), Err(SysctlError::Name(_))), "{name:?}");
        }
    }

    #[test]
    fn no_name_leads_outside_of_the_net_directory() {
        let net = NetSettings::open().unwrap();
        for name in ["", "/kernel/ostype", "../kernel/ostype", "core/../../kernel/ostype", "core//somaxconn"]
        {
            assert!(matches!(net.get(name), Err(SysctlError::Name(_))), "{name:?}");
            assert!(matches!(net.set(name, "1"), Err(SysctlError::Name(_))), "{name:?}");
        }
        assert_eq!(net.get("ipv4/ip_forward").unwrap(), get("net/ipv4/ip_forward").unwrap());
        let missing = net.get("ipv4/no_such_setting").unwrap_err();
        assert!(missing.is_not_found(), "{missing}");
        assert!(missing.to_string().starts_with("read sysctl net/ipv4/no_such_setting: "), "{missing}");
        assert!(net.get("ipv4").is_err());
    }

    #[test]
    fn a_setting_is_read_without_its_newline() {
        let value = get("kernel/ostype").unwrap();
        assert_eq!(value, "Linux");
        assert!(get("net/ipv4/no_such_setting").unwrap_err().is_not_found());
    }
}
