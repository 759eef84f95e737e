// SPDX-License-Identifier: GPL-2.0-or-later

//! The programs on links: status, set-up, upgrade, teardown, changed settings, and other kinds of links.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use aya::maps::{Array, HashMap, Map};
use serde_json::{Value, json};
use slipway_ebpf_abi::Counter;
use slipway_ebpf_abi::maps::{EPOCH, HOME, UPLINKS};
use slipway_tests::{
    Attach, PROGRAMS, Proto, Space, TunWire, address_of, has_programs, needs, quoted, sample_of_unknown,
    slipway,
};

use crate::{Connection, Engine, FAR, PINS, PORT, Stage, list};

/// The filters at both hooks of a link, given by the names of their programs.
fn filters(stage: &Stage, link: &str) -> [String; 2] {
    ["ingress", "egress"].map(|side| {
        let text = stage.node.try_cmd(&format!("tc filter show dev {link} {side}")).stdout;
        let name = text.split_whitespace().find(|word| word.starts_with("flow_"));
        name.unwrap_or_default().split(':').next().unwrap_or_default().to_owned()
    })
}

fn node_end(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().expect("the node's end").to_owned()
}

fn are_carried(stage: &Stage, connection: &mut Connection) {
    let before = stage.node.counted("carried_packets");
    connection.requests(100).expect("replies");
    let carried = stage.node.counted("carried_packets") - before;
    assert!(carried > 100, "{carried} of 200 packets: {}", stage.node.programs());
}

#[test]
fn the_status_names_uplinks_containers_and_counters() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    assert_eq!(stage.node.programs()["loaded"], false);
    let (pod, own) = stage.pod("web");
    are_carried(&stage, &mut stage.connect(&pod, own));
    let status = stage.node.programs();
    for (key, value) in [
        ("loaded", json!(true)),
        ("current", json!(true)),
        ("uplinks", json!([stage.client.node_link])),
        ("containers", json!(1)),
        ("uplinks_left_to_nftables", json!([])),
    ] {
        assert_eq!(status[key], value, "{key}: {status}");
    }
    assert_eq!(status["maps"][0]["name"], "carried4");
    let text = stage.node.slipway("node status");
    assert!(text.contains("containers  1\n"), "{text}");
    let report = stage.node.try_slipway("check-node").stdout;
    assert!(report.lines().any(|line| line.starts_with("ok") && line.contains("1 containers")), "{report}");
}

#[test]
fn detached_programs_are_reported_and_attached_again() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    let mut connection = stage.connect(&pod, own);
    are_carried(&stage, &mut connection);
    let (link, other) = (&stage.client.node_link, stage.node.host("other"));
    for again in ["node setup", "an ADD"] {
        stage.node.cmd(&format!("tc qdisc del dev {link} clsact"));
        // The connection continues, only slower.
        connection.requests(20).expect("replies");
        let status = stage.node.programs();
        assert_eq!(status["uplinks_left_to_nftables"][0]["name"], link.as_str(), "{status}");
        match again {
            "an ADD" => drop(stage.pod_at("next", PORT + 1)),
            command => drop(stage.node.slipway(command)),
        }
        assert_eq!(filters(&stage, link), ["flow_ingress", "flow_egress"], "{again}");
        are_carried(&stage, &mut connection);
    }
    // The set-up has also found the new uplink.
    assert_eq!(filters(&stage, &other.node_link), ["flow_ingress", "flow_egress"]);
    stage.node.cmd(&format!("ip address flush dev {}", other.node_link));
    stage.node.slipway("node setup");
    assert_eq!(filters(&stage, &other.node_link), ["", ""]);
    assert_eq!(stage.node.programs()["uplinks"], json!([link]));
}

#[test]
fn another_version_is_replaced_by_the_setup() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    let mut connection = stage.connect(&pod, own);
    are_carried(&stage, &mut connection);
    let version = stage.node.list(PINS).remove(0);
    stage.node.cmd(&format!("mv {PINS}/{version} {PINS}/0123456789abcdef"));
    assert_eq!(stage.node.programs()["current"], false);
    // The programs of the other version continue, even beside those of this one.
    connection.requests(100).expect("replies");
    stage.node.slipway("node setup");
    assert_eq!(stage.node.list(PINS), [version]);
    let status = stage.node.programs();
    assert_eq!((&status["current"], &status["containers"]), (&json!(true), &json!(1)));
    are_carried(&stage, &mut connection);
}

