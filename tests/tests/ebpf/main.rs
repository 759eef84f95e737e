// SPDX-License-Identifier: GPL-2.0-or-later

//! The eBPF backend on a node: loading and attaching the BPF programs, kernels that refuse them, settings, kinds of
//! uplinks, and changes of addresses and routes. The suite `carried` tests packets, and `contract_ebpf` the contract of
//! published ports.

mod frames;
mod list;
mod moved;
mod paths;
mod safety;
mod settings;
mod transfer;
mod uplinks;

use std::net::SocketAddr;

use serde_json::Value;
use slipway_tests::{
    Answer, Attach, Host, Network, Node, PROGRAMS, Pod, Proto, Space, address_of, at, has_programs, needs,
    patience,
};

use list::list;

const PORT: u16 = 8080;
/// The port of servers outside.
const FAR: u16 = 7000;

struct Stage {
    node: Node,
    client: Host,
}

impl Stage {
    fn new() -> Self {
        let node = Node::without_bridge_netfilter();
        node.own_etc();
        let client = node.host("client");
        Self { node, client }
    }

    fn network(&self) -> Network<'_> {
        self.node.network(list("ebpf"))
    }

    /// The number of packets that the programs have carried.
    fn carried(&self) -> u64 {
        self.node.counted("carried_packets")
    }

    fn filters(&self, link: &str) -> String {
        self.node.cmd(&format!("tc filter show dev {link} ingress"))
    }

    /// Asserts that most packets of a flow are carried, or that none are. Returns the last reply.
    #[track_caller]
    fn expect_carried(
        &self,
        are_carried: bool,
        proto: Proto,
        from: &Space,
        to: impl Into<SocketAddr>,
    ) -> Answer {
        let (to, before) = (to.into(), self.carried());
        let mut flow = from.dial(proto, None, to, patience()).expect("a flow");
        let last = (0..50).map(|_| flow.request().expect("a reply")).last();
        let carried = self.carried() - before;
        assert!(
            if are_carried { carried > 50 } else { carried == 0 },
            "{to}: {carried}; {}",
            self.node.programs()
        );
        last.expect("a reply")
    }
}

fn attach(pod: &Pod) -> Attach {
    Attach::new(pod).port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80)
}

fn address(result: &Value) -> String {
    address_of(result, 0).to_string()
}

/// Repeats only portmap's ADD, because bridge refuses an existing link.
fn publish(network: &Network<'_>, attach: &Attach, result: &Value) {
    let mut config = network.configs(Some(attach)).pop().expect("portmap");
    config["prevResult"] = result.clone();
    network.call("ADD", &config, Some(attach)).result().expect("ADD again");
}

#[test]
fn setup_is_idempotent_and_teardown_removes_everything() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    assert_eq!(stage.node.programs()["loaded"], false);
    let text = stage.node.slipway("node setup");
    assert!(text.contains("programs    loaded") && text.contains(&stage.client.node_link), "{text}");
    assert!(stage.filters(&stage.client.node_link).contains("flow_ingress"));
    // A second set-up changes neither filters nor programs.
    let before = (stage.filters(&stage.client.node_link), stage.node.programs());
    stage.node.slipway("node setup");
    assert_eq!((stage.filters(&stage.client.node_link), stage.node.programs()), before);
    stage.node.slipway("node teardown");
    assert_eq!(stage.filters(&stage.client.node_link), "");
    assert_eq!(stage.node.programs()["loaded"], false);
    // The BPF file system contains only the kernel's own entries.
    let left = stage.node.list("/sys/fs/bpf");
    assert!(left.iter().all(|name| !name.starts_with("slipway")), "{left:?}");
    stage.node.slipway("node teardown");
}

#[test]
fn without_the_programs_nftables_serves() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let network = stage.network();
    let pod = stage.node.pod("web");
    let attach = attach(&pod);
    let result = network.add(&attach).expect("ADD");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    stage.node.slipway("node teardown");
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
    network.check(&attach).expect("CHECK");
    network.del(&attach).expect("DEL");
    stage.client.expect_none(Proto::Tcp, at(stage.client.node_v4, PORT));
}

/// The programs do not depend on the interface's name.
#[test]
fn an_uplink_may_be_renamed() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let pod = stage.node.pod("web");
    let result = stage.network().add(&attach(&pod)).expect("ADD");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    stage.node.cmd(&format!("ip link set dev {} down", stage.client.node_link));
    stage.node.cmd(&format!("ip link set dev {} name up0", stage.client.node_link));
    stage.node.cmd("ip link set dev up0 up");
    stage.node.wait_up("up0");
    stage.client.wait_up("eth0");
    stage.expect_carried(true, Proto::Tcp, &stage.client, (stage.client.node_v4, PORT));
    assert_eq!(stage.node.programs()["uplinks"], serde_json::json!(["up0"]));
}
