// SPDX-License-Identifier: MIT OR Apache-2.0

use std::fmt;
use std::str::FromStr;

/// How packets that a pod sends to a Service or port of its own get back to the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HairpinMode {
    /// The bridge is promiscuous, so the node's stack receives and routes such packets. Only for kubenet.
    PromiscuousBridge,
    /// The bridge sends such packets back through the port on which they arrived.
    HairpinVeth,
    /// Such packets do not get back.
    #[default]
    None,
}

/// An unknown hairpin mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown value: {0:?}")]
pub struct UnknownHairpinMode(String);

impl HairpinMode {
    /// The mode that kubelet passes to a driver. Only kubenet gets a promiscuous bridge; other drivers get
    /// [`Self::HairpinVeth`] instead. Of the drivers here, only kubenet applies the mode.
    #[must_use]
    pub fn effective(self, driver: &str) -> Self {
        if self == Self::PromiscuousBridge && driver != "kubenet" {
            return Self::HairpinVeth;
        }
        self
    }
}

impl FromStr for HairpinMode {
    type Err = UnknownHairpinMode;

    fn from_str(text: &str) -> Result<Self, UnknownHairpinMode> {
        [Self::PromiscuousBridge, Self::HairpinVeth, Self::None]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| UnknownHairpinMode(text.to_owned()))
    }
}

impl fmt::Display for HairpinMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PromiscuousBridge => "promiscuous-bridge",
            Self::HairpinVeth => "hairpin-veth",
            Self::None => "none",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promiscuous_bridge_is_kubenets_only() {
        use HairpinMode::{HairpinVeth, None, PromiscuousBridge};
        for (configured, driver, effective) in [
            (PromiscuousBridge, "kubenet", PromiscuousBridge),
            (PromiscuousBridge, "cni", HairpinVeth),
            (PromiscuousBridge, "", HairpinVeth),
            (HairpinVeth, "kubenet", HairpinVeth),
            (HairpinVeth, "cni", HairpinVeth),
            (None, "kubenet", None),
        ] {
            assert_eq!(configured.effective(driver), effective, "{configured} {driver}");
        }
    }

    #[test]
    fn any_other_mode_is_refused() {
        for mode in ["promiscuous-bridge", "hairpin-veth", "none"] {
            assert_eq!(mode.parse::<HairpinMode>().unwrap().to_string(), mode);
        }
        for text in ["", "None", "hairpin"] {
            let error = text.parse::<HairpinMode>().unwrap_err();
            assert_eq!(error.to_string(), format!("unknown value: {text:?}"));
        }
    }
}
