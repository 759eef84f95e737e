// SPDX-License-Identifier: GPL-2.0-or-later

//! Adds containers to the maps without taking flows from netfilter.
//!
//! A flow stays in one plane, conntrack's or the programs', for its whole life. A container that has sent or
//! received packets may have flows in conntrack, so it is *held* at first: the programs leave its new flows
//! to netfilter and remember them. When every packet that a program handled before is through, conntrack's
//! flows are [imported](super::conntrack_import), and the container is released.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

use cni_kernel::netns::Netns;
use cni_kernel::route::{Link, LinkKind, RouteError, RouteSocket};
use cni_spec::Attachment;
use ipnet::IpNet;
use slipway_ebpf_abi::{EXEMPT_SHIFT, HELD, LEFT, MASQUERADED, Pod, PodAddress, Router, maps};

use super::attach::{self, Before, Use};
use super::config;
use super::pins::Pins;
use super::tables::{PodId, Tables};
use crate::firewall;
use crate::{AddressFamily, ContainerNetns, Error, IngressPolicy, MasqueradeRequest};

/// A container in the maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Adopted {
    pub(super) id: PodId,
    pub(super) addresses: Vec<IpAddr>,
    /// True while its new flows are left to netfilter.
    pub(super) is_held: bool,
}

/// Generations of containers by the index of their links.
pub(super) type Pods = BTreeMap<u32, u32>;

/// A choice to hold a container until conntrack's flows are imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Hold it.
    Yes,
    /// It has had no flow yet.
    No,
}

impl Hold {
    /// The choice for a container in this namespace.
    pub(super) fn needed(inside: &Netns) -> Self {
        if has_had_flows(inside) { Self::Yes } else { Self::No }
    }
}

/// A container to add to the maps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adoption<'a> {
    pub(super) attachment: &'a Attachment,
    /// The host end of its veth.
    pub(super) link: &'a Link,
    pub(super) addresses: &'a [IpNet],
    /// The masquerade of the addresses, if the programs are to masquerade them.
    pub(super) masquerade: Option<&'a MasqueradeRequest>,
    pub(super) hold: Hold,
}

/// Attaches the program to the container's link and writes the container to the maps. A link that had no
/// program is a new one: entries of its index are of another container. It gets another generation, so that
/// no old flow reaches the new container. A rate limit or isolation is looked for each time, as it may
/// precede this ADD.
pub(super) fn adopt(
    pins: &Pins,
    tables: &mut Tables,
    Adoption { attachment, link, addresses, masquerade, hold }: Adoption<'_>,
) -> Result<Adopted, Error> {
    let program = config::programs(pins)?.join(maps::programs::POD_INGRESS);
    let used = if hold == Hold::Yes { Use::Busy } else { Use::None };
    let before = attach::attach(&link.name, &program, used)?;
    let mut noted = if is_limited(link)? || is_isolated(attachment)? { LEFT } else { 0 };
    if hold == Hold::Yes {
        noted |= HELD;
    }
    let mut pod = Pod { generation: random(), mtu: link.mtu, flags: noted, pad: 0 };
    tables.change_pod(link.index, |known| {
        if let Some(known) = known.filter(|_| before == Before::Replaced) {
            pod.generation = known.generation;
            pod.flags |= known.flags;
        }
        Some(pod)
    })?;
    let Pod { generation, flags, .. } = pod;
    put_router(tables, link, generation)?;
    // Until the number of a list is in an address, GC would remove the list.
    let lock = pins.lock();
    for network in addresses {
        let is_own = |entry: &PodAddress| PodId::from(entry) == PodId { link: link.index, generation };
        let old = tables.address(network.addr())?.filter(is_own);
        let flags = match masquerade {
            Some(request) => {
                let family = AddressFamily::of(network.addr());
                MASQUERADED | tables.exempt_list(family, &request.exempt_of(family))? << EXEMPT_SHIFT
            }
            None => old.map_or(0, |entry| entry.flags),
        };
        let prefix = network.prefix_len().into();
        tables.put_address(network.addr(), PodAddress { pod: link.index, generation, flags, prefix })?;
    }
    drop(lock);
    let addresses = addresses.iter().map(IpNet::addr).collect();
    let id = PodId { link: link.index, generation };
    Ok(Adopted { id, addresses, is_held: flags & HELD != 0 })
}

