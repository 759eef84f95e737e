// SPDX-License-Identifier: GPL-2.0-or-later

//! Configurations of plugins with most of their keys, for suites that try every plugin.

use serde_json::{Value, json};

/// The file of flanneld for 10.88.0.0/24, which is at `/run/flannel/subnet.env`.
pub const FLANNEL_ENV: &str =
    "FLANNEL_NETWORK=10.88.0.0/16\nFLANNEL_SUBNET=10.88.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";

/// bandwidth, in both directions.
pub fn limited() -> Value {
    json!({
        "type": "bandwidth", "ingressRate": 100_000_000, "ingressBurst": 8_000_000,
        "egressRate": 100_000_000, "egressBurst": 8_000_000,
    })
}

/// tuning, with every attribute of the link and a sysctl.
pub fn tuned() -> Value {
    json!({
        "type": "tuning", "mac": "02:00:00:00:00:07", "mtu": 1300, "promisc": true, "allmulti": true, "txQLen": 77,
        "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
    })
}

/// static, with an address of 10.88.0.0/24.
pub fn fixed() -> Value {
    json!({
        "type": "static", "routes": [{"dst": "0.0.0.0/0"}],
        "addresses": [{"address": "10.88.0.9/24", "gateway": "10.88.0.1"}],
    })
}
