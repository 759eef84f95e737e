// SPDX-License-Identifier: GPL-2.0-or-later

//! A node with containers to attach and detach, and the ways in which runtimes clean up after an interrupted ADD.

use std::cell::RefCell;

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Pod, Proto, Snapshot, host_local, limited, tuned};

/// The list for pod `number`, in which `interface` makes or moves the links.
pub(crate) fn list(interface: &str, number: u16) -> Value {
    let ipam = host_local("10.88.0.0/24", "fd00:88::/64");
    if interface == "flannel" {
        let delegate = json!({"bridge": "br0", "hairpinMode": true});
        return json!({"name": "net", "plugins": [{"type": "flannel", "delegate": delegate}]});
    }
    if is_pair(interface) {
        let chained = chained(interface);
        let interface = if chained.is_some() { "bridge" } else { interface };
        let plugin = json!({
            "type": interface, "bridge": "br0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "macspoofchk": chained.is_none(), "ipam": ipam,
        });
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        return json!({"name": "net", "plugins": [plugin, chained.unwrap_or(portmap)]});
    }
    let plugin = json!({
        "type": interface, "master": "out0", "vlanId": number, "device": format!("dev{number}"), "ipam": ipam,
    });
    json!({"name": "net", "plugins": [plugin]})
}

/// True if the plugin connects containers to the node by a veth pair.
pub(crate) fn is_pair(interface: &str) -> bool {
    ["bridge", "flannel", "ptp"].contains(&interface) || chained(interface).is_some()
}

/// The plugin with this name if it is one that is chained after bridge, in portmap's place.
pub(crate) fn chained(name: &str) -> Option<Value> {
    Some(match name {
        "bandwidth" => limited(),
        "firewall" => json!({"type": "firewall", "backend": "nftables", "ingressPolicy": "isolated"}),
        "firewall_iptables" => {
            json!({"type": "firewall", "backend": "iptables", "ingressPolicy": "isolated"})
        }
        "sbr" => json!({"type": "sbr"}),
        "vrf" => json!({"type": "vrf", "vrfname": "blue"}),
        "tuning" => tuned(),
        _ => return None,
    })
}

/// A node with one running pod, and another pod to attach and detach.
pub(crate) struct Stage {
    pub(crate) node: Node,
    first: Pod,
    pod: RefCell<Pod>,
    interface: &'static str,
}

impl Stage {
    /// A node on which nothing has been attached yet.
    pub(crate) fn empty(interface: &'static str) -> Self {
        let node = Node::without_bridge_netfilter();
        if interface == "flannel" {
            let share = "FLANNEL_NETWORK=10.88.0.0/16\nFLANNEL_SUBNET=10.88.0.1/24\nFLANNEL_IPV6_NETWORK=fd00:88::/56\n\
                FLANNEL_IPV6_SUBNET=fd00:88::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
            node.write("/run/flannel/subnet.env", share);
        }
        if !is_pair(interface) {
            // Creates a master link, and a device for each pod.
            let _outside = node.host("outside");
            for number in [1, 2] {
                let add = format!("ip link add dev{number} type veth peer name wire{number} netns outside");
                node.cmd(&add);
            }
        }
        let (first, pod) = (node.pod("first"), node.pod("pod"));
        // Duplicate address detection is off, because it would take a second at each point.
        for pod in [&first, &pod] {
            pod.sysctl("net/ipv6/conf/default/accept_dad", "0");
        }
        Self { node, first, pod: RefCell::new(pod), interface }
    }

    pub(crate) fn new(interface: &'static str) -> Self {
        let stage = Self::empty(interface);
        stage.network_of(1).add(&stage.first()).expect("ADD of the first pod");
        if is_pair(interface) {
            // This creates a flow. Without any flow, publishing a UDP port would not search for flows to it.
            stage.node.run(|| {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
                socket.send_to(b"x", "127.0.0.1:9").expect("send");
            });
            let _ = stage.node.try_cmd("conntrack -U -p udp -t 86400 --dport 9");
        }
        stage
    }

