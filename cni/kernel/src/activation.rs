//! The listening socket that systemd hands to a service: sd_listen_fds(3).
#![allow(unsafe_code, reason = "taking over a descriptor that was inherited")]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::stat::{SFlag, fstat};

/// The first descriptor that is handed over (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// Why the socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// More than one.
    #[error("Too many ({0}) FDs passed through socket activation")]
    TooMany(u32),
    /// One was announced and is no socket.
    #[error("LISTEN_FDS=1 but no FD found")]
    NoSocket,
}

/// The socket, if this process was started with one. To be called once, before anything is opened that
/// could be in its place.
///
/// # Errors
/// See [`ActivationError`].
pub fn listener() -> Result<Option<UnixListener>, ActivationError> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    // The variables are inherited by children, for which they are not meant.
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => Ok(None),
        Some(1) => {
            // SAFETY: the protocol says that this descriptor is ours; nothing of this process has it.
            let fd = unsafe { OwnedFd::from_raw_fd(FIRST) };
            let is_socket = fstat(&fd)
                .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFSOCK);
            if !is_socket {
                // What is no socket is not closed either: it may be somebody else's.
                std::mem::forget(fd);
                return Err(ActivationError::NoSocket);
            }
            // Children, of which there are none, shall not have it.
            let _unset = fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
            Ok(Some(UnixListener::from(fd)))
        }
        Some(many) => Err(ActivationError::TooMany(many)),
    }
}
