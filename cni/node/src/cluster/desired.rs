// SPDX-License-Identifier: GPL-3.0-or-later

//! The desired state: a function of all Nodes, this node's name, its uplinks and the settings.
//!
//! # Which Node gets a prefix
//! Pod CIDRs are taken first, because no kubelet can change them; addresses and annotations, which each kubelet writes
//! into its own Node, are left out where they collide. [`claims`] has the order among Nodes. This node's own pod CIDRs
//! and its uplinks' prefixes come before all others.
//!
//! # Which path a prefix gets
//! Direct, by the Node's first InternalIP of the prefix's family, if that address is on an uplink; else by VXLAN, if
//! the Node announces its device. `Tunnel::Always` and `Tunnel::Never` leave out one of the two.
//!
//! # Encrypted paths
//! With [`Settings::encryption`] there is one path only: WireGuard. A Node without a key gets none, and packets to its
//! pods are refused.
//!
//! # When this node has a tunnel
//! With [`TunnelMode::Always`]; and with [`TunnelMode::Auto`] if at least one other Node's pods cannot be reached
//! directly. The other Node's announcement does not matter: each of the two waits for the device of the other one.
//!
//! # MTU
//! That of the uplink with the first InternalIP of this node that is on one, or else the least of all uplinks; or
//! [`Settings::path_mtu`] if that is less. With a tunnel all pods get less, since a pod's MTU is the same for all its peers:
//! with VXLAN 50 bytes over IPv4 and 70 over IPv6, with WireGuard 60 and 80.

mod claims;
mod mtu;
mod wireguard;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use cni_kernel::AddressFamily;
use cni_kernel::mac::Mac;
use cni_kernel::route::PublicKey;
use ipnet::IpNet;

use super::annotations::vxlan_mac_of;
use super::node_name::NodeName;
use super::nodes::{Node, Nodes};
use super::problem::{Problem, ProblemKind};
pub use claims::{Claims, InstalledPaths};
use cni_spec::address::overlap;
pub use wireguard::{Encryption, WireGuard, WireGuardPeer};

/// The kernel's view of this node's uplinks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalView {
    /// The uplinks, in any order. Links of pods do not count.
    pub uplinks: Vec<Uplink>,
    /// The IPv6 addresses of all links, also those that [`Uplink::addresses`] leaves out. The kernel takes none of them
    /// for a gateway, unlike IPv4 addresses, of which kube-proxy may give this node those of other nodes
    /// (`externalIPs`).
    pub own_v6: BTreeSet<IpAddr>,
    /// The public key of this node's WireGuard device; none without one.
    pub wireguard_key: Option<PublicKey>,
}

/// A link to other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uplink {
    /// The interface index.
    pub index: u32,
    /// The MTU, in bytes.
    pub mtu: u32,
    /// The global addresses, each with the length of its link's prefix.
    pub addresses: Vec<IpNet>,
}

/// The use of tunnels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TunnelMode {
    /// For Nodes that are not on an uplink.
    #[default]
    Auto,
    /// For all Nodes.
    Always,
    /// For none.
    Never,
}

/// The settings of routes and tunnels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The use of tunnels.
    pub tunnel: TunnelMode,
    /// The VXLAN network identifier, 24 bits (RFC 7348, section 5).
    pub vni: u32,
    /// The UDP port on which this node receives, and on which Nodes without an annotation do.
    pub port: NonZeroU16,
    /// This node's pod CIDRs in place of those of its Node, where nothing allocates them. Empty: those of its Node.
    pub pod_cidrs: Vec<IpNet>,
    /// The prefixes of all pods. Without one of a family, those of that family may be anywhere.
    pub cluster_cidrs: Vec<IpNet>,
    /// The prefixes of Services, in which no pod and no node has an address.
    pub service_cidrs: Vec<IpNet>,
    /// The largest packet between nodes in bytes, where that is less than the uplinks' MTU.
    pub path_mtu: Option<u32>,
    /// WireGuard for all traffic between nodes' pods, in place of routes by the link and VXLAN; none: no encryption.
    pub encryption: Option<Encryption>,
}

