// SPDX-License-Identifier: GPL-2.0-or-later

//! kube-proxy in mode `ipvs` and kube-router, which assign each address of a Service to the node, on a separate link.
//!
//! If the kernel has no IPVS, a server on the node receives the packets that IPVS would take at the input hook.

use std::net::IpAddr;

use cni_nftables::Socket;
use cni_nftables::conntrack::{Conntrack, Filter};
use slipway_tests::{Attach, IPVS, Proto, Server, VirtualServers, at, has_ipvs, needs, patience};

use crate::{Backend, Ingress, PORT, SERVED, Stage, address, on_each_backend};

/// The links of the engines, with true for those that are up.
const LINKS: [(&str, bool); 2] = [("kube-ipvs0", false), ("kube-dummy-if", true)];

fn cluster_ips(last: u8) -> [IpAddr; 2] {
    [address(&format!("10.96.0.{last}")), address(&format!("fd00:96::{last}"))]
}

struct Engine<'a> {
    stage: &'a Stage,
    link: &'static str,
}

impl<'a> Engine<'a> {
    fn new(stage: &'a Stage, (link, up): (&'static str, bool)) -> Self {
        // A bridge imitates the dummy link, which this kernel may not support.
        stage.node.cmd(&format!("ip link add {link} type bridge"));
        stage.node.cmd(&format!("ip link set {link} arp off"));
        if up {
            stage.node.cmd(&format!("ip link set {link} up"));
        }
        if stage.backend == Backend::Iptables {
            for tool in ["iptables-nft", "ip6tables-nft"] {
                stage.node.cmd(&format!("{tool} -t nat -N KUBE-SERVICES"));
                for hook in ["PREROUTING", "OUTPUT"] {
                    stage.node.cmd(&format!("{tool} -t nat -I {hook} -j KUBE-SERVICES"));
                }
            }
        }
        Self { stage, link }
    }

    /// A Service at these addresses, for which a server on the node answers.
    fn service(&self, last: u8) -> Vec<Server> {
        self.announce(last);
        let serve = |ip| Proto::ALL.map(|p| self.stage.node.serve(p, &at(ip, PORT).to_string(), "service"));
        cluster_ips(last).into_iter().flat_map(serve).collect()
    }

    /// A Service of IPVS at these addresses, with a container as its endpoint.
    fn balance(&self, last: u8, endpoint: &Ingress) -> VirtualServers<'a> {
        let servers = VirtualServers(&self.stage.node);
        self.announce(last);
        for (ip, container) in cluster_ips(last).into_iter().zip(endpoint.addresses) {
            for option in ["-t", "-u"] {
                let (service, server) = (at(ip, PORT), at(container, SERVED));
                self.stage.node.cmd(&format!("ipvsadm -A {option} {service} -s rr"));
                self.stage.node.cmd(&format!("ipvsadm -a {option} {service} -r {server} -m"));
            }
        }
        servers
    }

    /// Adds the addresses to the link, and with the backend iptables the rule that ends the chain for them.
    fn announce(&self, last: u8) {
        self.bind(last);
        if self.stage.backend == Backend::Iptables {
            for (ip, tool) in cluster_ips(last).into_iter().zip(["iptables-nft", "ip6tables-nft"]) {
                for proto in Proto::ALL {
                    // kube-proxy would match the ipset KUBE-CLUSTER-IP instead.
                    let rule = format!("-d {ip} -p {} --dport {PORT} -j ACCEPT", proto.name());
                    self.stage.node.cmd(&format!("{tool} -t nat -A KUBE-SERVICES {rule}"));
                }
            }
        }
    }

    fn bind(&self, last: u8) {
        self.stage.addresses("add", &cluster_ips(last), self.link);
    }

    fn expect(&self, last: u8, when: &str) {
        for ip in cluster_ips(last) {
            self.stage.expect(ip, "service", when);
        }
    }
}

on_each_backend!(
    the_service_answers_at_each_of_its_addresses,
    an_engine_that_came_later_is_seen,
    a_service_of_the_kernels_balancer_answers
);

fn the_service_answers_at_each_of_its_addresses(backend: Backend) {
    for link in LINKS {
        let stage = Stage::new(backend);
        let engine = Engine::new(&stage, link);
        let _first = engine.service(1);
        let _ingress = stage.publish();
        engine.expect(1, "there before the container");
        stage.expect_published("next to a Service");
        let _second = engine.service(2);
        engine.expect(2, "created after the container");
        // kube-proxy removes and adds the addresses when it restarts, or cleans a node up.
        stage.addresses("del", &cluster_ips(1), engine.link);
        engine.bind(1);
        engine.expect(1, "bound again");
        stage.expect_published("after all");
    }
}

/// Tests with IPVS itself, whose hook comes after the translation of published ports.
fn a_service_of_the_kernels_balancer_answers(backend: Backend) {
    needs!(has_ipvs(), IPVS);
    let stage = Stage::new(backend);
    // Without this setting, netfilter does not see connections that IPVS has translated, and does not
    // masquerade them.
    stage.node.sysctl("net/ipv4/vs/conntrack", "1");
    let endpoint = stage.pod(2, "service", |attach| attach);
    let engine = Engine::new(&stage, LINKS[0]);
    let _first = engine.balance(1, &endpoint);
    let _ingress = stage.publish();
    engine.expect(1, "there before the container");
    stage.expect_published("next to a Service");
    let _second = engine.balance(2, &endpoint);
    engine.expect(2, "created after the container");
}

