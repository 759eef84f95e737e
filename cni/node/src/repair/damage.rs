// SPDX-License-Identifier: GPL-3.0-or-later

//! Changes of other programs that may have damaged the dataplane, as the kernel reports them.
//!
//! Our own plugins change our tables with each ADD and DEL. nf_tables names the process of a commit, so changes by our
//! programs do not count as damage. Changes through iptables carry the name of iptables, whichever program has called
//! it, and by the time the notification is read the process has usually ended. Such a change leads to a repair that
//! finds nothing missing.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cni_dataplane::Owner;
use cni_dataplane::owner::is_own_link;
use cni_kernel::AddressFamily;
use cni_kernel::route::{
    MAIN_TABLE, Notification, NotificationGroup, Notifications, RouteError, RouteSocket,
};
use cni_nftables::notify::{self, Generation, TableChange};
use cni_nftables::{Family, Socket, TableId};
use ipnet::IpNet;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::limits::Limits;
use crate::host::address_reports::AddressReports;

/// The names that our processes have: `slipway` is called by a link of each plugin's name.
pub const OUR_PROCESSES: &[&str] = &[
    "slipway",
    "slipwayd",
    "cnitool",
    "bandwidth",
    "bridge",
    "dhcp",
    "dummy",
    "firewall",
    "flannel",
    "host-device",
    "host-local",
    "ipvlan",
    "loopback",
    "macvlan",
    "noop",
    "portmap",
    "ptp",
    "sbr",
    "static",
    "tap",
    "tuning",
    "vlan",
    "vrf",
];

/// The tables of the iptables that keeps its rules in nf_tables, in which the compatibility mode has chains.
const IPTABLES: [&str; 2] = ["filter", "nat"];
/// The beginning of the names of the compatibility mode's chains, and of the reference's.
const CHAINS: &str = "CNI-";

/// A change that may have damaged the dataplane.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damage {
    /// A process changed a table of ours, or one with chains of the compatibility mode.
    Table {
        /// Family and name.
        table: String,
        /// The process; none if the kernel does not report it.
        by: Option<String>,
        /// True if the table is gone.
        deleted: bool,
    },
    /// A queueing discipline or filter of a link is gone.
    TrafficControl {
        /// The link.
        link: String,
    },
    /// The node's addresses changed.
    Addresses,
    /// A link of ours was set down or taken out of its bridge, or lost an address or a route.
    Link {
        /// The link.
        link: String,
        /// The property that the link has lost.
        lost: Loss,
    },
    /// Forwarding of a family was switched off on the whole node.
    Forwarding(AddressFamily),
    /// firewalld has reloaded, started or stopped.
    Firewalld(FirewalldChange),
    /// Notifications were lost.
    Lost,
}

/// A change of firewalld's state, which may empty its zones and flush the rules of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FirewalldChange {
    /// firewalld has reloaded its configuration.
    Reloaded,
    /// firewalld has started.
    Started,
    /// firewalld has stopped.
    Stopped,
}

impl fmt::Display for FirewalldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reloaded => "has reloaded its rules",
            Self::Started => "has started",
            Self::Stopped => "has stopped",
        })
    }
}

/// A property that a link of ours has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// The link is down.
    Up,
    /// The link is no longer a port of a bridge.
    Bridge,
    /// An address.
    Address(IpNet),
    /// The route to a container.
    Route(IpNet),
    /// The limit of its rate.
    Limit,
    /// A queueing discipline or a filter.
    Filter,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up => f.write_str("was set down"),
            Self::Bridge => f.write_str("left its bridge"),
            Self::Address(net) => write!(f, "lost the address {net}"),
            Self::Route(net) => write!(f, "lost the route to {net}"),
            Self::Filter => f.write_str("lost a filter or qdisc"),
            Self::Limit => f.write_str("has another limit of its rate, or none"),
        }
    }
}

impl Damage {
    /// True if BPF programs may be missing.
    #[must_use]
    pub(crate) fn concerns_programs(&self) -> bool {
        !matches!(self, Self::Table { .. } | Self::Link { .. } | Self::Forwarding(_) | Self::Firewalld(_))
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table { table, by, deleted } => {
                let by = by.as_deref().unwrap_or("another process");
                let verb = if *deleted { "deleted" } else { "changed" };
                write!(f, "{by} {verb} table {table}")
            }
            Self::TrafficControl { link } => write!(f, "a filter or qdisc of {link} was deleted"),
            Self::Addresses => f.write_str("the node's addresses changed"),
            Self::Link { link, lost } => write!(f, "{link} {lost}"),
            Self::Forwarding(family) => write!(f, "forwarding of {family} was switched off"),
            Self::Firewalld(change) => write!(f, "firewalld {change}"),
            Self::Lost => f.write_str("notifications of the kernel were lost"),
        }
    }
}

