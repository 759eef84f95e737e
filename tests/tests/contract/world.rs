//! The stage: a node with two bridges, hosts outside, and pods that answer with their names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::thread;

use serde_json::{Value, json};
use slipway_tests::{Attach, BridgeNetfilter, Host, Network, Node, Pod, Proto, Server, at};

/// The port that every pod serves.
pub(crate) const SERVED: u16 = 80;

/// The host port that most tests publish.
pub(crate) const PORT: u16 = 8080;

/// How pods are published and masqueraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each suite that shares these tests has one of them")]
pub(crate) enum Dataplane {
    /// As a configuration does that says nothing of it.
    Default,
    /// By the chains of iptables, of this variant.
    Iptables(&'static str),
    /// By our table, established flows by a flowtable where the kernel has one.
    Flowtable,
    /// By the BPF programs, on top of our table.
    Ebpf,
}

/// Runs the body of a test of what chains of iptables cannot do, for the reason given, whoever made
/// them: it must pass with our table, and fail with them.
pub(crate) fn only_the_table(reason: &str, body: impl FnOnce()) {
    if !matches!(crate::DATAPLANE, Dataplane::Iptables(_)) {
        return slipway_tests::peer_fails(reason, body);
    }
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(()) => panic!("iptables can do it, though it should not: {reason}"),
        Err(_) => eprintln!("iptables cannot do it, as expected: {reason}"),
    }
}

/// A node that has one host outside.
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) client: Host,
    /// The plugin that joins the pods to it.
    pub(crate) interface: &'static str,
}

impl World {
    /// A node whose pods are on bridges.
    pub(crate) fn new(netfilter: BridgeNetfilter) -> Self {
        let mut node = Node::new();
        if crate::DATAPLANE == Dataplane::Ebpf && !node.own_cgroup() {
            eprintln!("no control groups of version 2: the node's own sockets are left to nftables");
        }
        node.bridge_netfilter(netfilter);
        let client = node.host("client");
        if let Dataplane::Iptables(variant) = crate::DATAPLANE {
            // As a node that runs kube-proxy shows which variant it uses.
            for family in ["iptables", "ip6tables"] {
                node.cmd(&format!("{family}-{variant} -t nat -N KUBE-SERVICES"));
            }
        }
        if crate::DATAPLANE == Dataplane::Flowtable {
            node.own_etc();
            node.write("/etc/cni/slipway.json", r#"{"flowtable": true}"#);
        }
        if matches!(crate::DATAPLANE, Dataplane::Flowtable | Dataplane::Ebpf) {
            // The link that either takes for the one to elsewhere, also for what has no route of its own.
            node.cmd(&format!("ip route add default via {}", client.v4));
            node.cmd(&format!("ip route add default via {}", client.v6));
        }
        Self { node, client, interface: "bridge" }
    }

    /// A node whose pods have links of their own. There is no bridge for br_netfilter to look at:
    /// that it is on makes no difference.
    pub(crate) fn ptp() -> Self {
        Self { interface: "ptp", ..Self::new(BridgeNetfilter::On) }
    }

    /// The node's own addresses towards the client.
    pub(crate) fn node_ips(&self) -> [IpAddr; 2] {
        [self.client.node_v4.into(), self.client.node_v6.into()]
    }

    /// The configuration list of network `number`: dual stack, ipMasq, hairpin, and portmap with
    /// `extra` keys.
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

/// The same, and on a node without bridges.
pub(crate) fn in_every_topology(test: impl Fn(&World) + Sync) {
    at_once(&[&|| with_and_without_bridge_netfilter(&test), &|| test(&World::ptp())]);
}

/// Runs these at the same time. The first panic goes on in the caller when all have ended.
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

/// The configuration list of network `number` with a bridge.
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
    for (key, value) in extra.as_object().expect("an object") {
        portmap[key] = value.clone();
    }
    list["plugins"].as_array_mut().expect("a list").push(portmap);
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
                "ipam": {
                    "type": "host-local",
                    "ranges": [
                        [{"subnet": format!("10.88.{number}.0/24")}],
                        [{"subnet": format!("fd00:88:{number}::/64")}],
                    ],
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                },
            },
        ],
    })
}

/// The bridge's own addresses in network `number`.
pub(crate) fn gateways(number: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(10, 88, number, 1).into(),
        Ipv6Addr::new(0xfd00, 0x88, u16::from(number), 0, 0, 0, 0, 1).into(),
    ]
}

/// A pod that was added to a network and serves TCP and UDP, IPv4 and IPv6.
pub(crate) struct Web {
    pod: Pod,
    pub(crate) attach: Attach,
    pub(crate) v4: IpAddr,
    pub(crate) v6: IpAddr,
    servers: Vec<Server>,
}

impl Web {
    /// Adds a pod with what `prepare` asks for.
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

    /// Starts the servers of a pod that was added.
    pub(crate) fn serve(pod: Pod, attach: Attach, result: &Value) -> Self {
        let ips: Vec<IpAddr> = result["ips"]
            .as_array()
            .expect("a result has ips")
            .iter()
            .filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok())
            .collect();
        let v4 = *ips.iter().find(|ip| ip.is_ipv4()).expect("an IPv4 address");
        let v6 = *ips.iter().find(|ip| ip.is_ipv6()).expect("an IPv6 address");
        let mut servers = Vec::new();
        for ip in [v4, v6] {
            for proto in Proto::ALL {
                servers.push(pod.serve(proto, &at(ip, SERVED).to_string(), pod.name()));
            }
        }
        Self { pod, attach, v4, v6, servers }
    }

    /// A pod with [`PORT`] published for both protocols on every address.
    pub(crate) fn published(world: &World, network: &Network<'_>, name: &str) -> Self {
        Self::new(world, network, name, |attach| {
            attach.port(Proto::Tcp, PORT, SERVED).port(Proto::Udp, PORT, SERVED)
        })
    }

    pub(crate) fn ips(&self) -> [IpAddr; 2] {
        [self.v4, self.v6]
    }

    /// Stops the servers and takes the namespace away, without telling the plugins.
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

/// Each address with the port, for each protocol.
pub(crate) fn each(
    ips: impl IntoIterator<Item = impl Into<IpAddr>>,
    port: u16,
) -> impl Iterator<Item = (Proto, SocketAddr)> {
    ips.into_iter().flat_map(move |ip| {
        let to = at(ip, port);
        Proto::ALL.map(|proto| (proto, to))
    })
}
