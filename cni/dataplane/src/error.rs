//! What can go wrong in the dataplane.

use cni_spec::{CniError, ErrorCode};

use crate::Owner;

/// An error of a [`crate::Backend`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another living attachment has what was asked for.
    #[error("{what} is taken by {owner}")]
    Conflict {
        /// The port or address.
        what: String,
        /// Who has it.
        owner: Box<Owner>,
    },
    /// An element without an owner's comment stands in the way.
    #[error("{what} is taken by an element of {place} that has no owner: remove it by hand")]
    ConflictUnowned {
        /// The port or address.
        what: String,
        /// The map that it is in.
        place: String,
    },
    /// A chain of iptables, which names no attachment, has what was asked for.
    #[error("{what} is taken by {by}")]
    Taken {
        /// The port.
        what: String,
        /// Whose chain it is, as far as it says.
        by: String,
    },
    /// Another program holds the lock of the legacy tools of iptables.
    #[error("{program}: the lock of xtables is held by {holder}, after waiting for {seconds} s")]
    XtablesLock {
        /// The tool that waited.
        program: String,
        /// How long, in seconds.
        seconds: String,
        /// Who holds it.
        holder: String,
    },
    /// Others are changing the firewall's rules.
    #[error("wait for others who change the firewall's rules: {source}")]
    NoTurn {
        /// The lock that they hold.
        source: cni_kernel::lock::LockError,
    },
    /// A tool of iptables did not come to an end.
    #[error("{program} did not end within {seconds} s and was killed")]
    IptablesHangs {
        /// The tool.
        program: String,
        /// How long, in seconds.
        seconds: u64,
    },
    /// A tool of iptables is not installed.
    #[error("program {program} not found: install iptables, or use backend \"nftables\"")]
    NoIptables {
        /// The tool.
        program: String,
    },
    /// Others changed the ruleset at every attempt.
    #[error("{operation}: the ruleset changed at each of {attempts} attempts within {millis} ms")]
    Busy {
        /// What was tried.
        operation: String,
        /// How often.
        attempts: u32,
        /// For how long, in milliseconds.
        millis: u128,
    },
    /// The table of our name was made by something else.
    #[error("table {table} was not made by slipway (it has no schema-N chain): rename or delete it")]
    ForeignTable {
        /// Family and name.
        table: &'static str,
    },
    /// The table of our name was made by a later version.
    #[error(
        "table {table} has schema {found}, made by a later version; this one knows {known} and leaves it alone"
    )]
    NewerSchema {
        /// Family and name.
        table: &'static str,
        /// The schema found.
        found: u32,
        /// The newest schema that this version knows.
        known: u32,
    },
    /// A condition that is not in the grammar.
    #[error("{key}: {reason}")]
    Condition {
        /// The configuration's key.
        key: &'static str,
        /// What is wrong, with the offending word.
        reason: String,
    },
    /// A check found a difference.
    #[error("{0}")]
    Missing(String),
    /// A request that no backend can carry out.
    #[error("{0}")]
    Request(String),
    /// This kernel has no nf_tables: nothing can be made, and nothing of ours can be there.
    #[error("{0}")]
    NoNfTables(String),
    /// There are no BPF programs to load, or the kernel takes none.
    #[error("{0}")]
    NoEbpf(String),
    /// An operation of the kernel failed.
    #[error("{operation}: {source}")]
    Kernel {
        /// What was tried, on which object.
        operation: String,
        /// What the kernel, or the layer above it, said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Wraps an error of a lower layer with what was tried.
    pub fn kernel(
        operation: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Kernel { operation: operation.into(), source: source.into() }
    }

    /// The specification's code for it: 11 for what a later attempt may find resolved, 7 for what
    /// the configuration's author must mend, else 999.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Conflict { .. }
            | Self::ConflictUnowned { .. }
            | Self::Taken { .. }
            | Self::XtablesLock { .. }
            | Self::NoTurn { .. }
            | Self::IptablesHangs { .. }
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