/// The kernel's changes cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum ObserverError {
    /// The notifications of nf_tables failed.
    #[error(transparent)]
    Rules(#[from] cni_nftables::Error),
    /// The notifications of links failed.
    #[error(transparent)]
    Links(#[from] RouteError),
    /// Waiting failed.
    #[error("wait for notifications: {0}")]
    Wait(Errno),
}

/// Follows the kernel's changes in the calling thread's network namespace.
#[derive(Debug)]
pub struct Observer {
    /// None if the kernel has no nf_tables.
    rules: Option<notify::Notifications>,
    links: Notifications,
    socket: RouteSocket,
    addresses: AddressReports,
    /// The links that are ports of a bridge.
    ports: BTreeSet<u32>,
    /// Links of ours that lost something, by index, and the time to look whether they still exist: most of them are being
    /// deleted, with all that they had, or are being set up by an ADD.
    suspects: Vec<(Instant, u32, Loss)>,
    limits: Limits,
    pending: VecDeque<Damage>,
}

/// The time from a loss to the second look at the link. A plugin that sets a link up in two steps takes less.
const SECOND_LOOK: Duration = Duration::from_millis(50);
/// The same for filters and queues of links without a known limit: BPF programs, or a limit that an ADD is setting up.
const SECOND_LOOK_AT_FILTER: Duration = Duration::from_millis(400);
/// The same for links with a limit, which is not urgent: bandwidth's DEL removes it, and the link goes with the DEL of
/// another plugin, which a busy node may start a second later. A look in between would cost a repair that finds nothing.
const SECOND_LOOK_AT_LIMIT: Duration = Duration::from_millis(1500);
/// The most losses that are remembered: the links of a bridge that is set down. More lead to a repair at once.
const SUSPECTS: usize = 4096;

impl Observer {
    /// Subscribes to the kernel's notifications.
    ///
    /// # Errors
    /// [`ObserverError::Rules`], [`ObserverError::Links`] if a socket cannot be opened.
    pub fn open() -> Result<Self, ObserverError> {
        let rules = match notify::Notifications::open() {
            Ok(rules) => Some(rules),
            Err(cni_nftables::Error::Unsupported { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let links = Notifications::open(&[
            NotificationGroup::Links,
            NotificationGroup::Addresses,
            NotificationGroup::Routes,
            NotificationGroup::TrafficControl,
            NotificationGroup::Settings,
        ])?;
        let socket = RouteSocket::open()?;
        let addresses = socket.all_addresses()?.into_iter().collect();
        let all = socket.links()?;
        let ports = all.iter().filter(|link| link.master.is_some()).map(|link| link.index).collect();
        let limits = Limits::read(&socket, &all).unwrap_or_default();
        let (suspects, pending) = (Vec::new(), VecDeque::new());
        Ok(Self { rules, links, socket, addresses, ports, suspects, limits, pending })
    }

    /// Waits for the next damage, for at most `timeout`.
    ///
    /// # Errors
    /// [`ObserverError`].
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Damage>, ObserverError> {
        let end = Instant::now() + timeout;
        loop {
            self.read()?;
            self.look_again();
            let left = end.saturating_duration_since(Instant::now());
            if !self.pending.is_empty() || left.is_zero() {
                return Ok(self.pending.pop_front());
            }
            let fds = self.rules.as_ref().map(AsFd::as_fd).into_iter().chain([self.links.as_fd()]);
            // The wait is rounded up, because a wait of 0 would keep the loop busy until the look is due.
            let look =
                self.suspects.iter().map(|(when, ..)| when.saturating_duration_since(Instant::now())).min();
            let left = look.map_or(left, |look| look.min(left));
            let wait = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            match poll(&mut fds, wait) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(ObserverError::Wait(errno)),
            }
        }
    }

    /// Reads until a damage is found or nothing is left: notifications may be in the sockets' own buffers, of which poll(2)
    /// knows nothing.
    fn read(&mut self) -> Result<(), ObserverError> {
        while self.pending.is_empty()
            && let Some(rules) = &mut self.rules
            && let Some(notification) = rules.read()?
        {
            match notification {
                notify::Notification::Generation(generation) => {
                    self.pending.extend(of_commit(&generation, has_chains));
                }
                notify::Notification::Lost => self.pending.push_back(Damage::Lost),
            }
        }
        while self.pending.is_empty()
            && let Some(notification) = self.links.read()?
        {
            let damage = match notification {
                // A container's link is deleted with its filters, and bandwidth's DEL removes them before.
                Notification::TrafficControl { link, deleted: true } => self.suspect(link, Loss::Filter),
                Notification::TrafficControl { link, deleted: false } => self.suspect(link, Loss::Limit),
                Notification::Address { address, deleted } if address.global => {
                    if !self.addresses.is_change(&address, deleted) {
                        continue;
                    }
                    match self.socket.link_by_index(address.link) {
                        // Addresses of containers' links come and go with containers.
                        Ok(link) if Owner::from_comment(&link.alias).is_some() => {
                            if deleted {
                                self.suspect(link.index, Loss::Address(address.net))
                            } else {
                                None
                            }
                        }
                        Ok(_) => Some(Damage::Addresses),
                        Err(_) => None,
                    }
                }
                Notification::Address { address, deleted: true } => {
                    self.suspect(address.link, Loss::Address(address.net))
                }
                Notification::Link { link, deleted } => {
                    let was_port = match link.master {
                        Some(_) if !deleted => !self.ports.insert(link.index),
                        _ => self.ports.remove(&link.index),
                    };
                    let limited = if deleted { self.limits.forget(link.index) } else { Vec::new() };
                    for link in limited {
                        let damage = self.suspect(link, Loss::Limit);
                        self.pending.extend(damage);
                    }
                    let lost = match () {
                        () if deleted || !is_own_link(&link.alias) => None,
                        () if !link.up => Some(Loss::Up),
                        () if was_port && link.master.is_none() => Some(Loss::Bridge),
                        () => None,
                    };
                    lost.and_then(|lost| self.suspect(link.index, lost))
                }
                Notification::Route { route, deleted: true } => {
                    let is_to_host =
                        route.table == MAIN_TABLE && route.dst.prefix_len() == route.dst.max_prefix_len();
                    let link = route.link.filter(|_| is_to_host);
                    link.and_then(|link| self.suspect(link, Loss::Route(route.dst)))
                }
                Notification::Forwarding { family, link: None, on: false } => {
                    // The report may only concern new links. The repair then finds nothing missing.
                    Some(Damage::Forwarding(family))
                }
                Notification::Lost => {
                    // Some addresses may have changed unseen.
                    self.addresses = AddressReports::default();
                    Some(Damage::Lost)
                }
                _ => None,
            };
            self.pending.extend(damage);
        }
        Ok(())
    }
}

impl Observer {
    /// Remembers that a link has lost something, for a second look.
    fn suspect(&mut self, link: u32, lost: Loss) -> Option<Damage> {
        let known = |(_, index, what): &(Instant, u32, Loss)| *index == link && *what == lost;
        if self.suspects.iter().any(known) {
            return None;
        }
        if self.suspects.len() >= SUSPECTS {
            return Some(Damage::Lost);
        }
        let wait = match lost {
            Loss::Limit | Loss::Filter if self.limits.has(link) => SECOND_LOOK_AT_LIMIT,
            Loss::Limit | Loss::Filter => SECOND_LOOK_AT_FILTER,
            _ => SECOND_LOOK,
        };
        self.suspects.push((Instant::now() + wait, link, lost));
        None
    }

    /// Reports the losses of links that still exist and are ours.
    fn look_again(&mut self) {
        let now = Instant::now();
        let (due, later) =
            std::mem::take(&mut self.suspects).into_iter().partition(|(when, ..)| *when <= now);
        self.suspects = later;
        let due: Vec<(Instant, u32, Loss)> = due;
        for (_, index, lost) in due {
            let Ok(link) = self.socket.link_by_index(index) else { continue };
            if lost == Loss::Filter {
                // The link may also be an uplink, which has BPF programs.
                self.pending.push_back(Damage::TrafficControl { link: link.name });
                continue;
            }
            let is_lost = is_own_link(&link.alias)
                && match lost {
                    Loss::Filter => true,
                    Loss::Up => !link.up,
                    Loss::Bridge => link.master.is_none(),
                    Loss::Limit => self.limits.has_lost(&self.socket, &link).unwrap_or(false),
                    Loss::Address(net) => match self.socket.addresses(&link) {
                        Ok(all) => !all.iter().any(|address| address.net == net),
                        Err(_) => false,
                    },
                    Loss::Route(net) => {
                        self.socket.link_to(net.addr()).map_or(true, |link| link != Some(index))
                    }
                };
            if is_lost {
                self.pending.push_back(Damage::Link { link: link.name, lost });
            }
        }
    }
}

/// The damages of a commit. `has_chains` tells whether a table of iptables has chains of the iptables backend.
fn of_commit(generation: &Generation, has_chains: impl Fn(&TableId) -> bool) -> Vec<Damage> {
    let by = generation.process.as_ref().map(|process| process.name.as_str());
    if by.is_some_and(|name| OUR_PROCESSES.contains(&name)) {
        return Vec::new();
    }
    let damages = generation.tables.iter().filter(|(table, change)| match change {
        // An additional element harms no container, and a DEL or GC removes it.
        TableChange::ElementsAdded => false,
        TableChange::ElementsDeleted => is_ours(table),
        TableChange::Contents => is_ours(table) || is_of_iptables(table) && has_chains(table),
        TableChange::Deleted => is_ours(table) || is_of_iptables(table),
    });
    damages
        .map(|(table, change)| Damage::Table {
            table: table.to_string(),
            by: by.map(str::to_owned),
            deleted: *change == TableChange::Deleted,
        })
        .collect()
}

fn is_ours(table: &TableId) -> bool {
    match table.family {
        Family::Inet => table.name == "slipway" || table.name == "slipway-firewall",
        Family::Bridge => table.name == "slipway",
        _ => false,
    }
}

fn is_of_iptables(table: &TableId) -> bool {
    matches!(table.family, Family::Ip | Family::Ip6) && IPTABLES.contains(&table.name.as_str())
}

/// True if a table has a chain of the iptables backend. kube-proxy writes to the same tables all the time, on nodes that
/// do not use that backend, too.
fn has_chains(table: &TableId) -> bool {
    let chains = Socket::open().and_then(|socket| socket.chains(table));
    chains.is_ok_and(|chains| chains.iter().any(|chain| chain.name.starts_with(CHAINS)))
}

#[cfg(test)]
mod tests {
    use cni_nftables::notify::Process;

    use super::*;

    fn commit(
        by: Option<&str>,
        family: Family,
        table: &str,
        change: TableChange,
        chains: bool,
    ) -> Vec<Damage> {
        let process = by.map(|name| Process { pid: 1, name: name.to_owned() });
        let tables = [(TableId::new(family, table), change)].into();
        of_commit(&Generation { number: 1, process, tables }, |_| chains)
    }

    #[test]
    fn changes_of_others_in_our_tables_are_damage() {
        use TableChange::{Contents, Deleted, ElementsAdded, ElementsDeleted};
        for (by, family, table, change, chains, is_damage) in [
            (Some("nft"), Family::Inet, "slipway", Deleted, false, true),
            (Some("nft"), Family::Inet, "slipway", Contents, false, true),
            (Some("nft"), Family::Inet, "slipway", ElementsDeleted, false, true),
            (Some("nft"), Family::Inet, "slipway", ElementsAdded, false, false),
            (Some("nft"), Family::Bridge, "slipway", Contents, false, true),
            (Some("nft"), Family::Inet, "slipway-firewall", Deleted, false, true),
            (None, Family::Inet, "slipway", Deleted, false, true),
            (Some("portmap"), Family::Inet, "slipway", ElementsDeleted, false, false),
            (Some("slipway"), Family::Inet, "slipway", Deleted, false, false),
            (Some("nft"), Family::Inet, "filter", Deleted, false, false),
            (Some("nft"), Family::Ip, "slipway", Deleted, false, false),
            (Some("iptables"), Family::Ip, "nat", Contents, true, true),
            (Some("iptables-restor"), Family::Ip6, "nat", Contents, false, false),
            (Some("nft"), Family::Ip, "nat", Deleted, false, true),
            (Some("iptables"), Family::Ip, "mangle", Contents, true, false),
        ] {
            let damages = commit(by, family, table, change, chains);
            assert_eq!(!damages.is_empty(), is_damage, "{by:?} {table} {change:?}");
        }
    }

    #[test]
    fn damages_name_their_cause() {
        let damage = commit(Some("nft"), Family::Inet, "slipway", TableChange::Deleted, false).remove(0);
        assert_eq!(damage.to_string(), "nft deleted table inet slipway");
        assert!(!damage.concerns_programs() && Damage::Lost.concerns_programs());
    }
}
