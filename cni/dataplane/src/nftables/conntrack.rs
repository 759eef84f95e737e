// SPDX-License-Identifier: GPL-2.0-or-later

//! UDP flows that began before a port was published, or outlive its container.
//!
//! A flow's translation is decided by its first packet. A UDP client that keeps sending from one
//! port keeps its flow alive, and with it the translation, or the lack of one, of before.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_nftables::conntrack::{Conntrack, Filter, Flow};

use crate::{AddressFamily, Error, HostAddress, HostPorts, Protocol, service_links};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Flows that do not lead to this container.
    NotTo(IpAddr),
    /// Flows that lead to this container.
    To(IpAddr),
}

impl Selection {
    fn includes(self, flow: &Flow) -> bool {
        match self {
            Self::NotTo(container) => flow.reply.source != container,
            Self::To(container) => flow.reply.source == container,
        }
    }
}

/// The UDP ports among what was published or withdrawn.
pub(crate) fn udp(ports: &[(HostPorts, Selection)]) -> impl Iterator<Item = &(HostPorts, Selection)> {
    ports.iter().filter(|(host, _)| host.protocol == Protocol::Udp)
}

/// Most flows on the node for which one unfiltered pass through the kernel's table is cheaper than a filtered
/// one for each family.
const FEW: usize = 10_000;

/// Removes the UDP flows to these host ports, and to no other address or port.
///
/// A pass through the kernel's table costs milliseconds however few flows there are. So there is one for all
/// ports, and none if there are no flows at all.
pub(crate) fn flush(ports: &[(HostPorts, Selection)]) -> Result<usize, Error> {
    let targets = Targets::new(ports);
    if targets.is_empty() {
        return Ok(0);
    }
    match Size::read() {
        Size::Empty => Ok(0),
        size => pass(targets.filters(size), |flow| targets.include(flow)),
    }
}

/// As [`flush`], and adds the destination ports of all UDP flows to `seen`.
pub(crate) fn flush_and_list(
    ports: &[(HostPorts, Selection)],
    seen: &mut BTreeSet<u16>,
) -> Result<usize, Error> {
    let targets = Targets::new(ports);
    let families = match Size::read() {
        Size::Empty => return Ok(0),
        Size::Small => vec![None],
        Size::Large => AddressFamily::BOTH.map(Some).to_vec(),
    };
    pass(families.into_iter().map(|family| udp_filter(family, None)).collect(), |flow| {
        seen.insert(flow.original.destination_port);
        targets.include(flow)
    })
}

/// Removes the flows for which `condition` is true, of those that pass the filters.
fn pass(filters: Vec<Filter>, mut condition: impl FnMut(&Flow) -> bool) -> Result<usize, Error> {
    let conntrack = Conntrack::open().map_err(|e| Error::kernel("reach conntrack", e))?;
    let mut flushed = 0;
    for filter in filters {
        let deleted = conntrack.delete_if(&filter, &mut condition);
        flushed += deleted.map_err(|e| Error::kernel("flush the UDP flows to published ports", e))?;
    }
    Ok(flushed)
}

fn udp_filter(family: Option<AddressFamily>, port: Option<u16>) -> Filter {
    let protocol = Some(Protocol::Udp.number());
    Filter { protocol, port, ..Filter::all(family) }
}

/// The number of flows in the namespace, all protocols together.
pub(crate) fn flow_count() -> Option<usize> {
    cni_kernel::sysctl::get("net/netfilter/nf_conntrack_count").ok()?.parse().ok()
}

/// The size of the kernel's table of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Empty,
    /// At most [`FEW`].
    Small,
    /// More, or unknown.
    Large,
}

impl Size {
    pub(crate) fn read() -> Self {
        match flow_count() {
            Some(0) => Self::Empty,
            Some(flows) if flows <= FEW => Self::Small,
            _ => Self::Large,
        }
    }
}

/// The UDP ports among what was published or withdrawn.
struct Targets {
    singles: BTreeMap<u16, Vec<(HostPorts, Selection)>>,
    runs: Vec<(HostPorts, Selection)>,
    /// The node's own addresses. Listing them costs as much as the node has interfaces, one per container, so
    /// they are read only if there is a flow to a published port, which is rare.
    local: OnceCell<BTreeSet<IpAddr>>,
}

impl Targets {
    fn new(ports: &[(HostPorts, Selection)]) -> Self {
        let mut targets = Self { singles: BTreeMap::new(), runs: Vec::new(), local: OnceCell::new() };
        for one in udp(ports) {
            match one.0.len() {
                1 => targets.singles.entry(one.0.first).or_default().push(*one),
                _ => targets.runs.push(*one),
            }
        }
        targets
    }

    fn is_empty(&self) -> bool {
        self.singles.is_empty() && self.runs.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &(HostPorts, Selection)> {
        self.singles.values().flatten().chain(&self.runs)
    }

    fn filters(&self, size: Size) -> Vec<Filter> {
        let filter = |family| udp_filter(family, self.only_port());
        let present = |family: &AddressFamily| self.all().any(|(host, _)| host.address.family() == *family);
        let families: Vec<_> = AddressFamily::BOTH.into_iter().filter(present).collect();
        if size == Size::Small && families.len() > 1 {
            return vec![filter(None)];
        }
        families.into_iter().map(|family| filter(Some(family))).collect()
    }

    /// The only port, if there is one: the kernel filters by it.
    fn only_port(&self) -> Option<u16> {
        let mut ports = self.singles.keys();
        match (ports.next(), ports.next(), self.runs.is_empty()) {
            (Some(port), None, true) => Some(*port),
            _ => None,
        }
    }

    fn include(&self, flow: &Flow) -> bool {
        let to = flow.original;
        let meant = |(host, which): &(HostPorts, Selection)| {
            (host.first..=host.last).contains(&to.destination_port)
                && which.includes(flow)
                && self.is_at(host.address, to.destination)
        };
        self.singles.get(&to.destination_port).into_iter().flatten().any(meant) || self.runs.iter().any(meant)
    }

    fn is_at(&self, host: HostAddress, address: IpAddr) -> bool {
        match host {
            HostAddress::One(one) => address == one,
            HostAddress::Any(family) => {
                AddressFamily::of(address) == family
                    && (address.is_loopback() || self.local.get_or_init(local_addresses).contains(&address))
            }
        }
    }
}

/// Reads the node's own addresses. If that fails, only flows to the loopback are removed.
fn local_addresses() -> BTreeSet<IpAddr> {
    let all = match nix::ifaddrs::getifaddrs() {
        Ok(all) => all,
        Err(errno) => {
            log::warn!(
                "list the node's addresses: {errno}; earlier UDP flows to published ports keep their translation"
            );
            return BTreeSet::new();
        }
    };
    // Flows to a Service's address belong to the engine that translates it.
    let own = all.filter(|interface| !service_links::NAMES.contains(&interface.interface_name.as_str()));
    own.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    })
    .collect()
}
