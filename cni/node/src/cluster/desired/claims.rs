// SPDX-License-Identifier: GPL-3.0-or-later

//! Which Node holds a pod CIDR, an address or a WireGuard key that several Nodes claim.
//!
//! | claim | written by | wins against |
//! |---|---|---|
//! | `spec.podCIDRs` | the controller that allocates them; the API server refuses to change one | all addresses and annotations |
//! | InternalIPs, annotations | the Node's own kubelet and agent | nothing of another Node |
//!
//! Of two Nodes with overlapping pod CIDRs, or with one key, the Node that held it at the last comparison keeps it. The first
//! comparison after the agent's start learns from the kernel's routes, neighbours and WireGuard peers who that was. Only
//! a claim that nobody has held yet goes to the older Node ([`Node::seniority`]). Other fields of a Node cannot decide:
//! whoever may write a Node may write its managed fields, too, with any time.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_kernel::AddressFamily;
use cni_kernel::mac::Mac;
use cni_kernel::route::PublicKey;
use cni_spec::address::overlap;
use ipnet::IpNet;

use super::{Peer, Plan};
use crate::cluster::node_name::NodeName;
use crate::cluster::nodes::{Node, Nodes};
use crate::cluster::problem::ProblemKind;

/// The Nodes that hold pod CIDRs and WireGuard keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    /// Pod CIDRs, with the Node to whose pods they belong.
    pub prefixes: BTreeMap<IpNet, NodeName>,
    /// WireGuard keys, with the Node whose announcement counts.
    pub keys: BTreeMap<PublicKey, NodeName>,
}

/// The paths to pod CIDRs that the kernel has from an earlier agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstalledPaths {
    /// The gateways of our routes.
    pub gateways: BTreeMap<IpNet, IpAddr>,
    /// The MAC addresses of the VXLAN device's neighbours.
    pub macs: BTreeMap<IpAddr, Mac>,
    /// The keys of the WireGuard peers that have a pod CIDR.
    pub keys: BTreeMap<IpNet, PublicKey>,
}

impl InstalledPaths {
    /// True if the path to a pod CIDR of this Node leads to it.
    fn leads_to(&self, node: &Node, prefix: &IpNet) -> bool {
        let family = AddressFamily::of(prefix.addr());
        let address = node.addresses.iter().find(|address| AddressFamily::of(**address) == family);
        let by_link = address.is_some() && self.gateways.get(prefix) == address;
        let mac = node.annotations.vxlan_mac;
        let by_tunnel = mac.is_some() && self.macs.get(&prefix.network()).copied() == mac;
        by_link || by_tunnel || self.has_key_of(node, prefix)
    }

    fn has_key_of(&self, node: &Node, prefix: &IpNet) -> bool {
        let key = node.annotations.wireguard_key;
        key.is_some() && self.keys.get(prefix).copied() == key
    }
}

impl Claims {
    /// The claims that the kernel's paths show. A path leads to one Node; if two Nodes have all its values, the older one
    /// counts, which makes no difference to the path.
    #[must_use]
    pub fn of_installed(paths: &InstalledPaths, nodes: &Nodes) -> Self {
        let mut claims = Self::default();
        let mut by_age: Vec<&Node> = nodes.values().map(AsRef::as_ref).collect();
        by_age.sort_by_key(|node| node.seniority());
        for node in by_age {
            for prefix in node.pod_cidrs.iter().filter(|prefix| paths.leads_to(node, prefix)) {
                claims.prefixes.entry(*prefix).or_insert_with(|| node.name.clone());
                if let Some(key) = node.annotations.wireguard_key.filter(|_| paths.has_key_of(node, prefix)) {
                    claims.keys.entry(key).or_insert_with(|| node.name.clone());
                }
            }
        }
        claims
    }

    fn holds(&self, node: &Node, prefix: &IpNet) -> bool {
        self.prefixes.get(prefix) == Some(&node.name)
    }

    fn holds_key(&self, node: &Node, key: &PublicKey) -> bool {
        self.keys.get(key) == Some(&node.name)
    }
}

