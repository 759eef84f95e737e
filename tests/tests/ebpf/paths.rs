// SPDX-License-Identifier: GPL-2.0-or-later

//! Paths to the far end that contain a link with a smaller MTU, and a VLAN as the uplink.

use std::net::{IpAddr, SocketAddr};

use slipway_tests::{PROGRAMS, Pod, Proto, at, has_programs, lacks, needs, skip};

use crate::transfer::transfer;
use crate::{FAR, PORT, Stage, address_of, attach};

/// The amount of data, which is more than any initial window.
const AMOUNT: usize = 1 << 20;
/// The MTU of the link in the middle. IPv6 requires at least 1280.
const SMALL: u16 = 1300;

/// The node, a router, a link with a smaller MTU, another router, and the far end.
struct Row {
    stage: Stage,
    _second: Pod,
    far: Pod,
}

impl Row {
    fn new() -> Self {
        let stage = Stage::new();
        let (second, far) = (stage.node.pod("second"), stage.node.pod("far"));
        let (node, first) = (&stage.node, &stage.client);
        node.cmd("ip link add eth1 netns client type veth peer name eth0 netns second");
        node.cmd("ip link add eth1 netns second type veth peer name eth0 netns far");
        for (space, link, net, mtu) in [
            (&**first, "eth1", "1", SMALL),
            (&*second, "eth0", "1", SMALL),
            (&*second, "eth1", "2", 1500),
            (&*far, "eth0", "2", 1500),
        ] {
            let own = if link == "eth1" { 1 } else { 2 };
            space.cmd(&format!("ip address add 10.9.{net}.{own}/24 dev {link}"));
            space.cmd(&format!("ip address add fd00:9:{net}::{own}/64 dev {link} nodad"));
            space.cmd(&format!("ip link set {link} mtu {mtu} up"));
        }
        node.cmd(&format!("ip route add default via {}", first.v4));
        node.cmd(&format!("ip -6 route add default via {}", first.v6));
        for router in [&**first, &*second] {
            router.sysctl("net/ipv4/ip_forward", "1");
            router.sysctl("net/ipv6/conf/all/forwarding", "1");
        }
        first.cmd("ip route add 10.9.2.0/24 via 10.9.1.2");
        first.cmd("ip -6 route add fd00:9:2::/64 via fd00:9:1::2");
        second.cmd("ip route add default via 10.9.1.1");
        second.cmd("ip -6 route add default via fd00:9:1::1");
        far.cmd("ip route add default via 10.9.2.1");
        far.cmd("ip -6 route add default via fd00:9:2::1");
        Self { stage, _second: second, far }
    }
}

/// Returns the path MTU to `far` that the pod's kernel has cached.
fn path_mtu(pod: &Pod, far: IpAddr) -> String {
    let route = pod.cmd(&format!("ip route get {far}"));
    let mtu = route.split_whitespace().skip_while(|word| *word != "mtu").nth(1);
    mtu.map(str::to_owned).unwrap_or(route)
}

/// The direction of the connection.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// The far end connects to a published port.
    Port,
    /// The pod connects to the far end.
    Masquerade,
}

/// In their TCP options, both ends announce the MSS of their own links. Only the router in the middle knows the smaller
/// MTU, and it reports that MTU to the node's address, about a packet that no socket of the node has sent.
fn path_mtu_is_discovered(way: Way) {
    let row = Row::new();
    let node = &row.stage.node;
    let pod = node.pod("pod");
    let result = row.stage.network().add(&attach(&pod)).expect("ADD");
    let before = row.stage.carried();
    let ends: [(IpAddr, IpAddr); 2] = [
        (row.stage.client.node_v4.into(), [10, 9, 2, 2].into()),
        (row.stage.client.node_v6.into(), "fd00:9:2::2".parse().expect("an address")),
    ];
    for (index, (port, far)) in ends.into_iter().enumerate() {
        match way {
            Way::Port => {
                let own = SocketAddr::new(address_of(&result, index), 80);
                transfer(&row.far, (port, PORT).into(), &pod, own, AMOUNT);
            }
            Way::Masquerade => transfer(&pod, (far, FAR).into(), &row.far, (far, FAR).into(), AMOUNT),
        }
        assert_eq!(path_mtu(&pod, far), SMALL.to_string(), "{far}");
    }
    let (carried, segments) = (row.stage.carried() - before, segments(2 * 2 * AMOUNT));
    assert!(carried > segments / 2, "{carried} of {segments}");
}

#[test]
fn the_path_mtu_is_discovered_through_a_published_port() {
    needs!(has_programs(), PROGRAMS);
    path_mtu_is_discovered(Way::Port);
}

#[test]
fn the_path_mtu_is_discovered_through_masquerade() {
    needs!(has_programs(), PROGRAMS);
    path_mtu_is_discovered(Way::Masquerade);
}

/// The node's addresses are on a VLAN interface, which is the uplink. Its packets do not have a tag any more.
#[test]
fn an_uplink_may_be_a_vlan() {
    needs!(has_programs(), PROGRAMS);
    if let Some(feature) = lacks("vlan") {
        skip!(feature);
    }
    let stage = Stage::new();
    let (node, client) = (&stage.node, &stage.client);
    for (space, link, own) in [(&**node, &*client.node_link, 1), (&**client, "eth0", 2)] {
        space.cmd(&format!("ip link add link {link} name tagged type vlan id 5"));
        space.cmd(&format!("ip address add 10.9.5.{own}/24 dev tagged"));
        space.cmd(&format!("ip address add fd00:9:5::{own}/64 dev tagged nodad"));
        space.cmd("ip link set tagged up");
    }
    client.cmd("ip route delete default");
    client.cmd("ip -6 route delete default");
    client.cmd("ip route add default via 10.9.5.1");
    client.cmd("ip -6 route add default via fd00:9:5::1");
    let pod = node.pod("web");
    let result = stage.network().add(&attach(&pod)).expect("ADD");
    assert!(stage.filters("tagged").contains("flow_ingress"), "{}", node.programs());
    let before = stage.carried();
    for (index, own) in ["10.9.5.", "fd00:9:5::"].into_iter().enumerate() {
        let [own, far]: [IpAddr; 2] = [1, 2].map(|last| format!("{own}{last}").parse().expect("an address"));
        let inside = SocketAddr::new(address_of(&result, index), 80);
        transfer(client, (own, PORT).into(), &pod, inside, AMOUNT);
        transfer(&pod, (far, FAR).into(), client, (far, FAR).into(), AMOUNT);
        let _server = client.serve(Proto::Udp, &at(far, FAR).to_string(), "far");
        assert_eq!(pod.expect(Proto::Udp, (far, FAR), "far").peer.ip(), own);
    }
    let (carried, segments) = (stage.carried() - before, segments(2 * 4 * AMOUNT));
    assert!(carried > segments / 2, "{carried} of {segments}");
}

/// The minimum number of packets that this amount of data takes.
fn segments(amount: usize) -> u64 {
    u64::try_from(amount / 1500).expect("64 bits")
}