/// The next STATUS of a runtime and the next ADD both notice a new engine.
fn an_engine_that_came_later_is_seen(backend: Backend) {
    for by_status in [true, false] {
        let stage = Stage::new(backend);
        let ingress = stage.publish();
        let engine = Engine::new(&stage, LINKS[0]);
        let _service = engine.service(1);
        let other = stage.node.pod("other");
        if by_status {
            stage.network(1).status().expect("STATUS");
        } else {
            let attach = Attach::new(&other).port(Proto::Tcp, PORT + 1, 80);
            stage.network(1).add(&attach).expect("ADD");
        }
        engine.expect(1, "later");
        stage.expect_published("later");
        stage.network(1).check(&ingress.attach).ok();
        // Once the engine's link is gone, every local address counts as the node's.
        stage.node.cmd("ip link del kube-ipvs0");
        stage.network(1).status().expect("STATUS");
        let real = [address("192.0.2.77"), address("2001:db8::77")];
        stage.addresses("add", &real, &stage.client.node_link);
        for real in real {
            stage.expect(real, "ingress", "an address of a node without IPVS");
        }
    }
}

#[test]
fn changes_of_real_addresses_take_effect() {
    let stage = Stage::new(Backend::Nftables);
    let engine = Engine::new(&stage, LINKS[0]);
    let _service = engine.service(1);
    let _ingress = stage.publish();
    let real = [address("192.0.2.77"), address("2001:db8::77")];
    stage.addresses("add", &real, &stage.client.node_link);
    stage.network(1).status().expect("STATUS");
    for real in real {
        stage.expect(real, "ingress", "a new address");
    }
    // An address may be local without being assigned, as the agents of some clouds set it up for their load balancers.
    stage.node.cmd("ip route add local 203.0.113.5/32 dev out0 table local");
    stage.network(1).status().expect("STATUS");
    stage.expect(address("203.0.113.5"), "ingress", "a local route");
    engine.expect(1, "as before");
    // Packets to an address that is not the node's any more are only forwarded.
    stage.node.cmd("ip route del local 203.0.113.5/32 dev out0 table local");
    stage.client.cmd("ip address add 203.0.113.5/32 dev lo");
    stage.node.cmd(&format!("ip route add 203.0.113.5/32 via {}", stage.client.v4));
    let _far = stage.client.serve(Proto::Tcp, &format!("203.0.113.5:{PORT}"), "far");
    stage.client_pod.expect(Proto::Tcp, at(address("203.0.113.5"), PORT), "far");
}

#[test]
fn restore_updates_real_addresses_and_the_commands_name_the_link() {
    let stage = Stage::new(Backend::Nftables);
    let engine = Engine::new(&stage, LINKS[0]);
    let _service = engine.service(1);
    let _ingress = stage.publish();
    let report = stage.node.slipway("check-node");
    assert!(
        report.contains("link kube-ipvs0") && !report.contains("addresses of published ports"),
        "{report}"
    );
    let printed = stage.node.slipway(&format!("explain tcp 10.96.0.1:{PORT}"));
    assert!(printed.contains("not in set addresses4"), "{printed}");
    let real = address("192.0.2.77");
    stage.addresses("add", &[real], &stage.client.node_link);
    let report = stage.node.slipway("check-node");
    assert!(report.contains("addresses of published ports"), "{report}");
    assert_eq!(stage.node.try_slipway("restore --dry-run").code, Some(3));
    stage.node.slipway("restore");
    stage.expect(real, "ingress", "restored");
    assert!(!stage.node.slipway("check-node").contains("addresses of published ports"));
}

/// A UDP flow to a Service belongs to the Service's engine, even if its port is published.
#[test]
fn flows_of_services_are_not_deleted() {
    let stage = Stage::new(Backend::Nftables);
    let engine = Engine::new(&stage, LINKS[0]);
    let _service = engine.service(1);
    let [v4, v6] = cluster_ips(1);
    let mut flows = [v4, v6].map(|ip| {
        let flow = stage.client.dial(Proto::Udp, None, at(ip, PORT), patience()).expect("a socket");
        (ip, flow)
    });
    // conntrack tracks flows only once the table exists.
    let _first = stage.pod(1, "first", |attach| attach.port(Proto::Tcp, PORT + 1, 80));
    for (_, flow) in &mut flows {
        assert_eq!(flow.request().expect("an answer").who, "service");
    }
    let flows = |ip: IpAddr| stage.node.run(|| flows_to(ip));
    assert_eq!([v4, v6].map(flows), [1, 1]);
    let _ingress = stage.publish();
    assert_eq!([v4, v6].map(flows), [1, 1]);
}

/// The number of UDP flows to an address in conntrack.
fn flows_to(address: IpAddr) -> usize {
    let (family, protocol) = (None, Some(17));
    let (destinations, port, reply_source) = (Vec::new(), Some(PORT), None);
    let filter = Filter { family, protocol, destinations, port, reply_source, status: 0 };
    let mut count = 0;
    let conntrack = Conntrack::open().expect("conntrack");
    conntrack
        .for_each(&filter, |flow| count += usize::from(flow.original.destination == address))
        .expect("the list of flows");
    count
}

#[test]
fn the_table_is_not_written_where_nothing_has_changed() {
    let stage = Stage::new(Backend::Nftables);
    let engine = Engine::new(&stage, LINKS[0]);
    let _service = engine.service(1);
    let _ingress = stage.publish();
    stage.network(1).status().expect("STATUS");
    let generation = || stage.node.run(|| Socket::open().and_then(|s| s.generation()).expect("nf_tables"));
    let before = generation();
    stage.network(1).status().expect("STATUS");
    assert_eq!(generation(), before);
}
