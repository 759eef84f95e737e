// SPDX-License-Identifier: GPL-2.0-or-later

//! host-local: reservations that two implementations share, that survive a kill at any moment, and that fail cleanly on
//! a full disk.

mod abandoned;
mod disk;
mod interrupted;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cni_state::subnet_file::SubnetFile;
use serde_json::{Value, json};
use slipway_tests::{
    Attach, Node, Output, PluginCall, Proto, REFERENCE, Reference, comes, injected, skip, slipway_only,
};

const DIR: &str = "/var/lib/cni/networks";
const NET: &str = "/var/lib/cni/networks/net";

fn config(ipam: Value) -> Value {
    let mut config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "test", "ipam": ipam });
    config["ipam"]["type"] = json!("host-local");
    config
}

fn four() -> Value {
    config(json!({ "subnet": "10.1.2.0/24" }))
}

fn dual() -> Value {
    config(json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00:1::/64" }]] }))
}

/// A call as bridge makes it. There is no namespace, because host-local does not use it.
fn call(node: &Node, verb: &str, id: &str, config: &Value) -> PluginCall {
    let call = node.plugin("host-local").command(verb).container(id).ifname("eth0");
    call.netns(format!("/run/netns/{id}")).config(config)
}

/// Makes the same call with the reference plugin's host-local.
fn reference(program: &Path, node: &Node, verb: &str, id: &str, config: &Value) -> Output {
    call(node, verb, id, config).instead(program).run()
}

/// Calls GC or STATUS.
fn node_call(node: &Node, verb: &str, config: &Value) -> Output {
    let mut config = config.clone();
    config["cniVersion"] = json!("1.1.0");
    node.plugin("host-local").command(verb).config(&config).run()
}

fn gc(node: &Node, config: &Value, valid: &[&str]) -> Output {
    let mut config = config.clone();
    let valid = valid.iter().map(|id| json!({ "containerID": id, "ifname": "eth0" }));
    config["cni.dev/valid-attachments"] = valid.collect();
    node_call(node, "GC", &config)
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().expect("addresses");
    ips.iter().map(|ip| ip["address"].as_str().expect("a text").to_owned()).collect()
}

/// The files in the network's directory that are named after addresses.
fn reserved(node: &Node) -> BTreeSet<String> {
    let names = node.list(NET).into_iter();
    names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect()
}

fn theirs() -> Option<PathBuf> {
    Reference::any().map(|reference| reference.plugin("host-local"))
}

#[test]
fn a_node_is_switched_over_and_back_with_pods_running() {
    let Some(program) = theirs() else {
        skip!(REFERENCE);
    };
    let node = Node::new();
    let conf = dual();
    let ours = |verb: &str, id: &str| call(&node, verb, id, &conf).run();
    let theirs = |verb: &str, id: &str| reference(&program, &node, verb, id, &conf);
    let pair = |n: u8| vec![format!("10.1.2.{n}/24"), format!("fd00:1::{n}/64")];

    for (n, id) in [(2, "r1"), (3, "r2"), (4, "r3")] {
        assert_eq!(addresses(&theirs("ADD", id).ok()), pair(n));
    }
    let first = node.read(&format!("{NET}/10.1.2.2"));
    // After the switch to Slipway, it knows the reservations and continues the round robin.
    let _ = ours("CHECK", "r1").ok();
    assert_eq!(addresses(&ours("ADD", "s1").ok()), pair(5));
    assert_eq!(addresses(&ours("ADD", "s2").ok()), pair(6));
    assert!(ours("ADD", "r1").error().msg.contains("10.1.2.2 has been allocated to r1"));
    let _ = ours("DEL", "r2").ok();
    assert_eq!(first.as_deref(), Some("r1\r\neth0"));
    assert_eq!(node.read(&format!("{NET}/10.1.2.5")).as_deref(), Some("s1\r\neth0"), "the same format");
    // Switches back to the reference plugin.
    let _ = theirs("CHECK", "s1").ok();
    assert!(theirs("CHECK", "r2").error().msg.contains("Failed to find address"));
    assert_eq!(addresses(&theirs("ADD", "r4").ok()), pair(7));
    assert!(theirs("ADD", "s1").error().msg.contains("10.1.2.5 has been allocated to s1"));
    let _ = theirs("DEL", "s2").ok();
    // Switches to Slipway again, whose index lacks the latest changes.
    assert_eq!(addresses(&ours("ADD", "s3").ok()), pair(8));
    assert!(ours("CHECK", "s2").error().msg.contains("Failed to find address"));
    let _ = theirs("DEL", "s3").ok();
    for id in ["r1", "r3", "r4", "s1"] {
        let _ = ours("DEL", id).ok();
    }
    assert_eq!(reserved(&node), BTreeSet::new());
    assert_eq!(node.list(NET), ["last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
}

/// The index is made again while one of the reservations cannot be opened. The call fails, because with an index that
/// lacks the reservation's owner, the owner's DEL would find nothing.
#[test]
fn an_index_is_not_made_without_an_owner() {
    slipway_only!();
    let node = Node::new();
    let conf = four();
    for id in ["one", "two"] {
        call(&node, "ADD", id, &conf).run().ok();
    }
    let first = "10.1.2.2";
    assert_eq!(node.read(&format!("{NET}/{first}")).as_deref(), Some("one\r\neth0"));
    for (verb, id) in [("ADD", "three"), ("DEL", "two"), ("DEL", "one")] {
        node.cmd("rm -rf /var/lib/cni/networks/.slipway");
        let before = reserved(&node);
        let failing =
            injected(&node, call(&node, verb, id, &conf), "openat,openat2:error=EMFILE", Some(first));
        let error = failing.error();
        assert!(error.msg.contains(first) && error.msg.contains("EMFILE"), "{verb} {id}: {error:?}");
        assert_eq!(reserved(&node), before, "{verb} {id}");
    }
    call(&node, "DEL", "one", &conf).run().ok();
    assert_eq!(reserved(&node), BTreeSet::from(["10.1.2.3".to_owned()]));
}

#[test]
fn both_implementations_work_at_the_same_time() {
    let Some(program) = theirs() else {
        skip!(REFERENCE);
    };
    let node = Node::new();
    let running: Vec<_> = (0..40)
        .map(|n| {
            let add = call(&node, "ADD", &format!("c{n}"), &four());
            if n % 2 == 0 { add.spawn() } else { add.instead(&program).spawn() }
        })
        .collect();
    let given: BTreeSet<String> =
        running.into_iter().flat_map(|running| addresses(&running.wait().ok())).collect();
    assert_eq!(given.len(), 40, "two containers share an address: {given:?}");
    assert_eq!(reserved(&node).len(), 40);
    // Each implementation deletes the other's reservations.
    let running: Vec<_> = (0..40)
        .map(|n| {
            let del = call(&node, "DEL", &format!("c{n}"), &four());
            if n % 2 == 1 { del.spawn() } else { del.instead(&program).spawn() }
        })
        .collect();
    running.into_iter().for_each(|running| drop(running.wait().ok()));
    assert_eq!(reserved(&node), BTreeSet::new());
}

#[test]
fn a_hundred_concurrent_adds_get_a_hundred_addresses() {
    let node = Node::new();
    let start = |verb: &str| {
        (0..100).map(|n| call(&node, verb, &format!("c{n}"), &dual()).spawn()).collect::<Vec<_>>()
    };
    let given: BTreeSet<String> =
        start("ADD").into_iter().flat_map(|running| addresses(&running.wait().ok())).collect();
    assert_eq!(given.len(), 200);
    assert_eq!(reserved(&node).len(), 200);
    start("DEL").into_iter().for_each(|running| drop(running.wait().ok()));
    assert_eq!(reserved(&node), BTreeSet::new());
}

#[test]
fn a_small_range_gives_each_address_once_to_many_callers() {
    let node = Node::new();
    let conf = config(json!({ "subnet": "10.1.2.0/28" }));
    let running: Vec<_> = (0..30).map(|n| call(&node, "ADD", &format!("c{n}"), &conf).spawn()).collect();
    let mut given = BTreeSet::new();
    let mut refused = 0;
    for running in running {
        match running.wait().result() {
            Ok(result) => given.extend(addresses(&result)),
            Err(failure) => {
                assert!(failure.msg.contains("no IP addresses available in range set"), "{failure:?}");
                refused += 1;
            }
        }
    }
    assert_eq!((given.len(), refused), (13, 17));
}

#[test]
fn the_lock_of_a_killed_process_is_released() {
    let node = Node::new();
    let _ = call(&node, "ADD", "c1", &four()).run().ok();
    let mut holder = node.plugin("slipway").instead(Path::new("/usr/bin/flock"));
    holder = holder.arguments(&[&format!("{NET}/lock"), "sleep", "30"]);
    let mut holder = holder.spawn();
    assert!(comes(|| node.try_cmd(&format!("flock --nonblock {NET}/lock true")).code == Some(1)));
    let waiting = call(&node, "ADD", "c2", &four()).spawn();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(reserved(&node).len(), 1, "the lock is held");
    node.cmd(&format!("pkill -KILL -P {}", holder.pid()));
    holder.kill();
    assert_eq!(addresses(&waiting.wait().ok()), ["10.1.2.3/24"]);
}

#[test]
fn bad_configurations_are_refused_with_the_references_messages() {
    let node = Node::new();
    for (ipam, msg) in [
        (json!({}), "no IP ranges specified"),
        (json!({ "ranges": [] }), "no IP ranges specified"),
        (json!({ "ranges": [[]] }), "invalid range set 0: empty range set"),
        (
            json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "fd00::/64" }]] }),
            "invalid range set 0: mixed address families",
        ),
        (
            json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "10.1.0.0/16" }]] }),
            "invalid range set 0: subnets 10.1.2.1-10.1.2.254 and 10.1.0.1-10.1.255.254 overlap",
        ),
        (
            json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "10.1.0.0/16" }]] }),
            "range set 0 overlaps with 1",
        ),
        (
            json!({ "subnet": "10.1.2.0/31" }),
            "invalid range set 0: Network 10.1.2.0/31 too small to allocate from",
        ),
        (
            json!({ "subnet": "10.1.2.3/24" }),
            "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0",
        ),
        (
            json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.3.1" }),
            "invalid range set 0: RangeStart 10.1.3.1 not in network 10.1.2.0/24",
        ),
        (
            json!({ "subnet": "10.1.2.0/24", "rangeEnd": "10.1.3.1" }),
            "invalid range set 0: RangeEnd 10.1.3.1 not in network 10.1.2.0/24",
        ),
        (
            json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.20", "rangeEnd": "10.1.2.10" }),
            "invalid range set 0: RangeStart 10.1.2.20 not in network 10.1.2.0/24",
        ),
    ] {
        let conf = config(ipam);
        let failure = call(&node, "ADD", "c1", &conf).run().error();
        assert_eq!((failure.code, failure.msg.as_str()), (7, msg));
        if let Some(program) = theirs() {
            let failure = reference(&program, &node, "ADD", "c1", &conf).error();
            assert_eq!(failure.msg, msg, "the reference's message");
        }
        let _ = call(&node, "DEL", "c1", &conf).run().ok();
    }
    assert!(node.list("/var/lib").is_empty(), "a file was created");
}