impl Settings {
    /// True if pods may have this prefix. A Node is written by its kubelet: one that is taken over must not draw the
    /// packets to other networks.
    fn is_in_cluster(&self, prefix: &IpNet) -> bool {
        let same = |net: &&IpNet| net.addr().is_ipv4() == prefix.addr().is_ipv4();
        let mut nets = self.cluster_cidrs.iter().filter(same).peekable();
        nets.peek().is_none() || nets.any(|net| net.contains(prefix))
    }
}

/// The desired state of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// This node's pod CIDRs, in order; none until they are allocated.
    pub own: Option<OwnSubnets>,
    /// The routes to other nodes' pods, by prefix.
    pub routes: Vec<PeerRoute>,
    /// The prefixes to which packets are refused, sorted: with encryption, those that have no encrypted path. None of them
    /// has a route.
    pub refused: Vec<IpNet>,
    /// The VXLAN device; none if this node needs none.
    pub tunnel: Option<Tunnel>,
    /// Who may send to the VXLAN devices of this node and of others, and whose packets must be encrypted.
    pub senders: TunnelSenders,
    /// The WireGuard device; none without encryption.
    pub wireguard: Option<WireGuard>,
    /// The MTU of pods, in bytes; none without an uplink.
    pub mtu: Option<u32>,
    /// True if routes, neighbours and FDB entries that are not listed here may be deleted. False if this node's own Node
    /// is missing: an API server that lost its data must not cut a running cluster.
    pub prune: bool,
    /// The parts of Nodes that were left out, sorted.
    pub problems: Vec<Problem>,
    /// The Nodes that hold pod CIDRs and keys, for the next comparison.
    pub claims: Claims,
}

/// This node's pod CIDRs, at most one per family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnSubnets {
    /// The prefixes, in order.
    pub prefixes: Vec<IpNet>,
}

/// A route to another node's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRoute {
    /// The pod CIDR.
    pub prefix: IpNet,
    /// The Node.
    pub node: NodeName,
    /// The next hop.
    pub via: Via,
}

/// A next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The Node's address on an uplink.
    Link {
        /// The address.
        gateway: IpAddr,
        /// The uplink's index.
        link: u32,
    },
    /// The VXLAN device, with the flag `onlink`.
    Tunnel {
        /// The network address of the prefix: a next hop that no other prefix has. A neighbour entry of the VXLAN
        /// device maps it to the peer's MAC address.
        gateway: IpAddr,
    },
    /// The WireGuard device, which chooses the peer by the destination.
    WireGuard,
}

/// The VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// The VXLAN network identifier.
    pub vni: u32,
    /// The UDP port on which this node receives.
    pub port: NonZeroU16,
    /// The source address of its packets, an InternalIP of this node. A device sends over one family.
    pub local: IpAddr,
    /// The index of the uplink with this address.
    pub link: u32,
    /// The other ends, by name.
    pub peers: Vec<TunnelPeer>,
}

/// The addresses that packets between nodes may have. All are empty without encryption if no node has a VXLAN device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TunnelSenders {
    /// The InternalIPs of this node, at which its device receives.
    pub own: BTreeSet<IpAddr>,
    /// The InternalIPs of the other Nodes. Those with a direct path count, too, because they may take this node for one
    /// without.
    pub nodes: BTreeSet<IpAddr>,
    /// The InternalIPs at which the devices of other Nodes receive.
    pub ends: BTreeSet<IpAddr>,
    /// With encryption, the prefixes of all pods. Those of other nodes arrive encrypted only, and packets with an address
    /// of this node's pods do not arrive at all.
    pub encrypted: BTreeSet<IpNet>,
}

/// The other end of a tunnel: an FDB entry, and a neighbour entry for each next hop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelPeer {
    /// The Node.
    pub node: NodeName,
    /// The MAC address of its VXLAN device.
    pub mac: Mac,
    /// The node's InternalIP.
    pub address: IpAddr,
    /// The UDP port on which it receives.
    pub port: NonZeroU16,
    /// The next hops of routes to its pods, sorted.
    pub gateways: Vec<IpAddr>,
}

