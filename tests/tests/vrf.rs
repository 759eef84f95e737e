// SPDX-License-Identifier: GPL-2.0-or-later

//! The vrf plugin, chained to ptp.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Pod, Proto, Snapshot, at, host_local, peer_fails, with_keys};

/// True if this kernel supports VRFs.
fn has_vrf() -> bool {
    let node = Node::new();
    node.try_cmd("ip link add trial type vrf table 10").code == Some(0)
}

/// Connects from within a VRF, and returns the source address of the connection.
fn from_vrf(vrf: &str, to: SocketAddr) -> std::io::Result<IpAddr> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::BindToDevice, &vrf.into())?;
    setsockopt(&socket, sockopt::SendTimeout, &TimeVal::seconds(4))?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(TcpStream::from(socket).local_addr()?.ip())
}

macro_rules! needs_vrf {
    () => {
        if !has_vrf() {
            slipway_tests::skip!("vrf");
        }
    };
}

fn network<'a>(node: &'a Node, number: u8, keys: &Value) -> Network<'a> {
    let vrf = with_keys(json!({"type": "vrf"}), keys);
    let ipam = host_local(format!("10.{number}.2.0/24"), format!("fd00:{number}::/64"));
    node.network(json!({"name": format!("net{number}"), "plugins": [{"type": "ptp", "ipam": ipam}, vrf]}))
}

fn blue() -> Value {
    json!({"vrfname": "blue"})
}

fn master(pod: &Pod, link: &str) -> Option<String> {
    pod.link(link)["master"].as_str().map(str::to_owned)
}

#[test]
fn the_link_and_its_routes_are_in_the_vrf() {
    needs_vrf!();
    let node = Node::new();
    let client = node.host("client");
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let network = network(&node, 1, &blue());
    let result = network.add(&attach).expect("ADD");
    assert_eq!(master(&pod, "eth0").as_deref(), Some("blue"));
    assert_eq!(pod.link("blue")["linkinfo"]["info_data"]["table"], 1);
    assert_eq!(result["ips"].as_array().map(Vec::len), Some(2));
    let routes = format!("{}{}", pod.cmd("ip route show vrf blue"), pod.cmd("ip -6 route show vrf blue"));
    for part in ["default via 10.1.2.1", "default via fd00:1::1", "10.1.2.0/24 via 10.1.2.1"] {
        assert!(routes.contains(part), "{part}: {routes}");
    }
    assert!(!pod.cmd("ip route").contains("eth0"), "{}", pod.cmd("ip route"));
    peer_fails("CHECK of ptp looks for the routes in the main table", || {
        network.check(&attach).expect("CHECK");
    });
    // Sends real packets out of the VRF and into it.
    for (address, own) in [(IpAddr::from(client.v4), "10.1.2.2"), (client.v6.into(), "fd00:1::2")] {
        let _server = client.serve(Proto::Tcp, &at(address, 90).to_string(), "far");
        let from = pod.run(|| from_vrf("blue", at(address, 90))).unwrap_or_else(|e| panic!("{address}: {e}"));
        assert_eq!(from.to_string(), own);
    }
    pod.sysctl("net/ipv4/tcp_l3mdev_accept", "1");
    let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "pod");
    client.expect(Proto::Tcp, ([10, 1, 2, 2], 80), "pod");
    network.del(&attach).expect("DEL");
    assert!(!pod.has_link("blue"));
}

/// The plugin sets the link down for a moment, and then the kernel removes the link's routes from all tables.
#[test]
fn routes_of_other_tables_stay_there() {
    needs_vrf!();
    peer_fails("puts back those of the main table only", || {
        let (node, pod, attach) = Node::with_attachment();
        let network = network(&node, 1, &blue());
        let result = network.add_first(&attach);
        pod.cmd("ip route add 10.50.0.0/24 via 10.1.2.1 dev eth0 table 100");
        pod.cmd("ip -6 route add fd00:50::/64 via fd00:1::1 dev eth0 table 100");
        let routes = || ["ip route show table 100", "ip -6 route show table 100"].map(|line| pod.cmd(line));
        let before = routes();
        network.call_one(1, "ADD", &attach, &result).ok();
        assert_eq!(master(&pod, "eth0").as_deref(), Some("blue"));
        assert_eq!(routes(), before);
    });
}

#[test]
fn a_vrf_has_several_links_and_is_deleted_with_the_last() {
    needs_vrf!();
    let (node, pod) = Node::with_pod();
    let (one, two) = (network(&node, 1, &blue()), network(&node, 2, &blue()));
    let other = network(&node, 3, &json!({"vrfname": "red"}));
    let (eth0, eth1, eth2) =
        (Attach::new(&pod), Attach::new(&pod).ifname("eth1"), Attach::new(&pod).ifname("eth2"));
    one.add(&eth0).expect("ADD");
    two.add(&eth1).expect("ADD");
    other.add(&eth2).expect("ADD");
    assert_eq!(pod.link("red")["linkinfo"]["info_data"]["table"], 2, "the next table");
    for (link, name) in [("eth0", "blue"), ("eth1", "blue"), ("eth2", "red")] {
        assert_eq!(master(&pod, link).as_deref(), Some(name));
    }
    one.del(&eth0).expect("DEL");
    assert!(pod.has_link("blue"));
    assert!(two.call_one(1, "CHECK", &eth1, &two.cached(&eth1).expect("a result")).ok().is_null());
    two.del(&eth1).expect("DEL");
    assert!(!pod.has_link("blue") && pod.has_link("red"));
}

