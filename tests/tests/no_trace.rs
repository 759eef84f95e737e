// SPDX-License-Identifier: GPL-2.0-or-later

//! An ADD that fails leaves nothing behind, whichever step failed.

use serde_json::{Value, json};
use slipway_tests::{Attach, Failure, Node, Pod, Proto, Snapshot, host_local, peer_fails};

/// The plugins that make links.
const INTERFACES: [&str; 4] = ["bridge", "macvlan", "ptp", "tap"];
/// The plugins among them that masquerade.
const PAIRS: [&str; 2] = ["bridge", "ptp"];

fn list() -> Value {
    list_with("bridge")
}

fn list_with(interface: &str) -> Value {
    let mut plugin = json!({
        "type": interface, "isGateway": true, "ipMasq": true, "master": "out0",
        "ipam": host_local("10.88.0.0/24", "fd00:88::/64"),
    });
    if interface == "bridge" {
        plugin["bridge"] = "br0".into();
    }
    json!({"name": "net", "plugins": [plugin, {"type": "portmap", "capabilities": {"portMappings": true}}]})
}

/// A node on which one pod runs, so that all shared objects exist, and another pod.
fn stage() -> (Node, Pod, Pod) {
    let node = Node::without_bridge_netfilter();
    // The master link.
    node.cmd("ip link add out0 type veth peer name out1");
    node.cmd("ip link set out0 up");
    node.cmd("ip link set out1 up");
    let first = node.pod("first");
    node.network(list()).add(&Attach::new(&first).port(Proto::Tcp, 8080, 80)).expect("ADD of the first pod");
    let pod = node.pod("pod");
    (node, first, pod)
}

/// The state of node and pod, without counters, what is derived from the reservations, and the folders that a network's
/// first ADD creates.
fn state(node: &Node, pod: &Pod) -> Snapshot {
    Snapshot::take(node, &[pod]).without(&["last_reserved_ip", "networks/.slipway/", "folder "])
}

/// Asserts that bridge fails with the list changed by `change`, and leaves the state unchanged.
#[track_caller]
fn bridge_fails(node: &Node, attach: &Attach, pod: &Pod, change: impl Fn(&mut Value)) -> Failure {
    fails("bridge", node, attach, pod, change)
}

/// Asserts the same for every plugin that makes links. Each error must contain all of `parts`.
#[track_caller]
fn all_fail(node: &Node, attach: &Attach, pod: &Pod, parts: &[&str], change: impl Fn(&mut Value)) {
    for interface in INTERFACES {
        let failure = fails(interface, node, attach, pod, &change);
        names(&failure, parts);
    }
}

#[track_caller]
fn fails(interface: &str, node: &Node, attach: &Attach, pod: &Pod, change: impl Fn(&mut Value)) -> Failure {
    let before = state(node, pod);
    let mut list = list_with(interface);
    change(&mut list["plugins"][0]);
    list["plugins"].as_array_mut().expect("a list").truncate(1);
    let failure = node.network(list).add(attach).expect_err("ADD should fail");
    before.assert_same(&state(node, pod));
    failure
}

