// SPDX-License-Identifier: GPL-2.0-or-later

//! Errors of the dataplane.

mod condition;

use std::io;

use cni_kernel::netns::NetnsError;
use cni_kernel::route::RouteError;
use cni_kernel::sysctl::SysctlError;
use cni_kernel::xtables::XtablesError;
use cni_spec::{CniError, ErrorCode};
use nix::errno::Errno;

use crate::difference::Difference;
use crate::{Owner, PublishedPort};

pub use condition::ConditionError;

/// An error of a [`crate::Backend`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another live attachment has the port or address.
    #[error("{what} is taken by {owner}")]
    Conflict { what: String, owner: Box<Owner> },
    /// The port or address is taken by an element without an owner's comment.
    #[error("{what} is taken by an element of {place} without an owner: remove it by hand")]
    ConflictUnowned { what: String, place: String },
    /// The port belongs to a chain of iptables for which no attachment is recorded.
    #[error("{what} is taken by {by}")]
    Taken {
        what: String,
        /// The chain's owner, as far as the chain's comments name it.
        by: String,
        /// The command that frees the port, or empty if the chain's name cannot be part of a command.
        command: String,
    },
    /// Another program holds the lock of the legacy tools of iptables.
    #[error("{program}: the lock of xtables is held by {holder}, after waiting for {seconds} s")]
    XtablesLock {
        /// The tool that waited for the lock.
        program: String,
        seconds: String,
        /// The holder, as the tool prints it.
        holder: String,
    },
    /// Another process holds the lock for changes of the firewall's rules.
    #[error("timed out waiting for the firewall lock: {source}")]
    FirewallLocked { source: cni_kernel::lock::LockError },
    /// An iptables tool did not finish in time.
    #[error("{program} did not end within {seconds} s and was killed")]
    IptablesHangs { program: String, seconds: u64 },
    /// A tool of iptables is not installed.
    #[error("program {program} not found: install iptables, or use backend \"nftables\"")]
    NoIptables { program: String },
    /// An iptables tool is installed but does not work, because the kernel lacks its tables.
    #[error(
        "try {program} with table {table}: {complaint}: use backend \"nftables\", or install the variant of iptables \
         whose tables this kernel has"
    )]
    IptablesFails {
        program: String,
        table: &'static str,
        /// What the tool wrote to standard error.
        complaint: String,
    },
    /// Other processes changed the ruleset at every attempt.
    #[error("{operation}: the ruleset changed at each of {attempts} attempts within {millis} ms")]
    Busy { operation: String, attempts: u32, millis: u128 },
    /// Another program made a table with the name of one of Slipway's tables.
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
        found: u32,
        /// The latest schema that this version knows.
        known: u32,
    },
    #[error("{key}: {reason}")]
    Condition {
        key: &'static str,
        /// The reason, which contains the offending word.
        reason: ConditionError,
    },
    #[error("table {table} exists: another `slipway trace` runs; wait for its end")]
    TraceRuns {
        /// Family and name.
        table: &'static str,
    },
    /// CHECK found a difference.
    #[error(transparent)]
    Missing(#[from] Difference),
    /// No backend can carry out the request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The kernel has no nf_tables, so Slipway has no table.
    #[error(transparent)]
    NoNfTables(#[from] NfTablesLack),
    /// The binary has no BPF programs, or this node cannot run them.
    #[error(transparent)]
    NoEbpf(#[from] EbpfLack),
    /// A request to the kernel failed.
    #[error("{operation}: {source}")]
    Kernel {
        /// What was attempted, and on which object.
        operation: String,
        source: Cause,
    },
}

/// The reason why no backend can carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The nftables backend does not accept conditions in the grammar of iptables.
    #[error("conditions of iptables in a request to nftables")]
    IptablesConditions,
    /// The iptables backend does not accept conditions in the grammar of nft.
    #[error("conditions of nftables in a request to iptables")]
    NftablesConditions,
    #[error("{0}: the host's and the container's address differ in family")]
    Families(Box<PublishedPort>),
    #[error("{} and {} are published for the same container", .0[0], .0[1])]
    Contradiction(Box<[PublishedPort; 2]>),
}

/// Why nf_tables cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NfTablesLack {
    /// The kernel refused netfilter's socket or a request as one that it does not support.
    #[error(transparent)]
    Refusal(cni_nftables::Error),
    #[error("this kernel has no nf_tables")]
    Kernel,
    /// The configuration can choose another backend.
    #[error("this kernel has no nf_tables: use backend \"iptables\"")]
    UseIptables,
}

/// Why this node cannot have the BPF programs.
#[derive(Debug, thiserror::Error)]
pub enum EbpfLack {
    #[error("this binary was built without the BPF programs")]
    NotBuilt,
    /// On a real-time kernel, the programs can be preempted.
    #[error("the BPF programs do not work on a real-time kernel (PREEMPT_RT)")]
    RealTimeKernel,
    #[error("no BPF program {0}")]
    Program(&'static str),
    #[error(
        "the BPF programs serve another network namespace, from which they have to be looked after (if that one is \
         gone, `rm -r {folder}` removes them)"
    )]
    OtherNamespace { folder: &'static str },
}

/// Why a request to the kernel, or a program that reads the kernel's tables, failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    #[error(transparent)]
    Nftables(#[from] cni_nftables::Error),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Errno(#[from] Errno),
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    #[error(transparent)]
    Xtables(#[from] XtablesError),
    /// A tool of iptables failed; the text is what it wrote to standard error.
    #[error("{0}")]
    Tool(String),
    /// A test of a caller made [`crate::fake::Fake`] fail.
    #[error("made to fail")]
    Injected,
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// An error of bpf(2): the texts of aya's error and of its sources, with a hint or the verifier's last lines, and the
/// kernel's error number, if it is known.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BpfError(pub(crate) String, pub(crate) Option<Errno>);

impl Error {
    /// Wraps an error of a lower layer, together with the operation that failed.
    pub fn kernel(operation: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::Kernel { operation: operation.into(), source: source.into() }
    }

    /// The error code of the CNI specification: 11 if a later attempt may succeed, 7 if the configuration must
    /// change, and 999 otherwise.
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
            | Self::IptablesFails { .. }
            | Self::Kernel { .. } => ErrorCode::Internal,
        }
    }
}

impl From<Error> for CniError {
    fn from(error: Error) -> Self {
        let way_out = match &error {
            Error::Conflict { owner, .. } => owner.way_out(),
            Error::Taken { command, .. } if !command.is_empty() => {
                format!("if that container is gone, `{command}` frees the port")
            }
            _ => String::new(),
        };
        Self::new(error.code(), error.to_string()).with_details(way_out)
    }
}
