//! What can go wrong in a conversation with the kernel's routing side.

use nix::errno::Errno;

use crate::netns::NetnsError;

/// A failed request. `action` always names the operation, its object and the namespace.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The kernel refused.
    #[error("{action}: {errno}{}{hint}", if hint.is_empty() { "" } else { ": " })]
    Kernel {
        /// What was tried, on what.
        action: String,
        /// The kernel's answer.
        errno: Errno,
        /// What the kernel said about it (extended acknowledgement), often empty.
        hint: String,
    },
    /// The socket itself failed; EAGAIN means that no answer came in time.
    #[error("{action}: netlink socket: {errno}")]
    Socket {
        /// What was tried, on what.
        action: String,
        /// The system's answer.
        errno: Errno,
    },
    /// The kernel's answer could not be understood.
    #[error("{action}: unexpected answer: {reason}")]
    Answer {
        /// What was tried, on what.
        action: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// A list changed while it was read, each time that it was tried.
    #[error("{action}: the list kept changing while it was read")]
    Interrupted {
        /// What was tried, on what.
        action: String,
    },
    /// The namespace could not be entered.
    #[error("{action}: {source}")]
    Netns {
        /// What was tried, on what.
        action: String,
        /// Why it could not be entered.
        source: NetnsError,
    },
}

impl RouteError {
    /// The kernel's answer, if it was the kernel that refused.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. } => Some(*errno),
            Self::Socket { .. } | Self::Answer { .. } | Self::Interrupted { .. } | Self::Netns { .. } => None,
        }
    }

    /// Whether the link, address or route does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.errno(),
            Some(Errno::ENODEV | Errno::ENOENT | Errno::ESRCH | Errno::EADDRNOTAVAIL | Errno::ENXIO)
        )
    }

    /// Whether something of that name, or an equal address or route, exists already.
    #[must_use]
    pub fn already_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }
}
