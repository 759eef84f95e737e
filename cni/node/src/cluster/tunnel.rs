// SPDX-License-Identifier: GPL-3.0-or-later

//! The VXLAN link to nodes that are not on an uplink: its device, and for each of these nodes one FDB entry (the
//! device's Ethernet address and the node's address) and a neighbour for each next hop.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;

use cni_dataplane::owner::{MADE, is_own_link};
use cni_dataplane::tunnel_guard::TunnelGuard;
use cni_kernel::AddressFamily;
use cni_kernel::mac::Mac;
use cni_kernel::route::{
    DuplicateDetection, FdbEntry, Link, LinkChange, LinkKind, Neighbour, NewKind, NewLink, RouteError,
    RouteSocket, Vxlan,
};
use cni_state::agent::VXLAN_LINK;
use ipnet::IpNet;

use super::desired::{Desired, Tunnel, TunnelPeer, TunnelSenders, Uplink};
use crate::host::bridge::is_foreign;

/// The device's name.
pub const DEVICE: &str = VXLAN_LINK;

/// The tunnel, or a part of it, cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// A call of the kernel failed.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// Another program's link has the name.
    #[error("a link {DEVICE:?} exists that Slipway did not make")]
    Foreign,
}

/// Makes the device, or changes it; one with another VNI, port or address is replaced. `subnets` are the node's
/// own: their network addresses are the device's, so that the node's own packets to pods have a source to which
/// the other node's answer goes back through the tunnel.
///
/// # Errors
/// [`TunnelError`].
pub(super) fn ensure(
    socket: &RouteSocket,
    tunnel: &Tunnel,
    mac: Mac,
    mtu: u32,
    subnets: &[IpNet],
) -> Result<Link, TunnelError> {
    let kind = Vxlan {
        vni: tunnel.vni,
        port: tunnel.port.get(),
        underlay: Some(tunnel.link),
        local: Some(tunnel.local),
        learning: false,
    };
    let device = match socket.find_link(DEVICE)? {
        Some(link) if link.kind == LinkKind::Vxlan(kind) && !is_foreign(&link) => link,
        Some(link) if link.alias != MADE => return Err(TunnelError::Foreign),
        other => {
            if let Some(old) = other {
                socket.delete_link(&old)?;
            }
            let new = NewLink {
                name: DEVICE,
                kind: NewKind::Vxlan(kind),
                below: None,
                netns: None,
                mac: Some(mac),
                mtu: Some(mtu),
            };
            socket.create_link(&new)?;
            socket.link(DEVICE)?
        }
    };
    let mut change = LinkChange::new();
    if device.alias != MADE {
        change = change.alias(MADE);
    }
    if device.mac != Some(mac) {
        change = change.mac(mac);
    }
    if device.mtu != mtu {
        change = change.mtu(mtu);
    }
    if !device.up {
        change = change.up();
    }
    if !change.is_empty() {
        socket.change_link(&device, &change)?;
    }
    set_addresses(socket, &device, subnets)?;
    Ok(device)
}

