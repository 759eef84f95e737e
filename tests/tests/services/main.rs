// SPDX-License-Identifier: GPL-2.0-or-later

//! hostPorts next to engines that translate the addresses of Services, and which of the two gets a packet that both
//! match.
//!
//! The control is the backend `iptables`, whose rules are those of the reference plugins. There the Service wins,
//! because kube-proxy's rules come first in the chains that both share.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::IpAddr;

use serde_json::json;
use slipway_tests::{Attach, Host, Network, Node, Pod, Proto, Server, Space, address_of, at, host_local};

mod guard;
mod ipvs;
mod kube_proxy;
mod replacement;
mod vips;

/// The port of the Service, and the published port of the container.
const PORT: u16 = 8080;
/// The port on which pods serve.
const SERVED: u16 = 80;

/// The backend that publishes the container's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    Nftables,
    Ebpf,
    Iptables,
}

/// Generates a test for each backend of each function.
macro_rules! on_each_backend {
    ($($test:ident),+) => {
        mod nftables {
            $(#[test] fn $test() { super::$test(crate::Backend::Nftables); })+
        }
        mod ebpf {
            $(#[test] fn $test() {
                slipway_tests::needs!(slipway_tests::has_programs(), slipway_tests::PROGRAMS);
                super::$test(crate::Backend::Ebpf);
            })+
        }
        mod iptables {
            $(#[test] fn $test() { super::$test(crate::Backend::Iptables); })+
        }
    };
}
pub(crate) use on_each_backend;

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Ebpf => "ebpf",
            Self::Iptables => "iptables",
        }
    }
}

/// A node with an outside host, a pod that is a client, and the container whose port is published after a call of
/// [`Stage::publish`].
struct Stage {
    node: Node,
    client: Host,
    client_pod: Pod,
    backend: Backend,
}

/// The container whose port is published.
struct Ingress {
    attach: Attach,
    addresses: [IpAddr; 2],
    _pod: Pod,
    _servers: Vec<Server>,
}

impl Stage {
    fn new(backend: Backend) -> Self {
        Self::on_node_of(backend, "nft")
    }

    /// A stage on a node whose kubelet uses this variant of iptables, as kubelet's chain shows.
    fn on_node_of(backend: Backend, variant: &str) -> Self {
        let (node, client) = Node::with_client();
        node.cmd(&format!("ip route add default via {}", client.v4));
        node.cmd(&format!("ip route add default via {}", client.v6));
        for tool in ["iptables", "ip6tables"] {
            node.cmd(&format!("{tool}-{variant} -t mangle -N KUBE-KUBELET-CANARY"));
        }
        let client_pod = node.pod("inside");
        let stage = Self { node, client, client_pod, backend };
        stage.network(1).add(&Attach::new(&stage.client_pod)).expect("ADD");
        stage
    }

    fn network(&self, number: u8) -> Network<'_> {
        self.node.network(json!({
            "name": format!("net{number}"),
            "plugins": [
                {
                    "type": "bridge", "bridge": format!("br{number}"), "isGateway": true, "ipMasq": true,
                    "ipMasqBackend": self.backend.name(), "hairpinMode": true,
                    "ipam": host_local(format!("10.88.{number}.0/24"), format!("fd00:88:{number}::/64")),
                },
                {"type": "portmap", "backend": self.backend.name(), "capabilities": {"portMappings": true}},
            ],
        }))
    }

    /// A pod that answers with its name, whose attachment `prepare` may change.
    fn pod(&self, number: u8, name: &str, prepare: impl Fn(Attach) -> Attach) -> Ingress {
        let pod = self.node.pod(name);
        let attach = prepare(Attach::new(&pod));
        let network = self.network(number);
        let result = network.add(&attach).unwrap_or_else(|e| panic!("ADD {name}: {e}"));
        network.write_cache(&attach);
        let addresses = [0, 1].map(|index| address_of(&result, index));
        let serve = |ip: IpAddr| Proto::ALL.map(|proto| pod.serve(proto, &at(ip, SERVED).to_string(), name));
        let servers = addresses.into_iter().flat_map(serve).collect();
        Ingress { attach, addresses, _pod: pod, _servers: servers }
    }

    /// The container `ingress`, which publishes [`PORT`] on every address of the node.
    fn publish(&self) -> Ingress {
        self.pod(1, "ingress", |attach| attach.port(Proto::Tcp, PORT, SERVED).port(Proto::Udp, PORT, SERVED))
    }

    fn clients(&self) -> [&Space; 3] {
        [&self.client, &self.client_pod, &self.node]
    }

    /// Asserts that `who` answers at [`PORT`] of the address for every client.
    fn expect(&self, address: IpAddr, who: &str, when: &str) {
        for client in self.clients() {
            for proto in Proto::ALL {
                let answer = client.request(proto, at(address, PORT)).map(|answer| answer.who);
                assert_eq!(
                    answer.as_deref().ok(),
                    Some(who),
                    "{} requests {address} over {} ({when}, backend {}): {answer:?}\n{}",
                    client.name(),
                    proto.name(),
                    self.backend.name(),
                    self.node.describe(),
                );
            }
        }
    }

    /// Asserts that the node's own addresses lead to the container.
    fn expect_published(&self, when: &str) {
        for address in [IpAddr::from(self.client.node_v4), self.client.node_v6.into()] {
            self.expect(address, "ingress", when);
        }
        for gateway in ["10.88.1.1", "fd00:88:1::1"] {
            for proto in Proto::ALL {
                self.client_pod.expect(proto, at(address(gateway), PORT), "ingress");
            }
        }
        for proto in Proto::ALL {
            self.node.expect(proto, at(address("127.0.0.1"), PORT), "ingress");
        }
    }

    /// Runs `ip -batch` for addresses of both families.
    fn addresses(&self, verb: &str, addresses: &[IpAddr], link: &str) {
        let line = |address: &IpAddr| match address {
            IpAddr::V4(v4) => format!("address {verb} {v4}/32 dev {link}\n"),
            IpAddr::V6(v6) if verb == "add" => format!("address add {v6}/128 dev {link} nodad\n"),
            IpAddr::V6(v6) => format!("address {verb} {v6}/128 dev {link}\n"),
        };
        self.node.cmd_input("ip -batch -", &addresses.iter().map(line).collect::<String>());
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}
