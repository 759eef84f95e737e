// SPDX-License-Identifier: GPL-2.0-or-later

//! A cluster of two nodes, with pods, servers and a load balancer.

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, BridgeNetfilter, Cluster, ClusterNode, Network, Pod, Proto, Server, Space, address_of, at,
    pod_gateways, pod_ranges,
};

use crate::Backend;
use crate::rows::{From, Seen};
use crate::services::SERVICES;

/// The addresses of the server pod, the first ones that its node assigns.
pub(crate) const SERVER: [&str; 2] = ["10.244.1.2", "fd44:0:0:1::2"];
/// The ports on which the pod serves, which are the targets of hostPorts and Services.
pub(crate) const POD_PORTS: [u16; 4] = [80, 8088, 30088, 31088];
/// The published ports, the first of which is remapped to port 80.
pub(crate) const HOST_PORTS: [u16; 2] = [8080, 8088];
/// The port of the server on the first node itself.
pub(crate) const NODE_PORT: u16 = 7000;
/// The addresses of a server beyond the cluster's router.
pub(crate) const BEYOND: [&str; 2] = ["203.0.113.80", "2001:db8:80::80"];
/// The addresses of a cloud's metadata service.
pub(crate) const METADATA: [&str; 2] = ["169.254.169.254", "fd00:ec2::254"];

pub(crate) struct World {
    pub(crate) web: Web,
    same: Web,
    other: Web,
    _servers: Vec<Server>,
    pub(crate) cluster: Cluster,
}

/// A pod and its addresses, IPv4 and IPv6.
pub(crate) struct Web {
    pod: Pod,
    pub(crate) addresses: [IpAddr; 2],
}

impl World {
    /// Creates the cluster and its pods. `prepare` is called before the first pod is added.
    pub(crate) fn new(backend: Backend, prepare: impl Fn(&Cluster)) -> Self {
        let cluster = Cluster::new(2, |_| {});
        for node in &cluster.nodes {
            // Kubernetes requires this, because the reply of a pod on the same bridge must pass conntrack.
            assert!(node.bridge_netfilter(BridgeNetfilter::On), "the kernel has no br_netfilter");
        }
        cluster.outside.cmd("ip link set lo up");
        for ip in BEYOND.iter().chain(&METADATA) {
            cluster.outside.cmd(&format!("ip address add {ip} dev lo"));
        }
        // The load balancer is a router that leaves the destination unchanged.
        for service in &SERVICES {
            for (node, balancers) in cluster.nodes.iter().zip(service.balancers) {
                for (ip, via) in balancers.iter().zip(node.addresses) {
                    cluster.outside.cmd(&format!("ip route add {ip} via {via}"));
                }
            }
        }
        prepare(&cluster);
        let publish = |mut attach: Attach| {
            for proto in Proto::ALL {
                attach =
                    attach.port(proto, HOST_PORTS[0], POD_PORTS[0]).port(proto, HOST_PORTS[1], HOST_PORTS[1]);
            }
            attach
        };
        let web = Web::new(backend, &cluster.nodes[0], "web", publish);
        assert_eq!(web.addresses.map(|ip| ip.to_string()), SERVER, "the first addresses of the ranges");
        let same = Web::new(backend, &cluster.nodes[0], "same", |attach| attach);
        let other = Web::new(backend, &cluster.nodes[1], "other", |attach| attach);
        let mut servers = Vec::new();
        let mut serve = |space: &Space, ip: IpAddr, port: u16, who: &str| {
            servers.extend(Proto::ALL.map(|proto| space.serve(proto, &at(ip, port).to_string(), who)));
        };
        for ip in web.addresses {
            POD_PORTS.iter().for_each(|port| serve(&web.pod, ip, *port, "web"));
        }
        for ip in cluster.nodes[0].addresses {
            serve(&cluster.nodes[0], ip, NODE_PORT, "node");
        }
        for ip in BEYOND.iter().chain(&METADATA) {
            serve(&cluster.outside, ip.parse().expect("an address"), 80, "internet");
        }
        Self { web, same, other, _servers: servers, cluster }
    }

    /// The space in which a client runs.
    pub(crate) fn client(&self, from: From) -> &Space {
        match from {
            From::Itself => &self.web.pod,
            From::SameNode => &self.same.pod,
            From::OtherNode => &self.other.pod,
            From::First => &self.cluster.nodes[0],
            From::Second => &self.cluster.nodes[1],
            From::Outside => &self.cluster.outside,
        }
    }

    /// The addresses that a server may see for a client whose own socket has the address `own`.
    pub(crate) fn addresses(&self, seen: Seen, own: IpAddr) -> Vec<IpAddr> {
        let family = usize::from(own.is_ipv6());
        let node = |index: usize| self.cluster.nodes[index].addresses[family];
        let bridge = pod_gateways(1)[family];
        match seen {
            Seen::Client => vec![own],
            Seen::Bridge => vec![bridge],
            Seen::First => vec![node(0)],
            Seen::Second => vec![node(1)],
            Seen::Closed | Seen::NotAsked => Vec::new(),
        }
    }
}

impl Web {
    fn new(backend: Backend, node: &ClusterNode, name: &str, prepare: impl Fn(Attach) -> Attach) -> Self {
        let pod = node.pod(name);
        // A runtime does this with the plugin loopback.
        pod.cmd("ip link set lo up");
        let attach = prepare(Attach::new(&pod));
        let result = network(backend, node).add(&attach).unwrap_or_else(|e| panic!("ADD {name}: {e}"));
        Self { pod, addresses: [0, 1].map(|index| address_of(&result, index)) }
    }
}

/// The cluster's network as it is configured on a node.
pub(crate) fn network(backend: Backend, node: &ClusterNode) -> Network<'_> {
    let ranges = pod_ranges(node.number).map(|range| json!([{"subnet": range}]));
    let bridge = json!({
        "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
        "nonMasqueradeCIDRs": ["10.244.0.0/16", "fd44::/48"],
        "ipMasqBackend": backend.name(),
        "ipam": {
            "type": "host-local", "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        },
    });
    let portmap: Value =
        json!({"type": "portmap", "backend": backend.name(), "capabilities": {"portMappings": true}});
    node.network(json!({"name": "cluster", "plugins": [bridge, portmap]}))
}
