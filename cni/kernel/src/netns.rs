// SPDX-License-Identifier: MIT OR Apache-2.0

//! Network namespaces.
#![allow(
    unsafe_code,
    reason = "nix wraps neither the ioctl for a namespace's type nor the socket option for its cookie"
)]

use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{NSFS_MAGIC, PROC_SUPER_MAGIC, fstatfs};

use crate::is_transient_io;
use crate::lock::{FileLock, LockError};
use crate::procfs;

/// An open network namespace. The namespace lives at least as long as the value.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
    id: NetnsId,
}

/// Identifies a namespace: the device and inode number of its file in nsfs (namespaces(7)). The kernel reuses
/// inode numbers of deleted namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetnsId {
    /// Device of the nsfs file system.
    pub dev: u64,
    /// Inode number of the namespace.
    pub ino: u64,
}

/// An error of a namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// Nothing is at the path: the namespace is gone.
    #[error("failed to Statfs {path:?}: no such file or directory")]
    NotFound {
        /// The path that was to be opened.
        path: PathBuf,
    },
    /// The path is not a namespace, for example because its mount was removed.
    #[error("unknown FS magic on {path:?}: {magic:x}")]
    NotANamespace {
        /// The path that was opened.
        path: PathBuf,
        /// The file system's magic number, see statfs(2).
        magic: u64,
    },
    /// The namespace is of another kind (mount, PID, …).
    #[error("{path:?} is a namespace, but not a network namespace")]
    WrongKind {
        /// The path that was opened.
        path: PathBuf,
    },
    /// The namespace could not be opened for another reason.
    #[error("failed to open netns {path:?}: {source}")]
    Open {
        /// The path that was to be opened.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The namespace could not be entered: EPERM without CAP_SYS_ADMIN.
    #[error("enter network namespace {path:?}: {source}")]
    Enter {
        /// The namespace's path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl NetnsError {
    /// True if the namespace is gone: either nothing is at its path, or only the plain file on which it was mounted.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::NotANamespace { .. })
    }

    /// True if the system was short of descriptors, memory or threads ([`is_transient_io`]).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Open { source, .. } | Self::Enter { source, .. } if is_transient_io(source))
    }
}

