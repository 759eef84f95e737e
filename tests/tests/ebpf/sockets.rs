// SPDX-License-Identifier: GPL-2.0-or-later

//! The BPF programs at the node's own sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, BridgeNetfilter, Network, Node, PROGRAMS, Proto, at, has_programs, needs, patience, skip,
};

use crate::{PORT, Stage, address, attach, list};

const GROUPS: &str = "control groups of version 2";
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Returns a stage with bridge netfilter on, where only the BPF programs serve `[::1]`.
macro_rules! stage {
    () => {{
        if !has_programs() {
            skip!(PROGRAMS);
        }
        let Some(stage) = Stage::with_cgroup(BridgeNetfilter::On) else {
            skip!(GROUPS);
        };
        stage
    }};
}

/// A pod with a server per protocol and family.
struct Web {
    _servers: Vec<slipway_tests::Server>,
    attach: Attach,
}

fn web(stage: &Stage, list: Value, name: &str, configure: impl Fn(Attach) -> Attach) -> Web {
    web_in(stage, &stage.node.network(list), name, configure)
}

fn web_in(stage: &Stage, network: &Network<'_>, name: &str, configure: impl Fn(Attach) -> Attach) -> Web {
    let pod = stage.node.pod(name);
    let attach = configure(Attach::new(&pod));
    let result = network.add(&attach).expect("ADD");
    let addresses = result["ips"].as_array().expect("addresses").iter().map(|ip| {
        let text = ip["address"].as_str().and_then(|text| text.split('/').next()).expect("an address");
        text.parse::<IpAddr>().expect("an address")
    });
    let both = |ip| Proto::ALL.map(|proto| pod.serve(proto, &at(ip, 80).to_string(), name));
    Web { _servers: addresses.flat_map(both).collect(), attach }
}

/// Sends UDP from an unconnected socket. Returns the responding server's name and address.
fn request_unconnected(socket: &UdpSocket, to: SocketAddr) -> io::Result<(String, SocketAddr)> {
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut answer = Err(io::ErrorKind::TimedOut.into());
    for _ in 0..8 {
        socket.send_to(b"line 1", to)?;
        let mut buffer = [0; 512];
        answer = socket.recv_from(&mut buffer).map(|(length, from)| {
            let text = String::from_utf8_lossy(&buffer[..length]);
            (text.split('|').next().unwrap_or_default().to_owned(), from)
        });
        if answer.is_ok() {
            break;
        }
    }
    answer
}

fn socket(node: &Node, own: IpAddr) -> UdpSocket {
    node.run(|| UdpSocket::bind((own, 0))).expect("a socket")
}

#[test]
fn socket_programs_translate_every_address_of_the_node() {
    let stage = stage!();
    let _web = web(&stage, list("ebpf"), "web", |a| a.port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80));
    assert_eq!(stage.node.programs()["cgroup"], "/sys/fs/cgroup");
    let own = [IpAddr::from(stage.client.node_v4), stage.client.node_v6.into()];
    let mut translated = stage.node.counted("redirected_sockets");
    for ip in own.into_iter().chain([LOOPBACK, Ipv4Addr::new(127, 1, 2, 3).into(), LOOPBACK6]) {
        let to = at(ip, PORT);
        // `from` is the result of getpeername(2).
        assert_eq!(stage.node.expect(Proto::Tcp, to, "web").from, to);
        assert_eq!(stage.node.expect(Proto::Udp, to, "web").from, to);
        let unspecified =
            if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = socket(&stage.node, unspecified);
        assert_eq!(request_unconnected(&socket, to).expect("an answer"), ("web".to_owned(), to));
        let now = stage.node.counted("redirected_sockets");
        // TCP, and the message of UDP that was not connected.
        assert!(now >= translated + 2, "{to}: {translated} before, {now} now");
        translated = now;
    }
}

#[test]
fn ipv4_mapped_addresses_are_translated() {
    let stage = stage!();
    let _web = web(&stage, list("ebpf"), "web", |a| a.port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80));
    for ip in [Ipv4Addr::LOCALHOST, stage.client.node_v4] {
        let to = at(ip.to_ipv6_mapped(), PORT);
        let translated = stage.node.counted("redirected_sockets");
        assert_eq!(stage.node.expect(Proto::Tcp, to, "web").from, to);
        let socket = socket(&stage.node, Ipv6Addr::UNSPECIFIED.into());
        assert_eq!(request_unconnected(&socket, to).expect("an answer"), ("web".to_owned(), to));
        assert_eq!(stage.node.counted("redirected_sockets"), translated + 2, "{to}");
    }
}

