// SPDX-License-Identifier: GPL-3.0-or-later

//! The annotations by which nodes tell each other how their tunnels are reached.

use std::num::NonZeroU16;

use cni_kernel::mac::Mac;
use cni_kernel::route::PublicKey;

use super::key;
use super::node_name::NodeName;

/// The annotation with the MAC address of the node's VXLAN device.
///
/// All annotations of the project have the prefix `slipway.internal`. The prefix must be a domain name; `internal` is
/// reserved for private use (ICANN, resolution 2024.07.29.06), so that no other project can own it.
pub const VXLAN_MAC: &str = "slipway.internal/vxlan-mac";
/// The annotation with the UDP port on which the node's VXLAN device receives.
pub const VXLAN_PORT: &str = "slipway.internal/vxlan-port";
/// The annotation with the public key of the node's WireGuard device, 32 bytes in base64 (RFC 4648, section 4).
pub(crate) const WIREGUARD_KEY: &str = "slipway.internal/wireguard-key";
/// The annotation with the UDP port on which the node's WireGuard device receives.
pub const WIREGUARD_PORT: &str = "slipway.internal/wireguard-port";

/// The MAC address of a node's VXLAN device: the same after each start, so that other nodes need no new entry. A Node
/// that announces another MAC address is refused, because that address may be another node's.
///
/// FNV-1a of the node's name; locally administered and unicast (IEEE 802, section 8.2).
#[must_use]
pub fn vxlan_mac_of(node: &NodeName) -> Mac {
    let hash = node.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = (hash ^ (hash >> 40)).to_le_bytes();
    Mac([0x02, a, b, c, d, e])
}

/// A node's announcement of its tunnels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Annotations {
    /// The MAC address of its VXLAN device.
    pub vxlan_mac: Option<Mac>,
    /// The port on which its VXLAN device receives.
    pub vxlan_port: Option<NonZeroU16>,
    /// The public key of its WireGuard device.
    pub wireguard_key: Option<PublicKey>,
    /// The port on which its WireGuard device receives.
    pub wireguard_port: Option<NonZeroU16>,
}

impl Annotations {
    /// Names and values for the Node. A missing value is none, which deletes the annotation in a merge patch.
    #[must_use]
    pub fn values(&self) -> [(&'static str, Option<String>); 4] {
        [
            (VXLAN_MAC, self.vxlan_mac.map(|mac| mac.to_string())),
            (VXLAN_PORT, self.vxlan_port.map(|port| port.to_string())),
            (WIREGUARD_KEY, self.wireguard_key.map(|key| key::text(&key))),
            (WIREGUARD_PORT, self.wireguard_port.map(|port| port.to_string())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_node_has_a_mac_address_of_its_own_that_stays() {
        let mac = |name: &str| vxlan_mac_of(&name.parse().unwrap());
        assert_eq!(mac("node-1"), mac("node-1"));
        let all: BTreeSet<Mac> = (0..5000).map(|number| mac(&format!("node-{number}"))).collect();
        assert_eq!(all.len(), 5000);
        assert!(all.iter().all(|mac| mac.0[0] == 2));
    }
}
