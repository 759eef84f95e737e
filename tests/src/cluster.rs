// SPDX-License-Identifier: GPL-2.0-or-later

//! Several nodes on one link, with a host outside that routes between them and the rest of the world.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::os::fd::AsRawFd;

use nix::sched::{CloneFlags, unshare};

use crate::node::{BridgeNetfilter, Node, Pod};
use crate::space::Space;

/// The last part of the outside host's addresses on the link (see [`on_link`]).
const OUTSIDE: u8 = 9;
/// The last part of the addresses of the control plane's namespace on the link.
const CONTROL: u8 = 2;
/// The last part of the first node's addresses on the link, minus one.
const NODES: u8 = 10;

/// Nodes joined by a bridge in a separate namespace, as in a data centre.
///
/// Each node has a range of pod addresses of both families ([`pod_ranges`]), which the other nodes and the outside host
/// route to it. The nodes' default route leads to the outside host.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes, ordered by their numbers, which begin at 1.
    pub nodes: Vec<ClusterNode>,
    /// The host outside: the nodes' router, and whatever is beyond it.
    pub outside: Member,
    /// A namespace for programs of the control plane.
    pub control: Member,
    /// The namespace with the bridge, dropped last.
    lan: Node,
}

#[derive(Debug)]
pub struct ClusterNode {
    node: Node,
    /// The node's number, from 1.
    pub number: u8,
    /// The node's addresses on the link, IPv4 and IPv6.
    pub addresses: [IpAddr; 2],
}

/// A namespace of a [`Cluster`] that is not a node.
#[derive(Debug)]
pub struct Member {
    pod: Pod,
    /// The namespace's addresses on the link, IPv4 and IPv6.
    pub addresses: [IpAddr; 2],
}

impl Cluster {
    /// Makes a cluster of `count` nodes. `prepare` is called on each node before anything else is done in it.
    pub fn new(count: u8, prepare: impl Fn(&mut Node)) -> Self {
        let cluster = Self::without_pod_routes(count, prepare);
        for to in &cluster.nodes {
            let others = cluster.nodes.iter().filter(|from| from.number != to.number);
            for from in others.map(|node| &**node as &Space).chain([&*cluster.outside as &Space]) {
                for (range, via) in pod_ranges(to.number).iter().zip(to.addresses) {
                    from.cmd(&format!("ip route add {range} via {via}"));
                }
            }
        }
        cluster
    }

    /// Makes a cluster like [`Self::new`], but without the routes to pods, which the code under test installs.
    pub fn without_pod_routes(count: u8, prepare: impl Fn(&mut Node)) -> Self {
        let lan = Node::new();
        lan.bridge_netfilter(BridgeNetfilter::Off);
        // Without multicast snooping, neighbour solicitations reach all ports at once.
        lan.cmd("ip link add lan0 type bridge mcast_snooping 0");
        lan.cmd("ip link set lan0 up");
        let member = |name: &str, number| {
            let pod = lan.pod(name);
            pod.sysctl("net/ipv6/conf/default/accept_dad", "0");
            join(&lan, &pod, number);
            Member { pod, addresses: on_link(number) }
        };
        let (outside, control) = (member("outside", OUTSIDE), member("control", CONTROL));
        outside.sysctl("net/ipv4/ip_forward", "1");
        outside.sysctl("net/ipv6/conf/all/forwarding", "1");
        let nodes: Vec<_> = (1..=count)
            .map(|number| {
                let mut node = Node::new();
                prepare(&mut node);
                join(&lan, &node, NODES + number);
                route_by(&node, outside.addresses);
                ClusterNode { node, number, addresses: on_link(NODES + number) }
            })
            .collect();
        Self { nodes, outside, control, lan }
    }

    /// The space through which all frames between the nodes pass.
    pub fn lan(&self) -> &Space {
        &self.lan
    }
}

/// The ranges of a node's pods, IPv4 and IPv6.
pub fn pod_ranges(node: u8) -> [String; 2] {
    [format!("10.244.{node}.0/24"), format!("fd44:0:0:{node}::/64")]
}

/// The addresses that a bridge with `isGateway` has on a node, which are the first of the node's ranges.
pub fn pod_gateways(node: u8) -> [IpAddr; 2] {
    [Ipv4Addr::new(10, 244, node, 1).into(), Ipv6Addr::new(0xfd44, 0, 0, node.into(), 0, 0, 0, 1).into()]
}

fn on_link(number: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(192, 168, 50, number).into(),
        Ipv6Addr::new(0xfd50, 0, 0, 0, 0, 0, 0, number.into()).into(),
    ]
}

/// Joins a namespace to the bridge, with `eth0` in the namespace and `port<number>` on the bridge. The two may be in
/// mount namespaces that do not share names of network namespaces, so ip(8) gets a descriptor of this process.
fn join(lan: &Node, space: &Space, number: u8) {
    let path = format!("/proc/{}/fd/{}", std::process::id(), space.net.as_raw_fd());
    let port = format!("port{number}");
    lan.cmd_input(
        "ip -batch -",
        &format!(
            "link add {port} type veth peer name eth0 netns {path}\n\
             link set {port} master lan0\n\
             link set {port} up\n"
        ),
    );
    configure(space, on_link(number));
    lan.wait_up(&port);
}

fn configure(space: &Space, addresses: [IpAddr; 2]) {
    let [v4, v6] = addresses;
    space.cmd_input(
        "ip -batch -",
        &format!(
            "link set lo up\n\
             address add {v4}/24 dev eth0\n\
             address add {v6}/64 dev eth0 nodad\n\
             link set eth0 up\n"
        ),
    );
    space.wait_up("eth0");
    space.wait_local(v6);
}

/// Joins two spaces by a veth pair with these names. The spaces may be in different mount namespaces.
pub fn wire(one: (&Space, &str), other: (&Space, &str)) {
    let path = format!("/proc/{}/fd/{}", std::process::id(), other.0.net.as_raw_fd());
    one.0.cmd(&format!("ip link add {} type veth peer name {} netns {path}", one.1, other.1));
    for (space, name) in [one, other] {
        space.cmd(&format!("ip link set {name} up"));
    }
    for (space, name) in [one, other] {
        space.wait_up(name);
    }
}

/// Lets a node forward, and gives it default routes.
fn route_by(node: &Node, routers: [IpAddr; 2]) {
    node.forward();
    for via in routers {
        node.cmd(&format!("ip route add default via {via}"));
    }
}

impl ClusterNode {
    /// Gives the node the network that it has after a reboot: a new namespace with an uplink that keeps its MAC
    /// address. No process may be left in the old namespace.
    pub fn renew_network(&mut self, routers: [IpAddr; 2]) {
        let fresh = self.node.run(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace");
            File::open("/proc/thread-self/ns/net").expect("open the new namespace")
        });
        let path = format!("/proc/{}/fd/{}", std::process::id(), fresh.as_raw_fd());
        self.node.cmd(&format!("ip link set eth0 netns {path}"));
        self.node.replace_network(fresh);
        self.node.sysctl("net/ipv6/conf/default/accept_dad", "0");
        self.node.sysctl("net/ipv6/conf/eth0/accept_dad", "0");
        configure(&self.node, self.addresses);
        route_by(&self.node, routers);
    }
}

impl Deref for ClusterNode {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Deref for Member {
    type Target = Pod;
    fn deref(&self) -> &Pod {
        &self.pod
    }
}
