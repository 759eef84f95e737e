// SPDX-License-Identifier: GPL-2.0-or-later

//! Errors of nf_tables and conntrack, and functions that classify them.

use nix::errno::Errno;

use crate::invalid::Invalid;

/// A failure of nf_tables, of conntrack or of their socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The netlink socket cannot be opened.
    #[error("open a netfilter netlink socket: {errno}")]
    Open {
        /// The system's error.
        errno: Errno,
    },
    /// Sending or receiving failed, or the kernel refused a request.
    #[error("{operation}: {errno}")]
    Io {
        /// What was attempted, and on which object.
        operation: String,
        errno: Errno,
    },
    /// The kernel refused one change, and with it the transaction.
    #[error("nf_tables: {op}: {errno}{hint}")]
    Rejected {
        /// The change in nft's syntax.
        op: String,
        index: usize,
        errno: Errno,
        /// The kernel's message (extended acknowledgement), in parentheses after a space. Empty if there is none.
        hint: String,
    },
    /// The kernel refused the transaction as a whole.
    #[error("nf_tables: commit {what}: {errno}")]
    Commit {
        /// The first change of the transaction.
        what: String,
        errno: Errno,
    },
    /// The kernel lacks a feature.
    #[error("nf_tables: no {feature} in this kernel (needed by: {op})")]
    Unsupported {
        feature: String,
        /// The change or request that needs it.
        op: String,
    },
    /// A change cannot be encoded.
    #[error("{op}: {reason}")]
    Invalid {
        /// The change in nft's syntax.
        op: String,
        reason: Invalid,
    },
    /// The kernel's reply cannot be decoded.
    #[error("{operation}: unexpected reply: {reason}")]
    Malformed {
        operation: String,
        /// What is wrong with the reply.
        reason: &'static str,
    },
    /// Other processes changed the ruleset during each attempt to read it.
    #[error("{operation}: the ruleset kept changing while it was read")]
    Unstable {
        /// The request that was repeated.
        operation: String,
    },
}

impl Error {
    #[must_use]
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { errno }
            | Self::Io { errno, .. }
            | Self::Rejected { errno, .. }
            | Self::Commit { errno, .. } => Some(*errno),
            Self::Unsupported { .. }
            | Self::Invalid { .. }
            | Self::Malformed { .. }
            | Self::Unstable { .. } => None,
        }
    }

    /// The index of the change that the kernel refused.
    #[must_use]
    pub const fn op_index(&self) -> Option<usize> {
        match self {
            Self::Rejected { index, .. } => Some(*index),
            _ => None,
        }
    }

    /// True if an exclusive change found an existing object.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }

    /// True if an object of the change or request does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(Errno::ENOENT)
    }

    /// True if the ruleset no longer has the generation that was given to the commit. Nothing was changed: read the
    /// ruleset again and retry.
    #[must_use]
    pub fn is_stale_generation(&self) -> bool {
        matches!(self, Self::Commit { errno: Errno::ERESTART, .. })
    }

    /// True if an object is in use (`EBUSY`), or if the ruleset changed too fast to be read. Another attempt may
    /// succeed.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.errno() == Some(Errno::EBUSY) || matches!(self, Self::Unstable { .. })
    }

    /// True if the process lacks the permission.
    #[must_use]
    pub fn is_not_permitted(&self) -> bool {
        matches!(self.errno(), Some(Errno::EPERM | Errno::EACCES))
    }

    /// The feature that the kernel lacks. None for other errors.
    #[must_use]
    pub fn unsupported(&self) -> Option<&str> {
        match self {
            Self::Unsupported { feature, .. } => Some(feature),
            _ => None,
        }
    }
}
