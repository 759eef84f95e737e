// SPDX-License-Identifier: GPL-2.0-or-later

//! A Node's pod CIDR changes while pods of kubenet run. Commands that only read change nothing, and no command takes
//! the gateway away from a running pod.

use slipway_tests::{Host, Proto, Snapshot, Space, slipway_only};

use crate::Kubelet;

const PLUGIN: &str = "--network-plugin kubenet --hairpin-mode hairpin-veth";
const OLD: &str = "10.180.1.0/24,fd00:180::/64";
const NEW: &str = "10.182.0.0/24,fd00:182::/64";
const GATEWAYS: [&str; 2] = ["10.180.1.1/24", "fd00:180::1/64"];

/// Files that locks and reservations leave behind.
const LOCKS: &[&str] = &["/locks", "/lock", "last_reserved_ip", "networks/.slipway/"];

fn state(kubelet: &Kubelet, web: &Space) -> Snapshot {
    Snapshot::take(&kubelet.node, &[web]).without(LOCKS)
}

/// A node with a pod whose port 80 is published as port 8080 of the node.
struct Stage {
    kubelet: Kubelet,
    client: Host,
    web: Space,
}

impl Stage {
    fn new() -> Self {
        let kubelet = Kubelet::new();
        let client = kubelet.node.host("client");
        let up =
            format!("pod up shop/web --sandbox s1 --create-netns --port 8080:80 {PLUGIN} --pod-cidr {OLD}");
        kubelet.ok(&up);
        let web = kubelet.node.namespace("web", "/run/netns/slipwayd-s1".as_ref());
        Self { kubelet, client, web }
    }

    fn assert_served(&self) {
        let Self { kubelet, client, web } = self;
        let _server = web.serve(Proto::Tcp, "0.0.0.0:80", "web");
        client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
        assert_eq!(kubelet.link_addresses("cbr0"), GATEWAYS);
    }
}

#[test]
fn commands_that_read_change_nothing() {
    slipway_only!();
    let stage = Stage::new();
    let Stage { kubelet, web, .. } = &stage;
    stage.assert_served();
    let pod = "pod status shop/web --sandbox s1";
    let before = state(kubelet, web);
    kubelet.ok(&format!("pod status {PLUGIN} --pod-cidr {OLD}"));
    kubelet.ok(&format!("{pod} {PLUGIN} --pod-cidr {OLD}"));
    kubelet.ok(&format!("{pod} {PLUGIN} --pod-cidr {NEW}"));
    for cidrs in [NEW, "10.180.0.0/16", "10.180.1.0/24"] {
        let error = kubelet.fails(&format!("pod status {PLUGIN} --pod-cidr {cidrs}"));
        let used = if cidrs == "10.180.1.0/24" { "fd00:180::/64" } else { OLD };
        let wanted = format!(
            "slipwayd pod status: pod CIDR {cidrs} differs from {used}, which cbr0 has and 1 running pods use: delete these \
             pods first, or keep {used}\n"
        );
        assert_eq!(error, wanted);
    }
    before.assert_same(&state(kubelet, web));
    stage.assert_served();
}

#[test]
fn reading_prepares_no_node() {
    slipway_only!();
    let kubelet = Kubelet::new();
    let web = kubelet.node.pod("web");
    kubelet
        .node
        .write("/run/net.d/10-pods.conf", r#"{"cniVersion": "1.0.0", "name": "pods", "type": "loopback"}"#);
    kubelet.node.write("/run/exec/sdn/sdn", "#!/bin/sh\n[ $1 = init ] && >/run/exec/started\nexit 0\n");
    kubelet.node.cmd("chmod +x /run/exec/sdn/sdn");
    let before = state(&kubelet, &web);
    kubelet.ok(&format!("pod status {PLUGIN} --pod-cidr {OLD}"));
    kubelet.ok("pod status --network-plugin cni --cni-conf-dir /run/net.d");
    kubelet.ok("pod status --network-plugin sdn --network-plugin-dir /run/exec");
    kubelet.ok("pod status --cni-conf-dir /run/net.d");
    kubelet.ok("networks --cni-conf-dir /run/net.d");
    before.assert_same(&state(&kubelet, &web));
    assert!(!kubelet.node.has_link("cbr0") && kubelet.node.list("/run/exec") == ["sdn"]);
    // As the control, a set-up creates the bridge, and the exec plugin is started.
    kubelet.ok(&format!("pod up shop/web --sandbox s1 --netns /run/netns/web {PLUGIN} --pod-cidr {OLD}"));
    assert!(kubelet.node.has_link("cbr0"));
    kubelet.ok("pod up shop/web --sandbox s1 --netns /run/netns/web --network-plugin sdn --network-plugin-dir /run/exec");
    assert!(kubelet.node.list("/run/exec").contains(&"started".to_owned()));
}

#[test]
fn another_pod_cidr_is_refused_while_pods_run_and_taken_when_they_are_gone() {
    slipway_only!();
    let stage = Stage::new();
    let Stage { kubelet, client, web } = &stage;
    // An address that no pod uses is removed, as if there were no pods.
    kubelet.node.cmd("ip address add 10.9.9.1/24 dev cbr0");
    kubelet.ok(&format!("pod up shop/b --sandbox s2 --create-netns {PLUGIN} --pod-cidr {OLD}"));
    stage.assert_served();
    let before = state(kubelet, web);
    let up = format!("pod up shop/c --sandbox s3 --create-netns {PLUGIN} --pod-cidr {NEW}");
    let error = kubelet.fails(&up);
    let reason = format!("pod CIDR {NEW} differs from {OLD}, which cbr0 has and 2 running pods use");
    assert!(error.contains(&reason), "{error}");
    before.assert_same(&state(kubelet, web));
    stage.assert_served();
    // A teardown works with either CIDR.
    kubelet.ok(&format!("pod down shop/b --sandbox s2 {PLUGIN} --pod-cidr {NEW}"));
    stage.assert_served();
    kubelet.ok(&format!("pod down shop/web --sandbox s1 {PLUGIN} --pod-cidr {NEW}"));
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
    kubelet.ok(&up);
    assert_eq!(kubelet.link_addresses("cbr0"), ["10.182.0.1/24", "fd00:182::1/64"]);
}

/// As with kubelet's own kubenet, whose pods are not in any cache of ours.
#[test]
fn a_port_that_the_cache_does_not_know_counts_as_a_running_pod() {
    slipway_only!();
    let kubelet = Kubelet::new();
    for command in [
        "ip link add cbr0 type bridge",
        "ip address add 10.180.1.1/24 dev cbr0",
        "ip link add veth0 type veth peer name veth1",
        "ip link set veth0 master cbr0",
    ] {
        kubelet.node.cmd(command);
    }
    let status = format!("pod status {PLUGIN} --pod-cidr {NEW}");
    assert!(
        kubelet.fails(&status).contains("differs from 10.180.1.0/24, which cbr0 has and 1 running pods use")
    );
    kubelet.node.cmd("ip link set veth0 nomaster");
    kubelet.ok(&status);
    assert_eq!(kubelet.link_addresses("cbr0"), ["10.180.1.1/24"]);
}
