// SPDX-License-Identifier: GPL-2.0-or-later

//! The rows of the matrix as data. docs/reports/network-matrix.md has the same table.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use slipway_tests::at;

use crate::kube::Mode;
use crate::services::{CLUSTER, LOCAL, ON_NODE, Service};
use crate::world::{BEYOND, HOST_PORTS, METADATA, NODE_PORT, POD_PORTS, World};
use Seen::{Bridge, Client, Closed, First, NotAsked, Second};

/// A client, relative to the server pod on the first node. Each is a column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    Itself,
    SameNode,
    OtherNode,
    First,
    Second,
    Outside,
}

impl From {
    /// All clients in the order of the columns.
    pub(crate) const ALL: [Self; 6] =
        [Self::Itself, Self::SameNode, Self::OtherNode, Self::First, Self::Second, Self::Outside];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Itself => "the pod itself",
            Self::SameNode => "a pod on its node",
            Self::OtherNode => "a pod on the other node",
            Self::First => "its node",
            Self::Second => "the other node",
            Self::Outside => "outside",
        }
    }
}

/// The client's address as the server sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Client,
    /// The address of the bridge of the server's node.
    Bridge,
    /// The address of the server's node on the link.
    First,
    /// The address of the other node on the link.
    Second,
    /// No server replies.
    Closed,
    /// This combination is not part of the matrix.
    NotAsked,
}

impl Seen {
    /// The text in the table of the page.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Bridge => "bridge",
            Self::First => "its node",
            Self::Second => "other node",
            Self::Closed => "closed",
            Self::NotAsked => "–",
        }
    }
}

