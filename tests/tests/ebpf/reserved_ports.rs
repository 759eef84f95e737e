// SPDX-License-Identifier: GPL-2.0-or-later

//! netfilter's masquerade does not use the ports that the BPF programs masquerade with.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};
use slipway_tests::{
    Attach, NFT_RANGES, PROGRAMS, Pod, Proto, at, has_programs, needs, nft_loads_ranges, patience,
};

use crate::{Stage, list};

/// The identifier of the suite's pings, which masquerade translates like a port. The programs have only this
/// port, so every flow that they masquerade uses it.
const ONLY: u16 = 0x511b;
const FAR: u16 = 7000;

/// Returns a stage whose programs masquerade with one port, and whose default routes lead to the client.
fn stage() -> Stage {
    let stage = Stage::new();
    stage.node.write(
        "/etc/cni/slipway.json",
        json!({"ebpfFlows": "programs", "masqueradePorts": format!("{ONLY}-{ONLY}")}).to_string(),
    );
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    stage.node.cmd(&format!("ip -6 route add default via {}", stage.client.v6));
    stage
}

/// Returns a network of another subnet, masqueraded by this backend.
fn other(backend: &str) -> Value {
    let mut list = list(backend);
    list["name"] = "other".into();
    list["plugins"][0]["bridge"] = "cni1".into();
    list["plugins"][0]["ipam"]["ranges"] =
        json!([[{"subnet": "10.88.2.0/24"}], [{"subnet": "fd00:88:2::/64"}]]);
    list
}

fn addresses(result: &Value) -> [IpAddr; 2] {
    [0, 1].map(|i| {
        let ip = result["ips"][i]["address"].as_str().expect("an address");
        ip.split('/').next().expect("an address").parse().expect("an address")
    })
}

/// Two pods have flows to the same far end at the same time, and each receives its own replies.
fn flows_coexist(stage: &Stage, by_programs: (&Pod, [IpAddr; 2]), by_netfilter: (&Pod, [IpAddr; 2])) {
    for (family, far) in [IpAddr::from(stage.client.v4), stage.client.v6.into()].into_iter().enumerate() {
        for proto in Proto::ALL {
            let to = SocketAddr::new(far, FAR);
            let _server = stage.client.serve(proto, &to.to_string(), "far");
            let mut one = by_programs.0.dial(proto, None, to, patience()).expect("a flow");
            // The far end sees the programs' only port.
            assert_eq!(one.request().expect("an answer").peer.port(), ONLY, "{proto:?} {to}");
            let from = SocketAddr::new(by_netfilter.1[family], ONLY);
            let mut two = by_netfilter.0.dial(proto, Some(from), to, patience()).expect("a second flow");
            for _ in 0..2 {
                assert_ne!(two.request().expect("an answer").peer.port(), ONLY, "{proto:?} {to}");
                assert_eq!(one.request().expect("an answer").peer.port(), ONLY, "{proto:?} {to}");
            }
        }
        // The programs still track the first echo flow while the second pod sends.
        by_programs.0.ping(far).unwrap_or_else(|e| panic!("ping {far}: {e}"));
        by_netfilter.0.ping(far).unwrap_or_else(|e| panic!("ping {far} through netfilter: {e}"));
    }
}

#[test]
fn netfilters_masquerade_avoids_the_programs_ports() {
    needs!(has_programs(), PROGRAMS);
    let stage = stage();
    let (fast, slow) = (stage.node.pod("fast"), stage.node.pod("slow"));
    // First the nftables network, so that the table exists before the programs are loaded.
    let slow_result = stage.node.network(other("nftables")).add(&Attach::new(&slow)).expect("ADD");
    assert!(!stage.node.cmd("nft list table inet slipway").contains("spare-ports"));
    let fast_result = stage.network().add(&Attach::new(&fast)).expect("ADD");
    flows_coexist(&stage, (&fast, addresses(&fast_result)), (&slow, addresses(&slow_result)));
    assert!(stage.node.counted("masqueraded_flows") >= 6, "{}", stage.node.programs());
}

