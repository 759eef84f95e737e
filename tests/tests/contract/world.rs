// SPDX-License-Identifier: GPL-2.0-or-later

//! The test node with two bridges, an outside host, and pods that answer with their names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::thread;

use cni_kernel::ethtool::Switch;
use serde_json::{Value, json};
use slipway_tests::{
    Attach, BridgeNetfilter, Host, Network, Node, Pod, Proto, Server, addresses_of, at, has_ipv6, host_local,
    usable, with_keys,
};

/// The port on which every pod listens.
pub(crate) const SERVED: u16 = 80;

/// The host port that most tests publish.
pub(crate) const PORT: u16 = 8080;

/// The backend that publishes ports and masquerades.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each suite that shares these tests has one of them")]
pub(crate) enum Dataplane {
    /// The configuration names no backend.
    Default,
    /// iptables in this variant.
    Iptables(&'static str),
    /// nftables with a flowtable, if the kernel has one.
    Flowtable,
    /// nftables with BPF programs that carry packets of flows which netfilter has checked.
    Ebpf,
    /// nftables on a node whose uplink merges datagrams.
    UdpGro,
}

/// Runs a test that passes with nftables and must fail with iptables chains, for `reason`.
pub(crate) fn only_nftables(reason: &str, body: impl FnOnce()) {
    if !matches!(crate::DATAPLANE, Dataplane::Iptables(_)) {
        return slipway_tests::peer_fails(reason, body);
    }
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(()) => panic!("the test passed with iptables, but must fail: {reason}"),
        Err(_) => eprintln!("failed with iptables, as expected: {reason}"),
    }
}

/// True in a suite whose nodes have no iptables programs.
pub(crate) fn without_iptables() -> bool {
    env!("CARGO_CRATE_NAME").ends_with("_without_iptables")
}

/// A node and an outside host.
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) client: Host,
    /// The plugin that attaches the pods.
    pub(crate) interface: &'static str,
}

impl World {
    pub(crate) fn new(netfilter: BridgeNetfilter) -> Self {
        let node = Node::new();
        node.bridge_netfilter(netfilter);
        if without_iptables() {
            node.hide_iptables();
        }
        let client = node.host("client");
        if let Dataplane::Iptables(variant) = crate::DATAPLANE {
            // The existence of kube-proxy's chain decides between iptables-nft and iptables-legacy.
            for family in ["iptables", "ip6tables"] {
                node.cmd(&format!("{family}-{variant} -t nat -N KUBE-SERVICES"));
            }
        }
        if crate::DATAPLANE == Dataplane::Flowtable {
            node.own_etc();
            node.write("/etc/cni/slipway.json", r#"{"flowtable": true}"#);
        }
        if matches!(crate::DATAPLANE, Dataplane::Flowtable | Dataplane::Ebpf | Dataplane::UdpGro) {
            // The flowtable and the BPF programs look for the uplink, which is the client's link if it has the default
            // routes.
            for router in usable([client.v4.into(), client.v6.into()]) {
                node.cmd(&format!("ip route add default via {router}"));
            }
        }
        if crate::DATAPLANE == Dataplane::UdpGro {
            node.own_etc();
            node.write("/etc/cni/slipway.json", r#"{"udpGroForwarding": true}"#);
            // Network cards have GRO, but a veth has it only on request.
            node.set_feature(&client.node_link, "rx-gro", Switch::On);
            // The datagrams of one call arrive at the uplink separately but at the same time.
            client.set_feature("eth0", "tx-udp-segmentation", Switch::Off);
            // If the binary has no BPF programs, the command fails after it has set GRO up.
            let _ = node.try_slipway("node setup");
        }
        Self { node, client, interface: "bridge" }
    }

    /// A node with point-to-point links. It has no bridge, so bridge netfilter makes no difference.
    pub(crate) fn ptp() -> Self {
        Self { interface: "ptp", ..Self::new(BridgeNetfilter::On) }
    }

    /// Returns the node's addresses towards the client: one of each family that the kernel has, IPv4 first.
    pub(crate) fn node_ips(&self) -> Vec<IpAddr> {
        usable([self.client.node_v4.into(), self.client.node_v6.into()])
    }

    /// Returns the client's addresses in the same order.
    #[allow(dead_code, reason = "the suite udp_gro does without it")]
    pub(crate) fn client_ips(&self) -> Vec<IpAddr> {
        usable([self.client.v4.into(), self.client.v6.into()])
    }

    /// Returns the configuration list of network `number`: dual stack, ipMasq, hairpin, and portmap with the
    /// keys `extra`.
    pub(crate) fn list(&self, number: u8, extra: &Value) -> Value {
        let mut list = list(number, extra);
        list["plugins"][0]["type"] = self.interface.into();
        list
    }

    pub(crate) fn network_with(&self, number: u8, extra: &Value) -> Network<'_> {
        self.node.network(self.list(number, extra))
    }

    pub(crate) fn network(&self, number: u8) -> Network<'_> {
        self.network_with(number, &json!({}))
    }
}

