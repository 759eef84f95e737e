// SPDX-License-Identifier: GPL-2.0-or-later

//! Rules of other engines that translate packets to a published port before ours do, either left behind by a container
//! that is gone or still in use. ADD warns, and `check-node`, `explain` and `trace` name the rule and the command that
//! deletes it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Host, Network, Node, Pod, Proto, at, has_programs, host_local, is_peer, slipway, within,
};

const PORT: u16 = 8080;
const LOG: &str = "/run/trace.log";

/// Waits until the condition is true.
fn comes(holds: impl Fn() -> bool) -> bool {
    let end = Instant::now() + within(Duration::from_secs(15));
    while Instant::now() < end {
        if holds() {
            return true;
        }
        sleep(Duration::from_millis(50));
    }
    false
}

fn backends() -> Vec<&'static str> {
    let all = ["nftables", "iptables", "ebpf"].into_iter();
    all.filter(|backend| *backend != "ebpf" || has_programs()).collect()
}

struct World {
    node: Node,
    client: Host,
}

impl World {
    fn new() -> Self {
        let (node, client) = Node::with_client();
        Self { node, client }
    }

    fn network(&self, backend: &str) -> Network<'_> {
        self.node.network(json!({"name": "pods", "plugins": [
            {"type": "bridge", "isGateway": true, "ipMasq": true, "ipam": host_local("10.22.0.0/16", "fd00:22::/64")},
            {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
        ]}))
    }

    /// Adds a container with the port, and returns it with the messages that portmap logged.
    fn add(&self, network: &Network<'_>) -> (Pod, String) {
        let pod = self.node.pod("web");
        let attach = Attach::new(&pod).port(Proto::Tcp, PORT, 80);
        let previous = network.add_first(&attach);
        let mut config = network.configs(Some(&attach)).swap_remove(1);
        config["prevResult"] = previous;
        let output = network.prepare("ADD", &config, Some(&attach)).env("SLIPWAY_LOG", "warn").run();
        let _ = output.ok();
        let log: String = output.process.stderr.lines().filter(|line| line.contains("translate")).collect();
        (pod, log)
    }

    fn finding(&self) -> Option<Value> {
        let output = self.node.try_slipway("check-node --output json");
        let report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output}"));
        let all = report["findings"].as_array().expect("a list");
        let is_port =
            |one: &&Value| one["subject"].as_str().is_some_and(|what| what.starts_with("host port "));
        let found: Vec<&Value> = all.iter().filter(is_port).collect();
        assert!(found.len() <= 1, "{found:#?}");
        found.first().map(|one| (*one).clone())
    }

    fn node_address(&self, is_v4: bool) -> IpAddr {
        if is_v4 { self.client.node_v4.into() } else { self.client.node_v6.into() }
    }
}

/// The rules of an engine, and the table, chain and target that reports must name.
struct Case {
    rules: &'static str,
    is_v4: bool,
    chain: &'static str,
    target: &'static str,
}

