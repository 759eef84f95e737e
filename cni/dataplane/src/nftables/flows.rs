//! UDP flows that began before a port was published, or outlive its container.
//!
//! A flow's translation is decided by its first packet. A UDP client that goes on sending from one
//! port keeps its flow alive, and with it the translation, or the lack of one, of before.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use cni_nftables::conntrack::{Conntrack, Filter, Flow, FlowFamily};

use crate::{AddressFamily, Error, HostAddress, HostPorts, Protocol};

/// The family as conntrack names it.
pub(crate) fn flow_family(family: AddressFamily) -> FlowFamily {
    match family {
        AddressFamily::V4 => FlowFamily::Ipv4,
        AddressFamily::V6 => FlowFamily::Ipv6,
    }
}

/// Whose flows go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those that do not lead to this container.
    NotTo(IpAddr),
    /// Those that lead to this container.
    To(IpAddr),
}

impl Which {
    fn includes(self, flow: &Flow) -> bool {
        match self {
            Self::NotTo(container) => flow.reply.source != container,
            Self::To(container) => flow.reply.source == container,
        }
    }
}

/// Removes the UDP flows to these host ports, and to no other address or port.
///
/// # Errors
/// What conntrack said.
pub(crate) fn flush(ports: &[(HostPorts, Which)]) -> Result<usize, Error> {
    let udp: Vec<_> = ports.iter().filter(|(host, _)| host.protocol == Protocol::Udp).collect();
    if udp.is_empty() {
        return Ok(0);
    }
    let conntrack = Conntrack::open().map_err(|e| Error::kernel("reach conntrack", e))?;
    let local = local_addresses();
    let mut flushed = 0;
    for (host, which) in udp {
        flushed += flush_one(&conntrack, host, (*which, &local))?;
    }
    Ok(flushed)
}

fn flush_one(
    conntrack: &Conntrack,
    host: &HostPorts,
    (which, local): (Which, &BTreeSet<IpAddr>),
) -> Result<usize, Error> {
    let filter = Filter {
        family: flow_family(host.address.family()),
        protocol: Some(host.protocol.number()),
        destinations: match host.address {
            HostAddress::One(address) => vec![address],
            HostAddress::Any(_) => Vec::new(),
        },
        // One pass for a run, as each goes through the kernel's whole table.
        port: (host.len() == 1).then_some(host.first),
        reply_source: match which {
            Which::To(container) => Some(container),
            Which::NotTo(_) => None,
        },
    };
    let failed = |e| Error::kernel(format!("flush the flows to {host}"), e);
    let mut found: BTreeSet<SocketAddr> = BTreeSet::new();
    let here = |address: IpAddr| match host.address {
        HostAddress::One(one) => address == one,
        HostAddress::Any(_) => address.is_loopback() || local.contains(&address),
    };
    let collect = |flow: &Flow| {
        let to = flow.original;
        if (host.first..=host.last).contains(&to.destination_port)
            && here(to.destination)
            && which.includes(flow)
        {
            found.insert(SocketAddr::new(to.destination, to.destination_port));
        }
    };
    conntrack.for_each(&filter, collect).map_err(failed)?;
    let mut flushed = 0;
    for to in found {
        let exact = Filter { destinations: vec![to.ip()], port: Some(to.port()), ..filter.clone() };
        flushed += conntrack.delete(&exact).map_err(failed)?;
    }
    Ok(flushed)
}

/// The node's own addresses. Without them, flows to all addresses but the loopback are left alone.
fn local_addresses() -> BTreeSet<IpAddr> {
    let all = match nix::ifaddrs::getifaddrs() {
        Ok(all) => all,
        Err(errno) => {
            log::warn!("list the node's addresses: {errno}; UDP flows from before may go on as they were");
            return BTreeSet::new();
        }
    };
    all.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    })
    .collect()
}
