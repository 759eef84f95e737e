// SPDX-License-Identifier: GPL-2.0-or-later

//! The leftovers of the plugins and of slipwayd on a node, and their removal: tables, chains, links, routes and files,
//! including those of containers whose DEL was never called.
//!
//! Only unused objects that Slipway made are removed.

mod agent;
mod disk;
mod links;

use std::path::{Path, PathBuf};
use std::{fmt, io};

use cni_dataplane::iptables::forward::AcceptedLink;
use cni_dataplane::iptables::{Place, Purpose, SharedChains};
use cni_dataplane::teardown::{OwnTable, TableContent, UsedTable};
use cni_dataplane::{AddressFamily, Error as DataplaneError, Owner, ebpf};
use cni_kernel::dir::{self, DirError};
use cni_kernel::ethtool::Switch;
use cni_kernel::lock::LockError;
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use cni_plugins::ipam::dhcp::leftovers::LeftoversError as LeasesError;
use cni_plugins::ipam::host_local::StoreError;
use cni_plugins::node_defaults::NodeDefaults;
use cni_state::agent::ROUTE_PROTOCOL;

use agent::Agent;

/// A leftover, by what is done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leftover {
    /// A table is removed.
    Table(OwnTable),
    /// Chains of iptables that containers shared are removed.
    Chains(SharedChains),
    /// A link for all containers, or for one that no longer exists, is removed.
    Link(String),
    /// Routes of slipwayd to the pods of other nodes, this many, are removed.
    Routes(usize),
    /// The rules with which slipwayd accepts the pods' packets in one chain FORWARD are removed.
    ForwardRules(AcceptedLink),
    /// A directory is removed: host-local's with its files other than reservations, others if they are empty.
    Directory(PathBuf),
    /// The dataplane's directory below /run is removed.
    RunDirectory(PathBuf),
    /// A directory is emptied, and stays for this reason.
    Content(PathBuf, &'static str),
    /// The BPF programs are detached, and everything pinned is removed.
    Programs,
    /// UDP GRO forwarding of a node whose settings ask for it is switched off; with the names of its uplinks, if set.
    Merging(Vec<String>),
    /// An object is kept.
    Keep {
        /// The object.
        what: String,
        /// The reason.
        why: String,
    },
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.what();
        match self {
            Self::Content(_, why) => write!(f, "empty   {what} ({why}, which stays)"),
            Self::Merging(_) => write!(f, "reset   {what}"),
            Self::Keep { why, .. } => write!(f, "leave   {what} ({why})"),
            _ => write!(f, "remove  {what}"),
        }
    }
}

impl Leftover {
    /// The object, for people.
    fn what(&self) -> String {
        match self {
            Self::Table(table) => format!("table {}", table.name()),
            Self::Chains(shared) => chains(*shared),
            Self::Link(name) => format!("link {name}"),
            Self::Routes(1) => format!("1 route of protocol {ROUTE_PROTOCOL}"),
            Self::Routes(count) => format!("{count} routes of protocol {ROUTE_PROTOCOL}"),
            Self::ForwardRules(AcceptedLink { place, link }) => {
                format!("rules for {link} in FORWARD of {}", program(*place))
            }
            Self::Directory(path) | Self::RunDirectory(path) | Self::Content(path, _) => {
                path.display().to_string()
            }
            Self::Programs => "the BPF programs".to_owned(),
            Self::Merging(_) => "UDP GRO forwarding at the uplinks".to_owned(),
            Self::Keep { what, .. } => what.clone(),
        }
    }

    /// The same object, which is kept.
    fn kept(&self, why: &str) -> Self {
        Self::Keep { what: self.what(), why: why.to_owned() }
    }
}