/// Computes the desired state. The order in which Nodes or uplinks are listed does not matter. `before` are the claims of
/// the last comparison.
///
/// # Panics
/// Never: a Node with any content is either used or reported.
#[must_use]
pub fn desired(
    nodes: &Nodes,
    own: &NodeName,
    here: &LocalView,
    settings: &Settings,
    before: &Claims,
) -> Desired {
    let mut plan = Plan::new(nodes.get(own).map(Arc::as_ref), own, here, settings);
    let mut others: Vec<&Node> = nodes.values().map(Arc::as_ref).filter(|node| node.name != *own).collect();
    others.sort_by_key(|node| node.seniority());
    plan.claim_prefixes(&others, before);
    let peers: Vec<Peer<'_>> = others.iter().filter_map(|node| plan.peer(node)).collect();
    plan.claim_keys(&peers, before);
    let paths = match &settings.encryption {
        Some(encryption) => plan.encrypted(&peers, encryption),
        None => plan.paths(&peers),
    };
    let senders = plan.senders(&peers, paths.tunnel.is_some());
    Desired { senders, ..plan.finish(paths) }
}

/// The paths to all peers.
#[derive(Default)]
struct Paths {
    routes: Vec<PeerRoute>,
    refused: Vec<IpNet>,
    tunnel: Option<Tunnel>,
    wireguard: Option<WireGuard>,
}

/// A Node with the parts of it that may be used.
struct Peer<'a> {
    node: &'a Node,
    prefixes: Vec<IpNet>,
    addresses: Vec<IpAddr>,
}

impl Peer<'_> {
    /// The first InternalIP of a family.
    fn address(&self, family: AddressFamily) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| AddressFamily::of(*address) == family)
    }
}

/// The source of this node's tunnels.
#[derive(Clone, Copy)]
struct Underlay {
    local: IpAddr,
    link: u32,
}

struct Plan<'a> {
    own: &'a NodeName,
    own_node: Option<&'a Node>,
    own_prefixes: Vec<IpNet>,
    here: &'a LocalView,
    /// The prefixes of all uplinks, sorted.
    nets: Vec<IpNet>,
    settings: &'a Settings,
    /// Addresses of this node.
    local: BTreeSet<IpAddr>,
    /// Pod CIDRs that other Nodes hold, by network address. No two overlap.
    prefixes: BTreeMap<IpAddr, (IpNet, NodeName)>,
    /// InternalIPs of other Nodes, with the oldest.
    addresses: BTreeMap<IpAddr, NodeName>,
    /// WireGuard keys with the Nodes that hold them.
    keys: BTreeMap<PublicKey, NodeName>,
    problems: Vec<Problem>,
}

impl<'a> Plan<'a> {
    fn new(
        own_node: Option<&'a Node>,
        own: &'a NodeName,
        here: &'a LocalView,
        settings: &'a Settings,
    ) -> Self {
        let on_links = here.uplinks.iter().flat_map(|uplink| &uplink.addresses);
        let mut nets: Vec<IpNet> = on_links.clone().map(IpNet::trunc).collect();
        nets.sort();
        let announced = own_node.into_iter().flat_map(|node| &node.addresses).copied();
        let mut plan = Self {
            own,
            own_node,
            own_prefixes: Vec::new(),
            here,
            nets,
            settings,
            local: on_links.map(IpNet::addr).chain(announced).collect(),
            prefixes: BTreeMap::new(),
            addresses: BTreeMap::new(),
            keys: BTreeMap::new(),
            problems: Vec::new(),
        };
        plan.claim_own();
        plan
    }

    fn report(&mut self, node: &NodeName, kind: ProblemKind) {
        self.problems.push(Problem { node: node.clone(), kind });
    }

    /// Takes this node's pod CIDRs, except those that no node may have. A bridge with the prefix of an uplink would cut
    /// the node off.
    fn claim_own(&mut self) {
        let own = self.own;
        let mut prefixes = &self.settings.pod_cidrs;
        match self.own_node {
            Some(node) => {
                node.unusable.iter().for_each(|kind| self.report(own, kind.clone()));
                if prefixes.is_empty() {
                    prefixes = &node.pod_cidrs;
                }
            }
            None => self.report(own, ProblemKind::OwnNodeMissing),
        }
        if prefixes.is_empty() && self.own_node.is_some() {
            self.report(own, ProblemKind::NoPodCidr);
        }
        for prefix in prefixes {
            match self.refused_everywhere(prefix) {
                Some(kind) => self.report(own, kind),
                None => self.own_prefixes.push(*prefix),
            }
        }
    }

