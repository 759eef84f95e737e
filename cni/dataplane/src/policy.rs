// SPDX-License-Identifier: GPL-2.0-or-later

//! The firewall plugin's `ingressPolicy`.

/// The packets that reach the containers on a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressPolicy {
    Open,
    /// All but those that come from another bridge whose policy is neither [`Self::Open`] nor [`Self::Listed`].
    SameBridge,
    /// As [`Self::SameBridge`], and not those from other containers on the same bridge.
    Isolated,
    /// As [`Self::SameBridge`], and not those to or from a bridge that is [`Self::Listed`].
    Strict,
    /// All but those to or from a bridge that is [`Self::Strict`].
    Listed,
}

impl IngressPolicy {
    /// The policy of that name in configurations; an empty name is [`Self::Open`].
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

    /// True if only [`crate::firewall::Isolator::Nftables`] knows the policy: the reference, whose chains of iptables have
    /// their own form, has none like it.
    pub(crate) const fn needs_sets(self) -> bool {
        matches!(self, Self::Strict | Self::Listed)
    }
}
