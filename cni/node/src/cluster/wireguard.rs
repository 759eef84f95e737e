// SPDX-License-Identifier: GPL-3.0-or-later

//! The WireGuard link to all other nodes: its device with this node's key, and a peer for each node.
//!
//! # Keepalive
//! Keepalive is not set, because nodes reach each other without address translation, so no state between them expires,
//! and a pair of nodes without traffic costs nothing.
//!
//! # Endpoints
//! The kernel sends to the source of a peer's last authenticated packet, which may be any of the node's addresses. An
//! endpoint is set only if the present one is none of these, or has another port than the announced one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cni_dataplane::owner::MADE;
use cni_kernel::route::{
    Link, LinkChange, LinkKind, NewKind, NewLink, Peer, PeerChange, PublicKey, RouteError, RouteSocket,
    WireGuardDevice, WireGuardSocket,
};
use cni_state::agent::WIREGUARD_LINK;
use ipnet::IpNet;
use nix::errno::Errno;

use super::desired::{WireGuard, WireGuardPeer};
use super::key::{self, KeyError};
use super::tunnel::{gone, set_addresses};
use crate::host::bridge::is_foreign;

/// The device's name.
pub const DEVICE: &str = WIREGUARD_LINK;

/// The device, or a part of it, cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum WireGuardError {
    /// A call of the kernel failed.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// This node has no private key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The kernel has no WireGuard.
    #[error(
        "this kernel has no WireGuard (Linux 5.6 and later have it, as module \"wireguard\"): packets to pods of other \
         nodes are refused, since --encrypt asks for encryption"
    )]
    NotInKernel,
    /// A link that Slipway did not make has the name.
    #[error("a link {DEVICE:?} exists that Slipway did not make")]
    Foreign,
    /// The kernel computes no public key.
    #[error("link {DEVICE} has no public key")]
    NoPublicKey,
}

/// The device with this node's key; its peers may be others than desired, and it may be down.
pub(super) struct PreparedDevice {
    link: Link,
    socket: WireGuardSocket,
    device: WireGuardDevice,
    /// This node's public key.
    pub(super) key: PublicKey,
}

impl PreparedDevice {
    /// The key of the peer that each prefix belongs to.
    pub(super) fn keys(&self) -> BTreeMap<IpNet, PublicKey> {
        let of_peer = |peer: &Peer| peer.allowed.iter().map(|net| (*net, peer.key)).collect::<Vec<_>>();
        self.device.peers.iter().flat_map(of_peer).collect()
    }
}

/// Makes the device if it is missing, and sets this node's key, which is in `directory`. If the key cannot be read, the
/// device keeps the one that it has.
///
/// # Errors
/// [`WireGuardError`].
pub(super) fn prepare(socket: &RouteSocket, directory: &Path) -> Result<PreparedDevice, WireGuardError> {
    let stored = key::load_or_make(directory);
    let link = device(socket)?;
    let wireguard = WireGuardSocket::open()?;
    let mut shown = wireguard.device(&link)?;
    match stored {
        Ok(private_key) if shown.private_key.as_ref() != Some(&private_key) => {
            wireguard.set_private_key(&link, &private_key)?;
            shown = wireguard.device(&link)?;
        }
        Ok(_) => {}
        // The other nodes know the key that the device has, and would remove this node as a peer if it announced none.
        Err(error) if shown.private_key.is_some() => log::warn!("{error}: {DEVICE} keeps its key"),
        Err(error) => return Err(error.into()),
    }
    let key = shown.public_key.ok_or(WireGuardError::NoPublicKey)?;
    Ok(PreparedDevice { link, socket: wireguard, device: shown, key })
}

