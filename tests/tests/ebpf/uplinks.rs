// SPDX-License-Identifier: GPL-2.0-or-later

//! Uplinks without a program, and an uplink that is a bridge.

use serde_json::json;
use slipway_tests::{Attach, Host, PROGRAMS, Pod, Proto, Space, at, has_programs, needs, patience};

use crate::{FAR, PORT, Stage, address, attach};

/// Tests that a pod reaches a far end, which sees the node's address.
#[track_caller]
fn masqueraded(stage: &Stage, pod: &Pod, far: &Host) {
    let _server = far.serve(Proto::Tcp, &at(far.v4, FAR).to_string(), "far");
    assert_eq!(stage.expect_carried(true, Proto::Tcp, pod, (far.v4, FAR)).peer.ip(), far.node_v4);
}

/// Returns the reason why `slipway node status` lists an interface as incomplete.
fn incomplete_reason(stage: &Stage, link: &str) -> String {
    let status = stage.node.programs();
    let all = status["uplinks_left_to_nftables"].as_array().unwrap_or_else(|| panic!("{status}"));
    let of_link = all.iter().find(|one| one["name"] == link);
    of_link.map(|one| one["reason"].as_str().expect("a reason").to_owned()).unwrap_or_default()
}

/// Another filter occupies Slipway's preference on one uplink, so netfilter handles the flows through it.
#[test]
fn an_uplink_without_a_program_does_not_affect_the_others() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let other = stage.node.host("other");
    stage.node.cmd(&format!("tc qdisc add dev {} clsact", other.node_link));
    stage.node.cmd(&format!(
        "tc filter add dev {} ingress protocol all pref 49997 u32 match u32 0 0 flowid :1",
        other.node_link
    ));
    let pod = stage.node.pod("web");
    let network = stage.network();
    let attach = attach(&pod);
    let result = network.add(&attach).expect("ADD");
    let setup = stage.node.try_slipway("node setup");
    assert!(setup.code == Some(0) && setup.stderr.contains(&other.node_link), "{setup}");
    assert_eq!(stage.node.programs()["uplinks"], json!([stage.client.node_link]));
    assert_ne!(incomplete_reason(&stage, &other.node_link), "", "{}", stage.node.programs());
    assert_eq!(incomplete_reason(&stage, &stage.client.node_link), "");
    let report = stage.node.try_slipway("check-node").stdout;
    let line = report.lines().find(|line| line.contains("BPF programs at uplinks")).unwrap_or_default();
    assert!(line.starts_with("warning") && line.contains(&other.node_link), "{report}");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    masqueraded(&stage, &pod, &stage.client);
    stage.expect_carried(true, Proto::Tcp, &stage.client, (stage.client.node_v4, PORT));
    let far = other.serve(Proto::Tcp, &at(other.v4, FAR).to_string(), "far");
    assert_eq!(pod.expect(Proto::Tcp, (other.v4, FAR), "far").peer.ip(), other.node_v4);
    drop(far);
    other.expect(Proto::Tcp, (other.node_v4, PORT), "web");
    // The preference is free again, and the next set-up attaches the program.
    stage.node.cmd(&format!("tc filter del dev {} ingress pref 49997", other.node_link));
    stage.node.slipway("node setup");
    assert_eq!(incomplete_reason(&stage, &other.node_link), "");
    masqueraded(&stage, &pod, &other);
    network.check(&attach).expect("CHECK");
    network.del(&attach).expect("DEL");
}

/// The uplink is the pods' own bridge. Netfilter handles the flows, because packets leave through the interface on
/// which they arrive.
#[test]
fn pods_on_the_uplinks_bridge_reach_published_ports_and_their_own() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let (node, client) = (&stage.node, &stage.client);
    let own = client.node_v4;
    // bridge sets this sysctl only for gateways.
    node.sysctl("net/ipv4/ip_forward", "1");
    for words in [
        // The client already has a neighbour entry with this address.
        format!("link add br0 address {} type bridge", node.mac(&client.node_link)),
        format!("address del {own}/24 dev {}", client.node_link),
        format!("link set {} master br0", client.node_link),
        format!("address add {own}/24 dev br0"),
        "link set br0 up".to_owned(),
        format!("route add default via {} dev br0", client.v4),
    ] {
        node.cmd(&format!("ip {words}"));
    }
    let network = |last: u8| {
        node.network(json!({
            "name": "flat", "plugins": [
                {
                    "type": "bridge", "bridge": "br0", "hairpinMode": true,
                    "ipam": {
                        "type": "static", "addresses": [{"address": format!("192.0.2.{last}/24")}],
                        "routes": [{"dst": "0.0.0.0/0", "gw": own}],
                    },
                },
                {"type": "portmap", "backend": "ebpf", "capabilities": {"portMappings": true}},
            ],
        }))
    };
    let (web, other) = (node.pod("web"), node.pod("other"));
    network(50).add(&Attach::new(&web).port(Proto::Tcp, PORT, 80)).expect("ADD");
    network(51).add(&Attach::new(&other).port(Proto::Tcp, PORT + 1, 80)).expect("ADD");
    assert_eq!(node.programs()["uplinks"], json!(["br0"]));
    let _server = web.serve(Proto::Tcp, "192.0.2.50:80", "web");
    let spaces: [&Space; 3] = [client, &other, &web];
    for space in spaces {
        let mut flow = space.dial(Proto::Tcp, None, at(own, PORT), patience()).expect("a connection");
        (0..50).for_each(|_| assert_eq!(flow.request().expect("a reply").who, "web"));
    }
}