/// The destination of a row. A number is the index of a node.
#[derive(Debug)]
pub(crate) enum To {
    Pod,
    HostPort(usize),
    LoopbackHostPort,
    Node,
    /// The ports of the clusterIP, except those of [`To::ClusterIpAtNodePort`].
    ClusterIp(&'static Service),
    /// The ports of the clusterIP that have the same number as a nodePort.
    ClusterIpAtNodePort(&'static Service),
    NodePort(&'static Service, usize),
    LoopbackNodePort(&'static Service),
    Balancer(&'static Service, usize),
    Internet,
    Metadata,
}

/// A row: a destination, and the address of each client that the server must see.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) to: To,
    pub(crate) seen: [Seen; 6],
}

const fn row(name: &'static str, to: To, seen: [Seen; 6]) -> Row {
    Row { name, to, seen }
}

#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    //                                                            itself    same node other node  node      other     outside
    row("the pod", To::Pod,                                      [Client,   Client,   Client,   Bridge,   Second,   Client]),
    row("hostPort, its node", To::HostPort(0),                   [Bridge,   Bridge,   Second,   First,    Second,   Client]),
    row("hostPort, the other node", To::HostPort(1),             [Closed,   Closed,   Closed,   Closed,   Closed,   Closed]),
    row("hostPort, 127.0.0.1", To::LoopbackHostPort,             [NotAsked, NotAsked, NotAsked, Bridge,   Closed,   NotAsked]),
    row("its node", To::Node,                                    [Client,   Client,   Second,   Client,   Second,   Client]),
    row("clusterIP", To::ClusterIp(&CLUSTER),                    [Bridge,   Client,   Client,   Bridge,   Second,   NotAsked]),
    row("clusterIP, number of a nodePort", To::ClusterIpAtNodePort(&CLUSTER), [Bridge, Client, Client, Bridge, Second, NotAsked]),
    row("clusterIP, policy Local", To::ClusterIp(&LOCAL),        [Bridge,   Client,   Client,   Bridge,   Second,   NotAsked]),
    row("clusterIP of a server on its node", To::ClusterIp(&ON_NODE), [Client, Client, Second,  First,    Second,   NotAsked]),
    row("nodePort, its node", To::NodePort(&CLUSTER, 0),         [Bridge,   Bridge,   Bridge,   Bridge,   Bridge,   Bridge]),
    row("nodePort, the other node", To::NodePort(&CLUSTER, 1),   [Second,   Second,   Second,   Second,   Second,   Second]),
    row("nodePort, 127.0.0.1", To::LoopbackNodePort(&CLUSTER),   [NotAsked, NotAsked, NotAsked, Bridge,   Second,   NotAsked]),
    row("nodePort of a server on its node, its node", To::NodePort(&ON_NODE, 0), [Client, Client, Second, First, Second, Client]),
    row("nodePort of a server on its node, the other node", To::NodePort(&ON_NODE, 1), [Second, Second, Second, Second, Second, Second]),
    row("nodePort, policy Local, its node", To::NodePort(&LOCAL, 0), [Bridge, Client, Second,   Bridge,   Second,   Client]),
    row("nodePort, policy Local, the other node", To::NodePort(&LOCAL, 1), [Closed, Closed, Client, Closed, Second, Closed]),
    row("load balancer, by its node", To::Balancer(&CLUSTER, 0), [Bridge,   Bridge,   Second,   Bridge,   Second,   Bridge]),
    row("load balancer, by the other node", To::Balancer(&CLUSTER, 1), [Bridge, Bridge, Second, Bridge,   Second,   Second]),
    row("load balancer, policy Local, by its node", To::Balancer(&LOCAL, 0), [Bridge, Client, Client, Bridge, Second, Client]),
    row("load balancer, policy Local, by the other node", To::Balancer(&LOCAL, 1), [Bridge, Client, Client, Bridge, Second, Closed]),
    row("internet", To::Internet,                                [First,    First,    Second,   Client,   Client,   NotAsked]),
    row("metadata", To::Metadata,                                [First,    First,    Second,   Client,   Client,   NotAsked]),
];

/// The rows of [`ROWS`] that differ in kube-proxy's mode IPVS.
#[rustfmt::skip]
pub(crate) const ROWS_OF_IPVS: &[Row] = &[
    row("clusterIP, number of a nodePort", To::ClusterIpAtNodePort(&CLUSTER), [Bridge, Bridge, Second, Bridge, Second, NotAsked]),
    row("nodePort, 127.0.0.1", To::LoopbackNodePort(&CLUSTER),   [NotAsked, NotAsked, NotAsked, Closed,   Closed,   NotAsked]),
    row("nodePort, policy Local, its node", To::NodePort(&LOCAL, 0), [Bridge, Client, Second,   First,   Second,   Client]),
    row("nodePort, policy Local, the other node", To::NodePort(&LOCAL, 1), [Closed, Closed, Closed, Closed, Closed, Closed]),
    row("load balancer, policy Local, by its node", To::Balancer(&LOCAL, 0), [Bridge, Client, Closed, Client, Closed, Client]),
    row("load balancer, policy Local, by the other node", To::Balancer(&LOCAL, 1), [Bridge, Client, Closed, Client, Closed, Closed]),
];

impl Row {
    /// The addresses that the server sees with kube-proxy in this mode.
    pub(crate) fn with(&self, mode: Mode) -> [Seen; 6] {
        let differs = ROWS_OF_IPVS.iter().find(|row| mode == Mode::Ipvs && row.name == self.name);
        differs.unwrap_or(self).seen
    }
}

impl To {
    /// True if kube-proxy translates the destination.
    pub(crate) fn is_service(&self) -> bool {
        matches!(
            self,
            Self::ClusterIp(_)
                | Self::ClusterIpAtNodePort(_)
                | Self::NodePort(..)
                | Self::LoopbackNodePort(_)
                | Self::Balancer(..)
        )
    }

    /// The name of the server that replies.
    pub(crate) fn server(&self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::ClusterIp(service) | Self::NodePort(service, _) if service.on_node => "node",
            Self::Internet | Self::Metadata => "internet",
            _ => "web",
        }
    }

    /// The destination's addresses of one family (0 or 1). If it makes a difference, one of the ports is remapped and
    /// another is not.
    pub(crate) fn addresses(&self, world: &World, family: usize) -> Vec<SocketAddr> {
        let node = |index: usize| world.cluster.nodes[index].addresses[family];
        let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
        let all = |ip: IpAddr, ports: &[u16]| ports.iter().map(|port| at(ip, *port)).collect();
        let loopback = |ports: &[u16]| match family {
            0 => all(Ipv4Addr::LOCALHOST.into(), ports),
            _ => Vec::new(),
        };
        match self {
            Self::Pod => all(world.web.addresses[family], &POD_PORTS),
            Self::HostPort(index) => all(node(*index), &HOST_PORTS),
            Self::LoopbackHostPort => loopback(&HOST_PORTS),
            Self::Node => all(node(0), &[NODE_PORT]),
            Self::ClusterIp(service) | Self::ClusterIpAtNodePort(service) => {
                let of_node_port = matches!(self, Self::ClusterIpAtNodePort(_));
                // Only this Service has a separate row for these ports, because kube-proxy treats those of the others
                // alike.
                let is_split = service.name == CLUSTER.name;
                let mut ports = service.own_ports();
                ports.retain(|port| !is_split || service.node_ports().contains(port) == of_node_port);
                all(parse(service.cluster_ips[family]), &ports)
            }
            Self::NodePort(service, index) => all(node(*index), &service.node_ports()),
            Self::LoopbackNodePort(service) => loopback(&service.node_ports()),
            Self::Balancer(service, by) => all(parse(service.balancers[*by][family]), &service.own_ports()),
            Self::Internet => all(parse(BEYOND[family]), &[80]),
            Self::Metadata => all(parse(METADATA[family]), &[80]),
        }
    }
}
