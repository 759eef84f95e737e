// SPDX-License-Identifier: GPL-2.0-or-later

//! CHECK notices changes.

use nix::mount::{MsFlags, mount};
use serde_json::json;
use slipway_tests::{Attach, Node, peer_fails};

use super::pair::{attached, outer};

#[test]
fn check_compares_the_bridge_and_the_port() {
    peer_fails("does not compare some settings", || {
        let (node, pod) = Node::with_pod();
        let (network, result) = attached(&node, &pod, json!({"hairpinMode": true}));
        let port = outer(&result);
        node.cmd(&format!("bridge link set dev {port} hairpin off"));
        network.differs(&pod, &format!("Interface {port}: port is set to"));
        node.cmd(&format!("bridge link set dev {port} hairpin on"));
        network.check(&Attach::new(&pod)).expect("CHECK");
        node.cmd(&format!("ip link set {port} nomaster"));
        network.differs(&pod, "CNI veth created for bridge br0 was not found");
        node.cmd(&format!("ip link set {port} master br0"));
        node.cmd(&format!("bridge link set dev {port} hairpin on"));
        // The bridge does not belong to the attachment, and another program may give it another MAC address.
        node.cmd("ip link set br0 address 02:00:00:00:00:77");
        network.check(&Attach::new(&pod)).expect("CHECK");
        node.cmd("ip link delete br0");
        network.differs(&pod, "Interface br0 not found");
    });
}

#[test]
fn the_sandbox_is_compared_as_a_namespace() {
    peer_fails("compares paths", || {
        let node = Node::new();
        let (pod, other) = (node.pod("pod"), node.pod("other"));
        let (network, result) = attached(&node, &pod, json!({}));
        let elsewhere = "/run/elsewhere/pod";
        node.write(elsewhere, "");
        node.run(|| mount(Some(pod.path()), elsewhere, None::<&str>, MsFlags::MS_BIND, None::<&str>))
            .expect("a bind mount");
        network.check(&Attach::new(&pod).netns(elsewhere)).expect("the same namespace");
        let failure = network.check(&Attach::new(&pod).netns(other.path())).expect_err("another namespace");
        let sandbox = result["interfaces"][2]["sandbox"].as_str().expect("a path");
        let text = format!(
            "Sandbox in prevResult {sandbox} doesn't match configured netns: {}",
            other.path().display()
        );
        assert_eq!(failure.error.msg, text);
    });
}

#[test]
fn the_guard_against_spoofing_is_compared() {
    peer_fails("does not compare it", || {
        let (node, pod) = Node::with_pod();
        let (network, _) = attached(&node, &pod, json!({"macspoofchk": true}));
        node.nft("flush set bridge slipway guarded");
        network.differs(&pod, "spoofing");
    });
}
