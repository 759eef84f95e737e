// SPDX-License-Identifier: GPL-2.0-or-later

//! The lists, and the node on which they run.

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{Attach, Host, Network, Node, Pod, Proto, Snapshot, Space, host_local, is_peer, lacks};

/// The published port of the node.
pub(crate) const PORT: u16 = 8080;
/// The port on which the container listens.
pub(crate) const SERVED: u16 = 80;

/// Bits per second into and out of the container, and the burst, which must hold the largest packet that the
/// kernel builds (GSO).
pub(crate) const INGRESS: u64 = 16_000_000;
pub(crate) const EGRESS: u64 = 8_000_000;
const BURST: u64 = 600_064;

/// The settings that tuning makes.
pub(crate) const MAC: &str = "02:00:00:00:00:07";
pub(crate) const MTU: u16 = 1400;
pub(crate) const SYSCTL: &str = "net/ipv4/conf/eth0/arp_filter";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chain {
    /// bridge, portmap, bandwidth, firewall and tuning. Ports, masquerade and firewall use this backend.
    Everything(&'static str),
    Routed,
    /// macvlan and sbr, for a container's second network.
    Second,
    /// kube-flannel's list: flannel, which delegates to bridge, and portmap.
    Flannel,
    /// The list that kubelet once wrote: loopback, and a bridge without masquerade, in the oldest version of
    /// the specification.
    Kubenet,
}

impl Chain {
    pub(crate) fn ifname(self) -> &'static str {
        if self == Self::Second { "net1" } else { "eth0" }
    }

    /// Returns the feature that the list needs and the kernel lacks.
    pub(crate) fn lacks(self) -> Option<&'static str> {
        if self == Self::Second { lacks("macvlan") } else { None }
    }

    /// True if the list publishes ports.
    pub(crate) fn publishes(self) -> bool {
        self != Self::Second
    }

    /// True if other hosts see the node's address instead of the container's.
    pub(crate) fn masquerades(self) -> bool {
        !matches!(self, Self::Second | Self::Kubenet)
    }

    /// True if the list's version has no CHECK, GC and STATUS.
    pub(crate) fn is_old(self) -> bool {
        self == Self::Kubenet
    }

    pub(crate) fn list(self) -> Value {
        match self {
            Self::Everything(backend) => everything(1, backend),
            Self::Routed => json!({"name": "routed", "plugins": [
                {"type": "ptp", "ipMasq": true, "ipam": ipam("10.89.1", "fd00:89:1")}, portmap(),
            ]}),
            Self::Second => json!({"name": "second", "plugins": [
                {"type": "macvlan", "master": "out0", "ipam": ipam("10.60.1", "fd00:60:1")}, {"type": "sbr"},
            ]}),
            Self::Flannel => json!({"name": "cbr0", "plugins": [
                {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}}, portmap(),
            ]}),
            Self::Kubenet => json!({"cniVersion": "0.1.0", "name": "kubenet", "plugins": [
                {
                    "type": "bridge", "bridge": "cbr0", "mtu": 1460, "addIf": "eth0", "isGateway": true,
                    "ipMasq": false, "hairpinMode": true, "ipam": ipam("10.90.1", "fd00:90:1"),
                },
                portmap(),
            ]}),
        }
    }

    /// Returns the list without its version, so that it runs in one that has CHECK, GC and STATUS.
    pub(crate) fn modern(self) -> Value {
        let mut list = self.list();
        list.as_object_mut().expect("a list").remove("cniVersion");
        list
    }

    /// Returns the attachment of `pod` with port `port` published. On [`PORT`], the longest list also takes a
    /// MAC from the runtime.
    pub(crate) fn attach(self, pod: &Pod, port: u16) -> Attach {
        let attach = Attach::new(pod).ifname(self.ifname());
        let attach = match self.publishes() {
            true => attach.port(Proto::Tcp, port, SERVED).port(Proto::Udp, port, SERVED),
            false => attach,
        };
        match self {
            Self::Everything(_) if port == PORT => {
                attach.capability("bandwidth", rates()).capability("mac", MAC.into())
            }
            Self::Everything(_) => attach.capability("bandwidth", rates()),
            _ => attach,
        }
    }
}

pub(crate) fn rates() -> Value {
    json!({"ingressRate": INGRESS, "ingressBurst": BURST, "egressRate": EGRESS, "egressBurst": BURST})
}