    /// The reason for which no node's pods can have this prefix, as seen from this node.
    fn refused_everywhere(&self, prefix: &IpNet) -> Option<ProblemKind> {
        if !self.settings.is_in_cluster(prefix) {
            return Some(ProblemKind::OutsideCluster { prefix: *prefix });
        }
        if let Some(net) = self.nets.iter().find(|net| overlap(net, prefix)) {
            return Some(ProblemKind::OverlapsUplink { prefix: *prefix, with: *net });
        }
        if let Some(net) = self.settings.service_cidrs.iter().find(|net| overlap(net, prefix)) {
            return Some(ProblemKind::OverlapsServices { prefix: *prefix, with: *net });
        }
        let address = within(&self.local, prefix)?;
        Some(ProblemKind::ContainsAddress { prefix: *prefix, address, of: self.own.clone() })
    }

    /// The uplink of this node's tunnels, which has the first InternalIP of this node that is on any uplink.
    fn underlay(&self) -> Option<Underlay> {
        let addresses = self.own_node.into_iter().flat_map(|node| &node.addresses);
        let on_uplink = |local: &IpAddr| {
            let has = |uplink: &&Uplink| uplink.addresses.iter().any(|net| net.addr() == *local);
            let link = self.here.uplinks.iter().filter(has).map(|uplink| uplink.index).min()?;
            Some(Underlay { local: *local, link })
        };
        addresses.filter_map(on_uplink).next()
    }

    /// The index of the uplink that an address is on: by the longest prefix, then by the lowest index.
    fn link_of(&self, address: IpAddr) -> Option<u32> {
        let nets = self.here.uplinks.iter().flat_map(|up| up.addresses.iter().map(|net| (net, up.index)));
        let found = nets.filter(|(net, _)| net.contains(&address));
        let best = found.max_by_key(|(net, index)| (net.prefix_len(), std::cmp::Reverse(*index)))?;
        Some(best.1)
    }

    /// The direct next hop of a peer's prefix.
    fn direct(&self, peer: &Peer<'_>, prefix: &IpNet) -> Option<Via> {
        if self.settings.tunnel == TunnelMode::Always {
            return None;
        }
        let gateway = peer.address(AddressFamily::of(prefix.addr()))?;
        Some(Via::Link { gateway, link: self.link_of(gateway)? })
    }