/// Another filter occupies the programs' place at one container's link. All other links get the new version.
#[test]
fn a_link_that_takes_no_programs_stops_no_setup() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let mut links = Vec::new();
    let pods = [0, 1, 2].map(|number| {
        let pod = stage.node.pod(&format!("pod{number}"));
        let attach = Attach::new(&pod).port(Proto::Tcp, PORT + number, 80);
        links.push(node_end(&stage.network().add(&attach).expect("ADD")));
        pod
    });
    let version = stage.node.list(PINS).remove(0);
    stage.node.cmd(&format!("mv {PINS}/{version} {PINS}/0123456789abcdef"));
    let place = format!("dev {} egress", links[1]);
    stage.node.cmd(&format!("tc filter del {place} pref 49997"));
    stage.node.cmd(&format!("tc filter add {place} protocol all pref 49997 u32 match u32 0 0 flowid :1"));
    let setup = stage.node.try_slipway("node setup");
    assert!(setup.code == Some(0) && setup.stderr.contains(&links[1]), "{setup}");
    assert_eq!(stage.node.list(PINS), [version]);
    let expected =
        [["flow_ingress_pod", "flow_egress_pod"], ["", ""], ["flow_ingress_pod", "flow_egress_pod"]];
    assert_eq!([0, 1, 2].map(|number: usize| filters(&stage, &links[number])), expected);
    drop(pods);
}

/// An uplink had the programs and does not accept them any more. The next ADD must not repeat the set-up.
#[test]
fn an_add_does_not_try_again_what_failed() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (_pod, _) = stage.pod("web");
    let place = format!("dev {} ingress", stage.client.node_link);
    stage.node.cmd(&format!("tc filter del {place} pref 49997"));
    stage.node.cmd(&format!("tc filter add {place} protocol all pref 49997 u32 match u32 0 0 flowid :1"));
    let map = HashMap::<_, u32, u32>::try_from(Map::HashMap(stage.map(UPLINKS))).expect("a hash map");
    assert_eq!(map.keys().count(), 1);
    drop(stage.pod_at("next", PORT + 1));
    assert_eq!(map.keys().count(), 0);
}

/// If processes incremented the epoch, the last of several to write could write an earlier epoch, with which stale
/// entries would be valid again.
#[test]
fn epochs_are_not_counted() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (_pod, _) = stage.pod("web");
    let epochs = Array::<_, u32>::try_from(Map::Array(stage.map(EPOCH))).expect("an array");
    let epoch = || epochs.get(&0, 0).expect("the epoch");
    let before = epoch();
    stage.node.slipway("node setup");
    let after = epoch();
    assert!(after != 0 && after != before && after != before.wrapping_add(1), "{before}, {after}");
}

/// Wherever the set-up is killed, the two concurrent ADDs that follow complete it, and flows are carried.
#[test]
fn a_killed_setup_is_completed_by_concurrent_adds() {
    needs!(has_programs(), PROGRAMS);
    for nth in sample_of_unknown().map(|at| at + 1) {
        let stage = Stage::new(Engine::Carried);
        let inject = format!("inject=bpf:signal=SIGKILL:when={nth}");
        let program = quoted(slipway());
        let line = format!("strace -f -qq -o /dev/null -e trace=bpf -e {inject} {program} node setup");
        let ended = stage.node.try_cmd(&line).code == Some(0);
        let (pod, own) = thread::scope(|scope| {
            let other = scope.spawn(|| drop(stage.pod_at("other", PORT + 1)));
            let web = stage.pod("web");
            other.join().expect("an ADD");
            web
        });
        are_carried(&stage, &mut stage.connect(&pod, own));
        assert_eq!(stage.node.programs()["current"], true, "killed at bpf(2) number {nth}");
        if ended {
            assert!(nth > 20, "{nth}");
            break;
        }
    }
}

