// SPDX-License-Identifier: GPL-2.0-or-later

//! Each key of the plugin.

use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, sendto, socket};
use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Pod, Proto, address_of, peer_fails};

use super::dual_stack;
use super::pair::{add, network, outer};

fn bridge_slave(node: &Node, name: &str) -> Value {
    node.link(name)["linkinfo"]["info_slave_data"].clone()
}

#[test]
fn hairpin_lets_a_pod_reach_itself_through_the_bridge() {
    let (node, pod) = Node::with_pod();
    let result = add(&network(&node, &json!({"hairpinMode": true})), &pod);
    assert_eq!(bridge_slave(&node, &outer(&result))["hairpin"], true);
    let without = node.pod("without");
    let result = add(&network(&node, &json!({})), &without);
    assert_eq!(bridge_slave(&node, &outer(&result))["hairpin"], false);
}

#[test]
fn isolated_ports_do_not_see_each_other() {
    let node = Node::new();
    let network = network(&node, &json!({"portIsolation": true, "isGateway": true}));
    let (one, two) = (node.pod("one"), node.pod("two"));
    let result = add(&network, &one);
    assert_eq!(bridge_slave(&node, &outer(&result))["isolated"], true);
    add(&network, &two);
    let _servers =
        [one.serve(Proto::Tcp, "0.0.0.0:80", "one"), node.serve(Proto::Tcp, "10.1.2.1:80", "node")];
    let one = address_of(&result, 0);
    two.expect_none(Proto::Tcp, (one, 80));
    two.expect(Proto::Tcp, ([10, 1, 2, 1], 80), "node");
}

#[test]
fn promisc_mode_is_set_on_the_bridge() {
    let (node, pod) = Node::with_pod();
    let network = network(&node, &json!({"promiscMode": true}));
    add(&network, &pod);
    assert!(node.link("br0")["flags"].as_array().expect("flags").contains(&"PROMISC".into()));
    network.check(&Attach::new(&pod)).expect("CHECK");
}

#[test]
fn force_address_replaces_other_addresses() {
    slipway_tests::needs_ipv6!();
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    let first = network(&node, &json!({"isGateway": true, "ipam": dual_stack()}));
    add(&first, &one);
    let other = json!({
        "isGateway": true,
        "ipam": {"type": "host-local", "dataDir": "/var/lib/other", "subnet": "10.5.0.0/16"},
    });
    let failure = network(&node, &other).add(&Attach::new(&two)).expect_err("another address");
    assert_eq!(
        failure.error.msg,
        "failed to set bridge addr: \"br0\" already has an IP address different from 10.5.0.1/16"
    );
    assert!(node.cmd("ip address show dev br0").contains("10.1.2.1/24"));
    let mut forced = other.clone();
    forced["forceAddress"] = true.into();
    if two.has_link("eth0") {
        two.cmd("ip link delete eth0"); // The reference leaves the link.
    }
    add(&network(&node, &forced), &two);
    let addresses = node.cmd("ip address show dev br0");
    assert!(addresses.contains("10.5.0.1/16") && !addresses.contains("10.1.2.1/24"), "{addresses}");
    assert!(addresses.contains("fd00:1::1/64"), "the other family stays: {addresses}");
}

#[test]
fn ipv6_subnets_may_share_a_bridge() {
    slipway_tests::needs_ipv6!();
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    let of = |subnet: &str, dir: &str| json!({"isGateway": true, "ipam": {"type": "host-local", "dataDir": dir, "subnet": subnet}});
    add(&network(&node, &of("fd00:1::/64", "/var/lib/a")), &one);
    add(&network(&node, &of("fd00:2::/64", "/var/lib/b")), &two);
    let addresses = node.cmd("ip -6 address show dev br0");
    assert!(addresses.contains("fd00:1::1/64") && addresses.contains("fd00:2::1/64"), "{addresses}");
    let three = node.pod("three");
    let overlapping = network(&node, &of("fd00:1::/48", "/var/lib/c"));
    let failure = overlapping.add(&Attach::new(&three)).expect_err("it overlaps");
    assert_eq!(
        failure.error.msg,
        "failed to set bridge addr: \"br0\" already has an IP address different from fd00:1::1/48"
    );
}