    pub(crate) fn network(&self) -> Network<'_> {
        self.network_of(2)
    }

    pub(crate) fn network_of(&self, number: u16) -> Network<'_> {
        self.node.network(list(self.interface, number))
    }

    pub(crate) fn first(&self) -> Attach {
        Attach::new(&self.first).port(Proto::Tcp, 8080, 80)
    }

    pub(crate) fn attach(&self) -> Attach {
        let attach = Attach::new(&self.pod.borrow()).port(Proto::Tcp, 9000, 80).port(Proto::Udp, 9000, 80);
        attach.port_on("192.0.2.1", Proto::Tcp, 9001, 80)
    }

    /// The state that must be unchanged. Left out are counters; what is derived from the reservations; the pod's own
    /// settings, which end with it; temporary files of a killed writer, which later calls remove; and the rules that
    /// the kernel adds with the first VRF of a namespace and never deletes (`vrf_add_fib_rules`), because a pod that
    /// has replaced another one has had no VRF yet.
    pub(crate) fn state(&self) -> Snapshot {
        Snapshot::take(&self.node, &[&**self.pod.borrow(), &*self.first]).without(&[
            "last_reserved_ip",
            "networks/.slipway/",
            "/.slipway-tmp-",
            "lookup [l3mdev-table]",
        ])
    }

    /// Replaces the container by a new one with the same name.
    pub(crate) fn replace_pod(&self) {
        // The name has to be free first.
        let placeholder = self.node.pod("placeholder");
        self.pod.replace(placeholder).remove();
        let pod = self.node.pod("pod");
        pod.sysctl("net/ipv6/conf/default/accept_dad", "0");
        self.pod.replace(pod).remove();
    }

    /// Asserts that ADD, CHECK and DEL succeed.
    #[track_caller]
    pub(crate) fn prove_fresh(&self, why: &str) {
        let network = self.network();
        network.add(&self.attach()).unwrap_or_else(|failure| panic!("{why}: a fresh ADD: {failure}"));
        network.check(&self.attach()).unwrap_or_else(|failure| panic!("{why}: its CHECK: {failure}"));
        check_first(&network, &self.first(), why);
        network.del(&self.attach()).unwrap_or_else(|failure| panic!("{why}: its DEL: {failure}"));
    }
}

/// Asserts that the pod which has been running all the time is unchanged. Without a cache there is no prevResult, so
/// this checks only the pod's reservation and namespace.
fn check_first(network: &Network<'_>, first: &Attach, why: &str) {
    let configs = network.configs(Some(first));
    let mut ipam = configs[0].clone();
    ipam["type"] = json!("host-local");
    if ipam["ipam"].is_null() {
        // flannel derives the ranges from flanneld's file.
        ipam["ipam"] = json!({"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]});
    }
    let output = network.call("CHECK", &ipam, Some(first));
    assert!(output.result().is_ok(), "{why}: {}", output.process);
}

/// How a runtime cleans up after an ADD whose result it does not know.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cleanup {
    Del,
    /// A DEL and a second one without the namespace, as containerd does it.
    DelTwice,
    /// A GC after the container's end. A link that was made just before the kill does not name an owner yet, but one of
    /// its ends is in the namespace, and the link is deleted together with that.
    Gc,
}

impl Cleanup {
    const ALL: [Self; 3] = [Self::Del, Self::DelTwice, Self::Gc];

    /// Chooses a way that suits the plugin. If the namespace ended, the kernel would also delete the test's device for
    /// host-device, which is one end of a veth pair.
    pub(crate) fn of(interface: &str, turn: usize) -> Self {
        let fitting = if interface == "host-device" { 2 } else { Self::ALL.len() };
        Self::ALL[turn % fitting]
    }

    #[track_caller]
    pub(crate) fn run(self, stage: &Stage, why: &str) {
        let network = stage.network();
        let fine = |failure: &dyn std::fmt::Display| panic!("{why}: {self:?}: {failure}");
        match self {
            Self::Del => network.del(&stage.attach()).unwrap_or_else(|failure| fine(&failure)),
            Self::DelTwice => {
                network.del(&stage.attach()).unwrap_or_else(|failure| fine(&failure));
                network.del(&stage.attach().netns("")).unwrap_or_else(|failure| fine(&failure));
            }
            Self::Gc => {
                stage.replace_pod();
                if let Err(failures) = network.gc(&[&stage.first()]) {
                    failures.iter().for_each(|failure| fine(failure));
                }
            }
        }
    }
}
