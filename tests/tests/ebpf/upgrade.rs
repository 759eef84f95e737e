// SPDX-License-Identifier: GPL-2.0-or-later

//! Upgrade: programs of another version are replaced.

use aya::maps::{Array, Map, MapData};
use serde_json::{Value, json};
use slipway_ebpf_abi::Config;
use slipway_tests::{Attach, BridgeNetfilter, PROGRAMS, Proto, at, has_programs, needs, patience, skip};

use crate::{PORT, Stage, address, attach};

const BASE: &str = "/sys/fs/bpf/slipway";

/// Returns the node's end of the pod's veth pair.
fn pod_link(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().expect("the node's end").to_owned()
}

/// Renames the pins, as if another version with this layout of the maps had made them.
fn rename_pins(stage: &Stage, layout: u32) {
    stage.node.cmd(&format!("mv {BASE}/{} {BASE}/{layout}", slipway_ebpf_abi::VERSION));
}

/// Keeps UDP flows for longer than an upgrade takes in a slow VM.
fn keep_flows(stage: &Stage) {
    stage.node.sysctl("net/netfilter/nf_conntrack_udp_timeout", "600");
}

/// Returns the ID of the program at a link.
fn program_at(stage: &Stage, link: &str) -> String {
    let text = stage.filters(link);
    let words: Vec<&str> = text.split_whitespace().collect();
    let found = words.windows(2).find(|pair| pair[0] == "id").unwrap_or_else(|| panic!("no program: {text}"));
    found[1].to_owned()
}

/// The pins are renamed, as if another version had made them. The binary does not find its own programs, and
/// loads them next to those.
#[test]
fn flows_survive_an_upgrade() {
    needs!(has_programs(), PROGRAMS);
    let Some(stage) = Stage::with_cgroup(BridgeNetfilter::Off) else {
        skip!("control groups of version 2");
    };
    keep_flows(&stage);
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    let pod = stage.node.pod("web");
    let result = stage.network().add(&attach(&pod)).expect("ADD");
    let ip = address(&result);
    let _servers = Proto::ALL.map(|proto| pod.serve(proto, &format!("{ip}:80"), "web"));
    let _far = Proto::ALL.map(|proto| stage.client.serve(proto, &format!("{}:7000", stage.client.v4), "far"));
    let to = at(stage.client.node_v4, PORT);
    let mut flows = Vec::new();
    for proto in Proto::ALL {
        flows.push(stage.client.dial(proto, None, to, patience()).expect("a flow to the port"));
        flows.push(pod.dial(proto, None, at(stage.client.v4, 7000), patience()).expect("a flow of the pod"));
    }
    let mut own = stage.node.dial(Proto::Tcp, None, to, patience()).expect("a connection of the node");
    let first: Vec<_> = flows.iter_mut().map(|flow| flow.request().expect("an answer").peer).collect();
    own.request().expect("an answer");
    let folder = format!("/sys/fs/bpf/slipway/{}", slipway_ebpf_abi::VERSION);
    let programs = |stage: &Stage| -> Vec<String> {
        stage.node.list(&folder).into_iter().filter(|name| name.starts_with("programs-")).collect()
    };
    let links = [stage.client.node_link.clone(), pod_link(&result)];
    let before = (programs(&stage), links.each_ref().map(|link| program_at(&stage, link)));
    stage.node.cmd(&format!("mv {folder}/{} {folder}/programs-earlier", before.0[0]));
    assert_eq!(stage.node.programs()["current"], false);
    let (carried, led) = (stage.carried(), stage.node.counted("redirected_sockets"));
    stage.node.slipway("node setup");
    let after = (programs(&stage), links.each_ref().map(|link| program_at(&stage, link)));
    // The pins have this version's name again, and each link has a new program.
    assert_eq!(before.0, after.0);
    assert!(before.1.iter().zip(&after.1).all(|(old, new)| old != new), "{before:?} {after:?}");
    let status = stage.node.programs();
    assert_eq!((&status["current"], &status["cgroup"]), (&json!(true), &json!("/sys/fs/cgroup")));
    // From the same ends as before, and through the programs.
    let again: Vec<_> = flows.iter_mut().map(|flow| flow.request().expect("an answer").peer).collect();
    assert_eq!(first, again);
    own.request().expect("an answer");
    assert!(stage.carried() >= carried + 4, "{status}");
    stage.node.expect(Proto::Tcp, to, "web");
    assert_eq!(stage.node.counted("redirected_sockets"), led + 1);
    // All of it is new flows' way, too.
    stage.client.expect(Proto::Tcp, to, "web");
}

/// Makes the pins those of layout 2, which has no maps of exempt networks.
fn become_layout_2(stage: &Stage) {
    rename_pins(stage, 2);
    stage.node.cmd(&format!("rm {BASE}/2/exempt4 {BASE}/2/exempt6"));
    stage.node.run(|| {
        let map =
            MapData::from_pin(format!("{BASE}/2/config")).and_then(Map::from_map_data).expect("the map");
        let mut settings = Array::<MapData, Config>::try_from(map).expect("an array");
        let config = settings.get(&0, 0).expect("the settings");
        settings.set(0, Config { version: 2, ..config }, 0).expect("write the settings");
    });
}

/// Layout 1 has another settings map, too.
#[test]
fn maps_unchanged_since_layout_1_are_taken_over() {
    unchanged_maps_are_taken_over(|stage| rename_pins(stage, 1));
}

#[test]
fn maps_unchanged_since_layout_2_are_taken_over() {
    unchanged_maps_are_taken_over(become_layout_2);
}

