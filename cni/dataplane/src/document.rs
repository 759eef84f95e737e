// SPDX-License-Identifier: GPL-2.0-or-later

//! Published ports in the form of the documents that `slipway ports` and `slipwayd top` print.

use cni_state::documents::{Port, PortOwner, PortOwners};

use crate::{Listed, Traffic};

impl Listed {
    /// The port as it appears in a document. The attachment that it belongs to is added to `owners`.
    #[must_use]
    pub fn document(&self, traffic: Option<Traffic>, owners: &mut PortOwners) -> Port {
        let Self { owner, port, backend } = self;
        let counted = traffic.and_then(|traffic| traffic.counted);
        let owner = owner.as_ref().map(|owner| PortOwner {
            network: owner.network.clone(),
            container: owner.container_id.clone(),
            interface: owner.ifname.clone(),
        });
        Port {
            attachment: owner.map(|owner| owners.place(owner)),
            protocol: port.host.protocol.as_str().to_owned(),
            host_ip: port.host.address.ip(),
            host_port: port.host.first,
            host_port_end: port.host.last,
            container_ip: port.container,
            container_port: port.container_port,
            backend: backend.as_str().to_owned(),
            connections: traffic.map(|traffic| traffic.connections as u64),
            packets: counted.map(|(packets, _)| packets),
            bytes: counted.map(|(_, bytes)| bytes),
        }
    }
}
