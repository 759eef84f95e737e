// SPDX-License-Identifier: GPL-2.0-or-later

//! A node without IPv4. The only IPv4 addresses of the node, its pods and the hosts around it are those of their
//! loopbacks. Published ports, masquerade and the operator's commands work with IPv6 alone, in every backend.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Host, Network, Node, PROGRAMS, Pod, Proto, Server, Space, address_of, at, has_iptables,
    has_programs, is_peer, needs, needs_iptables, needs_ipv6, patience, quoted, until,
};

const CONFIG: &str = "/run/net.d/10-six.conflist";
const SERVED: u16 = 80;
/// The host port that is published without a host address.
const ANY: u16 = 8080;
/// The host port that is published on `[::]`.
const WILDCARD: u16 = 8081;
/// The host port that is published on the node's address.
const NAMED: u16 = 8082;
/// The port of servers outside.
const OUTSIDE: u16 = 9000;

/// A node and an outside host without IPv4.
struct World {
    node: Node,
    client: Host,
}

impl World {
    fn new() -> Self {
        let (node, client) = Node::with_client();
        node.own_etc();
        for (space, link) in [(&*node, client.node_link.as_str()), (&*client, "eth0")] {
            space.cmd(&format!("ip -4 address flush dev {link}"));
        }
        // The BPF programs take the client's link as the uplink because of its default route.
        node.cmd(&format!("ip route add default via {}", client.v6));
        let world = Self { node, client };
        world.has_no_ipv4();
        world
    }

    /// Asserts that nothing has given the node an IPv4 address or route, or has enabled IPv4 forwarding.
    #[track_caller]
    fn has_no_ipv4(&self) {
        for space in [&*self.node, &*self.client] {
            let addresses = space.cmd("ip -4 -oneline address");
            let others: Vec<&str> = addresses.lines().filter(|line| !line.contains("127.0.0.1/8")).collect();
            assert!(others.is_empty(), "{}: {others:?}", space.name());
            assert_eq!(space.cmd("ip -4 route"), "", "{}", space.name());
        }
        assert_eq!(self.node.sysctl_get("net/ipv4/ip_forward").as_deref(), Some("0"));
    }

    fn network(&self, interface: &str, backend: &str) -> Network<'_> {
        self.node.network(Self::list(interface, backend))
    }

    fn list(interface: &str, backend: &str) -> Value {
        let ipam = json!({
            "type": "host-local", "ranges": [[{"subnet": "fd00:88::/64"}]], "routes": [{"dst": "::/0"}],
        });
        let mut plugin = json!({"type": interface, "ipMasq": true, "ipMasqBackend": backend, "ipam": ipam});
        if interface == "bridge" {
            plugin["isGateway"] = true.into();
            plugin["hairpinMode"] = true.into();
        }
        json!({"name": "six", "plugins": [
            plugin,
            {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
            {"type": "firewall"},
        ]})
    }

    /// The node's address that outside hosts use.
    fn node_ip(&self) -> IpAddr {
        self.client.node_v6.into()
    }
}