/// Containers' processes are below the same control group.
#[test]
fn sockets_of_other_namespaces_are_left_alone() {
    let stage = stage!();
    let _web = web(&stage, list("ebpf"), "web", |a| a.port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80));
    let other = stage.node.pod("other");
    other.cmd("ip link set lo up");
    let translated = stage.node.counted("redirected_sockets");
    for proto in Proto::ALL {
        for ip in [LOOPBACK, LOOPBACK6] {
            let _own = other.serve(proto, &at(ip, PORT).to_string(), "own");
            other.expect(proto, (ip, PORT), "own");
        }
    }
    assert_eq!(stage.node.counted("redirected_sockets"), translated);
}

#[test]
fn exclude_loopback_leaves_loopback_services_alone() {
    let stage = stage!();
    let mut excluding = list("ebpf");
    excluding["plugins"][1]["excludeLoopback"] = true.into();
    let stubs: Vec<_> = [LOOPBACK, Ipv4Addr::new(127, 0, 0, 53).into(), LOOPBACK6]
        .into_iter()
        .flat_map(|ip| Proto::ALL.map(|proto| (proto, at(ip, PORT))))
        .map(|(proto, to)| (stage.node.serve(proto, &to.to_string(), "stub"), proto, to))
        .collect();
    let network = stage.node.network(excluding);
    let web = web_in(&stage, &network, "web", |a| {
        let a = a.port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80);
        a.port_on("127.0.0.1", Proto::Tcp, PORT + 1, 80)
    });
    for (_, proto, to) in &stubs {
        stage.node.expect(*proto, *to, "stub");
        let own = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        if *proto == Proto::Udp {
            let socket = socket(&stage.node, own);
            assert_eq!(request_unconnected(&socket, *to).expect("an answer"), ("stub".to_owned(), *to));
        }
    }
    let translated = stage.node.counted("redirected_sockets");
    stage.node.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
    stage.node.expect(Proto::Tcp, (LOOPBACK, PORT + 1), "web");
    assert_eq!(stage.node.counted("redirected_sockets"), translated + 2);
    network.check(&web.attach).expect("CHECK");
    network.del(&web.attach).expect("DEL");
    assert_eq!(stage.node.programs()["ports"], 0);
}