#[test]
fn hostile_names_are_refused() {
    let node = Node::new();
    for name in ["..", ".", "../x", "a/b", "/abs", "a\nb", "a\"b", "", " ", "-a", ".slipway"] {
        let mut conf = four();
        conf["name"] = json!(name);
        let failure = call(&node, "ADD", "c1", &conf).run().error();
        assert_eq!(failure.code, 7, "{name:?}: {failure:?}");
    }
    for id in ["..", "../x", "a/b", "a\nb", "a\"b", "c1\r\neth0", " "] {
        let failure = call(&node, "ADD", id, &four()).run().error();
        assert_eq!(failure.code, 4, "{id:?}: {failure:?}");
    }
    for ifname in ["..", ".", "a/b", "a b", "a:b", "a\tb", "sixteencharsname"] {
        let failure = call(&node, "ADD", "c1", &four()).ifname(ifname).run().error();
        assert_eq!(failure.code, 4, "{ifname:?}: {failure:?}");
    }
    assert!(node.list("/var/lib").is_empty(), "a file was created");
}

#[test]
fn results_are_the_references_in_every_version() {
    let Some(program) = theirs() else {
        skip!(REFERENCE);
    };
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"] {
        let (one, two) = (Node::new(), Node::new());
        let mut conf = dual();
        conf["cniVersion"] = json!(version);
        conf["ipam"]["routes"] = json!([{ "dst": "0.0.0.0/0" }, { "dst": "fd00:2::/64", "gw": "fd00:1::9" }]);
        conf["ipam"]["resolvConf"] = json!("/run/resolv.conf");
        conf["args"] = json!({ "cni": { "ips": ["10.1.2.9"] } });
        conf["runtimeConfig"] = json!({ "ips": ["fd00:1::77/64"], "ipRanges": [] });
        for node in [&one, &two] {
            node.write(
                "/run/resolv.conf",
                "nameserver 10.0.0.1\nsearch a.test b.test\ndomain c.test\noptions ndots:5\n",
            );
        }
        let ours = call(&one, "ADD", "c1", &conf).run().ok();
        assert_eq!(ours, reference(&program, &two, "ADD", "c1", &conf).ok(), "{version}");
        assert_eq!(reserved(&one), reserved(&two));
    }
}

