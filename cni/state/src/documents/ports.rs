// SPDX-License-Identifier: MIT OR Apache-2.0

use std::collections::HashMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// `slipway ports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// The owners of the ports, each once.
    pub attachments: Vec<PortOwner>,
    pub ports: Vec<Port>,
}

/// An attachment that has published ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PortOwner {
    pub network: String,
    /// The container ID.
    pub container: String,
    pub interface: String,
}

/// A published port, or a range of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The owner's place in `attachments`, from 0; null for an element without an owner in its comment.
    pub attachment: Option<usize>,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// The address of the node; `0.0.0.0` or `::` for all of a family.
    pub host_ip: IpAddr,
    /// The port, or the first of a range.
    pub host_port: u16,
    /// The last port of the range; `host_port` for a single port.
    pub host_port_end: u16,
    /// The container's address.
    pub container_ip: IpAddr,
    /// The container's port, or the first of a range as long.
    pub container_port: u16,
    /// `nftables`, `iptables` or `ebpf`.
    pub backend: String,
    /// Flows that exist now; null if they cannot be counted.
    pub connections: Option<u64>,
    /// Packets of these flows in both directions; null if nothing counts them.
    pub packets: Option<u64>,
    /// Bytes of these flows; null if nothing counts them.
    pub bytes: Option<u64>,
}

/// Collects the owners of ports, each once, in the order of their first ports.
#[derive(Debug, Default)]
pub struct PortOwners(HashMap<PortOwner, usize>);

impl PortOwners {
    /// The place of this owner in the list.
    pub fn place(&mut self, owner: PortOwner) -> usize {
        let next = self.0.len();
        *self.0.entry(owner).or_insert(next)
    }

    /// The list.
    #[must_use]
    pub fn into_list(self) -> Vec<PortOwner> {
        let mut all: Vec<(PortOwner, usize)> = self.0.into_iter().collect();
        all.sort_unstable_by_key(|(_, place)| *place);
        all.into_iter().map(|(owner, _)| owner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_listed_once_at_its_place() {
        let owner = |name: &str| {
            let [network, container, interface] = ["pods", name, "eth0"].map(str::to_owned);
            PortOwner { network, container, interface }
        };
        let mut owners = PortOwners::default();
        let places: Vec<usize> =
            ["web", "db", "web", "db", "dns"].map(|name| owners.place(owner(name))).into();
        assert_eq!(places, [0, 1, 0, 1, 2]);
        assert_eq!(owners.into_list(), ["web", "db", "dns"].map(owner));
    }
}
