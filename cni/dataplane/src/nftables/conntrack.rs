// SPDX-License-Identifier: GPL-2.0-or-later

//! Removes flows that began before a port was published, or that outlive their container.
//!
//! The first packet of a flow decides about its translation. A UDP client that keeps sending from the same port keeps
//! the flow alive, together with the translation that it had before, or the lack of one. An SCTP association lives
//! for days without packets, and its client reuses the port.
//!
//! If a container did not end a TCP connection, because its namespace was deleted together with the link, conntrack
//! remembers the connection for five days. A client that reuses the port is then translated to an address that nobody
//! has, or to the next container with that address. So the withdrawal of a container that has vanished removes its
//! connections, and whoever still sends on one gets a reset. A container that is stopped ends its connections itself,
//! so no pass through the table is made for TCP: it would take some 9 ms with 262,144 buckets. Publishing removes no
//! TCP connection, because one that leads elsewhere may belong to a process of the node that had the port before.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_kernel::route::{RouteError, RouteSocket};
use cni_nftables::conntrack::{Conntrack, Filter, Flow};

use crate::{AddressFamily, Error, HostAddress, HostPorts, Protocol, service_links};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Flows that lead anywhere but to this container.
    NotTo(IpAddr),
    /// Flows that lead to this container, except for TCP, because the container ended its connections when it
    /// stopped.
    To(IpAddr),
    /// All flows that lead to this container, which has vanished together with its namespace.
    ToVanished(IpAddr),
}

impl Selection {
    fn includes(self, flow: &Flow) -> bool {
        match self {
            Self::NotTo(container) => flow.reply.source != container,
            Self::To(container) | Self::ToVanished(container) => flow.reply.source == container,
        }
    }

    /// Flows that lead to a container whose port is withdrawn.
    pub(crate) fn withdrawn(container: IpAddr, has_vanished: bool) -> Self {
        if has_vanished { Self::ToVanished(container) } else { Self::To(container) }
    }
}

/// A port that was published or withdrawn, and which of its flows are removed.
pub(crate) type Target = (HostPorts, Selection);

/// The ports of one protocol among those that were published or withdrawn.
pub(crate) fn of(protocol: Protocol, ports: &[Target]) -> impl Iterator<Item = &Target> {
    ports.iter().filter(move |(host, _)| host.protocol == protocol)
}

/// True if flows of this port have to be removed.
fn ends((host, which): &Target) -> bool {
    match host.protocol {
        Protocol::Udp | Protocol::Sctp => true,
        Protocol::Tcp => matches!(which, Selection::ToVanished(_)),
    }
}

/// Up to this number of flows on the node, one unfiltered pass through the kernel's table is cheaper than a filtered
/// pass for each family.
const FEW: usize = 10_000;

/// Removes the flows to these host ports, and to no other address or port. Of TCP, only connections to a container
/// that has vanished are removed.
///
/// A pass through the kernel's table takes milliseconds even if there are few flows. So there is one pass for all
/// ports, and none if there are no flows at all.
pub(crate) fn flush<'a>(ports: impl IntoIterator<Item = &'a Target>) -> Result<usize, Error> {
    let targets = Targets::new(ports);
    if targets.is_empty() {
        return Ok(0);
    }
    match Size::read() {
        Size::Empty => Ok(0),
        size => pass(targets.filters(size), |flow| targets.include(flow)),
    }
}

/// Like [`flush`] for the UDP ports, but also adds the destination ports of all UDP flows to `seen`.
pub(crate) fn flush_udp_and_list(ports: &[Target], seen: &mut BTreeSet<u16>) -> Result<usize, Error> {
    let targets = Targets::new(of(Protocol::Udp, ports));
    let families = match Size::read() {
        Size::Empty => return Ok(0),
        Size::Small => vec![None],
        Size::Large => AddressFamily::BOTH.map(Some).to_vec(),
    };
    let udp = |family| Filter { protocol: Some(Protocol::Udp.number()), ..Filter::all(family) };
    pass(families.into_iter().map(udp).collect(), |flow| {
        seen.insert(flow.original.destination_port);
        targets.include(flow)
    })
}

/// Removes those flows selected by the filters for which `condition` is true.
fn pass(filters: Vec<Filter>, mut condition: impl FnMut(&Flow) -> bool) -> Result<usize, Error> {
    let conntrack = Conntrack::open().map_err(|e| Error::kernel("reach conntrack", e))?;
    let mut flushed = 0;
    for filter in filters {
        let deleted = conntrack.delete_if(&filter, &mut condition);
        flushed += deleted.map_err(|e| Error::kernel("flush the flows to published ports", e))?;
    }
    Ok(flushed)
}

/// The number of flows in the namespace, of all protocols together.
pub(crate) fn flow_count() -> Option<usize> {
    cni_kernel::sysctl::get("net/netfilter/nf_conntrack_count").ok()?.parse().ok()
}

