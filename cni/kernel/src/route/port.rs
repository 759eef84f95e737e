// SPDX-License-Identifier: MIT OR Apache-2.0

//! Settings of bridges and their ports, as part of a link.

use cni_netlink::message;

/// VLAN filtering of a bridge (`IFLA_BR_VLAN_FILTERING`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VlanFiltering {
    /// The bridge keeps VLANs apart.
    On,
    /// The bridge ignores VLANs.
    Off,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

impl Switch {
    /// `On` for true.
    #[must_use]
    pub fn from_bool(on: bool) -> Self {
        if on { Self::On } else { Self::Off }
    }

    /// True for `On`.
    #[must_use]
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// Settings of a bridge port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSettings {
    /// Packets may leave by the port on which they arrived.
    pub hairpin: Switch,
    /// The port exchanges no packets with other isolated ports (since Linux 4.18).
    pub isolated: Switch,
}

// From linux/if_link.h. The kernel calls the hairpin setting the port's mode.
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_ISOLATED: u16 = 33;

impl PortSettings {
    pub(super) fn decode(data: &[u8]) -> Self {
        let mut settings = Self { hairpin: Switch::Off, isolated: Switch::Off };
        for (kind, value) in message::attributes(data) {
            let switch = Switch::from_bool(message::u8_of(value) != 0);
            match kind {
                IFLA_BRPORT_MODE => settings.hairpin = switch,
                IFLA_BRPORT_ISOLATED => settings.isolated = switch,
                _ => {}
            }
        }
        settings
    }
}