const CASES: [Case; 8] = [
    Case {
        rules: "nft: table ip stale { chain pre { type nat hook prerouting priority -100; tcp dport 8080 dnat to 10.88.0.99:80; }; }",
        is_v4: true,
        chain: "chain pre of table ip stale",
        target: "10.88.0.99:80",
    },
    Case {
        rules: "nft: table inet stale { chain pre { type nat hook prerouting priority -101; tcp dport { 53, 8080 } counter dnat ip to 10.88.0.99:80; }; }",
        is_v4: true,
        chain: "chain pre of table inet stale",
        target: "10.88.0.99:80",
    },
    Case {
        rules: "nft: table ip6 stale { chain pre { type nat hook prerouting priority dstnat; tcp dport 8000-8999 dnat to [fd00:88::99]:80; }; }",
        is_v4: false,
        chain: "chain pre of table ip6 stale",
        target: "[fd00:88::99]:80",
    },
    // Rules like those of netavark.
    Case {
        rules: "nft: table inet netavark {
            chain nv_dnat { ip daddr 192.0.2.0/24 tcp dport 8080 dnat ip to 10.88.0.99:80; }
            chain NETAVARK-HOSTPORT-DNAT { tcp dport 8080 jump nv_dnat; }
            chain PREROUTING { type nat hook prerouting priority dstnat; fib daddr type local jump NETAVARK-HOSTPORT-DNAT; }
        }",
        is_v4: true,
        chain: "chain nv_dnat of table inet netavark",
        target: "10.88.0.99:80",
    },
    // Rules like those of Docker with nftables.
    Case {
        rules: "nft: table ip docker-bridges {
            chain nat-prerouting-and-output { iifname != \"docker0\" tcp dport 8080 counter dnat to 10.88.0.99:80 comment \"DNAT\"; }
            chain nat-PREROUTING { type nat hook prerouting priority dstnat; fib daddr type local counter jump nat-prerouting-and-output; }
        }",
        is_v4: true,
        chain: "chain nat-prerouting-and-output of table ip docker-bridges",
        target: "10.88.0.99:80",
    },
    Case {
        rules: "nft: table ip stale {
            map ports { type inet_proto . inet_service : ipv4_addr . inet_service; elements = { tcp . 8080 : 10.88.0.99 . 80 }; }
            chain pre { type nat hook prerouting priority dstnat; dnat ip to meta l4proto . th dport map @ports; }
        }",
        is_v4: true,
        chain: "chain pre of table ip stale",
        target: "10.88.0.99:80",
    },
    // Rules like those of Docker with iptables.
    Case {
        rules: "iptables: -N DOCKER
            -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
            -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.88.0.99:80",
        is_v4: true,
        chain: "chain DOCKER of table ip nat",
        target: "10.88.0.99:80",
    },
    Case {
        rules: "ip6tables: -A PREROUTING -p tcp -m multiport --dports 80,8080 -m comment --comment x -j DNAT --to-destination [fd00:88::99]:80",
        is_v4: false,
        chain: "chain PREROUTING of table ip6 nat",
        target: "[fd00:88::99]:80",
    },
];

/// The same kinds of rules in the tables of iptables-legacy.
const LEGACY: [Case; 3] = [
    Case {
        rules: "iptables-legacy: -N DOCKER
            -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
            -A DOCKER -i docker0 -j RETURN
            -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.88.0.99:80",
        is_v4: true,
        chain: "chain DOCKER of `iptables-legacy --table nat`",
        target: "10.88.0.99:80",
    },
    Case {
        rules: "iptables-legacy: -A PREROUTING -d 192.0.2.77 -p tcp -j DNAT --to-destination 10.88.0.98
            -A PREROUTING ! -d 198.51.100.0/24 -p tcp -m multiport --dports 80,8080 -j DNAT --to-destination 10.88.0.99:80",
        is_v4: true,
        chain: "chain PREROUTING of `iptables-legacy --table nat`",
        target: "10.88.0.99:80",
    },
    Case {
        rules: "ip6tables-legacy: -A PREROUTING -p udp -m udp --dport 8080 -j DNAT --to-destination [fd00:88::98]:80
            -A PREROUTING -p tcp -m tcp --dport 8000:8999 -j DNAT --to-destination [fd00:88::99]:80",
        is_v4: false,
        chain: "chain PREROUTING of `ip6tables-legacy --table nat`",
        target: "[fd00:88::99]:80",
    },
];

fn load(node: &Node, rules: &str) {
    match rules.split_once(": ") {
        Some(("nft", rules)) => node.nft(rules),
        Some((program, lines)) => {
            for line in lines.lines() {
                node.cmd(&format!("{program} -t nat {}", line.trim()));
            }
        }
        None => panic!("{rules}"),
    }
}

#[test]
fn a_rule_that_was_left_behind_is_named_and_deleted() {
    are_named_and_deleted(&CASES);
}

