// SPDX-License-Identifier: GPL-2.0-or-later

//! DEL moves the device of its own attachment back to the node, and no other device, however late it is called.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Pod, is_peer, peer_fails, slowed, with_keys};

use super::{World, add};

/// A network with a device but without addresses.
fn network<'a>(world: &'a World, name: &str, keys: &Value) -> Network<'a> {
    let plugin = with_keys(json!({"type": "host-device"}), keys);
    world.node.network(json!({"name": name, "plugins": [plugin]}))
}

fn device<'a>(world: &'a World, name: &str) -> Network<'a> {
    network(world, &format!("of-{name}"), &json!({"device": name}))
}

#[test]
fn a_del_leaves_the_devices_of_other_attachments() {
    let world = World::new();
    world.node.cmd("ip link add ens6 type veth peer name wire6 netns outside");
    let pod = world.node.pod("pod");
    // This device keeps its name in the container, so its alias equals its name.
    let (first, kept) = (device(&world, "dev0"), Attach::new(&pod).ifname("dev0"));
    let (second, moved) = (device(&world, "ens6"), Attach::new(&pod).ifname("net2"));
    first.add(&kept).expect("ADD");
    second.add(&moved).expect("ADD");
    second.del(&moved).expect("DEL");
    peer_fails("fails when the device is on the node", || second.del(&moved).expect("DEL again"));
    assert!(pod.has_link("dev0"), "the first one's device");

    // An attachment whose ADD was refused has no device to move.
    let absent = network(&world, "absent", &json!({"device": "absent"}));
    absent.add(&moved).expect_err("there is no such device");
    peer_fails("fails", || absent.del(&moved).expect("DEL"));
    first.add(&moved).expect_err("the container has it already");
    peer_fails("fails", || first.del(&moved).expect("DEL"));
    assert!(pod.has_link("dev0"), "the first one's device");

    // Other links of the container remain there.
    pod.cmd("ip link add pod0 type veth peer name pod1");
    pod.cmd("ip link set pod0 alias pod0");
    peer_fails("fails", || second.del(&moved).expect("DEL"));
    assert!(pod.has_link("pod0"));
    first.del(&kept).expect("DEL");
    assert!(world.node.has_link("dev0"));
}

/// The second ADD is refused. Its DEL must leave the device alone that already had the name in the container.
#[test]
fn a_del_leaves_the_device_that_had_the_name_first() {
    let world = World::new();
    world.node.cmd("ip link add ens7 type veth peer name wire7 netns outside");
    let pod = world.node.pod("pod");
    let attach = Attach::new(&pod);
    peer_fails("brings home whatever has the name", || {
        let first = device(&world, "dev0");
        first.add(&attach).expect("ADD");
        let hwaddr = json!({"hwaddr": world.node.mac("ens7")});
        for other in [device(&world, "ens7"), network(&world, "by-address", &hwaddr)] {
            other.add(&attach).expect_err("the container has a link of that name");
            other.del(&attach).expect("DEL");
            assert!(pod.has_link("eth0") && world.node.has_link("ens7"));
        }
        first.del(&attach).expect("DEL");
        assert!(world.node.has_link("dev0"));
    });
}

/// The result shows that the link is the configured device.
#[test]
fn a_device_whose_mac_address_has_changed_is_moved_back() {
    let (world, pod) = World::with_pod();
    let network = network(&world, "net", &json!({"hwaddr": world.mac}));
    add(&network, &pod);
    pod.cmd("ip link set eth0 address 02:00:00:00:00:66");
    network.del(&Attach::new(&pod)).expect("DEL");
    assert!(world.node.has_link("dev0"));
    // By the address of the container, another network could take it for its own device.
    assert!(is_peer() || world.node.mac("dev0") == world.mac);
}

#[test]
fn a_device_configured_by_an_alternative_name_is_moved_back() {
    let (world, pod) = World::with_pod();
    for name in ["rack-1", "the-uplink-to-the-rack-of-the-lab"] {
        world.node.cmd(&format!("ip link property add dev dev0 altname {name}"));
        let network = device(&world, name);
        let before = world.state(&pod);
        add(&network, &pod);
        assert_eq!(pod.mac("eth0"), world.mac);
        network.del(&Attach::new(&pod)).expect("DEL");
        before.assert_same(&world.state(&pod));
    }
}

/// A container that may change its links can write any alias, or name of another plugin's container.
const ALIASES: [&str; 4] = [
    "eth1",
    "../../etc",
    "'the link to the rack'",
    "'slipway1 c737f93a5865b3dc-0fa651da1a6fd7fe2cb0988c8d47b2cd pods eth0 web1'",
];

