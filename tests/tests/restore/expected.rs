// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected state: the test damages each object that a container needs, and CHECK, `restore`, `check-node` and
//! `explain` must all notice. The plugins themselves list the objects, so a new object that the test cannot damage
//! makes it fail.

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Pod, Proto, at, host_local, lacks, with_keys};

use crate::{PORT, Web, World};

/// The exit code of a dry run that found something missing.
const SOMETHING_MISSING: i32 = 3;

/// Who has to create an object again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Slipway has to: CHECK fails, and `restore` creates the object again.
    Slipways,
    /// The administrator has to: the object is reported with a command.
    Theirs,
    /// The container has to: CHECK fails, and the object is reported with a command.
    Containers,
}

/// Damages the object with this name. Returns who has to repair it, and for which families packets do not pass
/// meanwhile, as `explain` must report.
fn break_it(node: &Node, pod: &Pod, item: &str) -> (Whose, &'static str) {
    use Whose::{Containers, Slipways, Theirs};
    let words: Vec<&str> = item.split_whitespace().collect();
    let setting = item.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    let last = *words.last().expect("a name");
    match (words.as_slice(), setting) {
        (["bridge", name] | ["link", name], _) => {
            node.cmd(&format!("ip link set {name} down"));
            (Slipways, "46")
        }
        (["port", name, "of", ..], _) => {
            node.cmd(&format!("ip link set {name} nomaster"));
            (Slipways, "46")
        }
        (["gateway", ..], _) => {
            node.cmd(&format!("ip address flush dev {last} scope global"));
            (Slipways, "46")
        }
        (["link-local", ..], _) => {
            node.cmd(&format!("ip -6 address flush dev {last} scope link"));
            (Slipways, "6")
        }
        (["routes", "to", first, ..], _) => {
            node.cmd(&format!("ip route del {} dev {last}", first.trim_end_matches(',')));
            (Slipways, "4")
        }
        (["forwarding", "of", family, "from", ..], Some(setting)) => {
            node.sysctl(setting, "0");
            (Theirs, if *family == "IPv4" { "4" } else { "6" })
        }
        (["forwarding", "of", family, ..], Some(setting)) => {
            node.sysctl(setting, "0");
            (Slipways, if *family == "IPv4" { "4" } else { "6" })
        }
        (["IPv6", "on", ..], Some(setting)) => {
            node.sysctl(setting, "1");
            (Theirs, "6")
        }
        (["guard", ..], _) => {
            node.nft("flush set bridge slipway guarded");
            (Slipways, "")
        }
        (["masquerade", ..], _) => {
            node.nft("flush set inet slipway masqueraded4");
            (Slipways, "")
        }
        (["published", ..], _) => {
            node.nft("flush map inet slipway hostports4");
            (Slipways, "")
        }
        (["rules", "of", "the", "firewall"], _) => {
            node.nft("flush ruleset");
            (Slipways, "")
        }
        (["rate", "limit", "of", link, ..], _) => {
            node.cmd(&format!("tc qdisc del dev {link} root"));
            (Slipways, "")
        }
        (["device", name], _) => {
            node.cmd(&format!("ip link set {name} down"));
            (Slipways, "46")
        }
        (["redirection", "of", link, ..], _) => {
            node.cmd(&format!("tc qdisc del dev {link} clsact"));
            (Slipways, "")
        }
        (["no", "BPF", "program", ..], _) => {
            // Our filter then comes after the other one.
            node.cmd(&format!("tc filter del dev {last} ingress pref 1"));
            let program = "bpf bytecode '1,6 0 0 0'";
            node.cmd(&format!("tc filter add dev {last} ingress pref 1 protocol all {program}"));
            node.slipway("restore");
            (Theirs, "")
        }
        (["settings", path, "in", "the", "container"], _) => {
            pod.sysctl(&format!("net/{path}"), "0");
            (Slipways, "")
        }
        (["attributes", "of", link, "in", "the", "container"], _) => {
            pod.cmd(&format!("ip link set {link} mtu 1300"));
            (Slipways, "")
        }
        (["no", "strict", "reverse", ..], Some(setting)) => {
            node.sysctl(setting, "1");
            // A VPN attracts all packets to distant destinations.
            node.cmd("ip link add vpn type veth peer name vpn1");
            node.cmd("ip link set vpn up");
            node.cmd("ip link set vpn1 up");
            for half in ["0.0.0.0/1", "128.0.0.0/1"] {
                node.cmd(&format!("ip route add {half} dev vpn"));
            }
            (Theirs, "")
        }
        (["addresses", all @ .., "on", link, "in", "the", "container"], _) => {
            // A link that loses its last IPv4 address loses all its routes, so the IPv6 address is removed.
            let v6 = all.iter().find(|net| net.contains("::")).expect("an IPv6 address");
            pod.cmd(&format!("ip address del {v6} dev {link}"));
            (Containers, "6")
        }
        (["route", "to", to, "in", "the", "container"], _) => {
            let (family, families) = if to.contains(':') { ("-6", "6") } else { ("-4", "4") };
            pod.cmd(&format!("ip {family} route del {to}"));
            (Containers, families)
        }
        (["source", "routing", "of", v4, ..], _) => {
            pod.cmd(&format!("ip rule del from {}", v4.trim_end_matches(',')));
            (Slipways, "4")
        }
        (["master", name], _) => {
            node.cmd(&format!("ip link set {name} down"));
            (Theirs, "46")
        }
        _ => panic!("no way to break {item:?} is known"),
    }
}