#[test]
fn the_mac_comes_from_args_or_the_runtime() {
    let node = Node::new();
    let mac = |keys: Value, attach: fn(Attach) -> Attach| {
        let pod = node.pod("pod");
        let network = network(&node, &keys);
        let attach = attach(Attach::new(&pod));
        let result = network.add(&attach).expect("ADD");
        let mac = pod.mac("eth0");
        assert_eq!(result["interfaces"][2]["mac"], mac);
        network.del(&attach).expect("DEL");
        pod.remove();
        mac
    };
    assert_eq!(
        mac(json!({}), |attach| attach.args("MAC=02:00:00:00:00:03;IgnoreUnknown=1")),
        "02:00:00:00:00:03"
    );
    let args = json!({"args": {"cni": {"mac": "02:00:00:00:00:02"}}});
    assert_eq!(
        mac(args.clone(), |attach| attach.args("MAC=02:00:00:00:00:03;IgnoreUnknown=1")),
        "02:00:00:00:00:02"
    );
    let mut all = args;
    all["capabilities"] = json!({"mac": true});
    assert_eq!(mac(all, |attach| attach.capability("mac", "02:00:00:00:00:01".into())), "02:00:00:00:00:01");
}

fn container_sysctl(pod: &Pod, name: &str) -> String {
    pod.sysctl_get(name).unwrap_or_else(|| panic!("no sysctl {name}"))
}

#[test]
fn settings_apply_to_both_ends() {
    slipway_tests::needs_ipv6!();
    let (node, pod) = Node::with_pod();
    pod.sysctl("net/ipv6/conf/all/disable_ipv6", "1");
    pod.sysctl("net/ipv6/conf/default/disable_ipv6", "1");
    let result = add(&network(&node, &json!({"isGateway": true, "ipam": dual_stack()})), &pod);
    assert_eq!(container_sysctl(&pod, "net/ipv4/conf/eth0/arp_notify"), "1");
    assert_eq!(container_sysctl(&pod, "net/ipv6/conf/eth0/accept_dad"), "0");
    peer_fails("it announces IPv4 addresses only", || {
        assert_eq!(container_sysctl(&pod, "net/ipv6/conf/eth0/ndisc_notify"), "1");
    });
    assert_eq!(container_sysctl(&pod, "net/ipv6/conf/eth0/disable_ipv6"), "0");
    assert_eq!(container_sysctl(&pod, "net/ipv6/conf/lo/disable_ipv6"), "0");
    assert_eq!(container_sysctl(&pod, "net/ipv6/conf/eth0/keep_addr_on_down"), "1");
    assert_eq!(node.sysctl_get("net/ipv6/conf/br0/accept_ra").as_deref(), Some("0"));
    assert_eq!(node.sysctl_get("net/ipv6/conf/all/forwarding").as_deref(), Some("1"));
    peer_fails("does not disable IPv6 on the port", || {
        let setting = format!("net/ipv6/conf/{}/disable_ipv6", outer(&result));
        assert_eq!(node.sysctl_get(&setting).as_deref(), Some("1"));
    });
}

#[test]
fn add_waits_for_duplicate_address_detection() {
    slipway_tests::needs_ipv6!();
    peer_fails("1.1.1 does not know the key", || {
        let node = Node::new();
        let (one, two) = (node.pod("one"), node.pod("two"));
        let keys = json!({"enabledad": true, "isGateway": true, "ipam": dual_stack()});
        let result = add(&network(&node, &keys), &one);
        assert_eq!(container_sysctl(&one, "net/ipv6/conf/eth0/accept_dad"), "1");
        assert_eq!(container_sysctl(&one, "net/ipv6/conf/eth0/enhanced_dad"), "1");
        let addresses = one.cmd("ip -6 address show dev eth0");
        assert!(
            addresses.contains(&address_of(&result, 1).to_string()) && !addresses.contains("tentative"),
            "{addresses}"
        );
        // An IPAM plugin that does not know of the first container assigns the same address again.
        let ipam = json!({"type": "host-local", "dataDir": "/var/lib/other", "ranges": [[{"subnet": "fd00:1::/64"}]]});
        let other = network(&node, &json!({"enabledad": true, "ipam": ipam}));
        let failure = other.add(&Attach::new(&two)).expect_err("the address is taken");
        assert!(failure.error.msg.contains("duplicate address detection failed"), "{failure}");
        assert!(!two.has_link("eth0"));
    });
}

