// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway trace` on real nodes, with real packets, for each backend.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, Ipv4Addr};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Daemon, Host, Node, PROGRAMS, Pod, Proto, QUICK, Server, Snapshot, Space, at, comes,
    has_programs, host_local, needs, patience, slipway, within,
};

const LOG: &str = "/run/trace.log";
const PORT: u16 = 8080;

struct World {
    node: Node,
    client: Host,
}

/// A container with the published port and a running server.
struct Web {
    pod: Pod,
    _server: Server,
}

impl World {
    fn new() -> Self {
        let (node, client) = Node::with_client();
        Self { node, client }
    }

    fn web(&self, backend: &str) -> Web {
        let network = self.node.network(json!({"name": "pods", "plugins": [
            {
                "type": "bridge", "bridge": "br1", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": host_local("10.22.0.0/24", "fd00:22::/64"),
            },
            {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
        ]}));
        let pod = self.node.pod("web");
        let attach = Attach::new(&pod).port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80);
        network.add(&attach).unwrap_or_else(|e| panic!("ADD: {e}"));
        let server = pod.serve(Proto::Tcp, "[::]:80", "web");
        Web { pod, _server: server }
    }

    /// Starts a trace, and waits until the trace sees packets.
    fn start(&self, args: &str) -> Daemon {
        let words: Vec<&str> = ["trace"].into_iter().chain(args.split_whitespace()).collect();
        let daemon = self.node.daemon(slipway(), &words, LOG);
        assert!(comes(|| self.is_tracing()), "the trace does not start: {:?}", self.node.read(LOG));
        daemon
    }

    fn is_tracing(&self) -> bool {
        self.node.cmd("nft list tables").contains("slipway-trace")
    }

    /// Traces while `work` runs, and returns the output.
    fn traced(&self, args: &str, work: impl FnOnce()) -> String {
        self.traced_by(args, |_| work())
    }

    fn traced_by(&self, args: &str, work: impl FnOnce(&Daemon)) -> String {
        let daemon = self.start(args);
        work(&daemon);
        let ended = comes(|| !daemon.runs());
        let log = self.node.read(LOG).unwrap_or_default();
        assert!(ended, "the trace does not end: {log}");
        assert!(!self.is_tracing(), "the table is left: {log}");
        log
    }

    fn node_v4(&self) -> Ipv4Addr {
        self.client.node_v4
    }