#[test]
fn a_rule_of_the_legacy_tables_is_named_and_deleted() {
    if Node::new().try_cmd("iptables-legacy -t nat -S").code != Some(0) {
        slipway_tests::skip!("legacy iptables");
    }
    are_named_and_deleted(&LEGACY);
}

fn are_named_and_deleted(cases: &[Case]) {
    if is_peer() {
        return;
    }
    for backend in backends() {
        for Case { rules, is_v4, chain, target } in cases {
            let world = World::new();
            load(&world.node, rules);
            let network = world.network(backend);
            let (pod, log) = world.add(&network);
            let _server = pod.serve(Proto::Tcp, "[::]:80", "web");
            let to = at(world.node_address(*is_v4), PORT);
            let other = at(world.node_address(!is_v4), PORT);
            world.client.expect(Proto::Tcp, other, "web");
            // Among chains with the same priority, the kernel runs the newer one first, which with the iptables backend
            // is the container's.
            if backend == "iptables" && world.client.request(Proto::Tcp, to).is_ok() {
                assert!(!rules.starts_with("iptables: ") && !rules.contains("-101"), "{rules}");
                assert_eq!((log.as_str(), world.finding()), ("", None), "{rules}");
                continue;
            }
            world.client.expect_none(Proto::Tcp, to);
            let rule = format!("in {chain}");
            assert!(log.contains(&rule) && log.contains(target), "{backend}, {chain}: {log}");
            let found = world.finding().unwrap_or_else(|| panic!("{backend}, {chain}: nothing found"));
            let said = found["found"].as_str().expect("a text");
            assert!(said.contains(&rule) && said.contains(target), "{found:#}");
            assert!(found["reason"].as_str().expect("a text").contains("left behind"), "{found:#}");
            let explained =
                world.node.slipway(&format!("explain tcp {to} --from {}", world.client_address(*is_v4)));
            assert!(explained.contains(&rule), "{explained}");
            let end = explained.lines().last().unwrap_or_default();
            assert!(end.starts_with(&format!("It goes to {target}, not to the container")), "{explained}");
            let fix = found["fix"].as_str().expect("a text");
            let command = fix.trim_matches('`');
            assert_eq!(command.starts_with("nft delete element"), rules.contains("map @"), "{fix}");
            let deletes = command.starts_with("nft delete ") || command.contains("tables-legacy ");
            assert!(deletes && explained.contains(command), "{fix} {explained}");
            world.node.cmd(command);
            world.client.expect(Proto::Tcp, to, "web");
            assert_eq!(world.finding(), None);
        }
    }
}

impl World {
    fn client_address(&self, is_v4: bool) -> IpAddr {
        if is_v4 { self.client.v4.into() } else { self.client.v6.into() }
    }
}

#[test]
fn a_trace_shows_who_has_translated() {
    if is_peer() {
        return;
    }
    for Case { rules, is_v4, chain, target } in &CASES {
        let world = World::new();
        let network = world.network("nftables");
        let (pod, log) = world.add(&network);
        assert_eq!(log, "", "nothing comes before");
        let _server = pod.serve(Proto::Tcp, "[::]:80", "web");
        load(&world.node, rules);
        // With these routes, the packet is sent on towards the client's network, where it could be seen.
        world.node.cmd("ip route add 10.88.0.0/24 via 192.0.2.2");
        world.node.cmd("ip route add fd00:88::/64 via 2001:db8::2");
        let to = at(world.node_address(*is_v4), PORT);
        let daemon = world.node.daemon(slipway(), &["trace", "tcp", &to.to_string(), "--count", "1"], LOG);
        let is_tracing = || world.node.cmd("nft list tables").contains("slipway-trace");
        assert!(comes(is_tracing), "{:?}", world.node.read(LOG));
        world.client.expect_none(Proto::Tcp, to);
        assert!(comes(|| !daemon.runs()));
        let said = world.node.read(LOG).unwrap_or_default();
        assert!(said.contains(&format!("{chain}: the rule with handle ")), "{chain}: {said}");
        assert!(said.contains(&format!("the destination becomes {target}")), "{said}");
        assert!(said.contains("nft delete "), "{said}");
        assert!(!said.contains("container web"), "another program has it: {said}");
    }
}