/// Moves the device back, as the kernel does when the container has ended. Returns the attachment for its DEL.
fn end(world: &World, pod: &Pod) -> Attach {
    world.node.write("/run/back", "ip -n pod link set eth0 netns $$\nexit $?\n");
    world.node.cmd("sh /run/back");
    world.node.cmd("rm /run/back");
    Attach::new(pod).netns("")
}

/// The device gets its own name back, whatever alias the container wrote.
fn no_alias_counts(attach: impl Fn(&World, &Pod) -> Attach) {
    let (world, pod) = World::with_pod();
    let before = world.state(&pod);
    for keys in [json!({"device": "dev0"}), json!({"hwaddr": world.mac})] {
        let network = network(&world, "net", &keys);
        for alias in ALIASES {
            add(&network, &pod);
            pod.cmd(&format!("ip link set eth0 alias {alias}"));
            network.del(&attach(&world, &pod)).expect("DEL");
            before.assert_same(&world.state(&pod));
        }
    }
}

#[test]
fn a_container_does_not_choose_the_name_that_its_device_gets() {
    peer_fails("believes the alias", || no_alias_counts(|_, pod| Attach::new(pod)));
}

#[test]
fn a_container_that_has_ended_did_not_choose_the_name_of_its_device() {
    peer_fails("fails when the namespace is gone", || no_alias_counts(end));
}

/// Before Linux 6.7, a link that was moved still lists its alternative names, but is no longer found by them.
#[test]
fn a_device_comes_back_without_the_names_that_a_container_added() {
    peer_fails("keeps the names", || {
        let (world, pod) = World::with_pod();
        let network = device(&world, "dev0");
        for (short, long) in
            [("bond0", "the-uplink-to-the-rack-of-the-lab"), ("bond1", "the-other-uplink-to-it")]
        {
            add(&network, &pod);
            pod.cmd(&format!("ip link property add dev eth0 altname {short} altname {long}"));
            let attach = if short == "bond1" { end(&world, &pod) } else { Attach::new(&pod) };
            network.del(&attach).expect("DEL");
            assert!(world.node.has_link("dev0"), "{short}");
            assert!(!world.node.has_link(short) && !world.node.has_link(long), "{short}");
        }
    });
}

/// A record may be left from a call that was killed, and a runtime may name another container's namespace.
#[test]
fn a_record_is_used_only_for_its_device_and_namespace() {
    peer_fails("has no records", || {
        let world = World::new();
        world.node.cmd("ip link add ens6 type veth peer name wire6 netns outside");
        let (pod, other) = (world.node.pod("pod"), world.node.pod("other"));
        let (first, second) = (device(&world, "dev0"), device(&world, "ens6"));
        let (attach, elsewhere) = (Attach::new(&pod), Attach::new(&other));
        first.add(&attach).expect("ADD");
        second.add(&elsewhere).expect("ADD");
        let wrong = other.path().to_str().expect("text");
        first.del(&attach.clone().netns(wrong)).expect("DEL in the wrong namespace");
        assert!(other.has_link("eth0") && pod.has_link("eth0"));
        first.del(&attach).expect("DEL");
        second.del(&elsewhere).expect("DEL");
        assert!(world.node.has_link("dev0") && world.node.has_link("ens6"));
        assert_eq!(world.node.list("/run/slipway/devices"), Vec::<String>::new());

        // The device is already on the node, with an administrator's alias.
        first.add(&attach).expect("ADD");
        world.node.cmd("cp -r /run/slipway/devices /run/saved");
        first.del(&attach).expect("DEL");
        world.node.cmd("cp -r /run/saved/. /run/slipway/devices");
        world.node.cmd("ip link set dev0 alias uplink");
        first.del(&attach).expect("DEL again");
        assert_eq!(world.node.link("dev0")["ifalias"], "uplink");
        assert_eq!(world.node.list("/run/slipway/devices"), Vec::<String>::new());
    });
}

/// A link that is down and has an alias was not necessarily in a container before.
#[test]
fn an_administrators_alias_is_left_alone() {
    peer_fails("fails when the namespace is gone", || {
        let world = World::new();
        world.buses();
        world.node.cmd("ip link set dev0 alias uplink");
        let pod = world.node.pod("pod");
        let before = world.state(&pod);
        for keys in [
            json!({"hwaddr": world.mac}),
            json!({"kernelpath": "/sys/devices/pci0000:00/0000:01:00.0"}),
            json!({"pciBusID": "0000:01:00.0"}),
        ] {
            let network = network(&world, "net", &keys);
            let attach = Attach::new(&pod).ifname("dev0");
            network.del(&attach).expect("DEL");
            before.assert_same(&world.state(&pod));
            network.del(&attach.netns("")).expect("DEL");
            before.assert_same(&world.state(&pod));
        }
    });
}

