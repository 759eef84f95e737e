// SPDX-License-Identifier: GPL-2.0-or-later

//! The leftovers of the plugins on a node, and their removal: tables and chains, bridges, files; and what
//! containers left whose DEL never came.
//!
//! Only things that Slipway made are considered, and only unused ones are removed.

mod disk;
mod links;

use std::fmt;
use std::path::{Path, PathBuf};

use cni_dataplane::iptables::{Purpose, SharedChains};
use cni_dataplane::teardown::{Holding, InUse, OwnTable};
use cni_dataplane::{AddressFamily, Error as DataplaneError, Owner, ebpf};

use crate::ipam::host_local::StoreError;

/// A leftover, by what is done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftover {
    /// A table is removed.
    Table(OwnTable),
    /// Chains of iptables that containers shared are removed.
    Chains(SharedChains),
    /// A link that a plugin made for all containers, or for one that is gone, is removed.
    Link(String),
    /// A directory is removed: host-local's with all files but reservations, others if they are empty.
    Directory(PathBuf),
    /// The dataplane's directory below /run is removed.
    RunDirectory(PathBuf),
    /// The BPF programs are detached, and everything pinned is removed.
    Programs,
    /// Something stays.
    Keep {
        /// The thing.
        what: String,
        /// The reason.
        why: String,
    },
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(table) => write!(f, "remove  table {}", table.name()),
            Self::Chains(shared) => write!(f, "remove  {}", chains(*shared)),
            Self::Link(name) => write!(f, "remove  link {name}"),
            Self::Directory(path) | Self::RunDirectory(path) => write!(f, "remove  {}", path.display()),
            Self::Programs => f.write_str("remove  the BPF programs"),
            Self::Keep { what, why } => write!(f, "leave   {what} ({why})"),
        }
    }
}

