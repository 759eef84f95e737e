// SPDX-License-Identifier: GPL-2.0-or-later

//! Options of a published port that only one backend understands.

use crate::{AddressFamily, ChainName, Protocol};

/// Conditions that packets must meet to be translated, in one backend's grammar. Empty if there are none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conditions {
    /// On packets of IPv4.
    pub v4: Vec<String>,
    /// On packets of IPv6.
    pub v6: Vec<String>,
}

impl Conditions {
    /// The conditions on packets of a family.
    #[must_use]
    pub fn of(&self, family: AddressFamily) -> &[String] {
        match family {
            AddressFamily::V4 => &self.v4,
            AddressFamily::V6 => &self.v6,
        }
    }

    /// True if neither family has conditions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

/// Options of the nftables backend, and of the eBPF backend on top of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NftablesOptions {
    /// Conditions in a subset of nft's grammar, see [`crate::nftables::conditions`].
    pub conditions: Conditions,
}

/// Options of the iptables backend.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IptablesOptions {
    pub conditions: Conditions,
    /// Every mapping in the configuration's order, including mappings of a family of which the container has no
    /// address, because the entry rules of the reference plugin name them all.
    pub entry_ports: Vec<EntryPort>,
    /// A chain that sets another engine's mark instead of ours.
    pub set_mark_chain: Option<ChainName>,
}

/// A host port that an entry rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPort {
    pub protocol: Protocol,
    /// The first host port of the mapping.
    pub port: u16,
}
