// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of a system that is short of something, which say nothing about what was asked.

use std::io;

use nix::errno::Errno;

/// True if the same call may succeed later, without any repair: the system was short of memory, descriptors or threads,
/// or the call was interrupted or had to wait for too long. EIO does not count, because a damaged disk stays damaged.
///
/// A caller must not read such an error as "there is none". After any other error, it may give up for good.
#[must_use]
pub fn is_transient(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EAGAIN | Errno::EINTR | Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM
    )
}

/// [`is_transient`] for an error of the standard library. False if the error did not come from the system.
#[must_use]
pub fn is_transient_io(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|number| is_transient(Errno::from_raw(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_refused_stays_so() {
        for errno in [
            Errno::ENOENT,
            Errno::ENOTDIR,
            Errno::ENODEV,
            Errno::EACCES,
            Errno::EPERM,
            Errno::ELOOP,
            Errno::ECONNREFUSED,
            Errno::ENETUNREACH,
            Errno::EOPNOTSUPP,
            Errno::EINVAL,
            Errno::EIO,
        ] {
            assert!(!is_transient(errno) && !is_transient_io(&errno.into()), "{errno}");
        }
        for errno in [Errno::EMFILE, Errno::ENOMEM, Errno::EINTR] {
            assert!(is_transient(errno) && is_transient_io(&errno.into()), "{errno}");
        }
        assert!(!is_transient_io(&io::ErrorKind::UnexpectedEof.into()), "not the system's error");
    }
}