#[track_caller]
fn names(failure: &Failure, parts: &[&str]) {
    let text = failure.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn a_namespace_that_is_gone_or_none() {
    let (node, _first, pod) = stage();
    node.write("/run/file", "");
    for path in ["/run/netns/gone", "/run/file"] {
        all_fail(&node, &Attach::new(&pod).netns(path), &pod, &[path], |_| {});
    }
}

#[test]
fn the_interface_exists_already() {
    let (node, _first, pod) = stage();
    pod.cmd("ip link add eth0 type veth peer name eth1");
    all_fail(&node, &Attach::new(&pod), &pod, &["eth0", "already exists"], |_| {});
}

#[test]
fn the_bridge_is_something_else() {
    let (node, _first, pod) = stage();
    node.cmd("ip link add other type veth peer name other1");
    let failure = bridge_fails(&node, &Attach::new(&pod), &pod, |bridge| bridge["bridge"] = "other".into());
    names(&failure, &["other", "is not a bridge"]);
}

#[test]
fn ipam_is_missing_or_exhausted() {
    peer_fails("the veth pair stays", || {
        let (node, _first, pod) = stage();
        let attach = Attach::new(&pod);
        all_fail(&node, &attach, &pod, &["absent"], |plugin| plugin["ipam"]["type"] = "absent".into());
        // The range has a single address, which belongs to the first pod.
        all_fail(&node, &attach, &pod, &["10.88.0.2"], |plugin| {
            let range = json!({"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.2", "rangeEnd": "10.88.0.2"});
            plugin["ipam"]["ranges"] = json!([[range]]);
        });
        // The IPv4 range has free addresses, but the IPv6 range has none, so no address is reserved in either.
        all_fail(&node, &attach, &pod, &["fd00:88::2"], |plugin| {
            let range =
                json!({"subnet": "fd00:88::/64", "rangeStart": "fd00:88::2", "rangeEnd": "fd00:88::2"});
            plugin["ipam"]["ranges"][1] = json!([range]);
        });
    });
}

#[test]
fn a_route_cannot_be_installed() {
    peer_fails("the veth pair stays", || {
        let (node, _first, pod) = stage();
        for route in [
            json!({"dst": "172.16.0.0/12", "gw": "192.168.77.1"}),
            json!({"dst": "fd77::/64", "gw": "fd78::1"}),
        ] {
            let parts = [route["dst"].as_str().expect("text")];
            all_fail(&node, &Attach::new(&pod), &pod, &parts, |plugin| {
                plugin["ipam"]["routes"].as_array_mut().expect("a list").push(route.clone());
            });
        }
    });
}

/// The bridge cannot get the gateway's address, because it has another one.
#[test]
fn the_bridge_has_another_address() {
    peer_fails("the veth pair stays", || {
        let (node, _first, pod) = stage();
        let failure = bridge_fails(&node, &Attach::new(&pod), &pod, |bridge| {
            bridge["ipam"]["ranges"] = json!([[{"subnet": "10.99.0.0/24"}]]);
        });
        names(&failure, &["br0", "already has an IP address different from"]);
    });
}

#[test]
fn the_kernel_refuses_a_link_attribute() {
    let (node, _first, pod) = stage();
    all_fail(&node, &Attach::new(&pod), &pod, &[], |plugin| plugin["mtu"] = 70_000.into());
    bridge_fails(&node, &Attach::new(&pod).args("MAC=ff:ff:ff:ff:ff:ff"), &pod, |_| {});
}

/// If the kernel lacks VLAN filtering, the error says so. Otherwise ADD and DEL leave nothing behind.
#[test]
fn vlan_filtering_may_be_missing() {
    peer_fails("the error does not name what is missing", || {
        let (node, _first, pod) = stage();
        let before = state(&node, &pod);
        let mut list = list();
        list["plugins"][0]["bridge"] = "br1".into();
        list["plugins"][0]["vlan"] = 100.into();
        list["plugins"][0]["isGateway"] = false.into();
        let network = node.network(list);
        match network.add(&Attach::new(&pod)) {
            Ok(_) => network.del(&Attach::new(&pod)).expect("DEL"),
            Err(failure) => {
                assert!(failure.to_string().to_lowercase().contains("vlan"), "{failure}");
            }
        }
        // The bridge may stay, as it does after the last pod's DEL.
        before.assert_same(&state(&node, &pod).without(&["br1"]));
    });
}

/// A table with Slipway's name that another program made is refused and left alone.
#[test]
fn the_table_belongs_to_another_program() {
    peer_fails("it has no table of that name", || {
        let (node, pod) = Node::with_pod();
        node.nft("add table inet slipway\nadd chain inet slipway mine\nadd rule inet slipway mine accept\n");
        let bridge = node.network({
            let mut list = list();
            list["plugins"][0]["ipMasq"] = false.into();
            list
        });
        let before = state(&node, &pod);
        for interface in PAIRS {
            let failure =
                node.network(list_with(interface)).add(&Attach::new(&pod)).expect_err("not our table");
            names(&failure, &["slipway"]);
        }
        // This is the first ADD on the node, so the bridge remains, as usual.
        before.assert_same(&state(&node, &pod).without(&["br0", "networks/net/lock"]));
        let failure = bridge.add(&Attach::new(&pod).port(Proto::Tcp, 80, 80)).expect_err("not our table");
        assert_eq!(failure.plugin, "portmap");
        names(&failure, &["slipway"]);
        bridge.del(&Attach::new(&pod)).expect("DEL");
        before.assert_same(&state(&node, &pod).without(&["br0", "networks/net/lock"]));
    });
}

/// portmap fails after bridge has succeeded. The objects of bridge are left alone.
#[test]
fn portmap_refuses() {
    peer_fails("conflicts are silent", || {
        let (node, _first, pod) = stage();
        let network = node.network(list());
        let attach = Attach::new(&pod);
        let bridge = &network.configs(Some(&attach))[0];
        let result = network.call("ADD", bridge, Some(&attach)).ok();
        let before = state(&node, &pod);
        let cases = [
            (
                json!([{"hostPort": 9000, "containerPort": 80}, {"hostPort": 8080, "containerPort": 80}]),
                "8080",
            ),
            (json!([{"hostPort": 9000, "containerPort": 0, "protocol": "tcp"}]), "0"),
            (json!([{"hostPort": 9000, "containerPort": 80, "protocol": "icmp"}]), "icmp"),
            (
                json!([{"hostPort": 9000, "containerPort": 80, "protocol": "tcp", "hostIP": "nowhere"}]),
                "nowhere",
            ),
            (json!([{"hostPort": 70_000, "containerPort": 80, "protocol": "tcp"}]), "70000"),
        ];
        for (ports, part) in cases {
            let mut config = network.configs(None)[1].clone();
            config["runtimeConfig"] = json!({"portMappings": ports});
            if ports[0].get("protocol").is_none() {
                for port in config["runtimeConfig"]["portMappings"].as_array_mut().expect("a list") {
                    port["protocol"] = "tcp".into();
                }
            }
            config["prevResult"] = result.clone();
            let error = network.call("ADD", &config, Some(&attach)).error();
            assert!(format!("{} {}", error.msg, error.details).contains(part), "{part}: {error:?}");
            before.assert_same(&state(&node, &pod));
        }
    });
}

/// The state directory is full or read-only.
#[test]
fn the_state_directory_is_full_or_read_only() {
    peer_fails("the veth pair stays", || {
        let (node, _first, pod) = stage();
        for options in ["ro", "rw,size=4k,nr_inodes=2", "rw,size=16k"] {
            node.cmd("mkdir -p /run/state");
            node.cmd(&format!("mount -t tmpfs -o {options} tmpfs /run/state"));
            if options == "rw,size=16k" {
                node.try_cmd("mkdir -p /run/state/net");
                node.try_cmd("dd if=/dev/zero of=/run/state/fill bs=4k status=none");
            }
            all_fail(&node, &Attach::new(&pod), &pod, &["/run/state"], |plugin| {
                plugin["ipam"]["dataDir"] = "/run/state".into();
            });
            node.cmd("umount /run/state");
        }
    });
}