const SUBNETS: &str = "/run/slipway/subnet.json";

/// Writes the subnet file as the node's agent does.
fn write_subnets(node: &Node, subnets: &[&str]) {
    let subnets = subnets.iter().map(|subnet| subnet.parse().expect("a subnet")).collect();
    let file = SubnetFile { subnets, cluster_cidrs: Vec::new(), mtu: 1450 };
    node.run(|| file.write(Path::new(SUBNETS))).expect("the file is written");
}

#[test]
fn a_pod_on_a_bridge_has_an_address_of_the_subnet_file() {
    let node = Node::new();
    let network = node.network(json!({
        "cniVersion": "1.1.0", "name": "net",
        "plugins": [{"type": "bridge", "bridge": "br0", "isGateway": true,
                     "ipam": {"type": "host-local", "subnetFile": SUBNETS}}],
    }));
    let (one, two) = (node.pod("one"), node.pod("two"));
    let failure = network.add(&Attach::new(&one)).expect_err("no file");
    assert_eq!(failure.error.code, 11, "{failure:?}");
    assert!(failure.error.msg.contains(SUBNETS), "{failure:?}");
    let status = network.status().expect_err("no file");
    assert_eq!(status.error.code, 50, "{status:?}");
    assert!(!one.has_link("eth0"));

    write_subnets(&node, &["10.244.1.0/24"]);
    network.status().expect("STATUS");
    let result = network.add(&Attach::new(&one)).expect("ADD");
    assert_eq!(addresses(&result), ["10.244.1.2/24"]);
    assert!(node.cmd("ip address show dev br0").contains("10.244.1.1/24"));
    let _server = one.serve(Proto::Tcp, "10.244.1.2:80", "one");
    node.expect(Proto::Tcp, ([10, 244, 1, 2], 80), "one");

    // Another subnet requires another address of the bridge, which bridge refuses if only `isGateway` is set.
    write_subnets(&node, &["10.244.2.0/24"]);
    let failure = network.add(&Attach::new(&two)).expect_err("another gateway");
    assert!(
        failure.error.msg.contains("already has an IP address different from 10.244.2.1/24"),
        "{failure:?}"
    );
    assert_eq!(reserved(&node), BTreeSet::from(["10.244.1.2".to_owned()]));
    node.expect(Proto::Tcp, ([10, 244, 1, 2], 80), "one");
    network.check(&Attach::new(&one)).expect("CHECK");
    network.del(&Attach::new(&one)).expect("DEL");
    assert_eq!(reserved(&node), BTreeSet::new());
}