fn unchanged_maps_are_taken_over(become_older: impl Fn(&Stage)) {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    keep_flows(&stage);
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    let network = stage.network();
    let (web, gone) = (stage.node.pod("web"), stage.node.pod("gone"));
    let result = network.add(&attach(&web)).expect("ADD");
    let leaving = Attach::new(&gone).port_on("0.0.0.0", Proto::Tcp, PORT + 1, 80);
    network.add(&leaving).expect("ADD");
    let ip = address(&result);
    let _servers = Proto::ALL.map(|proto| web.serve(proto, &format!("{ip}:80"), "web"));
    let _far = Proto::ALL.map(|proto| stage.client.serve(proto, &format!("{}:7000", stage.client.v4), "far"));
    let mut flows = Vec::new();
    for proto in Proto::ALL {
        let to = at(stage.client.node_v4, PORT);
        flows.push(stage.client.dial(proto, None, to, patience()).expect("a flow to the port"));
        flows.push(web.dial(proto, None, at(stage.client.v4, 7000), patience()).expect("a flow of the pod"));
    }
    let first: Vec<_> = flows.iter_mut().map(|flow| flow.request().expect("an answer").peer).collect();
    let links = [stage.client.node_link.clone(), pod_link(&result)];
    let before = links.each_ref().map(|link| program_at(&stage, link));
    become_older(&stage);
    // The new version's first call may be a DEL, which must reach the old programs' maps.
    network.del(&leaving).expect("DEL");
    assert_eq!(stage.node.programs()["ports"], 4);
    assert_eq!(stage.node.programs()["loaded"], false);
    let carried = stage.carried();
    stage.node.slipway("node setup");
    let after = links.each_ref().map(|link| program_at(&stage, link));
    assert!(before.iter().zip(&after).all(|(old, new)| old != new), "{before:?} {after:?}");
    assert_eq!(stage.node.list(BASE), [slipway_ebpf_abi::VERSION.to_string()]);
    let again: Vec<_> = flows.iter_mut().map(|flow| flow.request().expect("an answer").peer).collect();
    assert_eq!(first, again);
    let status = stage.node.programs();
    assert!(stage.carried() >= carried + 4, "{status}");
    assert_eq!(
        (&status["loaded"], &status["containers"], &status["ports"]),
        (&json!(true), &json!(1), &json!(4))
    );
    network.check(&attach(&web)).expect("CHECK");
    network.del(&attach(&web)).expect("DEL");
    assert_eq!(stage.node.programs()["containers"], 0);
}

/// An unknown layout, as after a downgrade.
#[test]
fn containers_of_an_unknown_layout_are_left_to_nftables() {
    needs!(has_programs(), PROGRAMS);
    for by_del in [false, true] {
        let stage = Stage::new();
        stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
        let network = stage.network();
        let (old, other) = (stage.node.pod("old"), stage.node.pod("other"));
        let result = network.add(&attach(&old)).expect("ADD");
        let ip = address(&result);
        let _servers = Proto::ALL.map(|proto| old.serve(proto, &format!("{ip}:80"), "old"));
        let second = Attach::new(&other).port(Proto::Tcp, PORT + 1, 80);
        if by_del {
            network.add(&second).expect("ADD");
        }
        rename_pins(&stage, 99);
        if by_del {
            network.del(&second).expect("DEL");
            assert_eq!(stage.node.programs()["loaded"], false);
        } else {
            let result = network.add(&second).expect("ADD");
            let _server = other.serve(Proto::Tcp, &format!("{}:80", address(&result)), "other");
            stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT + 1), "other");
            assert!(stage.carried() > 0, "{}", stage.node.programs());
        }
        assert!(!stage.node.list(BASE).contains(&"99".to_owned()));
        assert_eq!(stage.filters(&pod_link(&result)), "");
        let carried = stage.carried();
        let _far = stage.client.serve(Proto::Udp, &format!("{}:7000", stage.client.v4), "far");
        for proto in Proto::ALL {
            let answer = stage.client.expect(proto, (stage.client.node_v4, PORT), "old");
            assert_eq!(answer.peer.ip(), stage.client.v4);
        }
        assert_eq!(old.expect(Proto::Udp, (stage.client.v4, 7000), "far").peer.ip(), stage.client.node_v4);
        assert_eq!(stage.carried(), carried);
        // A repeated ADD hands the container to the programs again.
        crate::publish(&network, &attach(&old), &result);
        stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "old");
        assert!(stage.carried() > carried, "{}", stage.node.programs());
    }
}

/// Teardown breaks no flow.
#[test]
fn flows_survive_a_teardown() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    let pod = stage.node.pod("web");
    let result = stage.network().add(&attach(&pod)).expect("ADD");
    let ip = address(&result);
    let _servers = Proto::ALL.map(|proto| pod.serve(proto, &format!("{ip}:80"), "web"));
    let _far = Proto::ALL.map(|proto| stage.client.serve(proto, &format!("{}:7000", stage.client.v4), "far"));
    let mut flows = Vec::new();
    for proto in Proto::ALL {
        let to = at(stage.client.node_v4, PORT);
        flows.push(stage.client.dial(proto, None, to, patience()).expect("a flow to the port"));
        flows.push(pod.dial(proto, None, at(stage.client.v4, 7000), patience()).expect("a flow of the pod"));
    }
    let first: Vec<_> = flows.iter_mut().map(|flow| flow.request().expect("an answer").peer).collect();
    assert!(stage.carried() >= 4, "{}", stage.node.programs());
    stage.node.slipway("node teardown");
    let again: Vec<_> = flows.iter_mut().map(|flow| flow.request().expect("an answer").peer).collect();
    assert_eq!(first, again);
}