/// The failures of a removal.
#[derive(Debug, thiserror::Error)]
pub enum LeftoverError {
    /// Containers have elements in a table of ours.
    #[error(
        "table {} is in use by {}: remove the containers, or let the runtime run a GC; `--force` \
         removes what they have, `--keep-state` leaves it; nothing was changed",
        table.name(),
        owners.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    InUse {
        /// The table.
        table: OwnTable,
        /// The containers.
        owners: Vec<Owner>,
    },
    /// Containers came while the plugins were removed.
    #[error(
        "table {} stays: {} came while the plugins were removed: install the plugins again, remove the \
         containers, then run `slipway uninstall` again",
        table.name(),
        owners.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    CameLate {
        /// The table.
        table: OwnTable,
        /// The containers.
        owners: Vec<Owner>,
    },
    /// A table cannot be read or removed.
    #[error(transparent)]
    Table(#[from] DataplaneError),
    /// A link cannot be read or removed.
    #[error(transparent)]
    Link(#[from] cni_kernel::route::RouteError),
    /// Files cannot be read or removed.
    #[error("{0}")]
    Disk(String),
}

impl From<StoreError> for LeftoverError {
    fn from(error: StoreError) -> Self {
        Self::Disk(error.to_string())
    }
}

/// Finds the leftovers. Changes nothing.
///
/// # Errors
/// [`LeftoverError::InUse`] if containers have elements in a table, with [`InUse::Spare`]; tables, links or
/// files cannot be read.
pub fn plan(in_use: InUse, data_dir: &Path) -> Result<Vec<Leftover>, LeftoverError> {
    let mut leftovers = Vec::new();
    for table in OwnTable::ALL {
        match table.holding() {
            Ok(Holding::NoTable) => {}
            Ok(Holding::Owners(owners)) if in_use == InUse::Spare => {
                return Err(LeftoverError::InUse { table, owners });
            }
            Ok(Holding::Rules) if in_use == InUse::Spare => leftovers.push(administered(table)),
            Ok(_) => leftovers.push(Leftover::Table(table)),
            // Not ours, or a later version's, which can remove it.
            Err(error @ (DataplaneError::ForeignTable { .. } | DataplaneError::NewerSchema { .. })) => {
                let what = format!("table {}", table.name());
                leftovers.push(Leftover::Keep { what, why: error.to_string() });
            }
            Err(error) => return Err(error.into()),
        }
    }
    if ebpf::is_there() {
        leftovers.push(match ebpf::served_in_other_namespace() {
            None => Leftover::Programs,
            Some(error) => Leftover::Keep { what: "BPF programs".to_owned(), why: error.to_string() },
        });
    }
    let shared = [SharedChains::all(Purpose::Ports)?, SharedChains::all(Purpose::Firewall)?].concat();
    for shared in shared {
        leftovers.push(kept_or_removed(shared, shared.needed()?));
    }
    leftovers.extend(links::plan()?);
    leftovers.extend(disk::plan(data_dir)?);
    let memory = Path::new(cni_dataplane::RUN_DIR);
    leftovers.extend(memory.is_dir().then(|| Leftover::RunDirectory(memory.to_owned())));
    Ok(leftovers)
}

/// Removes the tables of a plan. One that came into use since stays.
///
/// # Errors
/// [`LeftoverError::InUse`] if containers have elements in a table, with [`InUse::Spare`]; a table cannot be
/// removed.
pub fn remove_tables(leftovers: &mut [Leftover], in_use: InUse) -> Result<(), LeftoverError> {
    for leftover in leftovers {
        if let Leftover::Table(table) = *leftover {
            match table.remove(in_use)? {
                Holding::Owners(owners) if in_use == InUse::Spare => {
                    return Err(LeftoverError::InUse { table, owners });
                }
                Holding::Rules if in_use == InUse::Spare => *leftover = administered(table),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Removes the rest of a plan, in its order, and tables that a container has created again while the plugins
/// were removed. Returns the tables that stay, with [`InUse::Spare`], as containers use them.
///
/// # Errors
/// The first thing that cannot be removed.
pub fn remove_rest(leftovers: &mut [Leftover], in_use: InUse) -> Result<Vec<LeftoverError>, LeftoverError> {
    let mut late = Vec::new();
    for table in OwnTable::ALL {
        match table.remove(in_use) {
            Ok(Holding::Owners(owners)) if in_use == InUse::Spare => {
                late.push(LeftoverError::CameLate { table, owners });
            }
            Ok(_) | Err(DataplaneError::ForeignTable { .. } | DataplaneError::NewerSchema { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for leftover in leftovers {
        let done = match leftover {
            Leftover::Table(_) | Leftover::Keep { .. } => continue,
            Leftover::Programs => {
                ebpf::teardown_node()?;
                Leftover::Programs
            }
            Leftover::Chains(shared) => kept_or_removed(*shared, shared.remove()?),
            Leftover::Link(name) => links::remove(std::mem::take(name))?,
            Leftover::Directory(path) => disk::remove(std::mem::take(path))?,
            Leftover::RunDirectory(path) => {
                std::fs::remove_dir_all(&path)
                    .map_err(|error| LeftoverError::Disk(format!("remove {}: {error}", path.display())))?;
                continue;
            }
        };
        *leftover = done;
    }
    Ok(late)
}

fn chains(shared: SharedChains) -> String {
    let program = match shared.place.family {
        AddressFamily::V4 => "iptables",
        AddressFamily::V6 => "ip6tables",
    };
    let names = match shared.purpose {
        Purpose::Ports => "CNI-HOSTPORT-*",
        Purpose::Firewall => "CNI-FORWARD, CNI-ADMIN, CNI-ISOLATION-*",
    };
    format!("chains {names} of {program}-{}", shared.place.variant)
}

fn kept_or_removed(shared: SharedChains, needed: Option<&'static str>) -> Leftover {
    match needed {
        None => Leftover::Chains(shared),
        Some(why) => Leftover::Keep { what: chains(shared), why: why.to_owned() },
    }
}

fn administered(table: OwnTable) -> Leftover {
    let what = format!("table {}", table.name());
    Leftover::Keep { what, why: "an administrator's rules are in its chain admin".to_owned() }
}
