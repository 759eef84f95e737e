// SPDX-License-Identifier: GPL-2.0-or-later

//! CHECK notices changes since the ADD.

use serde_json::json;
use slipway_tests::{Attach, Node, has_ipv6, peer_fails};

use super::pair::{attached, outer};

#[test]
fn check_compares_routes_to_and_from_the_container() {
    peer_fails("looks at the container's end only", || {
        let (node, pod) = Node::with_pod();
        let (network, result) = attached(&node, &pod, json!({}));
        let outer = outer(&result);
        let fine = || network.check(&Attach::new(&pod)).expect("CHECK");
        pod.cmd("ip route delete 10.1.2.0/24");
        network.differs(&pod, "Expected Route 10.1.2.0/24 via 10.1.2.1 not found in routing table");
        pod.cmd("ip route add 10.1.2.0/24 via 10.1.2.1 src 10.1.2.2");
        fine();
        node.cmd("ip route delete 10.1.2.2");
        network.differs(&pod, "Expected Route 10.1.2.2/32 not found in routing table");
        node.cmd(&format!("ip route add 10.1.2.2 dev {outer} scope host"));
        fine();
        if has_ipv6() {
            node.cmd("ip -6 route delete fd00:1::2");
            network.differs(&pod, "Expected Route fd00:1::2/128 not found in routing table");
            node.cmd(&format!("ip route add fd00:1::2 dev {outer}"));
            fine();
        }
        node.cmd(&format!("ip address delete 10.1.2.1/32 dev {outer}"));
        network.differs(&pod, &format!("Failed to match addr 10.1.2.1/32 on interface {outer}"));
        node.cmd(&format!("ip address add 10.1.2.1/32 dev {outer}"));
        // When a link loses its last address, the kernel removes all routes of the link.
        node.cmd(&format!("ip route add 10.1.2.2 dev {outer} scope host"));
        fine();
        node.cmd(&format!("ip link set {outer} down"));
        network.differs(&pod, &format!("Interface {outer} is down"));
        // Older kernels cannot rename a link that is up.
        node.cmd(&format!("ip link set {outer} name other"));
        network.differs(&pod, "ptp: host end of container interface eth0 was not found");
    });
}