/// The link, made if it is missing or of another kind.
fn device(socket: &RouteSocket) -> Result<Link, WireGuardError> {
    let link = match socket.find_link(DEVICE)? {
        Some(link) if link.kind == LinkKind::WireGuard && link.alias == MADE => return Ok(link),
        Some(link) if link.kind == LinkKind::WireGuard && !is_foreign(&link) => link,
        Some(link) if link.alias != MADE => return Err(WireGuardError::Foreign),
        other => {
            if let Some(old) = other {
                gone(socket.delete_link(&old))?;
            }
            create(socket)?
        }
    };
    socket.change_link(&link, &LinkChange::new().alias(MADE))?;
    Ok(socket.link(DEVICE)?)
}

fn create(socket: &RouteSocket) -> Result<Link, WireGuardError> {
    let new =
        NewLink { name: DEVICE, kind: NewKind::WireGuard, below: None, netns: None, mac: None, mtu: None };
    socket.create_link(&new).map_err(|error| match error.errno() {
        Some(Errno::EOPNOTSUPP) => WireGuardError::NotInKernel,
        _ => error.into(),
    })?;
    Ok(socket.link(DEVICE)?)
}

/// Sets the device's port, MTU and addresses, and brings it up. `subnets` are the node's own: their network addresses
/// are the device's, so that the node's own packets to pods have a source that the other node accepts.
///
/// # Errors
/// [`WireGuardError`].
pub(super) fn set_up(
    socket: &RouteSocket,
    ready: &PreparedDevice,
    wanted: &WireGuard,
    mtu: u32,
    subnets: &[IpNet],
) -> Result<Link, WireGuardError> {
    let PreparedDevice { link, device, .. } = ready;
    if device.port != wanted.port.get() {
        ready.socket.set_port(link, wanted.port.get())?;
    }
    let mut change = LinkChange::new();
    if link.mtu != mtu {
        change = change.mtu(mtu);
    }
    if !link.up {
        change = change.up();
    }
    if !change.is_empty() {
        socket.change_link(link, &change)?;
    }
    set_addresses(socket, link, subnets)?;
    Ok(link.clone())
}

/// Changes the peers that differ, and removes others if `prune`. Returns the numbers of peers that were set and
/// removed.
///
/// # Errors
/// [`RouteError`] if the kernel refuses.
pub(super) fn set_peers(
    ready: &PreparedDevice,
    wanted: &WireGuard,
    prune: bool,
) -> Result<(usize, usize), RouteError> {
    let changes = plan(&wanted.peers, &ready.device.peers, prune);
    if !changes.is_empty() {
        ready.socket.change_peers(&ready.link, &changes)?;
    }
    let removed = changes.iter().filter(|change| matches!(change, PeerChange::Remove(_))).count();
    Ok((changes.len() - removed, removed))
}

/// The changes that make the device have these peers; others stay unless `prune`.
///
/// Removals come first, so that a Node with a new key has its prefixes on the new peer afterwards. A peer that stays
/// and loses a prefix to another one loses it in the kernel, too.
fn plan(wanted: &[WireGuardPeer], shown: &[Peer], prune: bool) -> Vec<PeerChange> {
    let by_key: BTreeMap<PublicKey, &Peer> = shown.iter().map(|peer| (peer.key, peer)).collect();
    let kept: BTreeSet<PublicKey> = wanted.iter().map(|peer| peer.key).collect();
    let others = shown.iter().filter(|peer| prune && !kept.contains(&peer.key));
    let mut changes: Vec<PeerChange> = others.map(|peer| PeerChange::Remove(peer.key)).collect();
    changes.extend(wanted.iter().filter_map(|peer| set(peer, by_key.get(&peer.key).copied())));
    changes
}

/// The change of a peer, if it differs.
fn set(wanted: &WireGuardPeer, shown: Option<&Peer>) -> Option<PeerChange> {
    let is_endpoint = shown.and_then(|peer| peer.endpoint).is_some_and(|endpoint| {
        endpoint.port() == wanted.endpoint.port() && wanted.addresses.contains(&endpoint.ip())
    });
    let has_prefixes = shown.is_some_and(|peer| {
        let mut allowed = peer.allowed.clone();
        allowed.sort();
        allowed == wanted.prefixes
    });
    (!is_endpoint || !has_prefixes).then(|| PeerChange::Set {
        key: wanted.key,
        endpoint: (!is_endpoint).then_some(wanted.endpoint),
        allowed: (!has_prefixes).then(|| wanted.prefixes.clone()),
    })
}