/// Returns the longest list, on the bridge of this number.
pub(crate) fn everything(number: u8, backend: &str) -> Value {
    let mut list = json!({"name": format!("all{number}"), "plugins": [
        {
            "type": "bridge", "bridge": format!("all{number}"), "isDefaultGateway": true, "ipMasq": true,
            "hairpinMode": true, "ipam": ipam(&format!("10.88.{number}"), &format!("fd00:88:{number}")),
        },
        portmap(),
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        {"type": "firewall", "backend": backend, "ingressPolicy": "same-bridge"},
        {
            "type": "tuning", "capabilities": {"mac": true}, "mtu": MTU, "promisc": true, "allmulti": true, "txQLen": 77,
            "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
        },
    ]});
    if backend == "iptables" {
        list["plugins"][0]["ipMasqBackend"] = backend.into();
        list["plugins"][1]["backend"] = backend.into();
    }
    list
}

fn portmap() -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}})
}

fn ipam(v4: &str, v6: &str) -> Value {
    host_local(format!("{v4}.0/24"), format!("{v6}::/64"))
}

/// A node with an outside host, prepared for a list.
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) client: Host,
    pub(crate) chain: Chain,
}

impl World {
    /// Returns `None` if another implementation is tested, because it lacks some plugins and keys.
    pub(crate) fn of(chain: Chain) -> Option<Self> {
        if is_peer() {
            return None;
        }
        let node = Node::new();
        let client = node.host("client");
        // The client has the addresses of the gateway for containers on the outer network.
        client.cmd("ip address add 10.60.1.1/24 dev eth0");
        client.cmd("ip address add fd00:60:1::1/64 dev eth0 nodad");
        // The file that flanneld would write.
        node.write(
            "/run/flannel/subnet.env",
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\n\
             FLANNEL_IPV6_NETWORK=fd00:244::/56\nFLANNEL_IPV6_SUBNET=fd00:244:0:3::1/64\nFLANNEL_MTU=1450\n\
             FLANNEL_IPMASQ=false\n",
        );
        Some(Self { node, client, chain })
    }

    pub(crate) fn network(&self) -> Network<'_> {
        self.node.network(self.chain.list())
    }

    /// Returns the network that containers join before the list's.
    fn before(&self) -> Network<'_> {
        match self.chain {
            Chain::Second => self.node.network(json!({"name": "first", "plugins": [
                {"type": "ptp", "ipam": ipam("10.61.1", "fd00:61:1")},
            ]})),
            _ => self.node.network(json!({
                "cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}],
            })),
        }
    }

    fn before_for(&self, pod: &Pod) -> Attach {
        Attach::new(pod).ifname(if self.chain == Chain::Second { "eth0" } else { "lo" })
    }

    /// Creates a container that is not yet attached to the list's network.
    pub(crate) fn pod(&self, name: &str) -> Pod {
        let pod = self.node.pod(name);
        pod.sysctl("net/ipv6/conf/default/accept_dad", "0");
        self.before().add(&self.before_for(&pod)).expect("ADD of the network before");
        pod
    }

    pub(crate) fn end(&self, pod: Pod) {
        self.before().del(&self.before_for(&pod)).expect("DEL of the network before");
        pod.remove();
    }

    /// Creates the objects that stay on a node after its first container.
    pub(crate) fn warm_up(&self) {
        let (network, pod) = (self.network(), self.pod("warm"));
        let attach = self.chain.attach(&pod, PORT);
        network.add(&attach).expect("the first ADD");
        network.del(&attach).expect("the first DEL");
        self.end(pod);
    }

    /// Takes a snapshot of the node and the containers, without counters, locks and files derived from the
    /// reservations.
    pub(crate) fn state(&self, pods: &[&Pod]) -> Snapshot {
        // The kernel adds the host route of an IPv6 address when the address stops being tentative.
        for _ in 0..50 {
            if self.node.cmd("ip -6 address show tentative").is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let spaces: Vec<&Space> = pods.iter().map(|pod| -> &Space { pod }).collect();
        Snapshot::take(&self.node, &spaces).without(&[
            "last_reserved_ip",
            "networks/.slipway/",
            "/lock",
            "folder ",
            "file /run/slipway/",
        ])
    }
}

/// Returns an address of a result of any version, without its prefix length.
pub(crate) fn address(result: &Value, family: usize) -> IpAddr {
    let old = ["ip4", "ip6"][family];
    let net = result["ips"][family]["address"].as_str().or_else(|| result[old]["ip"].as_str());
    let text = net.and_then(|net| net.split('/').next()).expect("an address");
    text.parse().expect("an IP address")
}
