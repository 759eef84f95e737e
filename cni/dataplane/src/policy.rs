// SPDX-License-Identifier: GPL-2.0-or-later

//! The firewall plugin's `ingressPolicy`.

/// Which packets reach the containers on a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressPolicy {
    Open,
    /// All packets, except for those from another bridge whose policy is neither [`Self::Open`] nor [`Self::Listed`].
    SameBridge,
    /// Like [`Self::SameBridge`], but also without packets from other containers on the same bridge.
    Isolated,
    /// Like [`Self::SameBridge`], but also without packets to or from a bridge that is [`Self::Listed`].
    Strict,
    /// All packets, except for those to or from a bridge that is [`Self::Strict`].
    Listed,
}

impl IngressPolicy {
    /// The policy with this name in configurations. An empty name means [`Self::Open`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "" | "open" => Some(Self::Open),
            "same-bridge" => Some(Self::SameBridge),
            "isolated" => Some(Self::Isolated),
            "strict" => Some(Self::Strict),
            "listed" => Some(Self::Listed),
            _ => None,
        }
    }

    /// True if only [`crate::firewall::Isolator::Nftables`] supports the policy. The reference plugin, which decides
    /// how the chains of iptables look, has no such policy.
    pub(crate) const fn needs_sets(self) -> bool {
        matches!(self, Self::Strict | Self::Listed)
    }
}
