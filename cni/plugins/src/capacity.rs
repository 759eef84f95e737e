// SPDX-License-Identifier: GPL-2.0-or-later

//! How many containers a network has room for, computed from its configuration alone.

use cni_spec::{CniError, NetConf};

use crate::interface::bridge;
use crate::ipam::host_local;
use crate::meta::flannel;

/// The most ports of a bridge: port numbers have ten bits, and 0 is not used (`BR_PORT_BITS`, `find_portno`).
pub const BRIDGE_PORTS: u64 = 1023;

/// The limits on the number of a network's containers on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// The number of addresses that can be given out. With host-local it is the size of the smallest range set, because
    /// a container gets one address from each set. None if the number is not known here, as with dhcp or without IPAM.
    pub addresses: Option<u64>,
    /// The bridge that the containers' links join, which other networks may share.
    pub bridge: Option<String>,
}

impl Capacity {
    /// The capacity of a network according to the configuration of its first plugin.
    ///
    /// # Errors
    /// [`CniError`] for a configuration with which an ADD fails.
    pub fn of(config: &NetConf) -> Result<Self, CniError> {
        if config.plugin == "flannel" {
            return Self::of_link(&NetConf::parse(flannel::delegate(config)?)?);
        }
        Self::of_link(config)
    }

    fn of_link(config: &NetConf) -> Result<Self, CniError> {
        let addresses = match config.ipam.as_str() {
            "host-local" => Some(host_local::addresses(config)?),
            _ => None,
        };
        let bridge = if config.plugin == "bridge" { Some(bridge::name(config)?) } else { None };
        Ok(Self { addresses, bridge })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn capacity(plugin: &str, mut keys: Value) -> Capacity {
        keys["cniVersion"] = "1.0.0".into();
        keys["name"] = "n".into();
        keys["type"] = plugin.into();
        Capacity::of(&NetConf::parse(keys.to_string()).unwrap()).unwrap()
    }

    #[test]
    fn the_smallest_range_set_counts_without_gateways() {
        let bridge = |name: &str| Some(name.to_owned());
        let cases = [
            (json!({"ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}), Some(253), bridge("cni0")),
            (
                json!({"bridge": "br7", "ipam": {"type": "host-local", "ranges": [
                    [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.19"},
                     {"subnet": "10.2.0.0/30"}],
                    [{"subnet": "fd00::/64"}]
                ]}}),
                Some(11),
                bridge("br7"),
            ),
            (json!({"ipam": {"type": "host-local", "subnet": "fd00::/56"}}), Some(u64::MAX), bridge("cni0")),
            (json!({"ipam": {"type": "dhcp"}}), None, bridge("cni0")),
            (json!({}), None, bridge("cni0")),
        ];
        for (keys, addresses, bridge) in cases {
            assert_eq!(capacity("bridge", keys.clone()), Capacity { addresses, bridge }, "{keys}");
        }
        let ptp = capacity("ptp", json!({"ipam": {"type": "host-local", "subnet": "10.1.0.0/29"}}));
        assert_eq!(ptp, Capacity { addresses: Some(5), bridge: None });
    }

    #[test]
    fn flannels_subnets_are_those_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("subnet.env");
        let text = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        std::fs::write(&file, text).unwrap();
        let capacity = capacity("flannel", json!({"subnetFile": file, "delegate": {"bridge": "f0"}}));
        assert_eq!(capacity, Capacity { addresses: Some(253), bridge: Some("f0".to_owned()) });
    }
}