/// The size of the kernel's table of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Empty,
    /// At most [`FEW`].
    Small,
    /// More than [`FEW`], or unknown.
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

/// The ports with flows to remove.
struct Targets {
    /// By IP protocol number and port.
    singles: BTreeMap<(u8, u16), Vec<Target>>,
    runs: Vec<Target>,
    /// The node's own addresses. Listing them takes time for each of the node's interfaces, of which there is one per
    /// container, so they are read only when there is a flow to a published port, which is rare.
    local: OnceCell<BTreeSet<IpAddr>>,
}

impl Targets {
    fn new<'a>(ports: impl IntoIterator<Item = &'a Target>) -> Self {
        let mut targets = Self { singles: BTreeMap::new(), runs: Vec::new(), local: OnceCell::new() };
        for one in ports.into_iter().filter(|one| ends(one)) {
            match one.0.len() {
                1 => targets.singles.entry((one.0.protocol.number(), one.0.first)).or_default().push(*one),
                _ => targets.runs.push(*one),
            }
        }
        targets
    }

    fn is_empty(&self) -> bool {
        self.singles.is_empty() && self.runs.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &Target> {
        self.singles.values().flatten().chain(&self.runs)
    }

    /// The passes through the kernel's table that see all flows to the ports. The kernel already leaves out flows
    /// that a pass does not need.
    fn filters(&self, size: Size) -> Vec<Filter> {
        let present = |family: &AddressFamily| self.all().any(|(host, _)| host.address.family() == *family);
        let families: Vec<_> = AddressFamily::BOTH.into_iter().filter(present).collect();
        if size == Size::Small && families.len() > 1 {
            return vec![Filter { protocol: self.only_protocol(None), ..Filter::all(None) }];
        }
        families.into_iter().flat_map(|family| self.filters_of(family, size)).collect()
    }

    fn filters_of(&self, family: AddressFamily, size: Size) -> Vec<Filter> {
        let all = Filter { reply_source: self.only_container(family), ..Filter::all(Some(family)) };
        // For IPv4, the kernel can select flows by their container.
        let is_selective = family == AddressFamily::V4 && all.reply_source.is_some();
        let only = self.only_protocol(Some(family));
        if size == Size::Small || is_selective || only.is_some() {
            let port = only.and_then(|protocol| self.only_port(protocol));
            return vec![Filter { protocol: only, port, ..all }];
        }
        let filter = |protocol: Protocol| {
            let protocol = protocol.number();
            Filter { protocol: Some(protocol), port: self.only_port(protocol), ..all.clone() }
        };
        let protocols = self.protocols(Some(family));
        Protocol::ALL.into_iter().filter(|one| protocols.contains(&one.number())).map(filter).collect()
    }

    fn protocols(&self, family: Option<AddressFamily>) -> BTreeSet<u8> {
        let of_family = self.all().filter(|(host, _)| family.is_none_or(|one| host.address.family() == one));
        of_family.map(|(host, _)| host.protocol.number()).collect()
    }

    fn only_protocol(&self, family: Option<AddressFamily>) -> Option<u8> {
        let protocols = self.protocols(family);
        protocols.first().copied().filter(|_| protocols.len() == 1)
    }

    /// The only port of a protocol, if there is only one, because the kernel can filter by a single port.
    fn only_port(&self, protocol: u8) -> Option<u16> {
        let mut ports = self.singles.keys().filter(|(of, _)| *of == protocol);
        let has_run = self.runs.iter().any(|(host, _)| host.protocol.number() == protocol);
        match (ports.next(), ports.next(), has_run) {
            (Some((_, port)), None, false) => Some(*port),
            _ => None,
        }
    }

    /// The only container to which flows of the family lead, if the targets name no other flows.
    fn only_container(&self, family: AddressFamily) -> Option<IpAddr> {
        let container = |which: Selection| match which {
            Selection::NotTo(_) => None,
            Selection::To(container) | Selection::ToVanished(container) => Some(container),
        };
        let mut all =
            self.all().filter(|(host, _)| host.address.family() == family).map(|one| container(one.1));
        let first = all.next()??;
        all.all(|one| one == Some(first)).then_some(first)
    }

    fn include(&self, flow: &Flow) -> bool {
        let to = flow.original;
        let meant = |(host, which): &Target| {
            host.protocol.number() == to.protocol
                && (host.first..=host.last).contains(&to.destination_port)
                && which.includes(flow)
                && self.is_at(host.address, to.destination)
        };
        let singles = self.singles.get(&(to.protocol, to.destination_port));
        singles.into_iter().flatten().any(meant) || self.runs.iter().any(meant)
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

/// Reads the node's own addresses. If that fails, only flows to loopback addresses are removed.
fn local_addresses() -> BTreeSet<IpAddr> {
    // getifaddrs(3) of glibc starts anew whenever a link was added meanwhile, so it may never end on a busy node.
    let read = || -> Result<BTreeSet<IpAddr>, RouteError> {
        let socket = RouteSocket::open()?;
        // Flows to the address of a Service belong to the engine that translates it.
        let of_services: Vec<u32> =
            service_links::present(&socket)?.into_iter().map(|link| link.index).collect();
        let all = socket.all_addresses()?.into_iter();
        let own = all.filter(|address| !of_services.contains(&address.link));
        Ok(own.map(|address| address.net.addr()).collect())
    };
    read().unwrap_or_else(|error| {
        log::warn!("{error}; earlier flows to published ports keep their translation");
        BTreeSet::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(protocol: Protocol, address: &str, first: u16, last: u16) -> HostPorts {
        HostPorts { protocol, address: HostAddress::One(address.parse().unwrap()), first, last }
    }

    fn to(container: &str) -> Selection {
        Selection::ToVanished(container.parse().unwrap())
    }

    fn flow(protocol: Protocol, destination: &str, port: u16, container: &str) -> Flow {
        let tuple =
            |source: &str, destination: &str, source_port, destination_port| cni_nftables::conntrack::Tuple {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                protocol: protocol.number(),
                source_port,
                destination_port,
            };
        Flow {
            original: tuple("192.0.2.9", destination, 4000, port),
            reply: tuple(container, "192.0.2.9", 80, 4000),
            status: 0,
            zone: 0,
            counted: None,
            tcp_state: None,
        }
    }

    #[test]
    fn flows_are_those_of_the_same_protocol_address_port_and_container() {
        let ports = [(port(Protocol::Sctp, "192.0.2.1", 80, 80), to("10.1.1.2"))];
        let targets = Targets::new(&ports);
        assert!(targets.include(&flow(Protocol::Sctp, "192.0.2.1", 80, "10.1.1.2")));
        for other in [
            flow(Protocol::Tcp, "192.0.2.1", 80, "10.1.1.2"),
            flow(Protocol::Udp, "192.0.2.1", 80, "10.1.1.2"),
            flow(Protocol::Sctp, "192.0.2.2", 80, "10.1.1.2"),
            flow(Protocol::Sctp, "192.0.2.1", 81, "10.1.1.2"),
            flow(Protocol::Sctp, "192.0.2.1", 80, "10.1.1.3"),
        ] {
            assert!(!targets.include(&other), "{other:?}");
        }
    }

    #[test]
    fn a_publishing_ends_no_connection_of_tcp() {
        let elsewhere = Selection::NotTo("10.1.1.2".parse().unwrap());
        let published = Protocol::ALL.map(|protocol| (port(protocol, "192.0.2.1", 80, 80), elsewhere));
        let targets = Targets::new(&published);
        for (protocol, ends) in [(Protocol::Tcp, false), (Protocol::Udp, true), (Protocol::Sctp, true)] {
            assert_eq!(targets.include(&flow(protocol, "192.0.2.1", 80, "10.1.1.9")), ends, "{protocol:?}");
        }
        assert!(Targets::new(&published[..1]).is_empty());
    }

    #[test]
    fn the_kernel_leaves_out_what_it_can() {
        let all = Filter::all;
        let (v4, v6) = (Some(AddressFamily::V4), Some(AddressFamily::V6));
        let container = Some("10.1.1.2".parse().unwrap());
        let one = [(port(Protocol::Tcp, "192.0.2.1", 80, 80), to("10.1.1.2"))];
        let tcp = Some(Protocol::Tcp.number());
        let wanted = Filter { protocol: tcp, port: Some(80), reply_source: container, ..all(v4) };
        assert_eq!(Targets::new(&one).filters(Size::Large), [wanted]);
        let both = [one[0], (port(Protocol::Udp, "192.0.2.1", 53, 60), to("10.1.1.2"))];
        let wanted = Filter { reply_source: container, ..all(v4) };
        assert_eq!(Targets::new(&both).filters(Size::Large), [wanted]);
        let six = to("fd00::2");
        let both = [
            (port(Protocol::Tcp, "fd00::1", 80, 80), six),
            (port(Protocol::Tcp, "fd00::1", 81, 81), six),
            (port(Protocol::Sctp, "fd00::1", 82, 82), six),
        ];
        let reply_source = Some("fd00::2".parse().unwrap());
        let filter = |protocol: Protocol, port| Filter {
            protocol: Some(protocol.number()),
            port,
            reply_source,
            ..all(v6)
        };
        let wanted = [filter(Protocol::Tcp, None), filter(Protocol::Sctp, Some(82))];
        assert_eq!(Targets::new(&both).filters(Size::Large), wanted);
        let dual = [one[0], both[0]];
        assert_eq!(Targets::new(&dual).filters(Size::Small), [Filter { protocol: tcp, ..all(None) }]);
        assert_eq!(Targets::new(&dual).filters(Size::Large).len(), 2);
    }
}
