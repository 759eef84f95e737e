// SPDX-License-Identifier: GPL-2.0-or-later

//! The ipvlan plugin: every key, packets over the master, and DEL.

#[path = "../single/masters_network.rs"]
mod masters_network;
#[path = "../single/on_a_link.rs"]
mod on_a_link;
#[path = "../single/mod.rs"]
mod single;

use serde_json::{Value, json};
use slipway_tests::{Attach, Proto, address_of, peer_fails, skip};

use masters_network::{all_meet, info, neighbours_are_notified, with_gateway};
use single::{World, add};

const PLUGIN: &str = "ipvlan";
const NEEDS: &str = "ipvlan links";

fn plugin(_: u16) -> Value {
    masters_network::plugin()
}

#[test]
fn containers_are_on_the_masters_network_with_its_ethernet_address() {
    let Some(world) = with_gateway() else { skip!(NEEDS) };
    let (one, two) = (world.node.pod("one"), world.node.pod("two"));
    let network = world.network(1, &json!({}));
    let _ = all_meet(&world, &network, &one, &two);
    assert_eq!(info(&one)["mode"], "l2");
    for pod in [&one, &two] {
        assert_eq!(pod.mac("eth0"), world.node.mac("out0"));
    }
    neighbours_are_notified(&one);
}

/// In the layer 3 modes, the containers answer neither ARP requests nor neighbour solicitations, so the outside host
/// has a route to them through the node.
#[test]
fn modes_of_layer_3_are_routed() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    world.client.cmd("ip route add 10.60.1.0/24 via 192.0.2.1");
    for name in ["l3", "l3s"] {
        let pod = world.node.pod(name);
        let network = world.network(1, &json!({"mode": name}));
        let result = add(&network, &pod);
        assert_eq!(info(&pod)["mode"], name);
        let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", name);
        world.client.expect(Proto::Tcp, (address_of(&result, 0), 80), name);
        network.check(&Attach::new(&pod)).expect("CHECK");
        drop(_server);
        network.del(&Attach::new(&pod)).expect("DEL");
        pod.remove();
    }
}

#[test]
fn without_a_master_it_is_the_default_routes_link() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    peer_fails("DEL wants a default route", || {
        let network = world.network(1, &json!({"master": ""}));
        let failure = network.add(&Attach::new(&pod)).expect_err("there is no default route");
        assert_eq!(failure.error.msg, "no default route interface found");
        world.node.cmd("ip route add default via 192.0.2.2");
        add(&network, &pod);
        assert_eq!(pod.link("eth0")["link_index"], world.node.link("out0")["ifindex"]);
        world.node.cmd("ip route delete default");
        network.check(&Attach::new(&pod)).expect("CHECK");
        network.del(&Attach::new(&pod)).expect("DEL");
        assert!(!pod.has_link("eth0"));
    });
}

/// As a chained plugin, ipvlan uses the link and the addresses of the plugin before it.
#[test]
fn ipvlan_may_be_chained() {
    let Some(world) = with_gateway() else { skip!(NEEDS) };
    let pod = world.node.pod("pod");
    let mut config = world.network(1, &json!({"master": "", "ipam": {}})).configs(None).remove(0);
    config["prevResult"] = json!({
        "cniVersion": config["cniVersion"], "interfaces": [{"name": "out0"}],
        "ips": [{"address": "10.60.1.77/24", "gateway": "10.60.1.1"}], "routes": [{"dst": "0.0.0.0/0"}],
    });
    let call = |verb: &str, config: &Value| {
        world.node.plugin(PLUGIN).command(verb).for_pod(&pod).config(config).run()
    };
    let result = call("ADD", &config).ok();
    assert_eq!(result["ips"], json!([{"address": "10.60.1.77/24", "gateway": "10.60.1.1", "interface": 0}]));
    pod.ping("10.60.1.1".parse().expect("an address")).expect("the host outside answers");
    let mut after = config.clone();
    after["prevResult"] = result;
    let _ = call("CHECK", &after).ok();
    let _ = call("DEL", &after).ok();
    assert!(!pod.has_link("eth0"));
    config["prevResult"]["interfaces"] = json!([{"name": "out0"}, {"name": "out1"}]);
    let text = "chained master failure. PrevResult lacks a single named interface";
    assert_eq!(call("ADD", &config).error().msg, text);
    config["prevResult"]["interfaces"] = json!([{"name": "out0"}]);
    config["prevResult"]["ips"] = json!([]);
    let before = world.state(&[&pod]);
    peer_fails("the link stays", || {
        assert_eq!(call("ADD", &config).error().msg, "no plugin name provided");
        before.assert_same(&world.state(&[&pod]));
    });
}

#[test]
fn check_compares_the_mode() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let network = world.network(1, &json!({}));
    let result = add(&network, &pod);
    let mut config = network.configs(None).remove(0);
    config["prevResult"] = result;
    config["mode"] = "l3".into();
    let failure = network.call("CHECK", &config, Some(&Attach::new(&pod))).error();
    assert_eq!(failure.msg, "Container IPVlan mode l2 does not match expected value: l3");
    pod.cmd("ip -6 address delete fd00:60:1::2/64 dev eth0");
    network.differs(&pod, "Failed to match addr fd00:60:1::2/64");
}
