// SPDX-License-Identifier: GPL-2.0-or-later

//! Settings of the BPF programs in `/etc/cni/slipway.json`.

use std::time::{Duration, Instant};

use aya::maps::MapData;
use serde_json::{Value, json};
use slipway_tests::{Attach, PROGRAMS, Proto, at, has_programs, needs};

use crate::{PORT, Stage, address, attach};

#[test]
fn ports_for_masquerade_are_not_those_of_the_nodes_own_sockets() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.write(
        "/etc/cni/slipway.json",
        json!({"ebpfFlows": "programs", "masqueradePorts": "40000-40099"}).to_string(),
    );
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    let pod = stage.node.pod("web");
    stage.network().add(&Attach::new(&pod)).expect("ADD");
    let _server = stage.client.serve(Proto::Tcp, &at(stage.client.v4, 7000).to_string(), "far");
    let request = || pod.expect(Proto::Tcp, (stage.client.v4, 7000), "far").peer;
    // Ports 32768 to 60999 are local ports of the node unless they are reserved.
    assert_eq!(request().ip(), stage.client.node_v4);
    let status = stage.node.programs();
    assert_eq!(
        (&status["masquerade_ports"], &status["counters"]["masqueraded_flows"]),
        (&Value::Null, &Value::Null)
    );
    let clash = status["masquerade_conflict"].as_str().unwrap_or_default();
    assert!(clash.contains("port 40000") && clash.contains("32768-60999"), "{status}");
    let report = stage.node.try_slipway("check-node").stdout;
    assert!(report.contains("net.ipv4.ip_local_reserved_ports"), "{report}");
    stage.node.sysctl("net/ipv4/ip_local_reserved_ports", "40000-40099");
    stage.node.slipway("node setup");
    let peer = request();
    assert!(peer.ip() == stage.client.node_v4 && (40000..40100).contains(&peer.port()), "{peer}");
    let status = stage.node.programs();
    assert_eq!(
        (&status["masquerade_ports"], &status["masquerade_conflict"]),
        (&json!("40000-40099"), &Value::Null)
    );
    assert_eq!(status["counters"]["masqueraded_flows"], 1);
}

#[test]
fn maps_have_the_configured_sizes() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.write(
        "/etc/cni/slipway.json",
        json!({"ebpfFlows": "programs", "maps": {"flows": 2048, "ports": 300_000}}).to_string(),
    );
    stage.node.slipway("node setup");
    let layout = slipway_ebpf_abi::VERSION;
    let size = |name: &str| {
        let path = format!("/sys/fs/bpf/slipway/{layout}/{name}");
        stage.node.run(|| MapData::from_pin(&path).expect("a map").info().expect("its size").max_entries())
    };
    assert_eq!((size("flows4"), size("flows6"), size("ports4")), (2048, 2048, 300_000));
    assert_eq!(size("embryos4"), slipway_ebpf_abi::maps::HALF_OPEN_SIZE);
    let pod = stage.node.pod("web");
    stage.network().add(&attach(&pod)).expect("ADD");
    assert_eq!(stage.node.programs()["ports"], 4);
}

/// Flows have conntrack's timeouts, read at each set-up.
#[test]
fn flows_have_conntracks_timeouts() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    // The rule loads conntrack, whose sysctls do not exist before.
    let script = "table inet probe {
        chain looks { type filter hook prerouting priority 0; ct state new counter; }
    }";
    stage.node.cmd_input("nft -f -", script);
    let pod = stage.node.pod("web");
    let result = stage.network().add(&attach(&pod)).expect("ADD");
    let _server = pod.serve(Proto::Udp, &format!("{}:80", address(&result)), "web");
    let request = || stage.client.expect(Proto::Udp, (stage.client.node_v4, PORT), "web");
    let listed = || stage.node.slipway("flows --output json").contains("\"udp\"");
    let usual = stage.node.sysctl_get("net/netfilter/nf_conntrack_udp_timeout");
    assert_eq!(usual.as_deref(), Some("30"));
    request();
    assert!(listed());
    stage.node.sysctl("net/netfilter/nf_conntrack_udp_timeout", "1");
    stage.node.slipway("node setup");
    let begun = Instant::now();
    while listed() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the flow outlives its timeout");
        std::thread::sleep(Duration::from_millis(200));
    }
    stage.node.sysctl("net/netfilter/nf_conntrack_udp_timeout", "600");
    stage.node.slipway("node setup");
    request();
    assert!(listed());
}
