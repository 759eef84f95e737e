// SPDX-License-Identifier: GPL-2.0-or-later

//! Packets that the programs carried, and the ports of the containers whose links have the programs.

use std::net::SocketAddr;

use cni_kernel::route::RouteSocket;

use super::{links, setup};
use crate::{BackendName, Error, HostAddress, Listed, Owner, Traffic};

/// Sets the backend of listed ports to eBPF where a container's link has the programs.
///
/// # Errors
/// [`Error::Kernel`] if links or their programs cannot be listed.
pub(crate) fn name_served(all: &mut [Listed]) -> Result<(), Error> {
    if setup::find().is_none() {
        return Ok(());
    }
    let socket = RouteSocket::open().map_err(|e| Error::kernel("reach rtnetlink", e))?;
    let (mut owners, mut addresses) = (Vec::new(), Vec::new());
    for link in links::with_programs(&socket)? {
        match Owner::from_comment(&link.alias) {
            Some(owner) => owners.push(owner),
            // An uplink, or the link of a container that the reference plugins made. The other end may be gone.
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

/// Adds the packets that the programs carried to flows that conntrack counts, if it counts.
///
/// # Errors
/// [`Error::Kernel`] if the maps cannot be read.
pub(crate) fn add_traffic(listed: &[Listed], traffic: &mut [Traffic]) -> Result<(), Error> {
    if listed.iter().all(|one| one.backend != BackendName::Ebpf) {
        return Ok(());
    }
    let Some(store) = setup::find() else { return Ok(()) };
    for direction in store.directions()? {
        let (asked, reached) = (direction.before, direction.after);
        // The reverse direction goes from where the first one goes to.
        let ways = [(asked.1, reached.1), (reached.0, asked.0)];
        for (one, sum) in listed.iter().zip(traffic.iter_mut()) {
            if let Some((packets, bytes)) = &mut sum.counted
                && ways.iter().any(|(asked, reached)| leads(direction.protocol, *asked, *reached, one))
            {
                *packets = packets.saturating_add(direction.packets);
                *bytes = bytes.saturating_add(direction.bytes);
            }
        }
    }
    Ok(())
}

/// True if a mapping translates one destination into the other.
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
