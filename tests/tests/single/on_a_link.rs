// SPDX-License-Identifier: GPL-2.0-or-later

//! Tests of macvlan, ipvlan and vlan, which make a link on a master. Their suites include this module and `single`.

use serde_json::json;
use slipway_tests::{Attach, Proto, address_of, is_peer, peer_fails, skip};

use crate::single::{World, add};
use crate::{NEEDS, PLUGIN};

#[test]
fn the_mtu_is_the_masters_or_less() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let (one, two) = (world.node.pod("one"), world.node.pod("two"));
    world.node.cmd("ip link set out0 mtu 1400");
    add(&world.network(1, &json!({})), &one);
    assert_eq!(one.link("eth0")["mtu"], 1400);
    add(&world.network(2, &json!({"mtu": 1300})), &two);
    assert_eq!(two.link("eth0")["mtu"], 1300);
    // ipvlan leaves it to the kernel to refuse larger values.
    if PLUGIN == "ipvlan" {
        return;
    }
    for mtu in [1401, 9000, -1] {
        let pod = world.node.pod(&format!("pod{mtu}"));
        let network = world.network(3, &json!({"mtu": mtu}));
        let failure = network.add(&Attach::new(&pod)).expect_err("bad MTU");
        assert_eq!(failure.error.msg, format!("invalid MTU {mtu}, must be [0, master MTU(1400)]"));
        if !is_peer() {
            assert_eq!(network.status().expect_err("ADD would fail").error.code, 50);
        }
    }
}

#[test]
fn the_master_may_be_named_by_an_alternative_name() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
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
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    world.node.cmd("ip link add up0 type veth peer name in0 netns pod");
    world.node.cmd("ip link set up0 up");
    world.node.cmd("ip address add 10.60.1.1/24 dev up0");
    pod.cmd("ip link set in0 up");
    let network = world.network(1, &json!({"master": "in0", "linkInContainer": true}));
    let result = add(&network, &pod);
    assert_eq!(pod.link("eth0")["link"], "in0");
    // The node itself is not in any VLAN.
    if PLUGIN != "vlan" {
        let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "pod");
        world.node.expect(Proto::Tcp, (address_of(&result, 0), 80), "pod");
    }
    network.check(&Attach::new(&pod)).expect("CHECK");
    network.del(&Attach::new(&pod)).expect("DEL");
    assert!(pod.has_link("in0") && !pod.has_link("eth0"));
    let missing = world.network(1, &json!({"linkInContainer": true})).add(&Attach::new(&pod));
    assert!(missing.is_err(), "out0 is the node's");
}

#[test]
fn del_succeeds_after_the_masters_removal() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let network = world.network(1, &json!({}));
    add(&network, &pod);
    // The kernel deletes the container's link together with the master.
    world.node.cmd("ip link delete out0");
    assert!(!pod.has_link("eth0"));
    let deleted = || {
        network.del(&Attach::new(&pod)).expect("DEL");
        assert!(world.node.reserved("net").is_empty());
    };
    match PLUGIN {
        "vlan" => peer_fails("DEL wants the master", deleted),
        _ => deleted(),
    }
    peer_fails("does not report the missing master", || {
        assert_eq!(network.status().expect_err("the master is gone").error.code, 50);
    });
}