impl Netns {
    /// Opens the namespace at `path` (`/run/netns/x`, `/proc/PID/ns/net`).
    ///
    /// # Errors
    /// [`NetnsError::NotFound`] if nothing is at the path; [`NetnsError::NotANamespace`] or
    /// [`NetnsError::WrongKind`] if it is something else.
    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        let owned = || path.to_path_buf();
        // Non-blocking, because a FIFO at the path must not block the plugin.
        let file =
            File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).map_err(|source| {
                match source.raw_os_error() {
                    Some(nix::libc::ENOENT | nix::libc::ENOTDIR) => NetnsError::NotFound { path: owned() },
                    _ => NetnsError::Open { path: owned(), source },
                }
            })?;
        let kind = fstatfs(&file)
            .map_err(|errno| NetnsError::Open { path: owned(), source: errno.into() })?
            .filesystem_type();
        // Before Linux 3.19, namespaces were in procfs. The reference plugins accept both.
        if kind != NSFS_MAGIC && kind != PROC_SUPER_MAGIC {
            #[allow(
                clippy::cast_sign_loss,
                clippy::unnecessary_cast,
                reason = "the width differs by platform"
            )]
            return Err(NetnsError::NotANamespace { path: owned(), magic: kind.0 as u64 });
        }
        if kind == NSFS_MAGIC && !is_network(&file) {
            return Err(NetnsError::WrongKind { path: owned() });
        }
        let data = file.metadata().map_err(|source| NetnsError::Open { path: owned(), source })?;
        Ok(Self { file, path: owned(), id: NetnsId { dev: data.dev(), ino: data.ino() } })
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetnsError::NotFound`] if `/proc` is not mounted.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// The namespace's identity.
    #[must_use]
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// The path by which the namespace was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Locks the namespace, waiting for at most `patience`. This is a flock(2) lock on the namespace's file, which
    /// the reference plugins use as well.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] if another process holds the lock for all of `patience`.
    pub fn lock(&self, patience: Duration) -> Result<FileLock, LockError> {
        FileLock::on(&self.file, &self.path, patience)
    }

    /// The namespace's cookie. Unlike the inode number of [`Self::id`], the kernel gives this number to no other
    /// namespace until the next boot. None before Linux 5.14, or if the namespace cannot be entered.
    #[must_use]
    pub fn cookie(&self) -> Option<u64> {
        self.run(own_cookie).ok()?.ok().flatten()
    }

    /// Runs `work` inside the namespace, on a new thread. The calling thread never changes its namespace, so no
    /// failure can leave it in the wrong one.
    ///
    /// # Errors
    /// [`NetnsError::Enter`] if the namespace cannot be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let enter = |source: std::io::Error| NetnsError::Enter { path: self.path.clone(), source };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("netns".to_owned())
                .spawn_scoped(scope, || {
                    setns(&self.file, CloneFlags::CLONE_NEWNET)?;
                    procfs::enter(self.id.ino);
                    Ok::<T, Errno>(work())
                })
                .map_err(enter)?;
            match thread.join() {
                Ok(done) => done.map_err(|errno| enter(errno.into())),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The cookie of the calling thread's namespace, as for [`Netns::cookie`]. None before Linux 5.14.
///
/// # Errors
/// The system's error if no socket can be opened, which says nothing about the cookie.
pub fn own_cookie() -> std::io::Result<Option<u64>> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map(|socket| cookie_of(&socket))
}

/// The cookie of a socket's namespace, as for [`Netns::cookie`].
pub(crate) fn cookie_of(socket: &impl AsFd) -> Option<u64> {
    // `SO_NETNS_COOKIE` of asm-generic/socket.h; libc has it for some targets only.
    const SO_NETNS_COOKIE: nix::libc::c_int = 71;
    let mut cookie = 0_u64;
    let mut length: nix::libc::socklen_t = 8;
    // SAFETY: both pointers lead to variables of this function, and the length is that of the first.
    let result = unsafe {
        nix::libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            nix::libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    // No namespace has the cookie 0.
    (result == 0 && cookie != 0).then_some(cookie)
}

/// True for a network namespace (`NS_GET_NSTYPE` of `linux/nsfs.h`, since Linux 4.11). Also true if the kernel does
/// not know the request.
fn is_network(file: &File) -> bool {
    const NS_GET_NSTYPE: nix::libc::c_ulong = 0xb703;
    // SAFETY: the ioctl takes no argument and only returns a number; the descriptor is open.
    let kind = unsafe { nix::libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE as _) };
    kind < 0 || kind == nix::libc::CLONE_NEWNET
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_path_and_a_plain_file_are_different_errors() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Netns::open(&dir.path().join("none")).unwrap_err();
        assert!(matches!(missing, NetnsError::NotFound { .. }), "{missing}");
        assert!(missing.to_string().starts_with("failed to Statfs \""), "{missing}");

        let plain = dir.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        let error = Netns::open(&plain).unwrap_err();
        assert!(matches!(error, NetnsError::NotANamespace { .. }) && error.is_gone(), "{error}");
    }

    #[test]
    fn another_kind_of_namespace_is_refused() {
        let error = Netns::open(Path::new("/proc/self/ns/mnt")).unwrap_err();
        assert!(matches!(error, NetnsError::WrongKind { .. }), "{error}");
    }

    #[test]
    fn a_lock_is_exclusive() {
        let own = || Netns::open(Path::new("/proc/self/ns/net")).unwrap();
        let (one, two) = (own(), own());
        let lock = one.lock(Duration::from_secs(30)).unwrap();
        assert!(two.lock(Duration::ZERO).unwrap_err().is_timeout());
        drop(lock);
        two.lock(Duration::from_secs(30)).unwrap();
    }

    #[test]
    fn the_current_namespace_is_that_of_the_thread() {
        let current = Netns::current().unwrap();
        assert_eq!(current.id(), Netns::open(Path::new("/proc/self/ns/net")).unwrap().id());
    }
}
