// SPDX-License-Identifier: GPL-2.0-or-later

//! Errors of the dataplane.

use cni_spec::{CniError, ErrorCode};

use crate::Owner;

/// An error of a [`crate::Backend`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another live attachment has the port or address.
    #[error("{what} is taken by {owner}")]
    Conflict {
        /// The port or address.
        what: String,
        /// The owner.
        owner: Box<Owner>,
    },
    /// An element without an owner's comment has the port or address.
    #[error("{what} is taken by an element of {place} without an owner: remove it by hand")]
    ConflictUnowned {
        /// The port or address.
        what: String,
        /// The element's map.
        place: String,
    },
    /// A chain of iptables, which names no attachment, has the port.
    #[error("{what} is taken by {by}")]
    Taken {
        /// The port.
        what: String,
        /// The chain's owner, as far as its comments name it.
        by: String,
    },
    /// Another program holds the lock of the legacy tools of iptables.
    #[error("{program}: the lock of xtables is held by {holder}, after waiting for {seconds} s")]
    XtablesLock {
        /// The tool that waited for it.
        program: String,
        /// The time limit in seconds.
        seconds: String,
        /// The holder, as the tool prints it.
        holder: String,
    },
    /// Another process holds the lock on the firewall's rules.
    #[error("timed out waiting for the firewall lock: {source}")]
    FirewallLocked {
        /// The failure to lock.
        source: cni_kernel::lock::LockError,
    },
    /// A tool of iptables did not end in time.
    #[error("{program} did not end within {seconds} s and was killed")]
    IptablesHangs {
        /// The tool.
        program: String,
        /// The time limit in seconds.
        seconds: u64,
    },
    /// A tool of iptables is not installed.
    #[error("program {program} not found: install iptables, or use backend \"nftables\"")]
    NoIptables {
        /// The tool.
        program: String,
    },
    /// Other processes changed the ruleset at every attempt.
    #[error("{operation}: the ruleset changed at each of {attempts} attempts within {millis} ms")]
    Busy {
        /// The operation.
        operation: String,
        /// Number of attempts.
        attempts: u32,
        /// Their duration in milliseconds.
        millis: u128,
    },
    /// A table with the name of ours was made by another program.
    #[error("table {table} was not made by slipway (it has no schema-N chain): rename or delete it")]
    ForeignTable {
        /// Family and name.
        table: &'static str,
    },
    /// A later version made the table.
    #[error(
        "table {table} has schema {found} of a later version; this version knows {known} and does not change it"
    )]
    NewerSchema {
        /// Family and name.
        table: &'static str,
        /// The schema found.
        found: u32,
        /// The latest schema that this version knows.
        known: u32,
    },
    /// A condition outside the grammar.
    #[error("{key}: {reason}")]
    Condition {
        /// The configuration's key.
        key: &'static str,
        /// The cause, with the offending word.
        reason: String,
    },
    /// Another process traces packets.
    #[error("table {table} exists: another `slipway trace` runs; wait for its end")]
    TraceRuns {
        /// Family and name.
        table: &'static str,
    },
    /// CHECK found a difference.
    #[error("{0}")]
    Missing(String),
    /// A request that no backend can carry out.
    #[error("{0}")]
    Request(String),
    /// This kernel has no nf_tables, and so no table of ours.
    #[error("{0}")]
    NoNfTables(String),
    /// The binary has no BPF programs, or this node cannot run them.
    #[error("{0}")]
    NoEbpf(String),
    /// An operation of the kernel failed.
    #[error("{operation}: {source}")]
    Kernel {
        /// The operation and its object.
        operation: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Wraps an error of a lower layer with the operation.
    pub fn kernel(
        operation: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Kernel { operation: operation.into(), source: source.into() }
    }

    /// The specification's code: 11 if a later attempt may succeed, 7 if the configuration must change, else
    /// 999.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Conflict { .. }
            | Self::ConflictUnowned { .. }
            | Self::Taken { .. }
            | Self::XtablesLock { .. }
            | Self::FirewallLocked { .. }
            | Self::IptablesHangs { .. }
            | Self::TraceRuns { .. }
            | Self::Busy { .. } => ErrorCode::TryAgainLater,
            Self::Condition { .. } | Self::Request(_) => ErrorCode::InvalidConfig,
            Self::ForeignTable { .. }
            | Self::NewerSchema { .. }
            | Self::Missing(_)
            | Self::NoNfTables(_)
            | Self::NoEbpf(_)
            | Self::NoIptables { .. }
            | Self::Kernel { .. } => ErrorCode::Internal,
        }
    }
}

impl From<Error> for CniError {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
