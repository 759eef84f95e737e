// SPDX-License-Identifier: GPL-2.0-or-later

//! The vlan plugin: every key, tagged packets over the master, and DEL.

#[path = "../single/on_a_link.rs"]
mod on_a_link;
#[path = "../single/mod.rs"]
mod single;

use serde_json::{Value, json};
use slipway_tests::{Attach, Proto, address_of, peer_fails, skip};

use single::{World, add};

const PLUGIN: &str = "vlan";
const NEEDS: &str = "vlan links";

/// The plugin with a different VLAN for each pod, because a master has each VLAN ID only once.
fn plugin(number: u16) -> Value {
    json!({"master": "out0", "vlanId": 100 + number})
}

/// Joins the outside host to the VLAN of pod `number`, as the pod's gateway.
fn join(world: &World, number: u16) {
    let link = format!("eth0.{}", 100 + number);
    world.client.cmd(&format!("ip link add {link} link eth0 type vlan id {}", 100 + number));
    world.client.cmd(&format!("ip address add 10.60.{number}.1/24 dev {link}"));
    world.client.cmd(&format!("ip address add fd00:60:{number}::1/64 dev {link} nodad"));
    world.client.cmd(&format!("ip link set {link} up"));
}

#[test]
fn containers_are_in_their_vlans_and_no_other() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let (one, two) = (world.node.pod("one"), world.node.pod("two"));
    let results = [add(&world.network(1, &json!({})), &one), add(&world.network(2, &json!({})), &two)];
    join(&world, 1);
    join(&world, 2);
    assert_eq!(one.link("eth0")["linkinfo"]["info_data"]["id"], 101);
    assert_eq!(two.link("eth0")["linkinfo"]["info_data"]["id"], 102);
    let _servers = [
        one.serve(Proto::Tcp, "[::]:80", "one"),
        two.serve(Proto::Tcp, "[::]:80", "two"),
        world.client.serve(Proto::Tcp, "[::]:80", "client"),
    ];
    for (pod, number, result) in [(&one, 1, &results[0]), (&two, 2, &results[1])] {
        let gateways = [format!("10.60.{number}.1"), format!("fd00:60:{number}::1")];
        for (family, gateway) in gateways.iter().enumerate() {
            let gateway: std::net::IpAddr = gateway.parse().expect("an address");
            let own = address_of(result, family);
            assert_eq!(pod.expect(Proto::Tcp, (gateway, 80), "client").peer.ip(), own);
            assert_eq!(world.client.expect(Proto::Tcp, (own, 80), pod.name()).peer.ip(), gateway);
        }
    }
    // The outside host does not forward, so nothing leads from one VLAN to the other.
    one.expect_none(Proto::Udp, (address_of(&results[1], 0), 80));
}

#[test]
fn an_id_on_one_master_is_refused_the_second_time() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let (one, two) = (world.node.pod("one"), world.node.pod("two"));
    let network = world.network(1, &json!({}));
    add(&network, &one);
    let before = world.state(&[&two]);
    let failure = network.add(&Attach::new(&two)).expect_err("the ID is taken");
    assert!(failure.error.msg.starts_with("failed to create vlan: "), "{failure}");
    before.assert_same(&world.state(&[&two]));
}

/// VLAN ID 0 does not denote a VLAN, so packets have only a priority tag.
#[test]
fn the_first_and_the_last_id_work() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    for id in [0, 4094] {
        let pod = world.node.pod(&format!("pod{id}"));
        let network = world.network(1, &json!({"vlanId": id}));
        add(&network, &pod);
        assert_eq!(pod.link("eth0")["linkinfo"]["info_data"]["id"], id);
        network.del(&Attach::new(&pod)).expect("DEL");
    }
    for id in [-1, 4095] {
        let pod = world.node.pod(&format!("pod{id}"));
        let failure = world.network(1, &json!({"vlanId": id})).add(&Attach::new(&pod)).expect_err("no ID");
        assert_eq!(failure.error.msg, format!("invalid VLAN ID {id} (must be between 0 and 4095 inclusive)"));
    }
}

#[test]
fn check_compares_the_id() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    peer_fails("does not look at the ID", || {
        let network = world.network(1, &json!({}));
        let result = add(&network, &pod);
        let mut config = network.configs(None).remove(0);
        config["prevResult"] = result;
        config["vlanId"] = 7.into();
        let failure = network.call("CHECK", &config, Some(&Attach::new(&pod))).error();
        assert!(failure.msg.contains("has VLAN ID 101, the configuration has 7"), "{failure:?}");
    });
}
