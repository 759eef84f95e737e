// SPDX-License-Identifier: GPL-2.0-or-later

//! Configurations of plugins with most of their keys, for suites that try every plugin.

use serde_json::{Value, json};

/// The content of flanneld's file `/run/flannel/subnet.env` for the subnet 10.88.0.0/24.
pub const FLANNEL_ENV: &str =
    "FLANNEL_NETWORK=10.88.0.0/16\nFLANNEL_SUBNET=10.88.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";

/// A bandwidth configuration that limits both directions.
pub fn limited() -> Value {
    json!({
        "type": "bandwidth", "ingressRate": 100_000_000, "ingressBurst": 8_000_000,
        "egressRate": 100_000_000, "egressBurst": 8_000_000,
    })
}

/// A tuning configuration that sets every attribute of the link and a sysctl.
pub fn tuned() -> Value {
    json!({
        "type": "tuning", "mac": "02:00:00:00:00:07", "mtu": 1300, "promisc": true, "allmulti": true, "txQLen": 77,
        "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
    })
}

/// A static configuration with an address in 10.88.0.0/24.
pub fn fixed() -> Value {
    json!({
        "type": "static", "routes": [{"dst": "0.0.0.0/0"}],
        "addresses": [{"address": "10.88.0.9/24", "gateway": "10.88.0.1"}],
    })
}
