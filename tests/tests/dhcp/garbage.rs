// SPDX-License-Identifier: GPL-2.0-or-later

//! Mutated configurations and environments for dhcp, with a server that replies.

use serde_json::json;
use slipway_tests::garbage::feed;

use crate::stage::Stage;

#[test]
fn dhcp_survives_garbage() {
    needs_dnsmasq!();
    let stage = Stage::with_dnsmasq(&["--dhcp-option=option:router,10.77.0.1"]);
    let pod = stage.node.pod("pod");
    stage.node.cmd("ip link add veth0 up type veth peer name eth0 netns pod");
    stage.node.cmd("ip link set veth0 master lan0");
    pod.cmd("ip link set eth0 up");
    let config = json!({
        "cniVersion": "1.1.0", "name": "lan", "type": "dhcp",
        "ipam": {
            "type": "dhcp", "daemonSocketPath": "/run/cni/dhcp.sock", "priority": 7,
            "request": [{"option": "121", "skipDefault": true}, {"option": "6"}],
            "provide": [
                {"option": "host-name", "value": "pod"},
                {"option": "dhcp-client-identifier", "fromArg": "K8S_POD_NAME"},
                {"option": "60", "value": "vendor"},
            ],
        },
    });
    feed("dhcp", &config, &stage.node, &pod, &["/run/daemon.err", "/run/dnsmasq.log"]);
}
