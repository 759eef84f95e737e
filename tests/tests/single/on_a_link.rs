// SPDX-License-Identifier: GPL-2.0-or-later

//! Tests of macvlan and ipvlan, which make a link on a master. Their suites include this module and `single`.

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Pod, Proto, peer_fails, skip};

use crate::single::{World, add, address};
use crate::{NEEDS, PLUGIN};

pub(crate) fn plugin() -> Value {
    json!({"master": "out0"})
}

/// A world whose host outside is the gateway of the containers' subnet.
pub(crate) fn with_gateway() -> Option<World> {
    let world = World::new()?;
    world.client.cmd("ip address add 10.60.1.1/24 dev eth0");
    world.client.cmd("ip address add fd00:60:1::1/64 dev eth0 nodad");
    Some(world)
}

/// The kernel's attributes of the container's link.
pub(crate) fn info(pod: &Pod) -> Value {
    let link = pod.link("eth0");
    assert_eq!(link["linkinfo"]["info_kind"], PLUGIN, "{link}");
    link["linkinfo"]["info_data"].clone()
}

/// Asserts that two containers and the host outside reach each other with their own addresses. Returns the
/// results of the two ADDs.
#[track_caller]
pub(crate) fn all_meet(world: &World, network: &Network<'_>, one: &Pod, two: &Pod) -> [Value; 2] {
    let results = [add(network, one), add(network, two)];
    let _servers = [
        one.serve(Proto::Tcp, "[::]:80", "one"),
        one.serve(Proto::Udp, "[::]:80", "one"),
        world.client.serve(Proto::Tcp, "[::]:80", "client"),
        world.client.serve(Proto::Udp, "[::]:80", "client"),
    ];
    for proto in Proto::ALL {
        for (family, gateway) in ["10.60.1.1", "fd00:60:1::1"].into_iter().enumerate() {
            let gateway: IpAddr = gateway.parse().expect("an address");
            let (peer, own) = (address(&results[0], family), address(&results[1], family));
            assert_eq!(two.expect(proto, (gateway, 80), "client").peer.ip(), own);
            assert_eq!(world.client.expect(proto, (peer, 80), "one").peer.ip(), gateway);
            assert_eq!(two.expect(proto, (peer, 80), "one").peer.ip(), own);
        }
    }
    results
}

/// Asserts that neighbours learn an address that has moved.
#[track_caller]
pub(crate) fn neighbours_are_notified(pod: &Pod) {
    assert_eq!(pod.sysctl_get("net/ipv4/conf/eth0/arp_notify").as_deref(), Some("1"));
    assert_eq!(pod.sysctl_get("net/ipv6/conf/eth0/ndisc_notify").as_deref(), Some("1"));
}

/// Asserts that ADD refuses each of these keys with this code and text, and leaves nothing.
#[track_caller]
pub(crate) fn refused(cases: &[(Value, u32, &str)]) {
    let Some(world) = World::new() else { return };
    let pod = world.node.pod("pod");
    for (keys, code, part) in cases {
        let before = world.state(&[&pod]);
        let failure = world.network(1, keys).add(&Attach::new(&pod)).expect_err("bad value");
        assert_eq!(failure.error.code, *code, "{failure}");
        assert!(failure.to_string().contains(part), "{part} is not in: {failure}");
        before.assert_same(&world.state(&[&pod]));
    }
}

#[test]
fn the_mtu_is_the_masters_or_less() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let (one, two) = (world.node.pod("one"), world.node.pod("two"));
    world.node.cmd("ip link set out0 mtu 1400");
    add(&world.network(1, &json!({})), &one);
    assert_eq!(one.link("eth0")["mtu"], 1400);
    add(&world.network(1, &json!({"mtu": 1300})), &two);
    assert_eq!(two.link("eth0")["mtu"], 1300);
}

#[test]
fn the_master_may_be_named_by_an_alternative_name() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let pod = world.node.pod("pod");
    for name in ["rack-1", "the-uplink-to-the-rack-of-the-lab"] {
        world.node.cmd(&format!("ip link property add dev out0 altname {name}"));
        let network = world.network(1, &json!({"master": name}));
        network.status().expect("STATUS");
        add(&network, &pod);
        network.check(&Attach::new(&pod)).expect("CHECK");
        network.del(&Attach::new(&pod)).expect("DEL");
    }
}

#[test]
fn the_master_may_be_in_the_container() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let pod = world.node.pod("pod");
    world.node.cmd("ip link add up0 type veth peer name in0 netns pod");
    world.node.cmd("ip link set up0 up");
    world.node.cmd("ip address add 10.60.1.1/24 dev up0");
    pod.cmd("ip link set in0 up");
    let network = world.network(1, &json!({"master": "in0", "linkInContainer": true}));
    let result = add(&network, &pod);
    assert_eq!(pod.link("eth0")["link"], "in0");
    let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "pod");
    world.node.expect(Proto::Tcp, (address(&result, 0), 80), "pod");
    network.check(&Attach::new(&pod)).expect("CHECK");
    network.del(&Attach::new(&pod)).expect("DEL");
    assert!(pod.has_link("in0") && !pod.has_link("eth0"));
    let missing = world.network(1, &json!({"linkInContainer": true})).add(&Attach::new(&pod));
    assert!(missing.is_err(), "out0 is the node's");
}

#[test]
fn del_succeeds_after_the_masters_removal() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let pod = world.node.pod("pod");
    let network = world.network(1, &json!({}));
    add(&network, &pod);
    // The kernel deletes the container's link with it.
    world.node.cmd("ip link delete out0");
    assert!(!pod.has_link("eth0"));
    network.del(&Attach::new(&pod)).expect("DEL");
    assert!(world.reservations().is_empty());
    peer_fails("does not report the missing master", || {
        assert_eq!(network.status().expect_err("the master is gone").error.code, 50);
    });
}