#[test]
fn the_configuration_may_choose_the_table() {
    needs_vrf!();
    let (node, pod) = Node::with_pod();
    let network = |number, table: u32| network(&node, number, &json!({"vrfname": "blue", "table": table}));
    let attach = Attach::new(&pod);
    network(1, 1500).add(&attach).expect("ADD");
    assert_eq!(pod.link("blue")["linkinfo"]["info_data"]["table"], 1500);
    assert!(pod.cmd("ip route show table 1500").contains("default via 10.1.2.1"));
    let second = network(2, 7);
    let eth1 = attach.clone().ifname("eth1");
    let previous = second.add_first(&eth1);
    let error = second.call_one(1, "ADD", &eth1, &previous).error();
    assert!(
        error.msg.starts_with("cmdAdd failed: VRF blue already exist with different routing table 1500"),
        "{error:?}"
    );
    // If the configuration names no table, the plugin uses that of the VRF.
    let _ = network(2, 0).call_one(1, "ADD", &eth1, &previous).ok();
    assert_eq!(master(&pod, "eth1").as_deref(), Some("blue"));
}

#[test]
fn a_failed_add_leaves_nothing() {
    needs_vrf!();
    peer_fails("the VRF stays", || {
        let (node, pod, attach) = Node::with_attachment();
        let network = network(&node, 1, &blue());
        let previous = network.add_first(&attach);
        // The first VRF of a namespace adds rules that stay.
        pod.cmd("ip link add other type vrf table 77");
        pod.cmd("ip link add br0 type bridge");
        pod.cmd("ip link set eth0 master br0");
        let before = Snapshot::take(&node, &[&pod]);
        let error = network.call_one(1, "ADD", &attach, &previous).error();
        assert_eq!(error.msg, "cmdAdd failed: interface eth0 has already a master set: br0");
        before.assert_same(&Snapshot::take(&node, &[&pod]));
        let error = network.call_one(1, "ADD", &attach.clone().ifname("eth9"), &previous).error();
        assert!(error.msg.starts_with("cmdAdd failed: "), "{error:?}");
        before.assert_same(&Snapshot::take(&node, &[&pod]));
        let error = network_of(&node, "br0").call_one(1, "ADD", &attach, &previous).error();
        assert_eq!(error.msg, "cmdAdd failed: br0 already exists but is not a VRF");
    });
}

fn network_of<'a>(node: &'a Node, vrf: &str) -> Network<'a> {
    network(node, 1, &json!({"vrfname": vrf}))
}

#[test]
fn an_add_may_be_repeated() {
    needs_vrf!();
    let (node, pod, attach) = Node::with_attachment();
    let network = network(&node, 1, &blue());
    let result = network.add(&attach).expect("ADD");
    let before = Snapshot::take(&node, &[&pod]);
    peer_fails("the link has a master", || {
        assert_eq!(network.call_one(1, "ADD", &attach, &result).ok(), result);
        before.assert_same(&Snapshot::take(&node, &[&pod]));
    });
}

#[test]
fn a_del_needs_neither_an_add_nor_a_namespace() {
    needs_vrf!();
    let (node, pod, attach) = Node::with_attachment();
    let network = network(&node, 1, &blue());
    assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null(), "nothing was added");
    network.add(&attach).expect("ADD");
    for netns in ["", "/run/netns/gone"] {
        assert!(network.call_one(1, "DEL", &attach.clone().netns(netns), &Value::Null).ok().is_null());
    }
    assert!(pod.has_link("blue"));
    // The link is already gone.
    pod.cmd("ip link del eth0");
    assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null());
    assert!(!pod.has_link("blue"));
    assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null(), "a second time");
}

#[test]
fn check_looks_for_the_master() {
    needs_vrf!();
    let (node, pod, attach) = Node::with_attachment();
    let network = network(&node, 1, &blue());
    let result = network.add(&attach).expect("ADD");
    assert!(network.call_one(1, "CHECK", &attach, &result).ok().is_null());
    pod.cmd("ip link set eth0 nomaster");
    let error = network.call_one(1, "CHECK", &attach, &result).error();
    assert_eq!(error.msg, "failed to find eth0 associated to vrf blue");
}

/// STATUS names what the kernel lacks, and always validates the configuration.
#[test]
fn status_names_what_is_missing_or_invalid() {
    let (node, pod) = Node::with_pod();
    let previous = json!({"cniVersion": "1.0.0", "interfaces": []});
    let nameless = network(&node, 1, &json!({}));
    let error = nameless.call_one(1, "ADD", &Attach::new(&pod), &previous).error();
    assert_eq!(error.msg, "configuration is expected to have a valid vrf name");
    peer_fails("it reports no error", || {
        let error = network(&node, 1, &blue()).call_one(1, "ADD", &Attach::new(&pod), &Value::Null).error();
        assert_eq!((error.code, error.msg.as_str()), (7, "missing prevResult from earlier plugin"));
        let config = network(&node, 1, &blue()).configs(None).swap_remove(1);
        let status = node.plugin("vrf").command("STATUS").config(&config).run();
        if has_vrf() {
            assert!(status.ok().is_null());
        } else {
            assert_eq!(status.error().code, 50);
        }
    });
}
