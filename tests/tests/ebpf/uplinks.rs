// SPDX-License-Identifier: GPL-2.0-or-later

//! Uplinks need an entry in the maps and an attached program: reports and behaviour when one of the two is
//! missing.

use serde_json::json;
use slipway_tests::{
    Attach, Host, PROGRAMS, Pod, Proto, at, has_programs, needs, sample_of_unknown, slipway, stride,
};

use crate::{PORT, Stage, address, attach};

const FAR: u16 = 7000;

/// Tests that a pod reaches a far end, which sees the node's address.
fn reaches(pod: &Pod, far: &Host) {
    let _server = far.serve(Proto::Tcp, &at(far.v4, FAR).to_string(), "far");
    assert_eq!(pod.expect(Proto::Tcp, (far.v4, FAR), "far").peer.ip(), far.node_v4);
}

/// Returns the reason why `slipway node status` lists an interface as incomplete.
fn incomplete_reason(stage: &Stage, link: &str) -> String {
    let status = stage.node.programs();
    let all = status["uplinks_left_to_nftables"].as_array().unwrap_or_else(|| panic!("{status}"));
    let of_link = all.iter().find(|one| one["name"] == link);
    of_link.map(|one| one["reason"].as_str().expect("a reason").to_owned()).unwrap_or_default()
}

/// Another filter has Slipway's preference on one uplink. The other uplink works, and netfilter masquerades flows
/// through this one.
#[test]
fn an_uplink_without_a_program_does_not_affect_the_others() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let other = stage.node.host("other");
    stage.node.cmd(&format!("tc qdisc add dev {} clsact", other.node_link));
    stage.node.cmd(&format!(
        "tc filter add dev {} ingress protocol all pref 21324 u32 match u32 0 0 flowid :1",
        other.node_link
    ));
    let pod = stage.node.pod("web");
    let network = stage.network();
    let attach = attach(&pod);
    let result = network.add(&attach).expect("ADD");
    let setup = stage.node.try_slipway("node setup");
    assert!(setup.code == Some(0) && setup.stderr.contains(&other.node_link), "{setup}");
    assert_eq!(stage.node.programs()["uplinks"], json!([stage.client.node_link]));
    assert!(incomplete_reason(&stage, &other.node_link).contains("attach"), "{}", stage.node.programs());
    assert_eq!(incomplete_reason(&stage, &stage.client.node_link), "");
    let report = stage.node.try_slipway("check-node").stdout;
    let line = report.lines().find(|line| line.contains("BPF programs at uplinks")).unwrap_or_default();
    assert!(line.starts_with("warning") && line.contains(&other.node_link), "{report}");
    let before = stage.node.counted("masqueraded_flows");
    reaches(&pod, &other);
    assert_eq!(stage.node.counted("masqueraded_flows"), before, "{}", stage.node.programs());
    reaches(&pod, &stage.client);
    assert_eq!(stage.node.counted("masqueraded_flows"), before + 1, "{}", stage.node.programs());
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    for host in [&stage.client, &other] {
        host.expect(Proto::Tcp, (host.node_v4, PORT), "web");
    }
    // The preference is free, and the next set-up attaches the program.
    stage.node.cmd(&format!("tc filter del dev {} ingress pref 21324", other.node_link));
    stage.node.slipway("node setup");
    assert_eq!(incomplete_reason(&stage, &other.node_link), "");
    reaches(&pod, &other);
    assert_eq!(stage.node.counted("masqueraded_flows"), before + 2, "{}", stage.node.programs());
    network.check(&attach).expect("CHECK");
    network.del(&attach).expect("DEL");
}