    fn paths(&mut self, peers: &[Peer<'_>]) -> Paths {
        let mut routes = Vec::new();
        // Peers with prefixes that have no direct path.
        let mut far: Vec<(&Peer<'_>, Vec<IpNet>)> = Vec::new();
        for peer in peers {
            let mut left = Vec::new();
            for prefix in &peer.prefixes {
                match self.direct(peer, prefix) {
                    Some(via) => {
                        routes.push(PeerRoute { prefix: *prefix, node: peer.node.name.clone(), via });
                    }
                    None => left.push(*prefix),
                }
            }
            if !left.is_empty() {
                far.push((peer, left));
            }
        }
        let tunnel = match self.settings.tunnel {
            TunnelMode::Never => {
                self.report_off_link(&far);
                None
            }
            TunnelMode::Auto if far.is_empty() => None,
            TunnelMode::Auto | TunnelMode::Always => self.tunnel(&far, &mut routes),
        };
        routes.sort_by_key(|route| route.prefix);
        Paths { routes, tunnel, ..Paths::default() }
    }

    fn report_off_link(&mut self, far: &[(&Peer<'_>, Vec<IpNet>)]) {
        for (peer, prefixes) in far {
            for prefix in prefixes {
                let family = AddressFamily::of(prefix.addr());
                let off_link = |address| ProblemKind::OffLink { address };
                let kind = peer.address(family).map_or(ProblemKind::NoAddress { family }, off_link);
                self.report(&peer.node.name, kind);
            }
        }
    }

    /// The tunnel, with routes for all prefixes that it can carry.
    fn tunnel(&mut self, far: &[(&Peer<'_>, Vec<IpNet>)], routes: &mut Vec<PeerRoute>) -> Option<Tunnel> {
        let Some(underlay) = self.underlay() else {
            // Without its Node, this node has no InternalIP, which was already reported.
            if self.own_node.is_some() {
                self.report(self.own, ProblemKind::NoUnderlay);
            }
            return None;
        };
        // An FDB entry leads to one node. If two names yield the same MAC address, the older Node keeps it.
        let mut macs = BTreeMap::from([(vxlan_mac_of(self.own), self.own)]);
        let mut peers = Vec::new();
        for (peer, prefixes) in far {
            match self.end(peer, underlay, &macs) {
                Ok(mut end) => {
                    macs.insert(end.mac, &peer.node.name);
                    for prefix in prefixes {
                        let gateway = prefix.network();
                        let via = Via::Tunnel { gateway };
                        routes.push(PeerRoute { prefix: *prefix, node: end.node.clone(), via });
                        end.gateways.push(gateway);
                    }
                    end.gateways.sort();
                    peers.push(end);
                }
                Err(kind) => self.report(&peer.node.name, kind),
            }
        }
        peers.sort_by(|one, other| one.node.cmp(&other.node));
        let Settings { vni, port, .. } = *self.settings;
        Some(Tunnel { vni, port, local: underlay.local, link: underlay.link, peers })
    }

    /// The other end of the tunnel to a peer, without next hops.
    fn end(
        &self,
        peer: &Peer<'_>,
        underlay: Underlay,
        macs: &BTreeMap<Mac, &NodeName>,
    ) -> Result<TunnelPeer, ProblemKind> {
        let family = AddressFamily::of(underlay.local);
        let address = peer.address(family).ok_or(ProblemKind::NoAddress { family })?;
        let annotations = &peer.node.annotations;
        let mac = annotations.vxlan_mac.ok_or(ProblemKind::NoTunnel)?;
        let expected = vxlan_mac_of(&peer.node.name);
        if mac != expected {
            return Err(ProblemKind::ForeignMac { mac, expected });
        }
        if let Some(of) = macs.get(&mac) {
            return Err(ProblemKind::SameMac { mac, of: (*of).clone() });
        }
        let port = annotations.vxlan_port.unwrap_or(self.settings.port);
        Ok(TunnelPeer { node: peer.node.name.clone(), mac, address, port, gateways: Vec::new() })
    }

    /// The senders of the nodes' devices. The other Nodes' devices matter without a device of this node, too, because
    /// this node forwards packets of its pods.
    fn senders(&self, peers: &[Peer<'_>], has_device: bool) -> TunnelSenders {
        let with_device = peers.iter().filter(|peer| peer.node.annotations.vxlan_mac.is_some());
        let ends: BTreeSet<IpAddr> = with_device.flat_map(|peer| &peer.addresses).copied().collect();
        let mut encrypted: BTreeSet<IpNet> = BTreeSet::new();
        if self.settings.encryption.is_some() {
            encrypted.extend(self.own_prefixes.iter().chain(peers.iter().flat_map(|peer| &peer.prefixes)));
        } else if !has_device && ends.is_empty() {
            return TunnelSenders::default();
        }
        let own = self.own_node.into_iter().flat_map(|node| &node.addresses).copied().collect();
        let nodes = peers.iter().flat_map(|peer| &peer.addresses).copied().collect();
        TunnelSenders { own, nodes, ends, encrypted }
    }

    fn finish(mut self, paths: Paths) -> Desired {
        let Paths { routes, refused, tunnel, wireguard } = paths;
        let mtu = self.mtu(tunnel.as_ref());
        let claims = self.claims();
        self.problems.sort();
        self.problems.dedup();
        let prefixes = self.own_prefixes;
        Desired {
            own: (!prefixes.is_empty()).then_some(OwnSubnets { prefixes }),
            routes,
            refused,
            tunnel,
            senders: TunnelSenders::default(),
            wireguard,
            mtu,
            prune: self.own_node.is_some(),
            problems: self.problems,
            claims,
        }
    }
}

/// The first of the addresses within a prefix.
fn within(addresses: &BTreeSet<IpAddr>, prefix: &IpNet) -> Option<IpAddr> {
    addresses.range(prefix.network()..=prefix.broadcast()).next().copied()
}