/// Runs a test on a node where bridged packets pass through netfilter and, at the same time, on one where they do
/// not.
pub(crate) fn with_and_without_bridge_netfilter(test: impl Fn(&World) + Sync) {
    at_once(&[&|| test(&World::new(BridgeNetfilter::Off)), &|| test(&World::new(BridgeNetfilter::On))]);
}

/// Runs a test on these two nodes, and on one without bridges.
pub(crate) fn in_every_topology(test: impl Fn(&World) + Sync) {
    at_once(&[&|| with_and_without_bridge_netfilter(&test), &|| test(&World::ptp())]);
}

/// Runs these concurrently, and passes the first panic on to the caller when all have ended.
fn at_once(all: &[&(dyn Fn() + Sync)]) {
    let name = thread::current().name().unwrap_or("test").to_owned();
    thread::scope(|scope| {
        let started: Vec<_> = all
            .iter()
            .map(|one| thread::Builder::new().name(name.clone()).spawn_scoped(scope, one).expect("a thread"))
            .collect();
        for one in started {
            one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

/// Returns the configuration list of network `number` with a bridge.
pub(crate) fn list(number: u8, extra: &Value) -> Value {
    let mut portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let mut list = list_without_portmap(number);
    if let Dataplane::Iptables(_) = crate::DATAPLANE {
        portmap["backend"] = json!("iptables");
        list["plugins"][0]["ipMasqBackend"] = json!("iptables");
    }
    if crate::DATAPLANE == Dataplane::Ebpf {
        portmap["backend"] = json!("ebpf");
        list["plugins"][0]["ipMasqBackend"] = json!("ebpf");
    }
    list["plugins"].as_array_mut().expect("a list").push(with_keys(portmap, extra));
    list
}

fn list_without_portmap(number: u8) -> Value {
    json!({
        "name": format!("net{number}"),
        "plugins": [
            {
                "type": "bridge",
                "bridge": format!("br{number}"),
                "isGateway": true,
                "ipMasq": true,
                "hairpinMode": true,
                "ipam": host_local(format!("10.88.{number}.0/24"), format!("fd00:88:{number}::/64")),
            },
        ],
    })
}

/// Returns the bridge's addresses in network `number`: one of each family that the kernel has, IPv4 first.
pub(crate) fn gateways(number: u8) -> Vec<IpAddr> {
    usable([
        Ipv4Addr::new(10, 88, number, 1).into(),
        Ipv6Addr::new(0xfd00, 0x88, u16::from(number), 0, 0, 0, 0, 1).into(),
    ])
}

/// A pod on a network, with TCP and UDP servers in each family that the kernel has.
pub(crate) struct Web {
    pod: Pod,
    pub(crate) attach: Attach,
    #[allow(dead_code, reason = "the suite udp_gro does without it")]
    pub(crate) v4: IpAddr,
    ips: Vec<IpAddr>,
    servers: Vec<Server>,
}

impl Web {
    /// Adds a pod, with the attachment changed by `prepare`.
    pub(crate) fn new(
        world: &World,
        network: &Network<'_>,
        name: &str,
        prepare: impl Fn(Attach) -> Attach,
    ) -> Self {
        let pod = world.node.pod(name);
        let attach = prepare(Attach::new(&pod));
        let result = network.add(&attach).unwrap_or_else(|e| panic!("ADD {name}: {e}"));
        Self::serve(pod, attach, &result)
    }

    /// Starts the servers of an added pod.
    pub(crate) fn serve(pod: Pod, attach: Attach, result: &Value) -> Self {
        let mut ips = addresses_of(result);
        ips.sort_unstable();
        assert_eq!(ips.len(), if has_ipv6() { 2 } else { 1 }, "{result}");
        let v4 = *ips.first().filter(|ip| ip.is_ipv4()).expect("an IPv4 address");
        let mut servers = Vec::new();
        for ip in &ips {
            for proto in Proto::ALL {
                servers.push(pod.serve(proto, &at(*ip, SERVED).to_string(), pod.name()));
            }
        }
        Self { pod, attach, v4, ips, servers }
    }

    /// Adds a pod with [`PORT`] published on every address, TCP and UDP.
    pub(crate) fn published(world: &World, network: &Network<'_>, name: &str) -> Self {
        Self::new(world, network, name, |attach| {
            attach.port(Proto::Tcp, PORT, SERVED).port(Proto::Udp, PORT, SERVED)
        })
    }

    /// Returns the pod's addresses: one of each family that the kernel has, IPv4 first.
    pub(crate) fn ips(&self) -> Vec<IpAddr> {
        self.ips.clone()
    }

    /// Stops the servers and deletes the namespace, without a DEL.
    pub(crate) fn vanish(self) -> Attach {
        let Self { pod, attach, servers, .. } = self;
        drop(servers);
        pod.remove();
        attach
    }
}

impl Deref for Web {
    type Target = Pod;
    fn deref(&self) -> &Pod {
        &self.pod
    }
}

/// Returns each address with the port, for each protocol.
pub(crate) fn each(
    ips: impl IntoIterator<Item = impl Into<IpAddr>>,
    port: u16,
) -> impl Iterator<Item = (Proto, SocketAddr)> {
    ips.into_iter().flat_map(move |ip| {
        let to = at(ip, port);
        Proto::ALL.map(|proto| (proto, to))
    })
}
