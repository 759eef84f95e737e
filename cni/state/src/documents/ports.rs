// SPDX-License-Identifier: MIT OR Apache-2.0

use std::collections::HashMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// `slipway ports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
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
    /// The place of its owner among the attachments; none without an owner in its element's comment.
    pub attachment: Option<usize>,
    pub protocol: String,
    /// The unspecified address for all of a family.
    pub host_ip: IpAddr,
    pub host_port: u16,
    pub host_port_end: u16,
    pub container_ip: IpAddr,
    pub container_port: u16,
    pub backend: String,
    /// None if conntrack cannot be read.
    pub connections: Option<u64>,
    /// None if nothing counts packets and bytes.
    pub packets: Option<u64>,
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