/// A mapping for one address takes precedence, also if nftables serves it, or if the address is a loopback
/// address.
#[test]
fn a_mapping_for_one_address_takes_precedence() {
    let stage = stage!();
    let node_v4 = stage.client.node_v4.to_string();
    let nftables = json!({
        "name": "slow",
        "plugins": [
            {"type": "bridge", "bridge": "cni1", "isGateway": true, "ipMasq": true,
             "ipam": {"type": "host-local", "subnet": "10.88.2.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}},
        ],
    });
    let all = |a: Attach| a.port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80);
    let one = |a: Attach| a.port_on(&node_v4, Proto::Tcp, PORT, 80).port_on(&node_v4, Proto::Udp, PORT, 80);
    let request = |who: &str| {
        for proto in Proto::ALL {
            stage.client.expect(proto, (stage.client.node_v4, PORT), who);
            stage.node.expect(proto, (stage.client.node_v4, PORT), who);
            stage.client.expect(proto, (stage.client.node_v6, PORT), "all");
        }
    };
    // Before the programs are loaded, and after.
    let first = web(&stage, nftables.clone(), "first", one);
    let _all = web(&stage, list("ebpf"), "all", all);
    request("first");
    stage.node.network(nftables.clone()).del(&first.attach).expect("DEL");
    request("all");
    let second = web(&stage, nftables.clone(), "second", one);
    request("second");
    stage.node.network(nftables).del(&second.attach).expect("DEL");
    let _local = web(&stage, list("ebpf"), "local", |a| a.port_on("127.0.0.1", Proto::Tcp, PORT, 80));
    stage.node.expect(Proto::Tcp, (LOOPBACK, PORT), "local");
    stage.node.expect(Proto::Tcp, (Ipv4Addr::new(127, 0, 0, 2), PORT), "all");
    request("all");
}

/// A client of the node's own server may use a published port as its source port; the server's replies are
/// not translated.
#[test]
fn replies_of_the_nodes_servers_are_left_alone() {
    let stage = stage!();
    let _web = web(&stage, list("ebpf"), "web", |a| a.port(Proto::Udp, PORT, 80));
    let node_v4 = IpAddr::from(stage.client.node_v4);
    for (server, client) in [
        ("127.0.0.53:5353", LOOPBACK),
        ("0.0.0.0:5354", LOOPBACK),
        ("0.0.0.0:5355", node_v4),
        ("[::1]:5356", LOOPBACK6),
        ("[::]:5357", LOOPBACK6),
        ("[::]:5358", node_v4),
    ] {
        let _server = stage.node.serve(Proto::Udp, server, "stub");
        let server: SocketAddr = server.parse().expect("an address");
        let ip = if server.ip().is_unspecified() { client } else { server.ip() };
        let to = at(ip, server.port());
        let answer = stage.node.request_from(Proto::Udp, Some(at(client, PORT)), to, patience());
        assert_eq!(answer.unwrap_or_else(|e| panic!("{client} asks {server}: {e}")).who, "stub");
    }
}

/// An unconnected socket reaches the next pod.
#[test]
fn an_unconnected_udp_socket_reaches_the_next_pod() {
    let stage = stage!();
    let all = |a: Attach| a.port(Proto::Udp, PORT, 80);
    let flow = socket(&stage.node, Ipv4Addr::UNSPECIFIED.into());
    for name in ["first", "second"] {
        let web = web(&stage, list("ebpf"), name, all);
        for to in [at(LOOPBACK, PORT), at(stage.client.node_v4, PORT)] {
            assert_eq!(request_unconnected(&flow, to).expect("an answer"), (name.to_owned(), to));
        }
        stage.network().del(&web.attach).expect("DEL");
    }
}

#[test]
fn the_control_group_is_configurable_and_reported() {
    let stage = stage!();
    let settings = |value: Value| {
        stage
            .node
            .write("/etc/cni/slipway.json", json!({"ebpfFlows": "programs", "cgroup": value}).to_string());
        stage.node.slipway("node setup");
        let status = stage.node.programs();
        (status["cgroup"].clone(), status["cgroup_reason"].as_str().unwrap_or_default().to_owned())
    };
    stage.node.cmd("mkdir /run/group");
    stage.node.cmd("mount --bind /sys/fs/cgroup /run/group");
    assert_eq!(settings(json!("/run/group")), (json!("/run/group"), String::new()));
    let (at, why) = settings(json!(false));
    assert!(at.is_null() && why.contains("switched off"), "{why}");
    let (at, why) = settings(json!("/run"));
    assert!(at.is_null() && why.contains("/run is no control group"), "{why}");
    let report = stage.node.try_slipway("check-node");
    assert!(report.stdout.contains("/run is no control group"), "{report}");
    assert_eq!(settings(json!(true)), (json!("/sys/fs/cgroup"), String::new()));
    // After teardown no program is attached to the control group.
    let pod = stage.node.pod("web");
    let result = stage.network().add(&attach(&pod)).expect("ADD");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    stage.node.expect(Proto::Tcp, (LOOPBACK, PORT), "web");
    assert_eq!(stage.node.counted("redirected_sockets"), 1);
    stage.node.slipway("node teardown");
    stage.node.expect(Proto::Tcp, (LOOPBACK, PORT), "web");
}

#[test]
fn without_control_groups_nftables_serves() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let _web = web(&stage, list("ebpf"), "web", |a| a.port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80));
    let status = stage.node.programs();
    let why = status["cgroup_reason"].as_str().unwrap_or_default();
    assert!(status["cgroup"].is_null() && why.contains("no control groups"), "{status}");
    for proto in Proto::ALL {
        for ip in [LOOPBACK, LOOPBACK6, stage.client.node_v4.into(), stage.client.node_v6.into()] {
            stage.node.expect(proto, (ip, PORT), "web");
        }
    }
    assert_eq!(stage.node.counted("redirected_sockets"), 0);
}