/// Gives a device the network addresses of the subnets, and no others.
pub(super) fn set_addresses(
    socket: &RouteSocket,
    device: &Link,
    subnets: &[IpNet],
) -> Result<(), RouteError> {
    let wanted: BTreeSet<IpNet> = subnets.iter().map(|net| IpNet::from(net.network())).collect();
    let mut present = BTreeSet::new();
    for address in socket.addresses(device)?.into_iter().filter(|address| address.global) {
        if wanted.contains(&address.net) {
            present.insert(address.net);
        } else {
            gone(socket.delete_address(device, address.net))?;
        }
    }
    for net in wanted.difference(&present) {
        match socket.add_address(device, *net, DuplicateDetection::Skip) {
            Err(error) if !error.already_exists() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Sets FDB entries and neighbours of the device, and deletes others if `prune`. A failed call does not keep the
/// others back. Returns the errors, each with the family of the pods that it is about; none if it is about both.
pub(super) fn set_peers(
    socket: &RouteSocket,
    device: &Link,
    tunnel: &Tunnel,
    prune: bool,
) -> Vec<(Option<AddressFamily>, RouteError)> {
    let mut errors = Vec::new();
    let of_both = |error: RouteError| (None, error);
    let of_hop = |hop: IpAddr| move |error: RouteError| (Some(AddressFamily::of(hop)), error);
    let of_peer = |peer: &TunnelPeer| {
        let port = (peer.port != tunnel.port).then_some(peer.port.get());
        (peer.mac, FdbEntry { port, ..FdbEntry::new(peer.mac, peer.address) })
    };
    let remotes: BTreeMap<Mac, FdbEntry> = tunnel.peers.iter().map(of_peer).collect();
    let hops: BTreeMap<IpAddr, Mac> = tunnel
        .peers
        .iter()
        .flat_map(|peer| peer.gateways.iter().map(|gateway| (*gateway, peer.mac)))
        .collect();
    match socket.fdb_entries(device) {
        Ok(shown) => {
            let is_right = |entry: &FdbEntry| remotes.get(&entry.mac) == Some(entry);
            let wrong: BTreeSet<Mac> =
                shown.iter().filter(|entry| !is_right(entry)).map(|entry| entry.mac).collect();
            for mac in &wrong {
                if prune || remotes.contains_key(mac) {
                    errors.extend(gone(socket.delete_fdb_entry(device, *mac)).err().map(of_both));
                }
            }
            let right: BTreeSet<Mac> =
                shown.iter().map(|entry| entry.mac).filter(|mac| !wrong.contains(mac)).collect();
            for (_, entry) in remotes.iter().filter(|(mac, _)| !right.contains(mac)) {
                errors.extend(socket.set_fdb_entry(device, *entry).err().map(of_both));
            }
        }
        Err(error) => errors.push(of_both(error)),
    }
    match socket.neighbours(device) {
        Ok(shown) => {
            for neighbour in shown.iter().filter(|one| prune && !hops.contains_key(&one.address)) {
                let deleted = gone(socket.delete_neighbour(device, neighbour.address));
                errors.extend(deleted.err().map(of_hop(neighbour.address)));
            }
            for (address, mac) in hops {
                let new = Neighbour { address, mac };
                if !shown.contains(&new) {
                    errors.extend(socket.set_neighbour(device, new).err().map(of_hop(address)));
                }
            }
        }
        Err(error) => errors.push(of_both(error)),
    }
    errors
}

/// The guard of the nodes' devices and of encrypted paths; none if there are neither. Packets of other nodes may come
/// in on any link, except for those that lead to pods only: what Slipway has made for all containers, and, unless they
/// are uplinks, links of attachments, bridges and veths. The uplink of a node that is itself a container of Slipway is
/// the link of an attachment.
///
/// `port` is this node's, and counts for the devices of other nodes, too, whatever they announce. Otherwise a hostile
/// kubelet could announce the address and port of a name server, and no pod could send to that any more.
pub(super) fn guard(
    desired: &Desired,
    port: NonZeroU16,
    links: &[Link],
    uplinks: &[Uplink],
    bridge: &str,
) -> Option<TunnelGuard> {
    let TunnelSenders { own, nodes, ends, encrypted } = &desired.senders;
    if desired.senders == TunnelSenders::default() {
        return None;
    }
    let is_of_pods = |link: &&Link| {
        let is_uplink = uplinks.iter().any(|uplink| uplink.index == link.index);
        [bridge, "lo"].contains(&link.name.as_str())
            || link.alias == MADE
            || !is_uplink
                && (is_own_link(&link.alias) || matches!(link.kind, LinkKind::Veth | LinkKind::Bridge))
    };
    Some(TunnelGuard {
        links: links.iter().filter(|link| !is_of_pods(link)).map(|link| link.name.clone()).collect(),
        ports: desired.tunnel.iter().map(|tunnel| tunnel.port.get()).collect(),
        own: own.clone(),
        nodes: nodes.clone(),
        ends: ends.iter().map(|address| (*address, port.get())).collect(),
        pods: encrypted.clone(),
    })
}

/// Deletes the device, if Slipway made it. True if it was there.
///
/// # Errors
/// [`RouteError`] if the kernel refuses.
pub(super) fn remove(socket: &RouteSocket) -> Result<bool, RouteError> {
    match socket.find_link(DEVICE)? {
        Some(link) if link.alias == MADE => gone(socket.delete_link(&link)).map(|()| true),
        _ => Ok(false),
    }
}

/// Takes the deletion of something that is already gone for a success.
pub(super) fn gone(done: Result<(), RouteError>) -> Result<(), RouteError> {
    match done {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
