// SPDX-License-Identifier: GPL-2.0-or-later

//! Measurements: `cargo test -p slipway-tests --test udp_gro -- --ignored --nocapture`.
//!
//! Datagrams from another host to a published port, without GRO at the uplink, with GRO, and with GRO that also merges
//! forwarded datagrams. "The node itself" is a socket on the node, a case with both ends and only one link.

use std::net::IpAddr;

use cni_kernel::ethtool::Switch;
use serde_json::json;
use slipway_tests::measure::{
    BATCHES, ECHO, Path, SINK, TOGETHER, Work, compare_by, on_one_processor, own, serve,
};
use slipway_tests::{
    Attach, Host, Node, PROGRAMS, Pod, Proto, UDP_GRO, address_of, has_programs, has_udp_gro, host_local,
    needs,
};

/// The difference between a host port and the container's port.
const OFFSET: u16 = 9000;

/// The setting of a node's uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Uplink {
    /// The kernel's default for a veth, without GRO.
    Plain,
    /// GRO that does not merge forwarded datagrams.
    Gro,
    /// GRO that also merges forwarded datagrams.
    Forwarding,
}

struct Stage {
    node: Node,
    client: Host,
    pod: Pod,
    own: [IpAddr; 2],
}

impl Stage {
    fn new(backend: &str, uplink: Uplink) -> Self {
        let (node, client) = Node::with_client();
        node.cmd(&format!("ip route add default via {}", client.v4));
        node.cmd(&format!("ip route add default via {}", client.v6));
        let list = json!({"name": "net", "plugins": [
            {"type": "bridge", "bridge": "br1", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend, "ipam": host_local("10.88.1.0/24", "fd00:88:1::/64")},
            {"type": "portmap", "capabilities": {"portMappings": true}, "backend": backend},
        ]});
        let pod = node.pod("pod");
        let mut attach = Attach::new(&pod);
        for port in [SINK, ECHO] {
            attach = attach.port(Proto::Tcp, OFFSET + port, port);
        }
        for port in [BATCHES, TOGETHER] {
            attach = attach.port(Proto::Udp, OFFSET + port, port);
        }
        let result = node.network(list).add(&attach).expect("ADD");
        let own = [0, 1].map(|family| address_of(&result, family));
        // The client's kernel splits what it sends, as a network card would.
        client.set_feature("eth0", "tx-udp-segmentation", Switch::Off);
        if uplink != Uplink::Plain {
            node.set_feature(&client.node_link, "rx-gro", Switch::On);
        }
        if uplink == Uplink::Forwarding {
            node.set_feature(&client.node_link, "rx-udp-gro-forwarding", Switch::On);
        }
        Self { node, client, pod, own }
    }

    fn published(&self, name: &'static str, family: usize) -> Path {
        let node = [self.client.node_v4.into(), self.client.node_v6.into()][family];
        Path::published(name, &self.client, node, OFFSET)
    }
}

#[test]
#[ignore = "a measurement"]
fn datagrams_that_the_uplink_merges() {
    needs!(has_programs(), PROGRAMS);
    needs!(has_udp_gro(), UDP_GRO);
    on_one_processor();
    let ways = [
        ("nftables", "nftables", Uplink::Plain),
        ("nftables, GRO", "nftables", Uplink::Gro),
        ("nftables, merged", "nftables", Uplink::Forwarding),
        ("ebpf", "ebpf", Uplink::Plain),
        ("ebpf, GRO", "ebpf", Uplink::Gro),
        ("ebpf, merged", "ebpf", Uplink::Forwarding),
    ];
    let stages: Vec<_> = ways.iter().map(|(_, backend, uplink)| Stage::new(backend, *uplink)).collect();
    for (family, ip) in ["IPv4", "IPv6"].into_iter().enumerate() {
        stages.iter().for_each(|stage| serve(&stage.pod, stage.own[family]));
        let mut paths: Vec<_> =
            ways.iter().zip(&stages).map(|((name, ..), stage)| stage.published(name, family)).collect();
        let client = &stages[0].client;
        let node = [client.node_v4.into(), client.node_v6.into()][family];
        serve(&stages[0].node, node);
        paths.push(Path::to("the node itself", client, node));
        let works = [Work::Trains, Work::Together, Work::Datagrams, Work::Pings, Work::Stream];
        for figure in compare_by(own, &paths, &works, |_| {}) {
            println!("{figure}, {ip}");
        }
    }
}
