// SPDX-License-Identifier: MIT OR Apache-2.0

//! The listening socket that systemd hands to a service: sd_listen_fds(3).
#![allow(unsafe_code, reason = "takes over an inherited descriptor")]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::stat::{SFlag, fstat};

/// The first descriptor passed (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// Why the sockets that systemd passed cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// More than one socket was passed.
    #[error("Too many ({0}) FDs passed through socket activation")]
    TooMany(u32),
    /// A socket was announced, but its descriptor is not a socket.
    #[error("LISTEN_FDS=1 but no FD found")]
    NoSocket,
}

/// Takes over the listening socket that systemd passed to this process, if any. Call this once, before opening
/// anything, because another file could otherwise get the descriptor.
///
/// # Errors
/// [`ActivationError::TooMany`] or [`ActivationError::NoSocket`] if what was passed is not exactly one
/// socket.
pub fn listener() -> Result<Option<UnixListener>, ActivationError> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    // Child processes inherit the variables, although they are not meant for them.
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => Ok(None),
        Some(1) => {
            // SAFETY: by the protocol the descriptor is ours, and nothing else in this process owns it.
            let fd = unsafe { OwnedFd::from_raw_fd(FIRST) };
            let is_socket = fstat(&fd)
                .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFSOCK);
            if !is_socket {
                // The descriptor stays open, because it may belong to another part of the process.
                std::mem::forget(fd);
                return Err(ActivationError::NoSocket);
            }
            // Children must not inherit it.
            let _unset = fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
            Ok(Some(UnixListener::from(fd)))
        }
        Some(many) => Err(ActivationError::TooMany(many)),
    }
}
