// SPDX-License-Identifier: GPL-2.0-or-later

//! The vlan plugin: every key, tagged packets over the master, and DEL.

#[path = "../single/mod.rs"]
mod single;

use serde_json::{Value, json};
use slipway_tests::{Attach, Proto, is_peer, peer_fails, skip};

use single::{World, add, address};

const PLUGIN: &str = "vlan";
const NEEDS: &str = "vlan links";

/// The plugin with a VLAN of its own for each pod: a master has each VLAN ID once.
fn plugin(number: u16) -> Value {
    json!({"master": "out0", "vlanId": 100 + number})
}

/// The host outside is in the VLAN of pod `number`, as its gateway.
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
            let own = address(result, family);
            assert_eq!(pod.expect(Proto::Tcp, (gateway, 80), "client").peer.ip(), own);
            assert_eq!(world.client.expect(Proto::Tcp, (own, 80), pod.name()).peer.ip(), gateway);
        }
    }
    // The host outside does not forward: nothing leads from one VLAN to the other.
    one.expect_none(Proto::Udp, (address(&results[1], 0), 80));
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

/// VLAN ID 0 is no VLAN: packets have a priority tag only.
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
fn the_mtu_is_the_masters_or_less() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let (one, two, three) = (world.node.pod("one"), world.node.pod("two"), world.node.pod("three"));
    world.node.cmd("ip link set out0 mtu 1400");
    add(&world.network(1, &json!({})), &one);
    assert_eq!(one.link("eth0")["mtu"], 1400);
    add(&world.network(2, &json!({"mtu": 1300})), &two);
    assert_eq!(two.link("eth0")["mtu"], 1300);
    let failure = world.network(3, &json!({"mtu": 1401})).add(&Attach::new(&three)).expect_err("bad MTU");
    assert_eq!(failure.error.msg, "invalid MTU 1401, must be [0, master MTU(1400)]");
    if !is_peer() {
        assert_eq!(
            world.network(3, &json!({"mtu": 1401})).status().expect_err("it is too large").error.code,
            50
        );
    }
}

#[test]
fn the_master_may_be_in_the_container() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let pod = world.node.pod("pod");
    world.node.cmd("ip link add up0 type veth peer name in0 netns pod");
    pod.cmd("ip link set in0 up");
    let network = world.network(1, &json!({"master": "in0", "linkInContainer": true}));
    add(&network, &pod);
    assert_eq!(pod.link("eth0")["link"], "in0");
    network.check(&Attach::new(&pod)).expect("CHECK");
    network.del(&Attach::new(&pod)).expect("DEL");
    assert!(pod.has_link("in0") && !pod.has_link("eth0"));
}

/// The reference's DEL fails when it does not find the master.
#[test]
fn del_succeeds_after_the_masters_removal() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let pod = world.node.pod("pod");
    peer_fails("DEL wants the master", || {
        let network = world.network(1, &json!({}));
        add(&network, &pod);
        world.node.cmd("ip link delete out0");
        network.del(&Attach::new(&pod)).expect("DEL");
        assert!(world.reservations().is_empty());
        assert_eq!(network.status().expect_err("the master is gone").error.code, 50);
    });
}

#[test]
fn check_compares_the_id() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let pod = world.node.pod("pod");
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

#[test]
fn master_and_ipam_are_required() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let pod = world.node.pod("pod");
    peer_fails("other codes, and the link stays", || {
        for (keys, part) in [
            (
                json!({"master": ""}),
                "\"master\" field is required. It specifies the host interface name to create the VLAN for",
            ),
            (json!({"ipam": {}}), "failed to execute IPAM delegate: no plugin name provided"),
            (json!({"mtu": "x"}), "mtu"),
            (json!({"vlanId": "x"}), "vlanId"),
        ] {
            let before = world.state(&[&pod]);
            let failure = world.network(1, &keys).add(&Attach::new(&pod)).expect_err("bad value");
            assert_eq!(failure.error.code, 7, "{failure}");
            assert!(failure.to_string().contains(part), "{part} is not in: {failure}");
            before.assert_same(&world.state(&[&pod]));
        }
        let network = world.network(1, &json!({"master": "absent"}));
        let failure = network.add(&Attach::new(&pod)).expect_err("no master");
        assert_eq!(failure.error.msg, "failed to lookup master \"absent\": Link not found");
    });
}

#[test]
fn the_dns_of_ipam_is_not_in_the_result() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let pod = world.node.pod("pod");
    world.node.write("/var/lib/resolv.conf", "nameserver 192.0.2.53\n");
    let ipam = json!({"type": "host-local", "subnet": "10.60.1.0/24", "resolvConf": "/var/lib/resolv.conf"});
    let keys = json!({"ipam": ipam, "dns": {"domain": "a.test"}});
    assert_eq!(add(&world.network(1, &keys), &pod)["dns"], json!({"domain": "a.test"}));
}
