// SPDX-License-Identifier: GPL-2.0-or-later

//! The macvlan plugin: every key, packets over the master, and DEL.

#[path = "../single/masters_network.rs"]
mod masters_network;
#[path = "../single/on_a_link.rs"]
mod on_a_link;
#[path = "../single/mod.rs"]
mod single;

use serde_json::{Value, json};
use slipway_tests::{Attach, Proto, address_of, skip};

use masters_network::{all_meet, info, neighbours_are_notified, with_gateway};
use single::{World, add};

const PLUGIN: &str = "macvlan";
const NEEDS: &str = "macvlan links";

fn plugin(_: u16) -> Value {
    masters_network::plugin()
}

#[test]
fn containers_are_on_the_masters_network_with_addresses_of_their_own() {
    let Some(world) = with_gateway() else { skip!(NEEDS) };
    let (one, two) = (world.node.pod("one"), world.node.pod("two"));
    let network = world.network(1, &json!({}));
    let results = all_meet(&world, &network, &one, &two);
    // The outside host sees each container's own MAC address.
    let neighbours = world.client.cmd("ip neighbour show dev eth0");
    for (pod, result) in [(&one, &results[0]), (&two, &results[1])] {
        let line = format!("{} lladdr {}", address_of(result, 0), pod.mac("eth0"));
        assert!(neighbours.contains(&line), "{line} is not in:\n{neighbours}");
    }
}

#[test]
fn modes_decide_which_containers_reach_each_other() {
    let Some(world) = with_gateway() else { skip!(NEEDS) };
    world.client.cmd("ip link set lo up");
    for (mode, neighbours_meet) in [("bridge", true), ("private", false), ("vepa", false)] {
        let pods = [world.node.pod("one"), world.node.pod("two")];
        let network = world.network(1, &json!({"mode": mode}));
        let results = pods.each_ref().map(|pod| add(&network, pod));
        for pod in &pods {
            assert_eq!(info(pod)["mode"], mode);
        }
        let _server = pods[0].serve(Proto::Udp, "0.0.0.0:80", "one");
        world.client.expect(Proto::Udp, (address_of(&results[0], 0), 80), "one");
        match neighbours_meet {
            true => drop(pods[1].expect(Proto::Udp, (address_of(&results[0], 0), 80), "one")),
            false => pods[1].expect_none(Proto::Udp, (address_of(&results[0], 0), 80)),
        }
        drop(_server);
        for pod in pods {
            network.del(&Attach::new(&pod)).expect("DEL");
            pod.remove();
        }
    }
}

#[test]
fn passthru_takes_the_master_exclusively() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let (one, two) = (world.node.pod("one"), world.node.pod("two"));
    let network = world.network(1, &json!({"mode": "passthru"}));
    add(&network, &one);
    assert_eq!(info(&one)["mode"], "passthru");
    assert_eq!(one.mac("eth0"), world.node.mac("out0"), "the link has the master's address");
    let before = world.state(&[&two]);
    let failure = network.add(&Attach::new(&two)).expect_err("there can be only one");
    assert!(failure.error.msg.starts_with("failed to create macvlan: "), "{failure}");
    before.assert_same(&world.state(&[&two]));
}

#[test]
fn without_a_master_it_is_the_default_routes_link() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let network = world.network(1, &json!({"master": ""}));
    let failure = network.add(&Attach::new(&pod)).expect_err("there is no default route");
    assert_eq!(failure.error.msg, "no default route interface found");
    world.node.cmd("ip route add default via 192.0.2.2");
    add(&network, &pod);
    assert_eq!(pod.link("eth0")["link_index"], world.node.link("out0")["ifindex"]);
    // DEL does not need the master.
    world.node.cmd("ip route delete default");
    network.del(&Attach::new(&pod)).expect("DEL");
    assert!(!pod.has_link("eth0"));
}

