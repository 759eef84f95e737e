// SPDX-License-Identifier: GPL-2.0-or-later

//! The BPF programs that decide about flows (`"ebpfFlows": "programs"`) on a node: loading, attaching, replacing and removing the BPF programs, and their maps.
//! The suite `contract_programs` tests packets.

mod fill;
mod flows;
mod frames;
mod list;
mod moved;
mod others;
mod paths;
mod reserved_ports;
mod safety;
mod services;
mod settings;
mod sockets;
mod stale;
mod transfer;
mod upgrade;
mod uplinks;

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, BridgeNetfilter, Host, Network, Node, PROGRAMS, Pod, Proto, TunWire, at, has_programs, needs,
};

use list::list;

const PORT: u16 = 8080;

struct Stage {
    node: Node,
    client: Host,
}

impl Stage {
    fn new() -> Self {
        Self::on(Node::new(), BridgeNetfilter::Off)
    }

    /// Returns a stage on a node with its own control group, or `None` without cgroup v2.
    fn with_cgroup(netfilter: BridgeNetfilter) -> Option<Self> {
        let mut node = Node::new();
        node.own_cgroup().then(|| Self::on(node, netfilter))
    }

    fn on(node: Node, netfilter: BridgeNetfilter) -> Self {
        node.let_programs_decide();
        node.bridge_netfilter(netfilter);
        let client = node.host("client");
        Self { node, client }
    }

    fn network(&self) -> Network<'_> {
        self.node.network(list("ebpf"))
    }

    /// Returns the number of packets that the programs have redirected to pods.
    fn carried(&self) -> u64 {
        self.node.counted("to_container_packets")
    }

    fn filters(&self, link: &str) -> String {
        self.node.cmd(&format!("tc filter show dev {link} ingress"))
    }
}

fn attach(pod: &Pod) -> Attach {
    Attach::new(pod).port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80)
}

fn address(result: &Value) -> String {
    let ip = result["ips"][0]["address"].as_str().expect("an address");
    ip.split('/').next().expect("an address").to_owned()
}

/// Returns the container's address of one family.
fn address_of(result: &Value, index: usize) -> IpAddr {
    let ip = result["ips"][index]["address"].as_str().and_then(|ip| ip.split('/').next());
    ip.expect("an address").parse().expect("an IP address")
}

/// Repeats portmap's ADD only, since bridge refuses an existing link.
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
    let said = stage.node.slipway("node setup");
    assert!(said.contains("programs    loaded") && said.contains(&stage.client.node_link), "{said}");
    assert!(stage.filters(&stage.client.node_link).contains("uplink_ingress"));
    // A second set-up changes nothing: same filter, same programs.
    let before = (stage.filters(&stage.client.node_link), stage.node.programs());
    stage.node.slipway("node setup");
    assert_eq!((stage.filters(&stage.client.node_link), stage.node.programs()), before);
    stage.node.slipway("node teardown");
    assert_eq!(stage.filters(&stage.client.node_link), "");
    assert_eq!(stage.node.programs()["loaded"], false);
    // Only the kernel's own entries are left in the BPF file system.
    assert!(!stage.node.list("/sys/fs/bpf").contains(&"slipway".to_owned()));
    stage.node.slipway("node teardown");
}

#[test]
fn add_and_del_write_and_delete_map_entries() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let network = stage.network();
    let pod = stage.node.pod("web");
    let attach = attach(&pod);
    let result = network.add(&attach).expect("ADD");
    let programs = stage.node.programs();
    // Two protocols in two families.
    assert_eq!((&programs["containers"], &programs["ports"]), (&json!(1), &json!(4)), "{programs}");
    network.check(&attach).expect("CHECK");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
    assert!(stage.carried() > 0, "{}", stage.node.programs());
    publish(&network, &attach, &result);
    assert_eq!(stage.node.programs()["ports"], 4);
    network.del(&attach).expect("DEL");
    let programs = stage.node.programs();
    assert_eq!((&programs["containers"], &programs["ports"]), (&json!(0), &json!(0)), "{programs}");
    network.del(&attach).expect("DEL again");
}

#[test]
fn check_finds_missing_map_entries() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let network = stage.network();
    let pod = stage.node.pod("web");
    let attach = attach(&pod);
    network.add(&attach).expect("ADD");
    stage.node.slipway("node teardown");
    stage.node.slipway("node setup");
    let failure = network.check(&attach).expect_err("CHECK");
    assert!(failure.to_string().contains("BPF map"), "{failure}");
}

#[test]
fn gc_deletes_map_entries_of_stale_attachments() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let network = stage.network();
    let (one, two) = (stage.node.pod("one"), stage.node.pod("two"));
    let kept = attach(&one);
    network.add(&kept).expect("ADD");
    network.add(&Attach::new(&two).port(Proto::Tcp, PORT + 1, 80)).expect("ADD");
    assert_eq!(stage.node.programs()["ports"], 6);
    network.gc(&[&kept]).expect("GC");
    let programs = stage.node.programs();
    assert_eq!((&programs["containers"], &programs["ports"]), (&json!(1), &json!(4)), "{programs}");
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
    network.del(&attach).expect("DEL");
    stage.client.expect_none(Proto::Tcp, at(stage.client.node_v4, PORT));
}