/// Concurrent processes that find no BPF file system mount only one. A second mount on top would hide pinned objects
/// that are in use.
#[test]
fn concurrent_setups_mount_one_file_system() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    // Some hosts have the file system mounted, and then the node has it as well.
    stage.node.try_cmd("umount /sys/fs/bpf");
    let program = slipway();
    let delayed = "strace -f -qq -o /dev/null -e trace=mount -e inject=mount:delay_enter=500000";
    let line = format!("{delayed} {} node setup", quoted(&program));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| stage.node.cmd(&line));
        }
    });
    let mounts = stage.node.cmd("cat /proc/thread-self/mounts");
    assert_eq!(mounts.lines().filter(|line| line.contains(" /sys/fs/bpf ")).count(), 1, "{mounts}");
    let (pod, own) = stage.pod("web");
    are_carried(&stage, &mut stage.connect(&pod, own));
}

#[test]
fn an_uplink_without_ethernet_is_served() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let other = stage.node.host("other");
    let _wire = TunWire::new(&stage.node, &other, "tun0");
    let ends: [(&Space, &str); 2] = [(&stage.node, "1"), (&other, "2")];
    for (space, last) in ends {
        space.cmd(&format!("ip address add 198.18.7.{last}/24 dev tun0"));
        space.cmd(&format!("ip address add 2001:db8:77::{last}/64 dev tun0 nodad"));
        space.cmd("ip link set tun0 up");
    }
    let (pod, own) = stage.pod("web");
    assert_eq!(filters(&stage, "tun0"), ["flow_ingress_l3", "flow_egress_l3"]);
    let addresses = [["198.18.7.1", "198.18.7.2"], ["2001:db8:77::1", "2001:db8:77::2"]];
    for (family, ends) in addresses.into_iter().enumerate() {
        let [node, far] = ends.map(|text| text.parse::<IpAddr>().expect("an address"));
        let inside = SocketAddr::new(own[family], 80);
        let mut to_port = Connection::new(&other, (node, PORT).into(), &pod, inside).expect("a connection");
        are_carried(&stage, &mut to_port);
        to_port.stream(4 << 20);
        let far = SocketAddr::new(far, FAR);
        let mut from_pod = Connection::new(&pod, far, &other, far).expect("a connection");
        assert_eq!(from_pod.server.peer_addr().expect("a peer").ip(), node);
        are_carried(&stage, &mut from_pod);
        from_pod.stream(4 << 20);
    }
    assert_eq!(stage.count(Counter::DroppedWrite), 0);
}

/// A rate limit of the bandwidth plugin applies to carried packets into a container as well as to packets that the
/// container sends, which go through netfilter.
#[test]
fn a_rate_limit_holds() {
    needs!(has_programs(), PROGRAMS);
    const RATE: u32 = 16_000_000;
    const AMOUNT: usize = 4 << 20;
    let stage = Stage::new(Engine::Carried);
    let mut chain = list::list("ebpf");
    chain["plugins"].as_array_mut().expect("plugins").push(json!({
        "type": "bandwidth", "ingressRate": RATE, "ingressBurst": 800_000, "egressRate": RATE, "egressBurst": 800_000,
    }));
    let pod = stage.node.pod("web");
    let attach = Attach::new(&pod).port(Proto::Tcp, PORT, 80);
    let result = stage.node.network(chain).add(&attach).expect("ADD");
    assert_eq!(filters(&stage, &node_end(&result))[1], "flow_egress");
    let own = address_of(&result, 0);
    let mut connection = stage.connect(&pod, [own, own]);
    let least = (AMOUNT * 8 - 1_600_000) as f64 / f64::from(RATE);
    let holds = |connection: &mut Connection, way: &str| {
        let begun = std::time::Instant::now();
        connection.stream(AMOUNT);
        let taken = begun.elapsed().as_secs_f64();
        println!("{way}: {taken:.2} s of at least {least:.2}; {:?}", stage.counts());
        assert!(taken > least * 0.9, "{way}: {taken}");
    };
    holds(&mut connection, "into the container");
    let (key, entry) = *stage.carried4().iter().max_by_key(|(_, entry)| entry.packets).expect("an entry");
    assert!(entry.packets > 1000, "{key:?} {entry:?}");
    let far = SocketAddr::new(stage.client.v4.into(), FAR);
    let mut outwards = Connection::new(&pod, far, &stage.client, far).expect("a connection");
    holds(&mut outwards, "out of the container");
}

