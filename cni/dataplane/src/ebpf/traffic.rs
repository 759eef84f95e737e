// SPDX-License-Identifier: GPL-2.0-or-later

//! Packets that the programs have carried, and the ports of containers whose links have the programs.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use cni_kernel::route::RouteSocket;

use super::store::CarriedFlow;
use super::{links, setup};
use crate::{BackendName, Error, Flows, HostAddress, Listed, Owner};

/// Sets the backend of listed ports to eBPF where a container's link has the programs.
pub(crate) fn name_served(all: &mut [Listed]) -> Result<(), Error> {
    if setup::find()?.is_none() {
        return Ok(());
    }
    let socket = RouteSocket::open().map_err(|e| Error::kernel("reach rtnetlink", e))?;
    let (mut owners, mut addresses) = (Vec::new(), Vec::new());
    for link in links::with_programs(&socket)? {
        match Owner::from_comment(&link.alias) {
            Some(owner) => owners.push(owner),
            // The link is an uplink, or the reference plugins made it for a container. Its peer may be gone.
            None => addresses.extend(socket.peer_addresses(&link).unwrap_or_default()),
        }
    }
    let is_served = |one: &Listed| {
        one.owner.as_ref().is_some_and(|owner| owners.contains(owner))
            || addresses.iter().any(|address| address.net.addr() == one.port.container)
    };
    for one in all.iter_mut().filter(|one| one.backend == BackendName::Nftables) {
        if is_served(one) {
            one.backend = BackendName::Ebpf;
        }
    }
    Ok(())
}

/// Adds the packets that the programs have carried to the flows from conntrack, unless conntrack does not count.
pub(crate) fn add_traffic(listed: &[Listed], all: &mut Flows) -> Result<(), Error> {
    if listed.iter().all(|one| one.backend != BackendName::Ebpf) {
        return Ok(());
    }
    let Some(store) = setup::find()? else { return Ok(()) };
    add_carried(listed, &store.directions()?, all);
    Ok(())
}

fn add_carried(listed: &[Listed], directions: &[CarriedFlow], all: &mut Flows) {
    let mut by_container = HashMap::<IpAddr, Vec<usize>>::new();
    for (index, one) in listed.iter().enumerate() {
        by_container.entry(one.port.container).or_default().push(index);
    }
    let by_ends = all.index();
    for direction in directions {
        let CarriedFlow { protocol, before: asked, after: reached, packets, bytes } = *direction;
        // The destination, the translated destination and the client. The second line is for replies, whose source
        // after translation is the destination that the client asked for.
        for (asked, reached, client) in [(asked.1, reached.1, asked.0), (reached.0, asked.0, reached.1)] {
            let at = by_container.get(&reached.ip()).into_iter().flatten();
            let leads =
                |index: &usize| listed.get(*index).is_some_and(|one| leads(protocol, asked, reached, one));
            let through: Vec<usize> = at.copied().filter(leads).collect();
            for index in &through {
                if let Some(sum) = all.traffic.get_mut(*index).and_then(|one| one.counted.as_mut()) {
                    *sum = (sum.0.saturating_add(packets), sum.1.saturating_add(bytes));
                }
            }
            if through.is_empty() {
                continue;
            }
            if let Some(flow) =
                by_ends.get(&(protocol, client, asked)).and_then(|index| all.flows.get_mut(*index))
            {
                flow.carry(packets, bytes);
            }
            break;
        }
    }
}

/// True if the mapping translates `asked` into `reached`.
fn leads(protocol: u8, asked: SocketAddr, reached: SocketAddr, listed: &Listed) -> bool {
    let port = &listed.port;
    let offset = asked.port().wrapping_sub(port.host.first);
    protocol == port.host.protocol.number()
        && (port.host.first..=port.host.last).contains(&asked.port())
        && reached == SocketAddr::new(port.container, port.container_port.wrapping_add(offset))
        && match port.host.address {
            HostAddress::One(address) => address == asked.ip(),
            HostAddress::Any(_) => true,
        }
}
