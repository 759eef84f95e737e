// SPDX-License-Identifier: GPL-2.0-or-later

//! Containers with several networks. A published port leads to one of them, and a client in another one would get the reply
//! past the node, from an address that it does not know. So the sources that such a container has on links of its own are
//! masqueraded on the way to its ports, as those of the port's network are.
//!
//! The networks may come in any order. An ADD that publishes asks for the networks that are there; each later ADD and DEL
//! of an interface calls [`Dataplane::set_networks`](crate::Dataplane::set_networks).

use ipnet::IpNet;

use crate::ContainerNetns;

/// The addresses of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerNetworks {
    /// The runtime's ID of the container.
    pub container_id: String,
    /// The container's namespace.
    pub netns: ContainerNetns,
    /// The container's addresses, with the prefixes of their networks and the index of the link that has them.
    pub addresses: Vec<(u32, IpNet)>,
}

impl ContainerNetworks {
    /// The addresses of all links but this one.
    #[must_use]
    pub fn elsewhere(&self, link: u32) -> Vec<IpNet> {
        self.addresses.iter().filter(|(of, _)| *of != link).map(|(_, net)| *net).collect()
    }
}
