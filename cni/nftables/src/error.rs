//! What can go wrong, and the questions that callers ask about it.

use nix::errno::Errno;

/// A failure of nf_tables or of the socket to it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The netlink socket cannot be had.
    #[error("open a netfilter netlink socket: {errno}")]
    Open {
        /// Why.
        errno: Errno,
    },
    /// Sending or receiving failed.
    #[error("{operation}: {errno}")]
    Io {
        /// What was going on, with its object.
        operation: String,
        /// Why.
        errno: Errno,
    },
    /// The kernel refused one change, and with it the transaction.
    #[error("nf_tables: {op}: {errno}{hint}")]
    Rejected {
        /// Which change, in nft's syntax.
        op: String,
        /// Its place in the transaction, from 0.
        index: usize,
        /// Why.
        errno: Errno,
        /// The kernel's own words, with a separator before them; empty if it had none.
        hint: String,
    },
    /// The kernel refused the transaction as a whole.
    #[error("nf_tables: commit {what}: {errno}")]
    Commit {
        /// The first change, for orientation.
        what: String,
        /// Why.
        errno: Errno,
    },
    /// This kernel lacks something.
    #[error("nf_tables: no {feature} in this kernel (needed by: {op})")]
    Unsupported {
        /// What is missing.
        feature: String,
        /// What needs it.
        op: String,
    },
    /// A change that cannot be expressed: a name with a NUL, a comment that is too long, values that
    /// do not fit the field.
    #[error("{op}: {reason}")]
    Invalid {
        /// The change in nft's syntax.
        op: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel's answer makes no sense.
    #[error("{operation}: unexpected answer: {reason}")]
    Malformed {
        /// What was asked.
        operation: String,
        /// What is odd.
        reason: &'static str,
    },
    /// Others changed the ruleset during each of many attempts to read it.
    #[error("{operation}: the ruleset kept changing while it was read")]
    KeepsChanging {
        /// What was asked.
        operation: String,
    },
}

impl Error {
    /// The kernel's error number, if it gave one.
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
            | Self::KeepsChanging { .. } => None,
        }
    }

    /// The place of the change that the kernel refused.
    #[must_use]
    pub const fn op_index(&self) -> Option<usize> {
        match self {
            Self::Rejected { index, .. } => Some(*index),
            _ => None,
        }
    }

    /// An exclusive change met something that exists already.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }

    /// What a change or question is about does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(Errno::ENOENT)
    }

    /// The ruleset is no longer the one whose generation was given to the commit. Nothing was
    /// changed; read again and retry.
    #[must_use]
    pub fn is_stale_generation(&self) -> bool {
        matches!(self, Self::Commit { errno: Errno::ERESTART, .. })
    }

    /// Something is still used (`EBUSY`), or the ruleset changed too fast to be read: worth another
    /// attempt.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.errno() == Some(Errno::EBUSY) || matches!(self, Self::KeepsChanging { .. })
    }

    /// The caller may not do that here.
    #[must_use]
    pub fn is_not_permitted(&self) -> bool {
        matches!(self.errno(), Some(Errno::EPERM | Errno::EACCES))
    }

    /// What this kernel lacks, if that is the reason.
    #[must_use]
    pub fn unsupported(&self) -> Option<&str> {
        match self {
            Self::Unsupported { feature, .. } => Some(feature),
            _ => None,
        }
    }
}