impl Plan<'_> {
    /// Takes the pod CIDRs of all other Nodes, which are sorted by age: first those that are held already. Nothing that
    /// a kubelet writes later has a part in this.
    pub(super) fn claim_prefixes(&mut self, others: &[&Node], before: &Claims) {
        for is_held in [true, false] {
            for node in others {
                let prefixes = node.pod_cidrs.iter().filter(|prefix| before.holds(node, prefix) == is_held);
                for prefix in prefixes {
                    match self.refused_prefix(prefix) {
                        Some(kind) => self.report(&node.name, kind),
                        None => drop(self.prefixes.insert(prefix.network(), (*prefix, node.name.clone()))),
                    }
                }
            }
        }
    }

    fn refused_prefix(&self, prefix: &IpNet) -> Option<ProblemKind> {
        let prefix = *prefix;
        if let Some(with) = self.own_prefixes.iter().find(|own| overlap(own, &prefix)) {
            return Some(ProblemKind::Overlap { prefix, with: *with, of: self.own.clone() });
        }
        if let Some(kind) = self.refused_everywhere(&prefix) {
            return Some(kind);
        }
        // Claimed prefixes are disjoint: if one overlaps, the last that begins within or before it does.
        let (with, of) = self.last_before(prefix.broadcast()).filter(|(net, _)| overlap(net, &prefix))?;
        Some(ProblemKind::Overlap { prefix, with: *with, of: of.clone() })
    }

    /// The claimed prefix with the highest network address up to this one.
    fn last_before(&self, address: IpAddr) -> Option<&(IpNet, NodeName)> {
        self.prefixes.range(..=address).next_back().map(|(_, claim)| claim)
    }

    /// The parts of a Node that can be used; none if there is no way to send packets to its pods.
    pub(super) fn peer<'b>(&mut self, node: &'b Node) -> Option<Peer<'b>> {
        node.unusable.iter().for_each(|kind| self.report(&node.name, kind.clone()));
        // A Node with our address is either this node under an older name, or a Node that pretends to be this node.
        if let Some(address) = node.addresses.iter().find(|address| self.local.contains(address)) {
            self.report(&node.name, ProblemKind::OwnAddress { address: *address });
            return None;
        }
        if node.pod_cidrs.is_empty() {
            self.report(&node.name, ProblemKind::NoPodCidr);
        }
        let mut addresses = Vec::new();
        for address in &node.addresses {
            match self.refused_address(*address) {
                Some(kind) => self.report(&node.name, kind),
                None => addresses.push(*address),
            }
        }
        let is_claimed = |prefix: &&IpNet| {
            self.prefixes.get(&prefix.network()).is_some_and(|(net, of)| net == *prefix && *of == node.name)
        };
        let prefixes: Vec<IpNet> = node.pod_cidrs.iter().filter(is_claimed).copied().collect();
        if prefixes.is_empty() {
            return None;
        }
        for address in &addresses {
            self.share_address(*address, node);
        }
        Some(Peer { node, prefixes, addresses })
    }

    /// Reports an address that an older Node announces as well. Both use it: the path to one Node's pods does not depend on
    /// the other's, and a new node may have the address of one that is gone before its Node is.
    fn share_address(&mut self, address: IpAddr, node: &Node) {
        match self.addresses.get(&address) {
            Some(of) => {
                let of = of.clone();
                self.report(&node.name, ProblemKind::SharedAddress { address, of });
            }
            None => drop(self.addresses.insert(address, node.name.clone())),
        }
    }

    fn refused_address(&self, address: IpAddr) -> Option<ProblemKind> {
        if let Some(prefix) = self.own_prefixes.iter().find(|prefix| prefix.contains(&address)) {
            return Some(ProblemKind::AddressOfPods { address, prefix: *prefix, of: self.own.clone() });
        }
        if let Some((prefix, of)) = self.last_before(address).filter(|(prefix, _)| prefix.contains(&address))
        {
            return Some(ProblemKind::AddressOfPods { address, prefix: *prefix, of: of.clone() });
        }
        if let Some(prefix) = self.settings.service_cidrs.iter().find(|net| net.contains(&address)) {
            return Some(ProblemKind::AddressOfServices { address, prefix: *prefix });
        }
        if let Some(prefix) = self.refusable().find(|net| net.contains(&address)) {
            return Some(ProblemKind::AddressInCluster { address, prefix: *prefix });
        }
        // For instance a virtual address of the control plane, which this node has now. The kernel would refuse the route,
        // and this node would not be ready.
        if self.here.own_v6.contains(&address) {
            return Some(ProblemKind::OwnAddress { address });
        }
        let is_reserved = self.nets.iter().any(|net| match net {
            IpNet::V4(net) if net.prefix_len() < 31 => address == net.network() || address == net.broadcast(),
            _ => false,
        });
        is_reserved.then_some(ProblemKind::ReservedAddress { address })
    }

    /// The Node that holds each of the peers' WireGuard keys, this node's own included.
    pub(super) fn claim_keys(&mut self, peers: &[Peer<'_>], before: &Claims) {
        let nodes = || peers.iter().map(|peer| peer.node);
        if let Some(key) = self.here.wireguard_key {
            self.keys.insert(key, self.own.clone());
        }
        for is_held in [true, false] {
            for (node, key) in nodes().filter_map(|node| Some((node, node.annotations.wireguard_key?))) {
                if before.holds_key(node, &key) == is_held {
                    self.keys.entry(key).or_insert_with(|| node.name.clone());
                }
            }
        }
    }

    /// The claims for the next comparison.
    pub(super) fn claims(&self) -> Claims {
        let prefixes = self.prefixes.values().cloned().collect();
        let is_of_others = |(_, name): &(&PublicKey, &NodeName)| *name != self.own;
        let keys = self.keys.iter().filter(is_of_others).map(|(key, name)| (*key, name.clone())).collect();
        Claims { prefixes, keys }
    }
}