/// Writes the link-layer address to which the container sends packets that the node forwards: that of its
/// link's bridge, or of the link. Without such an entry the programs do not compare it.
pub(super) fn put_router(tables: &mut Tables, link: &Link, generation: u32) -> Result<(), Error> {
    let failed = |e| Error::kernel(format!("look for the bridge that {} belongs to", link.name), e);
    let mac = match link.master {
        None => link.mac,
        Some(master) => match RouteSocket::open().and_then(|socket| socket.link_by_index(master)) {
            Ok(master) if master.kind == LinkKind::Bridge => master.mac,
            // A VRF: its ports have their own addresses.
            Ok(_) => link.mac,
            // The bridge was removed concurrently.
            Err(e) if e.is_not_found() => return Ok(()),
            Err(e) => return Err(failed(e)),
        },
    };
    let Some(mac) = mac else { return Ok(()) };
    let [a, b, c, d, e, f] = mac.0;
    let mac = [[a, b], [c, d], [e, f]].map(u16::from_ne_bytes);
    tables.put_router(link.index, Router { generation, mac, pad: 0 })
}

/// Releases a held container. One that was removed concurrently is not added again.
pub(super) fn release(tables: &mut Tables, pod: &Adopted) -> Result<(), Error> {
    tables.change_pod(pod.id.link, with_flags(pod.id, |flags| flags & !HELD))
}

/// Holds a container: its new flows are left to netfilter.
pub(super) fn hold(tables: &mut Tables, pod: PodId) -> Result<(), Error> {
    tables.restrict_pod(pod.link, with_flags(pod, |flags| flags | HELD))
}

/// The change of a pod's flags, unless the link is another pod's now.
fn with_flags(id: PodId, to: impl Fn(u32) -> u32) -> impl FnOnce(Option<Pod>) -> Option<Pod> {
    move |known| {
        known.map(
            |pod| if pod.generation == id.generation { Pod { flags: to(pod.flags), ..pod } } else { pod },
        )
    }
}

/// True if the rate of a link is limited: the programs would bypass the limit.
pub(super) fn is_limited(link: &Link) -> Result<bool, Error> {
    let failed = |e: RouteError| Error::kernel(format!("ask for the limits of {}", link.name), e);
    let socket = RouteSocket::open().map_err(failed)?;
    let queue = socket.token_bucket(link).map_err(failed)?;
    Ok(queue.is_some() || !socket.redirections(link).map_err(failed)?.is_empty())
}

/// True if the firewall plugin isolates a container: the programs would bypass its rules.
pub(super) fn is_isolated(attachment: &Attachment) -> Result<bool, Error> {
    Ok(firewall::held(attachment)?.is_some_and(|held| held.policy != IngressPolicy::Open))
}

/// A random number other than 0.
fn random() -> u32 {
    let drawn = RandomState::new().build_hasher().finish();
    let [a, b, c, d, ..] = drawn.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d]).max(1)
}

/// Finds the host end of a container's veth, and opens the container's namespace; none if its interface is no
/// veth.
pub(super) fn host_end(netns: &ContainerNetns, ifname: &str) -> Result<Option<(Link, Netns)>, Error> {
    let failed = |e: Box<dyn std::error::Error + Send + Sync>| {
        Error::kernel(format!("find the host's end of {ifname} in {}", netns.path.display()), e)
    };
    let inside = Netns::open(&netns.path).map_err(|e| failed(e.into()))?;
    let socket = RouteSocket::open_in(&inside).map_err(|e| failed(e.into()))?;
    let own = socket.link(ifname).map_err(|e| failed(e.into()))?;
    let Some(peer) = own.peer.filter(|_| own.kind == LinkKind::Veth) else { return Ok(None) };
    let socket = RouteSocket::open().map_err(|e| failed(e.into()))?;
    match socket.link_by_index(peer) {
        // If the other end is in a third namespace, the index is that of another link here.
        Ok(link) if link.kind == LinkKind::Veth && link.peer == Some(own.index) => Ok(Some((link, inside))),
        Ok(_) => Ok(None),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(failed(e.into())),
    }
}