/// The DEL itself causes the flows to be checked again. Afterwards a client that waits 20 ms for each reply gets none,
/// and no packet is carried.
#[test]
fn no_packet_is_carried_after_a_del() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (network, pod) = (stage.network(), stage.node.pod("web"));
    let attach = Attach::new(&pod).port(Proto::Udp, PORT, 80);
    let result = network.add(&attach).expect("ADD");
    let own = address_of(&result, 0);
    let _server = pod.serve(Proto::Udp, &format!("{own}:80"), "web");
    let to = SocketAddr::new(stage.node_ips()[0], PORT);
    let mut flow = stage.client.dial(Proto::Udp, None, to, Duration::from_millis(20)).expect("a flow");
    for _ in 0..20 {
        flow.request().expect("a reply");
    }
    // The link remains, because a runtime may remove only the port.
    let mut config = network.configs(Some(&attach)).pop().expect("portmap");
    config["prevResult"] = result;
    network.call("DEL", &config, Some(&attach)).result().expect("DEL");
    let before = stage.count(Counter::Carried);
    for _ in 0..5 {
        flow.request().expect_err("the port is withdrawn");
    }
    assert_eq!(stage.count(Counter::Carried), before);
}

#[test]
fn ports_name_the_backend_and_count_carried_packets() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    stage.node.sysctl("net/netfilter/nf_conntrack_acct", "1");
    let mut connection = stage.connect(&pod, own);
    connection.requests(300).expect("replies");
    let report: Value = serde_json::from_str(&stage.node.slipway("ports --output json")).expect("JSON");
    let ports = report["ports"].as_array().expect("ports");
    assert!(ports.iter().all(|port| port["backend"] == "ebpf"), "{report:#}");
    let packets = ports.iter().filter_map(|port| port["packets"].as_u64()).max();
    assert!((600..1000).contains(&packets.unwrap_or_default()), "{report:#}");
}

/// A running container with open connections is given the programs and loses them again.
#[test]
fn migrations_attach_and_detach_the_programs() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Nftables);
    let (pod, own) = stage.pod("web");
    let link = stage.node.cmd("ip -o link show master cni0");
    let link = link.split(": ").nth(1).and_then(|name| name.split('@').next()).expect("a link").to_owned();
    let mut connection = stage.connect(&pod, own);
    connection.requests(20).expect("replies");
    let report = stage.node.try_slipway("migrate --to ebpf --dry-run");
    assert!(report.stdout.contains("to move"), "{report}");
    assert_eq!(filters(&stage, &link), ["", ""]);
    for (to, there) in [
        ("ebpf", ["flow_ingress_pod", "flow_egress_pod"]),
        ("nftables", ["", ""]),
        ("ebpf", ["flow_ingress_pod", "flow_egress_pod"]),
        ("iptables", ["", ""]),
        ("ebpf", ["flow_ingress_pod", "flow_egress_pod"]),
    ] {
        stage.node.slipway(&format!("migrate --to {to}"));
        assert_eq!(filters(&stage, &link), there, "{to}");
        let report: Value = serde_json::from_str(&stage.node.slipway("ports --output json")).expect("JSON");
        assert_eq!(report["ports"][0]["backend"], to, "{report:#}");
        if to == "ebpf" {
            are_carried(&stage, &mut connection);
        } else {
            connection.requests(20).expect("replies");
        }
    }
}

/// Interface indexes mean other links in another namespace. Linux before 5.14 does not return a namespace's cookie.
#[test]
fn another_network_namespace_is_refused() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    let program = slipway();
    // The map contains the namespace's cookie if the kernel returns one.
    let home = Array::<_, u64>::try_from(Map::Array(stage.map(HOME))).expect("an array");
    if home.get(&0, 0).expect("the cookie") == 0 {
        return;
    }
    for command in ["setup", "teardown", "status"] {
        let line = format!("unshare --net {} node {command}", quoted(&program));
        let refused = stage.node.try_cmd(&line);
        assert!(refused.code != Some(0) && refused.stderr.contains("another network namespace"), "{refused}");
    }
    are_carried(&stage, &mut stage.connect(&pod, own));
}