/// Some time after the end of a namespace, the kernel moves a physical device back to the node, where it is down and
/// has the name from the container. The test moves the device itself, because the kernel deletes virtual links together
/// with the namespace.
#[test]
fn a_del_waits_for_a_device_that_the_kernel_moves_back() {
    peer_fails("fails when the namespace is gone", || {
        let world = World::new();
        world.buses();
        let (pod, limbo) = (world.node.pod("pod"), world.node.pod("limbo"));
        // `$$` is the ID of a process in the node's namespace.
        world.node.write("/run/back", "ip -n limbo link set eth0 netns $$\nexit $?\n");
        let before = world.state(&pod);
        for keys in [json!({"device": "dev0"}), json!({"hwaddr": world.mac})] {
            let network = network(&world, "net", &keys);
            add(&network, &pod);
            pod.cmd("ip link set eth0 netns limbo");
            let node = &world.node;
            assert_eq!(limbo.link("eth0")["ifalias"], "dev0");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(400));
                    node.cmd("sh /run/back");
                });
                network.del(&Attach::new(&pod).netns("")).expect("DEL");
            });
            before.assert_same(&world.state(&pod));
        }
    });
}

/// The device comes back between any two of the plugin's messages to the kernel, which are delayed by a tenth of a
/// second each.
#[test]
fn a_device_that_comes_back_at_any_moment_of_a_del_gets_its_name() {
    let world = World::new();
    let (pod, limbo) = (world.node.pod("pod"), world.node.pod("limbo"));
    world.node.write("/run/back", "ip -n limbo link set eth0 netns $$\nexit $?\n");
    let network = network(&world, "net", &json!({"hwaddr": world.mac}));
    let before = world.state(&pod);
    for tenths in 3..9 {
        let result = add(&network, &pod);
        pod.cmd("ip link set eth0 netns limbo");
        assert!(limbo.has_link("eth0"));
        let attach = Attach::new(&pod).netns("");
        let mut config = network.configs(Some(&attach)).remove(0);
        config["prevResult"] = result;
        let call = network.prepare("DEL", &config, Some(&attach));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(tenths * 100 + 50));
                world.node.cmd("sh /run/back");
            });
            slowed(&world.node, call, "sendto", Duration::from_millis(100)).ok();
        });
        before.assert_same(&world.state(&pod));
    }
}

/// The device came back after all DELs had stopped waiting for it.
#[test]
fn an_add_finds_a_device_that_the_kernel_moved_back() {
    peer_fails("does not find it", || {
        let (world, pod) = World::with_pod();
        let network = network(&world, "net", &json!({"device": "dev0"}));
        let before = world.state(&pod);
        for name in ["eth0", "dev12"] {
            world.node.cmd(&format!("ip link set dev0 name {name} alias dev0"));
            add(&network, &pod);
            assert_eq!(pod.mac("eth0"), world.mac);
            network.del(&Attach::new(&pod)).expect("DEL");
            before.assert_same(&world.state(&pod));
        }
    });
}

/// A result of an old version needs an address, so ADD would fail after the move, and the node's addresses on the link
/// would be lost.
#[test]
fn a_device_whose_result_cannot_be_expressed_is_not_moved() {
    peer_fails("moves it", || {
        let world = World::new();
        world.node.cmd("ip link set dev0 up");
        world.node.cmd("ip address add 10.60.1.9/24 dev dev0");
        let pod = world.node.pod("pod");
        let mut config = network(&world, "net", &json!({"device": "dev0"})).configs(None).remove(0);
        let without = json!({"type": "answers-nothing"});
        world.node.write("/run/cni-bin/answers-nothing", "#!/bin/sh\necho '{}'\n");
        world.node.cmd("chmod 755 /run/cni-bin/answers-nothing");
        for (version, ipam) in [("0.1.0", &json!({})), ("0.2.0", &json!({})), ("0.2.0", &without)] {
            config["cniVersion"] = version.into();
            config["ipam"] = ipam.clone();
            let before = world.state(&pod);
            let call = world.node.plugin("host-device").command("ADD").for_pod(&pod).config(&config);
            call.env("CNI_PATH", "/run/cni-bin").run().error();
            assert!(world.node.link("dev0")["flags"].to_string().contains("\"UP\""));
            if ipam == &json!({}) {
                before.assert_same(&world.state(&pod));
            }
        }
    });
}