#[test]
fn the_mac_address_comes_from_the_runtime_the_arguments_or_the_configuration() {
    let Some(world) = World::new() else { skip!(NEEDS) };
    let own = json!({"mac": "02:00:00:00:00:03", "capabilities": {"mac": true}});
    let with = |attach: Attach| attach.capability("mac", json!("02:00:00:00:00:01"));
    for (number, mac) in [(1, "02:00:00:00:00:01"), (2, "02:00:00:00:00:02"), (3, "02:00:00:00:00:03")] {
        let pod = world.node.pod(&format!("pod{number}"));
        let attach = match number {
            1 => with(Attach::new(&pod).args("IgnoreUnknown=1;MAC=02:00:00:00:00:02")),
            2 => Attach::new(&pod).args("IgnoreUnknown=1;MAC=02:00:00:00:00:02;K8S_POD_NAME=x"),
            _ => Attach::new(&pod),
        };
        let result = world.network(1, &own).add(&attach).expect("ADD");
        assert_eq!(result["interfaces"][0]["mac"], mac);
        assert_eq!(pod.mac("eth0"), mac);
    }
    let pod = world.node.pod("pod");
    let failure =
        world.network(1, &json!({})).add(&Attach::new(&pod).args("MAC=02:zz")).expect_err("no address");
    assert_eq!(failure.error.msg, "invalid args 02:zz for MAC addr: address 02:zz: invalid MAC address");
}

#[test]
fn without_ipam_the_link_is_only_set_up() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let network = world.network(1, &json!({"ipam": {}, "dns": {"domain": "a.test"}}));
    let result = add(&network, &pod);
    assert_eq!(result["ips"], Value::Null);
    assert_eq!(result["dns"], json!({"domain": "a.test"}));
    pod.wait_up("eth0");
    assert!(!pod.cmd("ip address show dev eth0").contains("inet "));
    network.check(&Attach::new(&pod)).expect("CHECK");
    network
        .status()
        .or_else(|failure| if slipway_tests::newest_version() == "1.0.0" { Ok(()) } else { Err(failure) })
        .expect("STATUS");
    network.del(&Attach::new(&pod)).expect("DEL");
    assert!(!pod.has_link("eth0"));
}

#[test]
fn neighbours_learn_a_new_address() {
    let Some(world) = with_gateway() else { skip!(NEEDS) };
    let (one, two) = (world.node.pod("one"), world.node.pod("two"));
    let network = world.network(1, &json!({}));
    let one_ip = address_of(&add(&network, &one), 0);
    neighbours_are_notified(&one);
    world.client.ping(one_ip).expect("a reply");
    network.del(&Attach::new(&one)).expect("DEL");
    // The address moves to another container, so the outside host must update its neighbour entry.
    let config = json!({"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.60.1.0/24",
        "rangeStart": one_ip.to_string(), "rangeEnd": one_ip.to_string()}]]}});
    let _ = add(&world.network(1, &config), &two);
    let _server = two.serve(Proto::Tcp, "0.0.0.0:80", "two");
    world.client.expect(Proto::Tcp, (one_ip, 80), "two");
}

#[test]
fn the_broadcast_queue_has_the_configured_length() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    add(&world.network(1, &json!({"bcqueuelen": 5000})), &pod);
    let length = &info(&pod)["bc_queue_len"];
    // Kernels before 5.11 do not have the attribute, and an older ip(8) does not print it.
    assert!(length.is_null() || *length == 5000, "{length}");
}

#[test]
fn check_compares_mode_and_address() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let network = world.network(1, &json!({}));
    let mac = add(&network, &pod)["interfaces"][0]["mac"].as_str().expect("an address").to_owned();
    pod.cmd("ip link set eth0 type macvlan mode private");
    network.differs(&pod, "container macvlan mode private does not match expected value: bridge");
    pod.cmd("ip link set eth0 type macvlan mode bridge");
    pod.cmd("ip link set eth0 address 02:00:00:00:00:77");
    let text = format!("nterface eth0 Mac {mac} doesn't match container Mac: 02:00:00:00:00:77");
    network.differs(&pod, &text);
    pod.cmd(&format!("ip link set eth0 address {mac}"));
    network.check(&Attach::new(&pod)).expect("CHECK");
}
