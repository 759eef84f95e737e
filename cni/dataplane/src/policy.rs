// SPDX-License-Identifier: GPL-2.0-or-later

//! The firewall plugin's `ingressPolicy`.

/// The packets that reach the containers on a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressPolicy {
    Open,
    /// Not those that come from another bridge with a policy.
    SameBridge,
    /// Neither those from other containers on the same bridge.
    Isolated,
}

impl IngressPolicy {
    /// The policy of that name in configurations; an empty name is [`Self::Open`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "" | "open" => Some(Self::Open),
            "same-bridge" => Some(Self::SameBridge),
            "isolated" => Some(Self::Isolated),
            _ => None,
        }
    }
}