/// What `explain` says about an object without which packets still pass, but not as intended.
fn remark(item: &str) -> Option<&'static str> {
    match () {
        () if item.starts_with("rate limit") => Some("Failed to find qdisc"),
        () if item.starts_with("redirection") => Some("are not redirected to"),
        () if item.starts_with("no strict") => Some("strict: the kernel drops packets"),
        () if item.starts_with("no BPF program") => Some("is asked before the limit"),
        () => None,
    }
}

/// The container's objects and their states.
fn objects(report: &Value) -> Vec<(String, String, String)> {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let rows = report["items"].as_array().expect("a list").iter();
    let ours = rows.filter(|row| row["container"] == "web");
    ours.map(|row| (text(row, "item"), text(row, "state"), text(row, "reason"))).collect()
}

fn answers(world: &World) {
    let from = [world.client.node_v4.into(), world.client.node_v6.into()];
    for to in from as [IpAddr; 2] {
        world.client.expect(Proto::Tcp, at(to, PORT), "web");
    }
}

/// The command that a reason recommends.
fn command(reason: &str) -> &str {
    reason.split('`').nth(1).unwrap_or_else(|| panic!("no remedy: {reason}"))
}

fn explained(world: &World, family: char) -> String {
    match family {
        '4' => world.node.slipway(&format!("explain tcp {}:{PORT}", world.client.node_v4)),
        _ => world.node.slipway(&format!("explain tcp [{}]:{PORT}", world.client.node_v6)),
    }
}

/// Damages one object, asks each reader about it, and repairs it.
fn is_seen_and_repaired(world: &World, network: &Network<'_>, web: &Web, item: &str) {
    let (whose, families) = break_it(&world.node, &web.pod, item);
    let failed = network.check(&web.attach).err();
    assert_eq!(failed.is_some(), whose != Whose::Theirs, "CHECK without {item}: {failed:?}");
    let (report, code) = world.restore("--dry-run");
    let all = objects(&report);
    let (_, state, reason) = all.iter().find(|(name, ..)| name == item).expect("the object is listed");
    let wanted = if whose == Whose::Slipways { "missing" } else { "skipped" };
    assert_eq!(state, wanted, "{item}: {report:#}");
    // An administrator's setting may take other objects with it, as disabling IPv6 does with the addresses.
    assert!(whose != Whose::Slipways || code == SOMETHING_MISSING, "{item}: {code} {report:#}");
    let checked = world.node.try_slipway("check-node").stdout;
    let is_rules = families.is_empty();
    assert!(
        checked.contains(item) || is_rules && checked.contains("`slipway restore`"),
        "{item}:\n{checked}"
    );
    if let Some(remark) = remark(item) {
        let text = explained(world, '4');
        assert!(text.contains(remark) && text.contains("It reaches"), "{item}:\n{text}");
    }
    for family in families.chars() {
        let text = explained(world, family);
        assert!(text.contains("It does not reach the container"), "{item}:\n{text}");
    }
    if whose != Whose::Slipways {
        world.node.cmd(command(reason));
    }
    let (report, code) = world.restore("");
    assert_eq!(code, 0, "{item}: {report:#}");
    network.check(&web.attach).unwrap_or_else(|error| panic!("CHECK after {item} was repaired: {error}"));
    let (report, code) = world.restore("--dry-run");
    assert_eq!(code, 0, "{item}: {report:#}");
    let left: Vec<_> = objects(&report).into_iter().filter(|(_, state, _)| state != "present").collect();
    assert!(left.is_empty(), "after the repair of {item}: {left:?}");
    answers(world);
}