/// An error of a removal.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeftoverError {
    /// Containers have elements in a table of ours.
    #[error(
        "table {} is in use by {}: remove the containers, or let the runtime run a GC; `--force` \
         removes what they have, `--keep-state` leaves it; {}",
        table.name(),
        list(owners),
        changed(removed)
    )]
    InUse {
        /// The table.
        table: OwnTable,
        /// The containers.
        owners: Vec<Owner>,
        /// The tables that were removed before this one came into use.
        removed: Vec<OwnTable>,
    },
    /// Containers were added while the plugins were removed.
    #[error(
        "table {} was kept, as {} was added while the plugins were removed: install the plugins again, \
         remove the containers, then run `slipway uninstall` again",
        table.name(),
        list(owners)
    )]
    AddedLate {
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
    /// Reservations of host-local cannot be read or removed.
    #[error(transparent)]
    Reservations(#[from] StoreError),
    /// Leases of dhcp cannot be read or removed.
    #[error(transparent)]
    Leases(#[from] LeasesError),
    /// The files of killed writers cannot be removed, or slipwayd's lock file cannot be looked for.
    #[error(transparent)]
    Files(#[from] DirError),
    /// The system refuses slipwayd's lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A directory cannot be listed or removed.
    #[error("{operation} {}: {source}", path.display())]
    Directory {
        /// The operation.
        operation: &'static str,
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fn list(owners: &[Owner]) -> String {
    owners.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The changes before a refusal.
fn changed(removed: &[OwnTable]) -> String {
    let tables: Vec<String> = removed.iter().map(|table| format!("table {}", table.name())).collect();
    match tables[..] {
        [] => "nothing was changed".to_owned(),
        _ => format!("only this was removed: {}", tables.join(", ")),
    }
}

/// Finds the leftovers. Changes nothing.
///
/// # Errors
/// [`LeftoverError::InUse`] if containers have elements in a table, with [`UsedTable::Keep`]; tables, links or
/// files cannot be read.
pub(super) fn plan(in_use: UsedTable, data_dir: &Path) -> Result<Vec<Leftover>, LeftoverError> {
    let mut leftovers = Vec::new();
    for table in OwnTable::ALL {
        match table.holding() {
            Ok(TableContent::NoTable) => {}
            Ok(TableContent::Owners(owners)) if in_use == UsedTable::Keep => {
                return Err(LeftoverError::InUse { table, owners, removed: Vec::new() });
            }
            Ok(TableContent::Rules) if in_use == UsedTable::Keep => leftovers.push(administered(table)),
            Ok(_) => leftovers.push(Leftover::Table(table)),
            // Not ours, or a later version's, which can remove it.
            Err(error @ (DataplaneError::ForeignTable { .. } | DataplaneError::NewerSchema { .. })) => {
                let what = format!("table {}", table.name());
                leftovers.push(Leftover::Keep { what, why: error.to_string() });
            }
            Err(error) => return Err(error.into()),
        }
    }
    if ebpf::is_there()? {
        leftovers.push(match ebpf::served_in_other_namespace() {
            None => Leftover::Programs,
            Some(error) => Leftover::Keep { what: "BPF programs".to_owned(), why: error.to_string() },
        });
    }
    leftovers.extend(merging()?);
    let shared = [SharedChains::all(Purpose::Ports)?, SharedChains::all(Purpose::Firewall)?].concat();
    for shared in shared {
        leftovers.push(kept_or_removed(shared, shared.needed()?));
    }
    leftovers.extend(links::plan()?);
    leftovers = agent::plan(leftovers)?;
    leftovers.extend(disk::plan(data_dir)?);
    let memory = Path::new(cni_dataplane::RUN_DIR);
    leftovers.extend(disk::is_directory(memory)?.then(|| Leftover::RunDirectory(memory.to_owned())));
    let slipwayd = Agent::find()?;
    let possible = leftovers.into_iter().filter_map(as_far_as_possible);
    Ok(possible.map(|leftover| slipwayd.keeps(&leftover).unwrap_or(leftover)).collect())
}

/// A directory that cannot be removed is emptied, or left. None for one that is empty already.
fn as_far_as_possible(leftover: Leftover) -> Option<Leftover> {
    let (Leftover::Directory(path) | Leftover::RunDirectory(path)) = &leftover else { return Some(leftover) };
    let keep = |why: String| Some(Leftover::Keep { what: path.display().to_string(), why });
    if access(path, AccessFlags::W_OK) == Err(Errno::EROFS) {
        return keep("on a read-only file system".to_owned());
    }
    match dir::is_fixed(path) {
        None => Some(leftover),
        Some(_) if std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()) => None,
        // The names of the files in it do not distinguish them from those of other programs.
        Some(_) if path.is_symlink() && matches!(leftover, Leftover::RunDirectory(_)) => {
            keep("a symbolic link, which is not followed".to_owned())
        }
        Some(why) => Some(Leftover::Content(path.clone(), why)),
    }
}

fn merging() -> Result<Option<Leftover>, DataplaneError> {
    // A mistake in the settings must not prevent the removal of the plugins.
    let settings = NodeDefaults::read().unwrap_or_default();
    if settings.udp_gro_forwarding != Some(Switch::On) {
        return Ok(None);
    }
    let uplinks = settings.ebpf.uplinks;
    let is_on = ebpf::merging(&uplinks)?.iter().any(|one| one.state == Ok(Switch::On));
    Ok(is_on.then_some(Leftover::Merging(uplinks)))
}

/// Removes the tables of a plan. Stops at one that containers have begun to use.
///
/// # Errors
/// [`LeftoverError::InUse`] if containers have elements in a table, with [`UsedTable::Keep`]; a table cannot be
/// removed.
pub(super) fn remove_tables(leftovers: &mut [Leftover], in_use: UsedTable) -> Result<(), LeftoverError> {
    let mut removed = Vec::new();
    for leftover in leftovers {
        if let Leftover::Table(table) = *leftover {
            match table.remove(in_use)? {
                TableContent::Owners(owners) if in_use == UsedTable::Keep => {
                    return Err(LeftoverError::InUse { table, owners, removed });
                }
                TableContent::Rules if in_use == UsedTable::Keep => *leftover = administered(table),
                TableContent::NoTable => {}
                _ => removed.push(table),
            }
        }
    }
    Ok(())
}

/// Removes the rest of a plan, in its order, and tables that an ADD created again while the plugins were
/// removed. Returns [`LeftoverError::AddedLate`] for each table that containers use, with [`UsedTable::Keep`].
///
/// # Errors
/// The first object that cannot be removed.
pub(super) fn remove_rest(
    leftovers: &mut [Leftover],
    in_use: UsedTable,
) -> Result<Vec<LeftoverError>, LeftoverError> {
    let mut late = Vec::new();
    let stays =
        |table: &OwnTable| *table == OwnTable::Tunnel && !leftovers.contains(&Leftover::Table(*table));
    for table in OwnTable::ALL.into_iter().filter(|table| !stays(table)) {
        match table.remove(in_use) {
            Ok(TableContent::Owners(owners)) if in_use == UsedTable::Keep => {
                late.push(LeftoverError::AddedLate { table, owners });
            }
            Ok(_) | Err(DataplaneError::ForeignTable { .. } | DataplaneError::NewerSchema { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // An agent that does not run must not start until its directory is removed.
    let slipwayd = Agent::find()?;
    for leftover in leftovers {
        if let Some(kept) = slipwayd.keeps(leftover) {
            *leftover = kept;
            continue;
        }
        let done = match leftover {
            Leftover::Table(_) | Leftover::Keep { .. } => continue,
            Leftover::Programs => {
                ebpf::teardown_node()?;
                Leftover::Programs
            }
            Leftover::Merging(uplinks) => {
                let switched = ebpf::switch_merging(uplinks, Switch::Off)?;
                let kept = still_merging(&switched, &ebpf::merging(uplinks)?);
                kept.unwrap_or_else(|| Leftover::Merging(std::mem::take(uplinks)))
            }
            Leftover::Chains(shared) => kept_or_removed(*shared, shared.remove()?),
            Leftover::Link(name) => links::remove(std::mem::take(name))?,
            Leftover::Routes(count) => agent::remove_routes(*count)?,
            Leftover::ForwardRules(accepted) => agent::remove_rules(accepted)?,
            Leftover::Directory(path) => disk::remove(std::mem::take(path))?,
            Leftover::Content(path, why) if path != Path::new(cni_dataplane::RUN_DIR) => {
                match disk::remove(path.clone())? {
                    Leftover::Directory(path) => Leftover::Content(path, why),
                    kept => kept,
                }
            }
            Leftover::RunDirectory(path) | Leftover::Content(path, _) => {
                dir::remove_all(path).map_err(|source| LeftoverError::Directory {
                    operation: "remove",
                    path: path.clone(),
                    source,
                })?;
                continue;
            }
        };
        *leftover = done;
    }
    Ok(late)
}

/// The first device that still merges datagrams after all devices were `switched` off, with the reason. A device without
/// this feature cannot be switched either, but leaves nothing.
fn still_merging(switched: &[ebpf::Merging], now: &[ebpf::Merging]) -> Option<Leftover> {
    let on = now.iter().find(|one| one.state == Ok(Switch::On))?;
    let refused = switched.iter().find(|one| one.link == on.link).and_then(|one| one.state.as_ref().err());
    let why = refused.map_or_else(|| "it was switched on again".to_owned(), ToString::to_string);
    Some(Leftover::Keep { what: format!("UDP GRO forwarding at {}", on.link), why })
}

/// The program that prints the chains of a place.
fn program(place: Place) -> String {
    let program = match place.family {
        AddressFamily::V4 => "iptables",
        AddressFamily::V6 => "ip6tables",
    };
    format!("{program}-{}", place.variant)
}

fn chains(shared: SharedChains) -> String {
    let names = match shared.purpose {
        Purpose::Ports => "CNI-HOSTPORT-*",
        Purpose::Firewall => "CNI-FORWARD, CNI-ADMIN, CNI-ISOLATION-*",
    };
    format!("chains {names} of {}", program(shared.place))
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

#[cfg(test)]
mod tests {
    use cni_kernel::ethtool::FeatureError;

    use super::*;

    #[test]
    fn a_device_that_cannot_be_switched_off_is_kept_with_the_reason() {
        let one = |link: &str, state| ebpf::Merging { link: link.to_owned(), state };
        let refused = || Err(FeatureError::Unknown("gro".to_owned()));
        let switched = [one("eth0", Ok(Switch::Off)), one("eth1", refused())];
        assert_eq!(still_merging(&switched, &switched), None, "eth1 has no such feature");
        let now = [one("eth0", Ok(Switch::Off)), one("eth1", Ok(Switch::On))];
        let (what, why) =
            ("UDP GRO forwarding at eth1".to_owned(), "the kernel has no feature gro".to_owned());
        assert_eq!(still_merging(&switched, &now), Some(Leftover::Keep { what, why }));
    }
}