/// The items of `check-node` that are warnings or missing.
fn unwell(node: &Node) -> Vec<Value> {
    let output = node.try_slipway("check-node --output json");
    assert_eq!(output.code, Some(0), "{output}");
    let report: Value = serde_json::from_str(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("a list").iter();
    findings.filter(|one| one["state"] == "missing" || one["state"] == "warning").cloned().collect()
}

/// A pod that answers with its name.
struct Web {
    pod: Pod,
    attach: Attach,
    ip: IpAddr,
    _servers: Vec<Server>,
}

/// Adds a pod, whose only address must be an IPv6 one.
fn add(world: &World, network: &Network<'_>, name: &str, prepare: impl Fn(Attach) -> Attach) -> Web {
    let pod = world.node.pod(name);
    let attach = prepare(Attach::new(&pod));
    let result = network.add(&attach).unwrap_or_else(|error| panic!("ADD {name}: {error}"));
    network.write_cache(&attach);
    let ip = address_of(&result, 0);
    assert!(ip.is_ipv6() && result["ips"].as_array().map(Vec::len) == Some(1), "{result}");
    let servers = Proto::ALL.map(|proto| pod.serve(proto, &at(ip, SERVED).to_string(), name));
    Web { pod, attach, ip, _servers: servers.into() }
}

/// Publishes a port in each of the three ways.
fn published(node: IpAddr) -> impl Fn(Attach) -> Attach {
    move |attach| {
        Proto::ALL.into_iter().fold(attach, |attach, proto| {
            let attach = attach.port(proto, ANY, SERVED).port_on("::", proto, WILDCARD, SERVED);
            attach.port_on(&node.to_string(), proto, NAMED, SERVED)
        })
    }
}

#[track_caller]
fn reaches(from: &Space, ip: IpAddr, ports: &[u16]) {
    for port in ports {
        for proto in Proto::ALL {
            from.expect(proto, at(ip, *port), "web");
        }
    }
}

#[track_caller]
fn keeps_its_promises(interface: &str, backend: &str) {
    let world = World::new();
    let World { node, client } = &world;
    let outside = Proto::ALL.map(|proto| client.serve(proto, &at(client.v6, OUTSIDE).to_string(), "outside"));
    let network = world.network(interface, backend);
    if !is_peer() {
        network.status().expect("STATUS");
    }
    let web = add(&world, &network, "web", published(world.node_ip()));
    let other = add(&world, &network, "other", |attach| attach);

    // Published ports are reached from outside, where the container sees the client's address, from the node, from
    // another pod, and from the pod itself.
    for proto in Proto::ALL {
        let answer = client.expect(proto, at(world.node_ip(), ANY), "web");
        assert_eq!((answer.peer.ip(), answer.from), (client.v6.into(), at(world.node_ip(), ANY)));
    }
    let all = [ANY, WILDCARD, NAMED];
    for space in [&**client, &**node, &*other.pod, &*web.pod] {
        reaches(space, world.node_ip(), &all);
    }
    if backend != "iptables" {
        reaches(node, Ipv6Addr::LOCALHOST.into(), &[ANY, WILDCARD]);
        node.expect_none(Proto::Tcp, at(Ipv6Addr::LOCALHOST, NAMED));
    }
    // The node's own IPv4 loopback leads nowhere, because the pod has no IPv4 address.
    node.expect_none(Proto::Tcp, at(Ipv4Addr::LOCALHOST, ANY));

    // With masquerade, outside hosts see the node's address, while pods of the network see each other's.
    for proto in Proto::ALL {
        let answer = web.pod.expect(proto, at(client.v6, OUTSIDE), "outside");
        assert_eq!(answer.peer.ip(), world.node_ip());
        assert_eq!(other.pod.expect(proto, at(web.ip, SERVED), "web").peer.ip(), other.ip);
    }
    web.pod.ping(client.v6.into()).expect("the client answers");
    network.check(&web.attach).expect("CHECK");

    // The operator's commands find nothing wrong.
    if !is_peer() {
        // Findings about features that the kernel lacks and no network here needs are expected.
        let of_kernel = unwell(&Node::without_bridge_netfilter());
        assert_eq!(unwell(node), of_kernel);
        let to = at(world.node_ip(), ANY);
        let said = node.slipway(&format!("explain tcp {to} --from {}", client.v6));
        assert!(said.contains(&format!("It reaches {}", at(web.ip, SERVED))), "{said}");
        let said = node.slipway(&format!("explain tcp 127.0.0.1:{ANY}"));
        assert!(!said.contains("It reaches"), "{said}");
        let listed: Value = serde_json::from_str(&node.slipway("ports --json")).expect("JSON");
        let ports = listed["ports"].as_array().expect("a list");
        assert!(!ports.is_empty() && !listed.to_string().contains("127.0.0.1"), "{listed:#}");
        let restored = node.slipway("restore");
        reaches(client, world.node_ip(), &all);
        assert_eq!(unwell(node), of_kernel, "{restored}");
    }
    world.has_no_ipv4();

    // After the DEL, the node's own service answers, and flows of the other pod are still masqueraded.
    let _own = node.serve(Proto::Tcp, &format!("[::]:{ANY}"), "own");
    client.expect(Proto::Tcp, at(world.node_ip(), ANY), "web");
    network.del(&web.attach).expect("DEL");
    client.expect(Proto::Tcp, at(world.node_ip(), ANY), "own");
    client.expect_none_of([
        (Proto::Tcp, at(world.node_ip(), WILDCARD)),
        (Proto::Udp, at(world.node_ip(), ANY)),
    ]);
    let answer = other.pod.expect(Proto::Tcp, at(client.v6, OUTSIDE), "outside");
    assert_eq!(answer.peer.ip(), world.node_ip());
    network.del(&web.attach).expect("the second DEL");
    network.del(&other.attach).expect("DEL of the other pod");
    let rules = node.ruleset();
    assert!(!rules.contains(&web.ip.to_string()) && !rules.contains(&other.ip.to_string()), "{rules}");
    drop(outside);
}

#[test]
fn nftables_publishes_and_masquerades_with_a_bridge() {
    needs_ipv6!();
    keeps_its_promises("bridge", "nftables");
}

#[test]
fn nftables_publishes_and_masquerades_with_ptp() {
    needs_ipv6!();
    keeps_its_promises("ptp", "nftables");
}

#[test]
fn iptables_publishes_and_masquerades_with_a_bridge() {
    needs_ipv6!();
    needs_iptables!();
    keeps_its_promises("bridge", "iptables");
}

#[test]
fn iptables_publishes_and_masquerades_with_ptp() {
    needs_ipv6!();
    needs_iptables!();
    keeps_its_promises("ptp", "iptables");
}

#[test]
fn ebpf_publishes_and_masquerades_with_a_bridge() {
    needs_ipv6!();
    needs!(has_programs(), PROGRAMS);
    keeps_its_promises("bridge", "ebpf");
}

#[test]
fn ebpf_publishes_and_masquerades_with_ptp() {
    needs_ipv6!();
    needs!(has_programs(), PROGRAMS);
    keeps_its_promises("ptp", "ebpf");
}

/// The uplink can only be found through its IPv6 default route.
#[test]
fn the_bpf_programs_carry_packets() {
    needs_ipv6!();
    needs!(has_programs(), PROGRAMS);
    let world = World::new();
    let network = world.network("bridge", "ebpf");
    let _web = add(&world, &network, "web", published(world.node_ip()));
    let mut flow =
        world.client.dial(Proto::Tcp, None, at(world.node_ip(), ANY), patience()).expect("a connection");
    until(patience(), "carried packets", || {
        assert_eq!(flow.request().expect("an answer").who, "web");
        world.node.counted("carried_packets") > 10
    });
}

/// `slipway connectivity-test` temporarily gives the node and an outside host an IPv4 address, and tests what the
/// network has.
#[test]
fn the_connectivity_test_passes() {
    needs_ipv6!();
    for (backend, runs) in [("nftables", true), ("iptables", has_iptables()), ("ebpf", has_programs())] {
        if !runs {
            continue;
        }
        let world = World::new();
        let mut list = World::list("bridge", backend);
        list["cniVersion"] = "1.0.0".into();
        world.node.write(CONFIG, list.to_string());
        let plugins = quoted(world.node.bin());
        let call = format!("connectivity-test --config {CONFIG} --plugin-dir {plugins} --output json");
        let output = world.node.try_slipway(&call);
        assert_eq!(output.code, Some(0), "{backend}: {output}");
        let document: Value = serde_json::from_str(&output.stdout).expect("JSON");
        let checks = document["checks"].as_array().expect("a list");
        let passed = checks.iter().filter(|check| check["state"] == "passed").count();
        assert!(passed > 20, "{backend}: {document:#}");
        world.has_no_ipv4();
    }
}

/// A mapping with an IPv4 host address has no address to lead to.
#[test]
fn a_mapping_of_an_ipv4_address_changes_nothing() {
    needs_ipv6!();
    let world = World::new();
    let network = world.network("bridge", "nftables");
    let web = add(&world, &network, "web", |attach| {
        attach.port_on("0.0.0.0", Proto::Tcp, ANY, SERVED).port(Proto::Tcp, WILDCARD, SERVED)
    });
    world.client.expect_none(Proto::Tcp, at(world.node_ip(), ANY));
    world.client.expect(Proto::Tcp, at(world.node_ip(), WILDCARD), "web");
    network.check(&web.attach).expect("CHECK");
    network.del(&web.attach).expect("DEL");
}