/// At whichever call set-up is killed, pods reach hosts behind the new uplink.
#[test]
fn a_killed_setup_cuts_no_pod_off() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let (network, pod) = (stage.network(), stage.node.pod("web"));
    network.add(&Attach::new(&pod)).expect("ADD");
    let other = stage.node.host("other");
    let _server = other.serve(Proto::Tcp, &at(other.v4, FAR).to_string(), "far");
    let mut killed = 0;
    for nth in sample_of_unknown().map(|at| at + 1) {
        let inject = format!("inject=bpf:signal=SIGKILL:when={nth}");
        let slipway = slipway();
        let program = slipway.display();
        let line = format!("strace -f -qq -o /dev/null -e trace=bpf -e {inject} {program} node setup");
        let ended = stage.node.try_cmd(&line).code == Some(0);
        let peer = pod.expect(Proto::Tcp, (other.v4, FAR), "far").peer;
        assert_eq!(peer.ip(), other.node_v4, "killed at bpf(2) number {nth}");
        if ended {
            break;
        }
        killed += 1;
    }
    assert!(killed > 10 / stride(), "killed {killed} times");
    let before = stage.node.counted("masqueraded_flows");
    pod.expect(Proto::Tcp, (other.v4, FAR), "far");
    assert_eq!(stage.node.counted("masqueraded_flows"), before + 1, "{}", stage.node.programs());
}

#[test]
fn a_detached_uplink_program_is_reported_and_attached_by_the_next_add() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let (network, pod) = (stage.network(), stage.node.pod("web"));
    let attach = attach(&pod);
    network.add(&attach).expect("ADD");
    network.check(&attach).expect("CHECK");
    reaches(&pod, &stage.client);
    let link = stage.client.node_link.clone();
    stage.node.cmd(&format!("tc qdisc del dev {link} clsact"));
    let failure = network.check(&attach).expect_err("CHECK").to_string();
    assert!(failure.contains("BPF program") && failure.contains(&link), "{failure}");
    assert!(incomplete_reason(&stage, &link).contains("program"), "{}", stage.node.programs());
    let text = stage.node.slipway("node status");
    assert!(text.contains(&format!("without     {link}: ")), "{text}");
    let report = stage.node.try_slipway("check-node").stdout;
    let line = report.lines().find(|line| line.contains("BPF programs at uplinks")).unwrap_or_default();
    assert!(line.starts_with("warning") && line.contains(&link), "{report}");
    let next = stage.node.pod("next");
    network.add(&Attach::new(&next)).expect("ADD");
    assert_eq!(incomplete_reason(&stage, &link), "");
    network.check(&attach).expect("CHECK");
    reaches(&pod, &stage.client);
}

#[test]
fn a_detached_container_program_is_reported() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let (network, pod) = (stage.network(), stage.node.pod("web"));
    let attach = attach(&pod);
    let result = network.add(&attach).expect("ADD");
    let link = result["interfaces"][1]["name"].as_str().expect("the node's end").to_owned();
    stage.node.cmd(&format!("tc qdisc del dev {link} clsact"));
    let failure = network.check(&attach).expect_err("CHECK").to_string();
    assert!(failure.contains("BPF program") && failure.contains(&link), "{failure}");
    stage.node.slipway("node setup");
    network.check(&attach).expect("CHECK");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
}

#[test]
fn a_configured_uplink_that_does_not_exist_is_reported() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let settings = json!({"ebpfFlows": "programs", "uplinks": ["nosuch0", stage.client.node_link]});
    stage.node.write("/etc/cni/slipway.json", settings.to_string());
    let setup = stage.node.try_slipway("node setup");
    assert!(setup.code == Some(0) && setup.stderr.contains("nosuch0"), "{setup}");
    assert!(incomplete_reason(&stage, "nosuch0").contains("no such interface"), "{}", stage.node.programs());
}

/// The uplink is the pods' own bridge. Packets from pods also arrive there, and are left to nftables: a pod
/// that connects to its own published port would otherwise receive a packet with its own address as source.
#[test]
fn pods_on_the_uplinks_bridge_reach_published_ports_and_their_own() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let (node, client) = (&stage.node, &stage.client);
    let own = client.node_v4;
    // bridge sets this sysctl only for gateways.
    node.sysctl("net/ipv4/ip_forward", "1");
    for words in [
        // The client has a neighbour entry with this address.
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
    let served = || node.programs()["counters"]["published_flows"].clone();
    client.expect(Proto::Tcp, (own, PORT), "web");
    assert_eq!(served(), 1);
    for pod in [&other, &web] {
        pod.expect(Proto::Tcp, (own, PORT), "web");
    }
    assert_eq!(served(), 1, "connections from pods are left to nftables");
}
