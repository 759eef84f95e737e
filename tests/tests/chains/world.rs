//! The lists, and the node that they are tried on.

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{Attach, Host, Network, Node, Pod, Proto, Snapshot, Space, is_peer, lacks};

/// The port of the node that the container under test is published at, and the container's own.
pub(crate) const PORT: u16 = 8080;
pub(crate) const SERVED: u16 = 80;

/// Bits a second into the container and out of it, and the burst: enough for the largest packet that the
/// kernel puts together.
pub(crate) const INGRESS: u64 = 16_000_000;
pub(crate) const EGRESS: u64 = 8_000_000;
const BURST: u64 = 600_064;

/// What tuning sets.
pub(crate) const MAC: &str = "02:00:00:00:00:07";
pub(crate) const MTU: u16 = 1400;
pub(crate) const SYSCTL: &str = "net/ipv4/conf/eth0/arp_filter";

/// A list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chain {
    /// bridge, portmap, bandwidth, firewall and tuning; ports, masquerade and rules by this backend.
    Everything(&'static str),
    /// ptp and portmap.
    Routed,
    /// macvlan and sbr: a container's second network.
    Second,
    /// As kube-flannel installs it: flannel, which lets bridge do the work, and portmap.
    Flannel,
    /// As kubelet wrote it for itself: a bridge without masquerade, in the oldest form of the specification,
    /// beside loopback.
    Kubenet,
}

impl Chain {
    pub(crate) fn ifname(self) -> &'static str {
        if self == Self::Second { "net1" } else { "eth0" }
    }

    /// What the kernel lacks for it.
    pub(crate) fn lacks(self) -> Option<&'static str> {
        if self == Self::Second { lacks("macvlan") } else { None }
    }

    /// Whether the container is published on the node.
    pub(crate) fn publishes(self) -> bool {
        self != Self::Second
    }

    /// Whether others see the node's address in its stead.
    pub(crate) fn masquerades(self) -> bool {
        !matches!(self, Self::Second | Self::Kubenet)
    }

    /// The first version of the specification that has CHECK, and another one GC and STATUS.
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

    /// The list with one that is good for CHECK, GC and STATUS too.
    pub(crate) fn modern(self) -> Value {
        let mut list = self.list();
        list.as_object_mut().expect("a list").remove("cniVersion");
        list
    }

    /// What the runtime knows of the container, published at `port`. One of them is given an address.
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

/// The longest list, on the bridge of that number.
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
    json!({
        "type": "host-local", "ranges": [[{"subnet": format!("{v4}.0/24")}], [{"subnet": format!("{v6}::/64")}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    })
}

/// A node with a host outside, and what the list needs of them.
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) client: Host,
    pub(crate) chain: Chain,
}

impl World {
    /// None where another implementation is tried: it lacks some of the plugins, and of what is asked of them.
    pub(crate) fn of(chain: Chain) -> Option<Self> {
        if is_peer() {
            return None;
        }
        let node = Node::new();
        let client = node.host("client");
        // The gateway of those that are on the outer network themselves.
        client.cmd("ip address add 10.60.1.1/24 dev eth0");
        client.cmd("ip address add fd00:60:1::1/64 dev eth0 nodad");
        // The file that flanneld writes.
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

    /// The network that a container has before this one.
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

    /// A container that has no part of the list yet.
    pub(crate) fn pod(&self, name: &str) -> Pod {
        let pod = self.node.pod(name);
        pod.sysctl("net/ipv6/conf/default/accept_dad", "0");
        self.before().add(&self.before_for(&pod)).expect("ADD of what comes before");
        pod
    }

    /// Ends a container.
    pub(crate) fn end(&self, pod: Pod) {
        self.before().del(&self.before_for(&pod)).expect("DEL of what came before");
        pod.remove();
    }

    /// What the first container of a node leaves for the others.
    pub(crate) fn warm_up(&self) {
        let (network, pod) = (self.network(), self.pod("warm"));
        let attach = self.chain.attach(&pod, PORT);
        network.add(&attach).expect("the first ADD");
        network.del(&attach).expect("the first DEL");
        self.end(pod);
    }

    /// The state of the node and the containers, without what counts on, and what is derived from the
    /// reservations.
    pub(crate) fn state(&self, pods: &[&Pod]) -> Snapshot {
        // The kernel makes an IPv6 address's own route a moment after the address.
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

/// An address of a result of any version, without its prefix.
pub(crate) fn address(result: &Value, family: usize) -> IpAddr {
    let old = ["ip4", "ip6"][family];
    let net = result["ips"][family]["address"].as_str().or_else(|| result[old]["ip"].as_str());
    let text = net.and_then(|net| net.split('/').next()).expect("an address");
    text.parse().expect("an IP address")
}
