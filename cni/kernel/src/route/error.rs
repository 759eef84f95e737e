// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of requests to routing netlink.

use std::net::IpAddr;

use nix::errno::Errno;

use crate::is_transient;
use crate::netns::NetnsError;

/// A failed request. `action` always names the operation, its object and the namespace.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The kernel refused the request.
    #[error("{action}: {errno}{}{hint}", if hint.is_empty() { "" } else { ": " })]
    Kernel {
        /// The operation, its object and the namespace.
        action: String,
        /// The kernel's error.
        errno: Errno,
        /// The kernel's message (extended acknowledgement), often empty.
        hint: String,
    },
    /// The socket failed. The error is EAGAIN if no reply came in time.
    #[error("{action}: netlink socket: {errno}")]
    Socket {
        /// The operation, its object and the namespace.
        action: String,
        /// The system's error.
        errno: Errno,
    },
    /// The kernel's reply could not be decoded.
    #[error("{action}: unexpected reply: {source}")]
    Reply {
        /// The operation, its object and the namespace.
        action: String,
        /// The defect.
        source: ReplyError,
    },
    /// A list changed during each attempt to read it.
    #[error("{action}: the list kept changing while it was read")]
    Interrupted {
        /// The operation, its object and the namespace.
        action: String,
    },
    /// The namespace could not be entered.
    #[error("{action}: {source}")]
    Netns {
        /// The operation, its object and the namespace.
        action: String,
        /// The namespace's error.
        source: NetnsError,
    },
}

/// A reply that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The message is shorter than its fixed part.
    #[error("{0} without a header")]
    NoHeader(&'static str),
    /// The reply has no object.
    #[error("it is empty")]
    Empty,
    /// The kernel reports that messages were lost (`NLMSG_OVERRUN`).
    #[error("data was lost")]
    Overrun,
    /// The length of a route's prefix does not fit its address.
    #[error("route to {address}/{length}: invalid prefix length")]
    Prefix {
        /// The route's destination.
        address: IpAddr,
        /// The length of its prefix.
        length: u8,
    },
}

impl RouteError {
    /// The kernel's error, if the kernel refused the request.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. } => Some(*errno),
            Self::Socket { .. } | Self::Reply { .. } | Self::Interrupted { .. } | Self::Netns { .. } => None,
        }
    }

    /// True if the link, address, route or rule does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.errno(),
            Some(Errno::ENODEV | Errno::ENOENT | Errno::ESRCH | Errno::EADDRNOTAVAIL | Errno::ENXIO)
        )
    }

    /// True if the same request may succeed later, because the kernel was short of memory or lost its reply.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Kernel { errno, .. } | Self::Socket { errno, .. } => is_transient(*errno),
            Self::Reply { source, .. } => *source == ReplyError::Overrun,
            Self::Interrupted { .. } => true,
            Self::Netns { source, .. } => source.is_transient(),
        }
    }

    /// True if an object of that name, or an equal address, route or rule, exists.
    #[must_use]
    pub fn already_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_answer_lasts_but_a_shortage_does_not() {
        let refused = |errno| RouteError::Kernel { action: String::new(), errno, hint: String::new() };
        // The kernel's answers if there is no route, if the route refuses packets, and without IPv6.
        let answers =
            [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::EACCES, Errno::EINVAL, Errno::EOPNOTSUPP];
        for errno in answers.into_iter().chain([Errno::EIO]) {
            assert!(!refused(errno).is_transient(), "{errno}");
        }
        let action = String::new;
        let (path, source) = ("/run/netns/a".into(), Errno::EAGAIN.into());
        for error in [
            refused(Errno::ENOBUFS),
            refused(Errno::ENOMEM),
            RouteError::Socket { action: action(), errno: Errno::EAGAIN },
            RouteError::Reply { action: action(), source: ReplyError::Overrun },
            RouteError::Interrupted { action: action() },
            RouteError::Netns { action: action(), source: NetnsError::Enter { path, source } },
        ] {
            assert!(error.is_transient(), "{error:?}");
        }
        let gone = NetnsError::NotFound { path: "/run/netns/a".into() };
        assert!(!RouteError::Netns { action: action(), source: gone }.is_transient());
        assert!(!RouteError::Reply { action: action(), source: ReplyError::Empty }.is_transient());
    }
}