    /// Traces the first packet of a request to the node's address.
    fn first(&self, from: &Space, to: impl Into<IpAddr>) -> String {
        let to = at(to, PORT);
        self.traced(&format!("tcp {to} --count 1 --for 20s"), || {
            drop(from.request_from(Proto::Tcp, None, to, QUICK));
        })
    }
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_hit_of_each_address_family() {
    let world = World::new();
    let _web = world.web("nftables");
    let node = world.node_v4();
    let text = world.first(&world.client, node);
    assert_has(
        &text,
        &[
            "packet 1: from 192.0.2.2:",
            ", arriving on out0, SYN\n",
            "guard        neither to nor from 127.0.0.0/8: passes\n",
            "prerouting   192.0.2.1 is an address of this node: published ports are looked up in table inet slipway\n",
            "lookup       map hostports4 has tcp port 8080: network pods, container web, interface eth0\n",
            "the destination becomes 10.22.0.2:80\n",
            "postrouting  192.0.2.2 keeps its address: chain hairpin-10.22.0.0/24-13\n",
            "It leaves for 10.22.0.2:80 by br1: network pods, container web, interface eth0.\n",
            "1 packets; --count shows more.\n",
        ],
    );
    let text = world.first(&world.client, world.client.node_v6);
    assert_has(&text, &["map hostports6 has tcp port 8080", "It leaves for [fd00:22::2]:80 by br1"]);
    let text = world.first(&world.node, Ipv4Addr::LOCALHOST);
    assert_has(&text, &["the node itself, SYN", "output", "the source becomes 10.22.0.1:", "by br1"]);
}

#[test]
fn a_hairpin_is_masqueraded() {
    let world = World::new();
    let web = world.web("nftables");
    let text = world.first(&web.pod, world.node_v4());
    assert_has(
        &text,
        &[
            "from 10.22.0.2:",
            "chain hairpin-10.22.0.0/24-13 masquerades the source 10.22.0.2\n",
            "the source becomes 10.22.0.1:",
        ],
    );
}

#[test]
fn a_miss_goes_to_the_node() {
    let world = World::new();
    let _web = world.web("nftables");
    let to = at(world.node_v4(), 8081);
    let text = world.traced(&format!("tcp {to} --count 1 --for 20s"), || {
        drop(world.client.request_from(Proto::Tcp, None, to, QUICK));
    });
    assert_has(
        &text,
        &[
            "no container has tcp port 8081 of 192.0.2.1\n",
            "It goes to the node itself, where nothing listens on the port.\n",
        ],
    );
}

#[test]
fn a_rule_or_a_policy_that_drops_is_named() {
    let world = World::new();
    let _web = world.web("nftables");
    let node = world.node_v4();
    world.node.nft(
        "table inet office { chain inner { th dport 80 drop comment \"no web\"; }; \
         chain walk { type filter hook forward priority 0; policy accept; jump inner; }; }",
    );
    let text = world.first(&world.client, node);
    assert_has(
        &text,
        &[
            "forward     chain inner of table inet office, rule `th dport 80 drop comment \"no web\"`: drops it\n",
            "It is dropped by chain inner of table inet office.\n",
        ],
    );
    world.node.nft(
        "delete table inet office; \
         table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }",
    );
    let text = world.first(&world.client, node);
    assert_has(
        &text,
        &[
            "chain FORWARD of table ip filter drops what none of its rules accepts\n",
            "It is dropped by chain FORWARD of table ip filter.\n",
        ],
    );
}

#[test]
fn a_packet_that_the_kernel_drops_between_the_hooks() {
    let world = World::new();
    let _web = world.web("nftables");
    world.node.sysctl("net/ipv4/ip_forward", "0");
    let text = world.first(&world.client, world.node_v4());
    assert_has(
        &text,
        &["It is not seen after prerouting", "`slipway explain`: It is dropped: the node does not forward."],
    );
}

#[test]
fn a_datagram_is_traced() {
    let world = World::new();
    let web = world.web("nftables");
    let _server = web.pod.serve(Proto::Udp, "[::]:80", "web");
    let to = at(world.node_v4(), PORT);
    let text = world.traced(&format!("udp {to} --count 1"), || {
        world.client.expect(Proto::Udp, to, "web");
    });
    assert_has(&text, &["map hostports4 has udp port 8080", "the destination becomes 10.22.0.2:80\n"]);
}

#[test]
fn the_chains_of_iptables() {
    let world = World::new();
    let _web = world.web("iptables");
    let text = world.first(&world.client, world.node_v4());
    assert_has(
        &text,
        &[
            "chain PREROUTING of table ip nat: passes, through CNI-HOSTPORT-DNAT, CNI-DN-",
            "the destination becomes 10.22.0.2:80\n",
            "It leaves for 10.22.0.2:80 by br1",
        ],
    );
}

/// Traces a connection of many requests to a container whose flows are carried by BPF programs.
fn traced_connection(prepare: impl FnOnce(&Node)) -> String {
    let world = World::new();
    world.node.cmd(&format!("ip route add default via {}", world.client.v4));
    let _web = world.web("ebpf");
    prepare(&world.node);
    let to = at(world.node_v4(), PORT);
    let time = within(Duration::from_secs(3)).as_secs();
    world.traced(&format!("tcp {to} --for {time}s --count 1000"), || {
        let mut flow = world.client.dial(Proto::Tcp, None, to, patience()).unwrap();
        for _ in 0..150 {
            assert_eq!(flow.request().unwrap().who, "web");
            sleep(Duration::from_millis(10));
        }
    })
}

#[test]
fn programs_that_carry_flows_are_counted() {
    needs!(has_programs(), PROGRAMS);
    let text = traced_connection(|_| ());
    assert_has(&text, &["It leaves for 10.22.0.2:80 by br1", "BPF programs carried ", "past netfilter"]);
    assert_has(&text, &["counted, for all ports of the node", " packets that the BPF programs carried\n"]);
    assert!(!text.contains("carried 0 packets") && !text.contains("in another way"), "{text}");
}

/// If a rule changes packets in a way that the BPF programs cannot imitate, the flow stays with netfilter.
#[test]
fn the_reason_of_flows_that_stay_with_netfilter_is_counted() {
    needs!(has_programs(), PROGRAMS);
    let text = traced_connection(|node| {
        node.nft(
            "table inet qos { chain out { type filter hook postrouting priority 0; ip dscp set cs1; }; }",
        );
    });
    assert_has(&text, &["carried 0 packets", "came out changed in another way than the BPF programs can\n"]);
}

/// True if the kernel supports tables that are deleted when their process ends (Linux 5.12).
fn has_owned_tables(node: &Space) -> bool {
    node.try_cmd("nft add table inet probe { flags owner; }").code == Some(0)
}

#[test]
fn a_trace_ends_by_time_by_a_signal_and_with_its_process() {
    let world = World::new();
    let _web = world.web("nftables");
    let to = at(world.node_v4(), PORT);
    let before = Snapshot::take(&world.node, &[]);
    let text = world.traced(&format!("tcp {to} --for 1s"), || ());
    assert_has(
        &text,
        &["No packet to this port came to netfilter.\n", "`slipway explain tcp 192.0.2.1:8080`"],
    );

    // A second trace reports the first one and leaves it alone.
    let first = world.start(&format!("tcp {to} --for 20s"));
    let second = world.node.try_slipway(&format!("trace tcp {to}"));
    assert_eq!(second.code, Some(1), "{second}");
    assert!(second.stderr.contains("another `slipway trace` runs"), "{second}");
    assert!(first.runs() && world.is_tracing());
    // Dropping the first trace kills it with SIGKILL. Before Linux 5.12, the next trace deletes the table once the
    // killed one's time is over.
    drop(first);
    if has_owned_tables(&world.node) {
        assert!(comes(|| !world.is_tracing()), "the table outlives its process");
    } else {
        assert!(
            comes(|| !world.node.cmd("nft list table inet slipway-trace").contains("expires")),
            "it has no end"
        );
        world.traced(&format!("tcp {to} --for 1s"), || ());
    }

    let text = world.traced_by(&format!("tcp {to} --for 1m"), Daemon::terminate);
    assert_has(&text, &["No packet to this port"]);
    before.without(&["trace.log"]).assert_same(&Snapshot::take(&world.node, &[]).without(&["trace.log"]));
}

#[test]
fn a_busy_port_is_limited() {
    let world = World::new();
    let _web = world.web("nftables");
    let to = at(world.node_v4(), PORT);
    let text = world.traced(&format!("tcp {to} --for 2s --count 1000 --output json"), || {
        for _ in 0..40 {
            world.client.expect(Proto::Tcp, to, "web");
        }
    });
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let packets = document["packets"].as_array().unwrap();
    // 40 connections have at least 160 packets in this direction. The trace shows 10 at once and then 20 a second.
    assert!((10..=80).contains(&packets.len()), "{}", packets.len());
    assert_eq!((&document["ended"], &document["events_lost"]), (&json!("time"), &json!(false)));
    assert_eq!(packets[0]["dropped"], json!(false));
}

#[test]
fn wrong_arguments() {
    let node = Node::new();
    for args in [
        "tcp",
        "icmp 192.0.2.1:1",
        "tcp 192.0.2.1:1 --for 0s",
        "tcp 192.0.2.1:1 --for 11m",
        "tcp 192.0.2.1:1 --count 0",
    ] {
        let output = node.try_slipway(&format!("trace {args}"));
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{args}: {output}");
    }
}