#[test]
fn options_that_the_programs_lack_are_left_to_nftables() {
    needs!(has_programs(), PROGRAMS);
    for (key, value) in
        [("snat", json!(false)), ("masqAll", json!(true)), ("conditionsV4", json!(["ip", "ttl", "1-255"]))]
    {
        let stage = Stage::new();
        let mut list = list("ebpf");
        list["plugins"][1][key] = value;
        let network = stage.node.network(list);
        let pod = stage.node.pod("web");
        let attach = attach(&pod);
        let result = network.add(&attach).expect("ADD");
        let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
        assert_eq!(stage.node.programs()["ports"], 0, "{key}");
        stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
        assert_eq!(stage.carried(), 0, "{key}");
        network.check(&attach).expect("CHECK");
        network.del(&attach).expect("DEL");
        assert_eq!(stage.node.programs()["containers"], 0, "{key}");
    }
}

#[test]
fn a_network_changes_to_nftables_and_back() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let pod = stage.node.pod("web");
    let attach = attach(&pod);
    let result = stage.network().add(&attach).expect("ADD");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    for (backend, ports) in [("nftables", 0), ("ebpf", 4)] {
        publish(&stage.node.network(list(backend)), &attach, &result);
        assert_eq!(stage.node.programs()["ports"], ports, "{backend}");
        let carried = stage.carried();
        stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
        assert_eq!(stage.carried() > carried, ports > 0, "{backend}");
    }
}

#[test]
fn setup_repairs_interfaces_changed_by_other_programs() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let network = stage.network();
    let pod = stage.node.pod("web");
    let result = network.add(&attach(&pod)).expect("ADD");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    let request = |carried: bool| {
        let before = stage.carried();
        stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
        assert_eq!(stage.carried() > before, carried, "{}", stage.node.programs());
    };
    request(true);
    // Deleting the qdisc deletes the filter, so that nftables serves the port.
    stage.node.cmd(&format!("tc qdisc del dev {} clsact", stage.client.node_link));
    request(false);
    stage.node.slipway("node setup");
    request(true);
    // The programs do not depend on the interface's name.
    stage.node.cmd(&format!("ip link set dev {} down", stage.client.node_link));
    stage.node.cmd(&format!("ip link set dev {} name up0", stage.client.node_link));
    stage.node.cmd("ip link set dev up0 up");
    stage.node.wait_up("up0");
    stage.client.wait_up("eth0");
    request(true);
    assert_eq!(stage.node.programs()["uplinks"], json!(["up0"]));
}

/// On a tunnel, packets begin with the IP header. Set-up loads the program for such uplinks with the first
/// one.
#[test]
fn an_uplink_may_have_no_ethernet() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let loaded = || stage.node.cmd("find /sys/fs/bpf -name uplink_*");
    stage.node.slipway("node setup");
    assert!(loaded().lines().all(|path| path.ends_with("/uplink_ingress")), "{}", loaded());
    let _wire = TunWire::new(&stage.node, &stage.client, "tun0");
    for (space, own) in [(&*stage.node, 1), (&*stage.client, 2)] {
        space.cmd("ip link set tun0 up");
        space.cmd(&format!("ip address add 198.51.100.{own}/30 dev tun0"));
        space.cmd(&format!("ip address add 2001:db8:7::{own}/64 dev tun0 nodad"));
    }
    stage.node.slipway("node setup");
    assert!(loaded().contains("uplink_l3"), "{}", loaded());
    assert!(stage.filters("tun0").contains("uplink_l3"), "{}", stage.filters("tun0"));
    let (network, pod) = (stage.network(), stage.node.pod("web"));
    let attach = attach(&pod);
    network.add(&attach).expect("ADD");
    for (node, client) in [("198.51.100.1", "198.51.100.2"), ("2001:db8:7::1", "2001:db8:7::2")] {
        let (node, client): (IpAddr, IpAddr) = (node.parse().unwrap(), client.parse().unwrap());
        for proto in [Proto::Tcp, Proto::Udp] {
            // Into the pod, and the replies.
            let _server = pod.serve(proto, "[::]:80", "web");
            let before = stage.carried();
            let answer = stage.client.request(proto, (node, PORT)).expect("an answer");
            assert_eq!((answer.who.as_str(), answer.peer.ip()), ("web", client));
            assert!(stage.carried() > before, "{}", stage.node.programs());
            // Out of the pod.
            let before = stage.node.counted("masqueraded_flows");
            let _far = stage.client.serve(proto, &at(client, 7000).to_string(), "far");
            let answer = pod.request(proto, (client, 7000)).expect("an answer");
            assert_eq!((answer.who.as_str(), answer.peer.ip()), ("far", node));
            assert_eq!(stage.node.counted("masqueraded_flows"), before + 1);
        }
    }
    network.del(&attach).expect("DEL");
}

#[test]
fn the_uplinks_may_be_named() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let other = stage.node.host("other");
    // The node mounts an empty /etc of its own.
    stage.node.cmd("mount -t tmpfs tmpfs /etc");
    stage.node.write(
        "/etc/cni/slipway.json",
        json!({"ebpfFlows": "programs", "uplinks": [other.node_link]}).to_string(),
    );
    stage.node.slipway("node setup");
    assert_eq!(stage.node.programs()["uplinks"], json!([other.node_link]));
    assert_eq!(stage.filters(&stage.client.node_link), "");
}
