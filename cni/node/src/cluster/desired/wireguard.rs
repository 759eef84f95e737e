// SPDX-License-Identifier: GPL-3.0-or-later

//! The encrypted paths: WireGuard's peers, and the prefixes to which packets are refused since there is no such path.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use cni_kernel::AddressFamily;
use cni_kernel::route::PublicKey;
use ipnet::IpNet;

use super::{Paths, Peer, PeerRoute, Plan, Via};
use crate::cluster::node_name::NodeName;
use crate::cluster::problem::ProblemKind;
use cni_spec::address::overlap;

/// The settings of encryption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encryption {
    /// The UDP port on which this node receives, and on which Nodes without an annotation do.
    pub port: NonZeroU16,
}

/// The WireGuard device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireGuard {
    /// The UDP port on which this node receives.
    pub port: NonZeroU16,
    /// The other ends, by name.
    pub peers: Vec<WireGuardPeer>,
}

/// The other end of an encrypted path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireGuardPeer {
    /// The Node.
    pub node: NodeName,
    /// The peer's public key.
    pub key: PublicKey,
    /// The address and port to which packets are sent.
    pub endpoint: SocketAddr,
    /// The peer's InternalIPs: the kernel sends to the source of the peer's last packet, which may be any of these.
    pub addresses: Vec<IpAddr>,
    /// The prefixes of its pods, sorted: the only addresses that packets of it may have.
    pub prefixes: Vec<IpNet>,
}

impl Plan<'_> {
    /// All peers' paths by WireGuard.
    pub(super) fn encrypted(&mut self, peers: &[Peer<'_>], settings: &Encryption) -> Paths {
        let mut routes = Vec::new();
        let mut refused = Vec::new();
        let mut ends = Vec::new();
        for peer in peers {
            match self.wireguard_peer(peer, settings) {
                Ok(end) => {
                    let route = |prefix: &IpNet| PeerRoute {
                        prefix: *prefix,
                        node: end.node.clone(),
                        via: Via::WireGuard,
                    };
                    routes.extend(end.prefixes.iter().map(route));
                    ends.push(end);
                }
                Err(what) => {
                    self.report(&peer.node.name, what);
                    refused.extend(&peer.prefixes);
                }
            }
        }
        routes.sort_by_key(|route| route.prefix);
        ends.sort_by(|one, other| one.node.cmp(&other.node));
        // By the default route, packets to a part of the cluster without a path would leave the node in clear text.
        let has_route = |net: &IpNet| routes.iter().any(|route: &PeerRoute| route.prefix == *net);
        refused.extend(self.refusable().filter(|net| !has_route(net)));
        refused.sort();
        refused.dedup();
        let wireguard = Some(WireGuard { port: settings.port, peers: ends });
        Paths { routes, refused, tunnel: None, wireguard }
    }

    /// The other end of the path to a peer.
    fn wireguard_peer(&self, peer: &Peer<'_>, settings: &Encryption) -> Result<WireGuardPeer, ProblemKind> {
        let annotations = &peer.node.annotations;
        let key = annotations.wireguard_key.ok_or(ProblemKind::NoKey)?;
        if let Some(of) = self.keys.get(&key).filter(|of| **of != peer.node.name) {
            return Err(ProblemKind::SameKey { key, of: of.clone() });
        }
        let address = match self.wireguard_family() {
            Some(family) => peer.address(family).ok_or(ProblemKind::NoAddress { family })?,
            None => *peer.addresses.first().ok_or(ProblemKind::NoAddress { family: AddressFamily::V4 })?,
        };
        let port = annotations.wireguard_port.unwrap_or(settings.port).get();
        let mut prefixes = peer.prefixes.clone();
        prefixes.sort();
        Ok(WireGuardPeer {
            node: peer.node.name.clone(),
            key,
            endpoint: SocketAddr::new(address, port),
            addresses: peer.addresses.clone(),
            prefixes,
        })
    }

    /// The family in which this node sends to its peers: that of its first InternalIP on an uplink, or else of its first
    /// InternalIP.
    pub(super) fn wireguard_family(&self) -> Option<AddressFamily> {
        let local = self.underlay().map(|underlay| underlay.local);
        let first = || self.own_node.and_then(|node| node.addresses.first().copied());
        local.or_else(first).map(AddressFamily::of)
    }

    /// The cluster's prefixes to which packets are refused where no longer prefix has a route; none without encryption.
    /// This node's own addresses decide alone: another Node that claims an address within such a prefix must not end the
    /// refusal, and is refused that address instead.
    pub(super) fn refusable(&self) -> impl Iterator<Item = &IpNet> {
        let is_free = |net: &&IpNet| {
            self.local.iter().all(|address| !net.contains(address))
                && self.nets.iter().all(|uplink| !overlap(uplink, net))
                && !self.own_prefixes.contains(net)
        };
        let encrypts = self.settings.encryption.is_some();
        self.settings.cluster_cidrs.iter().filter(move |net| encrypts && is_free(net))
    }
}