/// The programs have no free port, so netfilter masquerades the second flow with a port of its own.
#[test]
fn flows_left_to_netfilter_avoid_the_programs_ports() {
    needs!(has_programs(), PROGRAMS);
    let stage = stage();
    let network = stage.network();
    let (fast, slow) = (stage.node.pod("fast"), stage.node.pod("slow"));
    network.add(&Attach::new(&fast)).expect("ADD");
    let result = network.add(&Attach::new(&slow)).expect("ADD");
    let to = at(stage.client.v4, FAR);
    let _server = stage.client.serve(Proto::Udp, &to.to_string(), "far");
    let mut one = fast.dial(Proto::Udp, None, to, patience()).expect("a flow");
    assert_eq!(one.request().expect("an answer").peer.port(), ONLY);
    let from = SocketAddr::new(addresses(&result)[0], ONLY);
    let mut two = slow.dial(Proto::Udp, Some(from), to, patience()).expect("a second flow");
    for _ in 0..2 {
        assert_ne!(two.request().expect("an answer").peer.port(), ONLY);
        assert_eq!(one.request().expect("an answer").peer.port(), ONLY);
    }
    let status = stage.node.programs();
    assert_eq!(status["left_to_netfilter"]["no_free_port"], 1, "{status}");
}

#[test]
fn the_table_is_saved_and_loaded_with_its_ports() {
    needs!(has_programs(), PROGRAMS);
    needs!(nft_loads_ranges(), NFT_RANGES);
    let stage = stage();
    stage.node.slipway("node setup");
    let pod = stage.node.pod("web");
    let network = stage.node.network(other("nftables"));
    let attach = Attach::new(&pod);
    network.add(&attach).expect("ADD");
    let saved = stage.node.cmd("nft -s list table inet slipway");
    stage.node.nft(&format!("delete table inet slipway\n{saved}"));
    assert_eq!(stage.node.cmd("nft -s list table inet slipway"), saved);
    network.check(&attach).expect("CHECK");
}

#[test]
fn the_table_follows_the_programs() {
    needs!(has_programs(), PROGRAMS);
    let stage = stage();
    let table = || stage.node.cmd("nft list table inet slipway");
    // The programs are loaded before the table exists.
    stage.node.slipway("node setup");
    let pod = stage.node.pod("web");
    let network = stage.node.network(other("nftables"));
    let attach = Attach::new(&pod);
    network.add(&attach).expect("ADD");
    assert!(table().contains(&format!("masquerade to :{}-65535", ONLY + 1)), "{}", table());
    network.check(&attach).expect("CHECK");
    // The ruleset is flushed; the next ADD restores the ports with the rules.
    stage.node.nft("flush table inet slipway");
    network.check(&attach).expect_err("CHECK of a flushed table");
    let second = stage.node.pod("second");
    network.add(&Attach::new(&second)).expect("ADD");
    network.check(&attach).expect("CHECK");
    assert!(table().contains(&format!("masquerade to :{}-65535", ONLY + 1)), "{}", table());
    // Another port range.
    stage.node.write(
        "/etc/cni/slipway.json",
        json!({"ebpfFlows": "programs", "masqueradePorts": "61000-61999"}).to_string(),
    );
    stage.node.slipway("node setup");
    assert!(table().contains("masquerade to :1024-60999"), "{}", table());
    assert!(!table().contains(&format!(":{}-65535", ONLY + 1)), "{}", table());
    network.check(&attach).expect("CHECK");
    // No port range.
    stage.node.slipway("node teardown");
    assert!(!table().contains("spare-ports"), "{}", table());
    network.check(&attach).expect("CHECK");
    network.del(&attach).expect("DEL");
}

/// A pod masqueraded by netfilter sends from a port that another pod publishes. Its replies must not reach
/// the other pod.
#[test]
fn netfilters_masquerade_avoids_published_udp_ports() {
    const PUBLISHED: u16 = 5353;
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    stage.node.cmd(&format!("ip -6 route add default via {}", stage.client.v6));
    let mut list = list("ebpf");
    list["plugins"][0]["ipMasqBackend"] = "nftables".into();
    let network = stage.node.network(list);
    let (one, two) = (stage.node.pod("one"), stage.node.pod("two"));
    network.add(&Attach::new(&one).port(Proto::Udp, PUBLISHED, PUBLISHED)).expect("ADD");
    let result = network.add(&Attach::new(&two)).expect("ADD");
    let own = addresses(&result);
    for (family, far) in [IpAddr::from(stage.client.v4), stage.client.v6.into()].into_iter().enumerate() {
        let to = SocketAddr::new(far, FAR);
        let _server = stage.client.serve(Proto::Udp, &to.to_string(), "far");
        let from = SocketAddr::new(own[family], PUBLISHED);
        let mut flow = two.dial(Proto::Udp, Some(from), to, patience()).expect("a flow");
        for _ in 0..2 {
            assert_ne!(flow.request().expect("an answer").peer.port(), PUBLISHED, "{to}");
        }
    }
}