#[test]
fn the_containers_link_may_stay_down() {
    peer_fails("1.1.1 does not know the key", || {
        let (node, pod) = Node::with_pod();
        let network = network(&node, &json!({"disableContainerInterface": true, "ipam": {}}));
        let result = add(&network, &pod);
        assert_eq!(pod.link("eth0")["operstate"], "DOWN");
        assert_eq!(node.link(&outer(&result))["master"], "br0");
        network.check(&Attach::new(&pod)).expect("CHECK");
    });
}

#[test]
fn a_foreign_source_address_is_dropped() {
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    let network = network(&node, &json!({"macspoofchk": true, "isGateway": true}));
    let result = add(&network, &one);
    add(&network, &two);
    let _server = two.serve(Proto::Tcp, "0.0.0.0:80", "two");
    let target = ([10, 1, 2, 3], 80);
    one.expect(Proto::Tcp, target, "two");
    network.check(&Attach::new(&one)).expect("CHECK");
    let own = one.mac("eth0");
    one.cmd("ip link set eth0 address 02:00:00:00:00:99");
    one.expect_none(Proto::Tcp, target);
    one.cmd(&format!("ip link set eth0 address {own}"));
    one.expect(Proto::Tcp, target, "two");
    network.del(&Attach::new(&one)).expect("DEL");
    let ruleset = node.ruleset();
    assert!(!ruleset.contains(&outer(&result)) && !ruleset.contains(&own), "{ruleset}");
    network.check(&Attach::new(&two)).expect("CHECK of the second container");
}

/// The bridge takes frames to these groups for itself, so they do not reach the guard. With a neighbour's address as
/// their source, they must not draw the neighbour's frames to their sender.
#[test]
fn a_foreign_source_address_is_not_learnt_from_link_local_frames() {
    peer_fails("learns it", || {
        let node = Node::new();
        let (one, two) = (node.pod("one"), node.pod("two"));
        let network = network(&node, &json!({"macspoofchk": true, "isGateway": true}));
        add(&network, &one);
        let port = outer(&add(&network, &two));
        let learnt = || {
            let table = node.cmd("bridge fdb show br br0");
            let of_two = table.lines().filter(|line| line.starts_with(&two.mac("eth0")));
            of_two.map(str::to_owned).collect::<Vec<_>>()
        };
        let _server = two.serve(Proto::Tcp, "0.0.0.0:80", "two");
        one.expect(Proto::Tcp, ([10, 1, 2, 3], 80), "two");
        assert!(learnt().iter().all(|line| line.contains(&port)), "{:?}", learnt());
        let source: Vec<u8> =
            two.mac("eth0").split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect();
        // Groups of STP, of LACP, of 802.1X and of LLDP (IEEE 802.1Q, table 8-1).
        for last in [0, 2, 3, 0x0e] {
            let frame = [&[1, 0x80, 0xc2, 0, 0, last][..], &source[..], &[0x88, 0xcc], &[0; 50]].concat();
            one.run(|| {
                let socket =
                    socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll);
                let mut links = nix::ifaddrs::getifaddrs().expect("interfaces");
                let link = links.find_map(|link| {
                    link.address.filter(|_| link.interface_name == "eth0")?.as_link_addr().copied()
                });
                let fd = socket.expect("a socket");
                sendto(fd.as_raw_fd(), &frame, &link.expect("the link"), MsgFlags::empty())
                    .expect("it is sent");
            });
        }
        // This arrives at the bridge after the frames.
        one.expect(Proto::Tcp, ([10, 1, 2, 3], 80), "two");
        assert!(learnt().iter().all(|line| line.contains(&port)), "{:?}", learnt());
    });
}
