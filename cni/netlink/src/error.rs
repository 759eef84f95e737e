// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of requests, and the kernel's refusals among them.

use std::fmt;

use nix::errno::Errno;

/// The kernel's refusal of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kernel's error.
    pub errno: Errno,
    /// The kernel's text, which is often empty.
    pub hint: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.hint.is_empty() { "" } else { ": " };
        write!(f, "{}{separator}{}", self.errno, self.hint)
    }
}

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The kernel refused the request.
    #[error("{0}")]
    Refused(Refusal),
    /// The socket failed. The error is EDEADLK if the socket is used while a reply is being read from it.
    #[error("netlink socket: {0}")]
    Socket(#[from] Errno),
    /// No reply came within half a minute.
    #[error("the kernel does not reply")]
    TimedOut,
    /// The kernel reports that messages were lost (`NLMSG_OVERRUN`).
    #[error("data was lost")]
    Overrun,
    /// The listed objects changed during every attempt to read them.
    #[error("the list kept changing while it was read")]
    Unstable,
}

impl Error {
    /// The kernel's or the socket's error. For the other variants, the error number that comes closest.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused(refusal) => refusal.errno,
            Self::Socket(errno) => *errno,
            Self::TimedOut => Errno::ETIMEDOUT,
            Self::Overrun => Errno::ENOBUFS,
            Self::Unstable => Errno::EINTR,
        }
    }
}
