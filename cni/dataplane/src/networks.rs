// SPDX-License-Identifier: GPL-2.0-or-later

//! Containers with several networks. A published port leads to an address in one of them. The reply to a client in
//! another one would bypass the node, and arrive from an address that the client does not know. So packets to the
//! port from any network to which such a container has a link are masqueraded, like those from the port's own
//! network.
//!
//! The networks may be attached in any order. An ADD that publishes ports takes into account the networks that exist
//! by then, and every later ADD and DEL of an interface calls
//! [`Dataplane::set_networks`](crate::Dataplane::set_networks).

use ipnet::IpNet;

use crate::ContainerNetns;

/// The addresses of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerNetworks {
    /// The runtime's ID of the container.
    pub container_id: String,
    pub netns: ContainerNetns,
    /// The container's addresses with the prefixes of their networks, each with the index of its link.
    pub addresses: Vec<(u32, IpNet)>,
}

impl ContainerNetworks {
    /// The addresses of all links but this one.
    #[must_use]
    pub fn elsewhere(&self, link: u32) -> Vec<IpNet> {
        self.addresses.iter().filter(|(of, _)| *of != link).map(|(_, net)| *net).collect()
    }
}