/// The target runs or a Service has the port, so no report recommends deleting the rule.
#[test]
fn rules_that_are_in_use_are_not_to_be_deleted() {
    if is_peer() {
        return;
    }
    let alive = [
        "nft: table inet netavark {
            chain NETAVARK-HOSTPORT-DNAT { tcp dport 8080 dnat ip to 10.88.0.5:80; }
            chain PREROUTING { type nat hook prerouting priority dstnat; fib daddr type local jump NETAVARK-HOSTPORT-DNAT; }
        }",
        "iptables: -N DOCKER
            -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
            -A DOCKER -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.88.0.5:80",
        "iptables: -N KUBE-NODEPORTS
            -A PREROUTING -j KUBE-NODEPORTS
            -A KUBE-NODEPORTS -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.244.9.9:80",
    ];
    for rules in alive {
        let world = World::new();
        let guest = world.node.pod("guest");
        world.node.cmd("ip link add podman0 type bridge");
        world.node.cmd("ip address add 10.88.0.1/24 dev podman0");
        world.node.cmd("ip link set podman0 up");
        world.node.cmd("ip link add port type veth peer name eth0 netns guest");
        world.node.cmd("ip link set port master podman0 up");
        guest.cmd("ip address add 10.88.0.5/24 dev eth0");
        guest.cmd("ip link set eth0 up");
        load(&world.node, rules);
        let network = world.network("nftables");
        let (_pod, _) = world.add(&network);
        let found = world.finding().unwrap_or_else(|| panic!("nothing found: {rules}"));
        let text = found.to_string();
        assert!(!text.contains("nft delete") && text.contains("publish another port"), "{found:#}");
        let explained = world.node.slipway("explain tcp 192.0.2.1:8080");
        assert!(!explained.contains("nft delete") && explained.contains("handle"), "{explained}");
    }
}

/// Rules that do not concern the published port.
#[test]
fn other_rules_are_not_named() {
    if is_peer() {
        return;
    }
    for rules in [
        "nft: table ip other { chain pre { type nat hook prerouting priority dstnat; tcp dport 8081 dnat to 10.88.0.99:80; udp dport 8080 dnat to 10.88.0.99:80; }; }",
        "nft: table ip other { chain pre { type nat hook prerouting priority dstnat; ip daddr 10.96.0.1 tcp dport 8080 dnat to 10.88.0.99:80; }; }",
        "nft: table ip other { chain pre { type nat hook prerouting priority dstnat; return; tcp dport 8080 dnat to 10.88.0.99:80; }; }",
        "nft: table ip other { chain pre { type nat hook prerouting priority -50; tcp dport 8080 dnat to 10.88.0.99:80; }; }",
        "nft: table ip other { chain pre { type filter hook prerouting priority -150; tcp dport 8080 accept; }; }",
        "iptables: -A PREROUTING -d 10.96.0.1/32 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.88.0.99:80",
        "iptables: -A PREROUTING -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.88.0.99:80",
    ] {
        for backend in ["nftables", "iptables"] {
            let world = World::new();
            load(&world.node, rules);
            let network = world.network(backend);
            let (pod, log) = world.add(&network);
            let _server = pod.serve(Proto::Tcp, "[::]:80", "web");
            world.client.expect(Proto::Tcp, (world.client.node_v4, PORT), "web");
            assert_eq!((log.as_str(), world.finding()), ("", None), "{backend}: {rules}");
            let explained = world.node.slipway("explain tcp 192.0.2.1:8080");
            assert!(explained.contains("It reaches 10.22.0.2:80"), "{explained}");
        }
    }
}
