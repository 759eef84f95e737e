// SPDX-License-Identifier: GPL-3.0-or-later

//! The annotations by which nodes tell each other how their tunnels are reached.

use std::num::NonZeroU16;

use cni_kernel::mac::Mac;
use cni_kernel::route::PublicKey;

use super::key;

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
    /// Names and values for the Node. Values that are missing are none: they delete the annotation in a merge patch.
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