/// True if this namespace has ever had a flow (TCP, UDP or a ping), or if its counters cannot be read. Saves
/// reading the kernel's table of flows for a new container.
fn has_had_flows(inside: &Netns) -> bool {
    // `/proc/self` shows the namespace of the process's first thread.
    let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let texts = inside.run(|| ["snmp", "sockstat", "snmp6", "sockstat6"].map(read));
    match texts {
        Ok([Ok(v4), Ok(sockets), v6, sockets6]) => {
            let v6 = v6.unwrap_or_default() + &sockets6.unwrap_or_default();
            !counts(&v4).chain(words(&sockets)).chain(words(&v6)).all(|(_, count)| count == 0)
        }
        _ => true,
    }
}

/// The counters of /proc/net/snmp; those of IPv6 are in snmp6.
const COUNTS: [&str; 6] = [
    "Tcp: ActiveOpens",
    "Tcp: PassiveOpens",
    "Udp: InDatagrams",
    "Udp: OutDatagrams",
    "Icmp: InEchos",
    "Icmp: OutEchos",
];
const COUNTS6: [&str; 4] = ["Udp6InDatagrams", "Udp6OutDatagrams", "Icmp6InEchos", "Icmp6OutEchos"];
/// Sockets may hold datagrams that are not read yet, and not counted.
const SOCKETS: [&str; 2] = ["UDP: inuse", "UDP6: inuse"];

/// Reads pairs of lines, names and values: `Tcp: ActiveOpens …`, `Tcp: 3 …`.
fn counts(text: &str) -> impl Iterator<Item = (String, u64)> {
    let lines: Vec<&str> = text.lines().collect();
    let pairs: Vec<(String, u64)> = lines
        .chunks_exact(2)
        .filter_map(|pair| Some((pair.first()?.split_once(' ')?, pair.get(1)?.split_once(' ')?)))
        .flat_map(|((part, names), (_, values))| {
            let values = values.split(' ').map(|value| value.parse().unwrap_or_default());
            names.split(' ').zip(values).map(move |(name, value)| (format!("{part} {name}"), value))
        })
        .filter(|(name, _)| COUNTS.contains(&name.as_str()))
        .collect();
    pairs.into_iter()
}

/// Reads lines such as `Udp6InDatagrams   0` or `UDP6: inuse 0`.
fn words(text: &str) -> impl Iterator<Item = (String, u64)> {
    text.lines().filter_map(|line| {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.truncate(if words.first()?.ends_with(':') { 3 } else { 2 });
        let value = words.pop()?.parse().ok()?;
        let name = words.join(" ");
        (COUNTS6.contains(&name.as_str()) || SOCKETS.contains(&name.as_str())).then_some((name, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_the_kernels_texts() {
        let snmp = "Ip: Forwarding InReceives\nIp: 1 7\nTcp: RtoAlgorithm ActiveOpens PassiveOpens\nTcp: 1 3 0\n\
            Udp: InDatagrams NoPorts OutDatagrams\nUdp: 0 4 5\n";
        let found: Vec<(String, u64)> = counts(snmp).collect();
        let named = |name: &str, count| (name.to_owned(), count);
        assert_eq!(
            found,
            [
                named("Tcp: ActiveOpens", 3),
                named("Tcp: PassiveOpens", 0),
                named("Udp: InDatagrams", 0),
                named("Udp: OutDatagrams", 5)
            ]
        );
        let v6 = "Ip6InReceives   \t9\nUdp6InDatagrams  \t2\nTCP6: inuse 3\nUDP6: inuse 1\nFRAG6: inuse 0 memory 0\n";
        let found: Vec<(String, u64)> = words(v6).collect();
        assert_eq!(found, [named("Udp6InDatagrams", 2), named("UDP6: inuse", 1)]);
        assert_eq!(
            words("sockets: used 4\nUDP: inuse 0 mem 0\n").collect::<Vec<_>>(),
            [named("UDP: inuse", 0)]
        );
    }

    #[test]
    fn a_namespace_with_an_open_socket_has_had_flows() {
        // The test's own namespace has had flows, or cannot be read.
        let current = Netns::current().unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(has_had_flows(&current));
        drop(socket);
    }
}
