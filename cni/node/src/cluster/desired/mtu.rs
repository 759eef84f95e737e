// SPDX-License-Identifier: GPL-3.0-or-later

//! The MTU of pods.

use std::net::IpAddr;

use cni_kernel::AddressFamily;

use super::{Plan, Tunnel, Uplink};
use crate::cluster::problem::ProblemKind;

/// The bytes that VXLAN adds to a packet over IPv4: Ethernet 14, IPv4 20, UDP 8, VXLAN 8 (RFC 7348, section 5).
const OVERHEAD_V4: u32 = 50;
/// The bytes that VXLAN adds to a packet over IPv6, whose header has 40 bytes.
const OVERHEAD_V6: u32 = 70;
/// The bytes that WireGuard adds to a packet over IPv4: IPv4 20, UDP 8, its header 16, authentication 16 (`messages.h` of
/// the kernel's WireGuard).
const WIREGUARD_OVERHEAD_V4: u32 = 60;
/// The bytes that WireGuard adds to a packet over IPv6.
const WIREGUARD_OVERHEAD_V6: u32 = 80;
/// The least MTU of a link with IPv6 (RFC 8200, section 5).
const LEAST_MTU_V6: u32 = 1280;

impl Plan<'_> {
    /// The MTU of pods.
    pub(super) fn mtu(&mut self, tunnel: Option<&Tunnel>) -> Option<u32> {
        let link = self.underlay().map(|underlay| underlay.link);
        let counts = |uplink: &&Uplink| link.is_none_or(|link| uplink.index == link);
        let mtu = self.here.uplinks.iter().filter(counts).map(|uplink| uplink.mtu).min()?;
        let mtu = self.settings.path_mtu.map_or(mtu, |path| path.min(mtu));
        let mtu = mtu.saturating_sub(self.overhead(tunnel));
        if mtu < LEAST_MTU_V6 && self.own_prefixes.iter().any(|prefix| prefix.addr().is_ipv6()) {
            self.report(self.own, ProblemKind::SmallMtu { mtu });
        }
        Some(mtu)
    }

    /// The most bytes that a path adds to a packet.
    fn overhead(&self, tunnel: Option<&Tunnel>) -> u32 {
        if self.settings.encryption.is_some() {
            return match self.wireguard_family() {
                Some(AddressFamily::V4) => WIREGUARD_OVERHEAD_V4,
                Some(AddressFamily::V6) | None => WIREGUARD_OVERHEAD_V6,
            };
        }
        match tunnel.map(|tunnel| tunnel.local) {
            Some(IpAddr::V4(_)) => OVERHEAD_V4,
            Some(IpAddr::V6(_)) => OVERHEAD_V6,
            None => 0,
        }
    }
}
