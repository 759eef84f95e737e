// SPDX-License-Identifier: GPL-2.0-or-later

//! Services of kube-proxy and other engines: with one on the node, masquerade is left to nftables, so that
//! containers reach Services. The suite `services` tests published ports.

use serde_json::Value;
use slipway_tests::{Attach, PROGRAMS, Proto, has_programs, needs};

use crate::{Stage, address};

const SERVICE: [u8; 4] = [10, 96, 0, 1];

fn stage() -> Stage {
    let stage = Stage::new();
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    stage
}

/// Returns a table that translates the Service to an outside address.
fn table(name: &str, far: std::net::Ipv4Addr) -> String {
    format!(
        "table ip {name} {{
            chain services {{
                type nat hook prerouting priority dstnat;
                ip daddr 10.96.0.1 meta l4proto {{ tcp, udp }} th dport 80 dnat ip to {far}:7000
            }}
        }}"
    )
}

/// Tests that a container reaches the Service, also if the BPF programs masqueraded it before.
fn containers_reach_the_service(stage: &Stage, prepare: impl Fn(&Stage)) {
    let network = stage.network();
    let (web, later) = (stage.node.pod("web"), stage.node.pod("later"));
    let far = stage.client.v4;
    let _far = Proto::ALL.map(|proto| stage.client.serve(proto, &format!("{far}:7000"), "far"));
    let result = network.add(&Attach::new(&web)).expect("ADD");
    web.expect(Proto::Tcp, (far, 7000), "far");
    let before = stage.node.counted("masqueraded_flows");
    assert_eq!(before, 1, "{}", stage.node.programs());
    prepare(stage);
    network.add(&Attach::new(&later)).expect("ADD");
    for pod in [&web, &later] {
        for proto in Proto::ALL {
            assert_eq!(pod.expect(proto, (SERVICE, 80), "far").peer.ip(), stage.client.node_v4);
            assert_eq!(pod.expect(proto, (far, 7000), "far").peer.ip(), stage.client.node_v4);
        }
    }
    let status = stage.node.programs();
    assert_eq!(stage.node.counted("masqueraded_flows"), before, "{status} {}", address(&result));
    assert_eq!(
        (&status["masquerade_ports"], &status["ports_left_to_nftables"]),
        (&Value::Null, &Value::Bool(true))
    );
    assert!(
        status["service_proxy"]
            .as_str()
            .is_some_and(|text| text.contains("kube-proxy") || text.contains("services")),
        "{status}"
    );
    assert!(stage.node.slipway("node status").contains("masquerade  by nftables: "));
}

#[test]
fn kube_proxy_is_found_by_the_next_add() {
    needs!(has_programs(), PROGRAMS);
    let stage = stage();
    containers_reach_the_service(&stage, |stage| stage.node.nft(&table("kube-proxy", stage.client.v4)));
    // Once the engine's table is gone, the BPF programs masquerade again.
    stage.node.nft("delete table ip kube-proxy");
    stage.node.slipway("node setup");
    assert_eq!(stage.node.programs()["service_proxy"], Value::Null);
    let status = stage.node.programs();
    assert!(status["masquerade_ports"].is_string() && status["ports_left_to_nftables"] == false, "{status}");
}

#[test]
fn other_engines_are_found_by_setup() {
    needs!(has_programs(), PROGRAMS);
    let stage = stage();
    containers_reach_the_service(&stage, |stage| {
        stage.node.nft(&table("balancer", stage.client.v4));
        stage.node.slipway("node setup");
    });
}

/// kube-proxy's chain in any backend of iptables, its nftables table, or its IPVS link.
#[test]
fn kube_proxy_is_found_in_each_of_its_modes() {
    needs!(has_programs(), PROGRAMS);
    for engine in [
        "iptables-nft -t nat -N KUBE-SERVICES",
        "iptables-legacy -t nat -N KUBE-SERVICES",
        "ip6tables-legacy -t nat -N KUBE-SERVICES",
        "nft add table ip6 kube-proxy",
        "ip link add kube-dummy-if type bridge",
    ] {
        let stage = stage();
        let network = stage.network();
        let pod = stage.node.pod("web");
        network.add(&crate::attach(&pod)).expect("ADD");
        let served = |text: &str| stage.node.slipway("ports --output json").contains(text);
        assert!(served("ebpf"));
        stage.node.cmd(engine);
        network.status().expect("STATUS");
        let status = stage.node.programs();
        assert_eq!(
            (&status["ports_left_to_nftables"], served("ebpf")),
            (&Value::Bool(true), false),
            "{engine}: {status}"
        );
        assert!(status["service_proxy"].is_string(), "{engine}: {status}");
    }
}