/// Deletes the device, if Slipway made it, and this node's key. True if the device was there.
///
/// # Errors
/// [`WireGuardError`].
pub(super) fn remove(socket: &RouteSocket, directory: &Path) -> Result<bool, WireGuardError> {
    match socket.find_link(DEVICE)? {
        Some(link) if link.alias == MADE => {
            gone(socket.delete_link(&link))?;
            key::remove(directory)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn wanted(number: u8) -> WireGuardPeer {
        WireGuardPeer {
            node: format!("node-{number}").parse().unwrap(),
            key: PublicKey([number; 32]),
            endpoint: format!("192.0.2.{number}:51820").parse().unwrap(),
            addresses: vec![
                format!("192.0.2.{number}").parse().unwrap(),
                format!("2001:db8::{number}").parse().unwrap(),
            ],
            prefixes: vec![
                format!("10.244.{number}.0/24").parse().unwrap(),
                format!("fd44:0:0:{number}::/64").parse().unwrap(),
            ],
        }
    }

    fn shown(number: u8) -> Peer {
        let WireGuardPeer { key, endpoint, prefixes, .. } = wanted(number);
        let allowed = prefixes.into_iter().rev().collect();
        Peer { key, endpoint: Some(endpoint), allowed, last_handshake: Duration::ZERO }
    }

    #[test]
    fn only_peers_that_differ_are_set() {
        let all = [wanted(1), wanted(2), wanted(3)];
        let (one, two) = (shown(1), shown(2));
        assert_eq!(plan(&all[..2], &[two.clone(), one.clone()], true), []);
        let whole = |number| PeerChange::Set {
            key: wanted(number).key,
            endpoint: Some(wanted(number).endpoint),
            allowed: Some(wanted(number).prefixes),
        };
        assert_eq!(plan(&all, &[one.clone(), two.clone()], true), [whole(3)]);
        // A new key of a Node is another peer.
        let mut renewed = wanted(2);
        renewed.key = PublicKey([9; 32]);
        let expected = [
            PeerChange::Remove(two.key),
            PeerChange::Set {
                key: renewed.key,
                endpoint: Some(renewed.endpoint),
                allowed: Some(renewed.prefixes.clone()),
            },
        ];
        assert_eq!(plan(&[wanted(1), renewed], &[one.clone(), two.clone()], true), expected);
        assert_eq!(plan(&[wanted(1)], &[one.clone(), two.clone()], true), [PeerChange::Remove(two.key)]);
        assert_eq!(plan(&[wanted(1)], &[one, two], false), [], "an incomplete list removes no peer");
    }

    #[test]
    fn a_peer_that_moves_keeps_its_prefixes_and_the_other_way_round() {
        let set = |peer: &Peer| plan(&[wanted(1)], std::slice::from_ref(peer), true);
        let with_endpoint = |endpoint: &str| Peer { endpoint: endpoint.parse().ok(), ..shown(1) };
        let (key, endpoint) = (wanted(1).key, wanted(1).endpoint);
        let moved = [PeerChange::Set { key, endpoint: Some(endpoint), allowed: None }];
        for other in ["192.0.2.9:51820", "192.0.2.1:7", "none"] {
            assert_eq!(set(&with_endpoint(other)), moved, "{other}");
        }
        assert_eq!(set(&with_endpoint("[2001:db8::1]:51820")), [], "another address of the node");
        let fewer = Peer { allowed: shown(1).allowed[..1].to_vec(), ..shown(1) };
        let allowed = Some(wanted(1).prefixes);
        assert_eq!(set(&fewer), [PeerChange::Set { key, endpoint: None, allowed }]);
    }
}