fn each_object_is_seen_and_repaired(interface: &str, keys: Value, more: Vec<Value>, at_least: usize) {
    let world = World::new();
    // With default routes of both families, replies to the containers come in through this link.
    for via in [world.client.v4.to_string(), world.client.v6.to_string()] {
        world.node.cmd(&format!("ip route add default via {via}"));
    }
    let network = world.chain(1, interface, [keys, json!({})], more);
    let web = Web::published(&world, &network, "web", PORT);
    answers(&world);
    network.check(&web.attach).expect("CHECK");
    let (report, code) = world.restore("--dry-run");
    assert_eq!(code, 0, "{report:#}");
    let all = objects(&report);
    assert!(all.iter().all(|(_, state, _)| state == "present"), "{all:?}");
    assert!(all.len() >= at_least, "{all:?}");
    for (item, ..) in all {
        is_seen_and_repaired(&world, &network, &web, &item);
    }
    web.leave(&world, &network);
}

#[test]
fn each_object_of_a_bridge() {
    let limits = json!({
        "type": "bandwidth", "ingressRate": 400_000_000, "ingressBurst": 8_000_000, "egressRate": 400_000_000,
        "egressBurst": 8_000_000,
    });
    let tuning = json!({"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}});
    each_object_is_seen_and_repaired("bridge", json!({"macspoofchk": true}), vec![limits, tuning], 25);
}

#[test]
fn each_object_of_ptp() {
    each_object_is_seen_and_repaired("ptp", json!({}), Vec::new(), 17);
}

#[test]
fn each_object_of_source_based_routing() {
    each_object_is_seen_and_repaired("bridge", json!({}), vec![json!({"type": "sbr"})], 15);
}

/// When a link is set down, the kernel removes its routes from all tables, and its IPv6 addresses.
#[test]
fn a_link_that_was_down_gets_its_tables_back() {
    let world = World::new();
    let network = world.chain(1, "bridge", [json!({}), json!({})], vec![json!({"type": "sbr"})]);
    let web = Web::published(&world, &network, "web", PORT);
    answers(&world);
    for state in ["down", "up"] {
        web.pod.cmd(&format!("ip link set eth0 {state}"));
    }
    network.check(&web.attach).expect_err("without its routes");
    let missing = |report: &Value| objects(report).into_iter().find(|(_, state, _)| state != "present");
    // The addresses belong to the container, which may change them. The tables come back once the addresses are there.
    for _ in 0..2 {
        let (report, _) = world.restore("");
        let skipped = objects(&report).into_iter().find(|(_, state, _)| state == "skipped");
        if let Some((.., reason)) = skipped {
            world.node.cmd(command(&reason));
        }
    }
    let (report, _) = world.restore("--dry-run");
    assert_eq!(missing(&report), None, "{report:#}");
    network.check(&web.attach).expect("CHECK");
    answers(&world);
    web.leave(&world, &network);
}

/// Plugins whose link exists only in the container, or whose link on the node belongs to a single owner.
fn each_object_of_a_single_link(plugin: Value, at_least: usize) {
    let world = World::new();
    for end in ["lan", "switch"] {
        if end == "lan" {
            world.node.cmd("ip link add lan type veth peer name switch");
        }
        world.node.cmd(&format!("ip link set {end} up"));
    }
    let plugin = with_keys(plugin, &json!({"ipam": host_local("10.77.0.0/24", "fd00:77::/64")}));
    let network = world.node.network(json!({"name": "net1", "plugins": [
        plugin,
        {"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}},
    ]}));
    let pod = world.node.pod("web");
    let attach = Attach::new(&pod);
    network.add(&attach).expect("ADD");
    network.write_cache(&attach);
    let (report, code) = world.restore("--dry-run");
    assert_eq!(code, 0, "{report:#}");
    let all = objects(&report);
    assert!(all.len() >= at_least, "{all:?}");
    for (item, ..) in all {
        let (whose, _) = break_it(&world.node, &pod, &item);
        assert_eq!(network.check(&attach).is_err(), whose != Whose::Theirs, "CHECK without {item}");
        let (report, _) = world.restore("--dry-run");
        let (_, state, reason) =
            objects(&report).into_iter().find(|(name, ..)| *name == item).expect("the object is listed");
        assert_eq!(state, if whose == Whose::Slipways { "missing" } else { "skipped" }, "{item}");
        assert!(world.node.try_slipway("check-node").stdout.contains(&item), "{item}");
        if whose != Whose::Slipways {
            world.node.cmd(command(&reason));
        }
        assert_eq!(world.restore("").1, 0, "{item}");
        network.check(&attach).unwrap_or_else(|error| panic!("CHECK after {item}: {error}"));
        let (report, _) = world.restore("--dry-run");
        assert!(objects(&report).iter().all(|(_, state, _)| state == "present"), "{report:#}");
    }
    network.del(&attach).expect("DEL");
}

#[test]
fn each_object_of_macvlan() {
    each_object_of_a_single_link(json!({"type": "macvlan", "master": "lan"}), 6);
}

#[test]
fn each_object_of_host_device() {
    each_object_of_a_single_link(json!({"type": "host-device", "device": "lan"}), 5);
}

#[test]
fn each_object_of_tap() {
    each_object_of_a_single_link(json!({"type": "tap"}), 5);
}

/// Each container is reported with a command for its own namespace, although the differences have the same text.
#[test]
fn containers_that_lost_the_same_route_are_told_apart() {
    let world = World::new();
    let network = world.chain(1, "bridge", [json!({}), json!({})], Vec::new());
    let webs =
        [("one", PORT), ("two", PORT + 1)].map(|(name, port)| Web::published(&world, &network, name, port));
    for web in &webs {
        web.pod.cmd("ip route del default");
    }
    let checked = world.node.try_slipway("check-node").stdout;
    for web in &webs {
        let netns = web.pod.path().display().to_string();
        assert!(
            checked.contains(&format!("nsenter --net={netns} ip route add 0.0.0.0/0")),
            "{netns}:\n{checked}"
        );
    }
    for web in webs {
        web.leave(&world, &network);
    }
}

#[test]
fn a_container_without_its_link_gets_no_command_for_it() {
    let world = World::new();
    let ipam = host_local("10.77.0.0/24", "fd00:77::/64");
    let network = world.node.network(json!({"name": "net1", "plugins": [{"type": "tap", "ipam": ipam}]}));
    let pod = world.node.pod("web");
    let attach = Attach::new(&pod);
    network.add(&attach).expect("ADD");
    network.write_cache(&attach);
    pod.cmd("ip link del eth0");
    let (report, _) = world.restore("--dry-run");
    let all: Vec<_> = objects(&report).into_iter().map(|(item, state, _)| (item, state)).collect();
    assert_eq!(all, [("container".to_owned(), "skipped".to_owned())], "{report:#}");
    network.del(&attach).expect("DEL");
}

#[test]
fn each_object_of_dummy() {
    if let Some(feature) = lacks("dummy") {
        slipway_tests::skip!(feature);
    }
    each_object_of_a_single_link(json!({"type": "dummy"}), 5);
}

#[test]
fn each_object_of_vrf() {
    if let Some(feature) = lacks("vrf") {
        slipway_tests::skip!(feature);
    }
    let vrf = json!({"type": "vrf", "vrfname": "blue"});
    let world = World::new();
    let network = world.chain(1, "bridge", [json!({}), json!({})], vec![vrf]);
    let web = Web::published(&world, &network, "web", PORT);
    web.pod.cmd("ip link set eth0 nomaster");
    network.check(&web.attach).expect_err("not in the VRF");
    for _ in 0..2 {
        let (report, _) = world.restore("");
        let skipped = objects(&report).into_iter().find(|(_, state, _)| state == "skipped");
        if let Some((.., reason)) = skipped {
            world.node.cmd(command(&reason));
        }
    }
    network.check(&web.attach).expect("CHECK");
    web.leave(&world, &network);
}
