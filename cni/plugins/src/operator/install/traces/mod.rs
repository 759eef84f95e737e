//! What the plugins leave on a node for the next container, and how it is taken away: the tables and
//! chains, the bridges, what is on disk. Also what a container has left that nobody deleted.
//!
//! Only what Slipway made itself is looked at, and only what nobody uses is removed.

mod disk;
mod links;

use std::fmt;
use std::path::{Path, PathBuf};

use cni_dataplane::dismantle::{self, Holding, InUse, OwnTable};
use cni_dataplane::iptables::{Frame, Purpose};
use cni_dataplane::{AddressFamily, Error as DataplaneError, Owner, ebpf};

use crate::ipam::host_local::StoreError;

/// What is done about one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trace {
    /// A table goes.
    Table(OwnTable),
    /// Chains of iptables that all containers shared go.
    Chains(Frame),
    /// A link that a plugin made for all containers, or for one that is gone, goes.
    Link(String),
    /// A folder goes: host-local's with the files in it that are no reservations, others when they are empty.
    Folder(PathBuf),
    /// The folder below /run in which the dataplane remembers something goes.
    Memory(PathBuf),
    /// The programs of the eBPF backend, with all that is pinned, are taken off.
    Programs,
    /// Something stays.
    Leave {
        /// What.
        what: String,
        /// And why.
        why: String,
    },
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(table) => write!(f, "remove  table {}", table.name()),
            Self::Chains(frame) => write!(f, "remove  {}", chains(*frame)),
            Self::Link(name) => write!(f, "remove  link {name}"),
            Self::Folder(path) | Self::Memory(path) => write!(f, "remove  {}", path.display()),
            Self::Programs => f.write_str("remove  the BPF programs"),
            Self::Leave { what, why } => write!(f, "leave   {what} ({why})"),
        }
    }
}

/// Why the traces could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Containers have something in a table of ours.
    #[error(
        "table {} is in use by {}: remove the containers, or let the runtime run a GC; `--force` \
         takes away what they have, `--keep-state` leaves it; nothing was changed",
        table.name(),
        owners.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    InUse {
        /// The table.
        table: OwnTable,
        /// Whose.
        owners: Vec<Owner>,
    },
    /// Containers came while the plugins were taken away.
    #[error(
        "table {} stays: {} came while the plugins went: install them again, remove the containers, and \
         call `uninstall` once more",
        table.name(),
        owners.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    CameLate {
        /// The table.
        table: OwnTable,
        /// Whose.
        owners: Vec<Owner>,
    },
    /// A table could not be read or removed.
    #[error(transparent)]
    Table(#[from] DataplaneError),
    /// A link could not be read or removed.
    #[error(transparent)]
    Link(#[from] cni_kernel::route::RouteError),
    /// Files could not be read or removed.
    #[error("{0}")]
    Disk(String),
}

impl From<StoreError> for TraceError {
    fn from(error: StoreError) -> Self {
        Self::Disk(error.to_string())
    }
}

/// What would be done. Changes nothing.
///
/// # Errors
/// What could not be read; with [`InUse::Spare`] that containers have something in a table.
pub fn plan(in_use: InUse, data_dir: &Path) -> Result<Vec<Trace>, TraceError> {
    let mut traces = Vec::new();
    for table in OwnTable::ALL {
        match table.holding() {
            Ok(Holding::NoTable) => {}
            Ok(Holding::Owners(owners)) if in_use == InUse::Spare => {
                return Err(TraceError::InUse { table, owners });
            }
            Ok(Holding::Rules) if in_use == InUse::Spare => traces.push(administered(table)),
            Ok(_) => traces.push(Trace::Table(table)),
            // Not ours, or a later version's: that one may take it away.
            Err(error @ (DataplaneError::ForeignTable { .. } | DataplaneError::NewerSchema { .. })) => {
                let what = format!("table {}", table.name());
                traces.push(Trace::Leave { what, why: error.to_string() });
            }
            Err(error) => return Err(error.into()),
        }
    }
    if ebpf::is_there() {
        traces.push(match ebpf::served_abroad() {
            None => Trace::Programs,
            Some(error) => Trace::Leave { what: "BPF programs".to_owned(), why: error.to_string() },
        });
    }
    let frames = [Frame::all(Purpose::Ports)?, Frame::all(Purpose::Firewall)?].concat();
    for frame in frames {
        traces.push(judge(frame, frame.needed()?));
    }
    traces.extend(links::plan()?);
    traces.extend(disk::plan(data_dir)?);
    let memory = Path::new(dismantle::MEMORY);
    traces.extend(memory.is_dir().then(|| Trace::Memory(memory.to_owned())));
    Ok(traces)
}

/// Removes the tables that are planned to go. What came into use since it was planned stays.
///
/// # Errors
/// With [`InUse::Spare`] that containers have something in a table; the first that could not be removed.
pub fn remove_tables(traces: &mut [Trace], in_use: InUse) -> Result<(), TraceError> {
    for trace in traces {
        if let Trace::Table(table) = *trace {
            match table.remove(in_use)? {
                Holding::Owners(owners) if in_use == InUse::Spare => {
                    return Err(TraceError::InUse { table, owners });
                }
                Holding::Rules if in_use == InUse::Spare => *trace = administered(table),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Removes all else, in this order, and the tables that a container which came while the plugins went has made
/// again. Returns, with [`InUse::Spare`], whose tables stay.
///
/// # Errors
/// The first that could not be removed.
pub fn remove_rest(traces: &mut [Trace], in_use: InUse) -> Result<Vec<TraceError>, TraceError> {
    let mut late = Vec::new();
    for table in OwnTable::ALL {
        match table.remove(in_use) {
            Ok(Holding::Owners(owners)) if in_use == InUse::Spare => {
                late.push(TraceError::CameLate { table, owners });
            }
            Ok(_) | Err(DataplaneError::ForeignTable { .. } | DataplaneError::NewerSchema { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for trace in traces {
        let done = match trace {
            Trace::Table(_) | Trace::Leave { .. } => continue,
            Trace::Programs => {
                ebpf::teardown_node()?;
                Trace::Programs
            }
            Trace::Chains(frame) => judge(*frame, frame.remove()?),
            Trace::Link(name) => links::remove(std::mem::take(name))?,
            Trace::Folder(path) => disk::remove(std::mem::take(path))?,
            Trace::Memory(path) => {
                std::fs::remove_dir_all(&path)
                    .map_err(|error| TraceError::Disk(format!("remove {}: {error}", path.display())))?;
                continue;
            }
        };
        *trace = done;
    }
    Ok(late)
}

fn chains(frame: Frame) -> String {
    let program = match frame.family {
        AddressFamily::V4 => "iptables",
        AddressFamily::V6 => "ip6tables",
    };
    let names = match frame.purpose {
        Purpose::Ports => "CNI-HOSTPORT-*",
        Purpose::Firewall => "CNI-FORWARD, CNI-ADMIN, CNI-ISOLATION-*",
    };
    format!("chains {names} of {program}-{}", frame.variant)
}

fn judge(frame: Frame, needed: Option<&'static str>) -> Trace {
    match needed {
        None => Trace::Chains(frame),
        Some(why) => Trace::Leave { what: chains(frame), why: why.to_owned() },
    }
}

fn administered(table: OwnTable) -> Trace {
    let what = format!("table {}", table.name());
    Trace::Leave { what, why: "an administrator's rules are in its chain admin".to_owned() }
}
