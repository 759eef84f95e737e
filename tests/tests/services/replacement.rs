// SPDX-License-Identifier: GPL-2.0-or-later

//! kube-proxy in mode `nftables`, with the complete ruleset that Kubernetes 1.31 and later write (recorded from the
//! unit tests of its proxier): a NodePort equal to a hostPort, addresses of Services that belong to the node, the
//! replacement of the ruleset in one transaction while clients send requests, and `kube-proxy --cleanup`.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use slipway_tests::{Proto, at, within};

use crate::{Backend, Ingress, PORT, SERVED, Stage, address, on_each_backend};

/// The number of replacements while clients send requests.
const REPLACEMENTS: u32 = 30;
/// Another port of the node, which no Service has.
const OTHER_PORT: u16 = 8081;

/// Addresses of the node that are external IPs or belong to a load balancer.
fn vips() -> [IpAddr; 2] {
    [address("192.0.2.100"), address("2001:db8::100")]
}

struct World {
    stage: Stage,
    web: Ingress,
}

impl World {
    fn new(backend: Backend) -> Self {
        let stage = Stage::new(backend);
        stage.addresses("add", &vips(), &stage.client.node_link);
        let web = stage.pod(2, "service", |attach| attach);
        Self { stage, web }
    }

    /// The addresses of the node, one of each family, on which kube-proxy accepts NodePorts.
    fn node_addresses(&self) -> [IpAddr; 2] {
        [self.stage.client.node_v4.into(), self.stage.client.node_v6.into()]
    }

    /// Writes all tables of kube-proxy in one transaction, as kube-proxy does when it starts.
    fn replace(&self) {
        let families = self.node_addresses().into_iter().zip(vips()).zip(self.web.addresses);
        let text: String = families.map(|((node, vip), endpoint)| ruleset(node, vip, endpoint)).collect();
        self.stage.node.nft(&text);
    }

    /// Does the same as `kube-proxy --cleanup`.
    fn clean_up(&self) {
        self.stage.node.nft("delete table ip kube-proxy\ndelete table ip6 kube-proxy");
    }

    /// Asserts that the Service answers at its NodePort and its external IP.
    fn expect_service(&self, when: &str) {
        for address in self.node_addresses().into_iter().chain(vips()) {
            self.stage.expect(address, "service", when);
        }
    }
}

/// The table of one family: a Service with a NodePort and an external IP, whose only endpoint is `endpoint`.
fn ruleset(node: IpAddr, vip: IpAddr, endpoint: IpAddr) -> String {
    let (ip, addr, services) = match node {
        IpAddr::V4(_) => ("ip", "ipv4_addr", "10.96.0.0/16"),
        IpAddr::V6(_) => ("ip6", "ipv6_addr", "fd00:96::/112"),
    };
    let target =
        if node.is_ipv4() { format!("{endpoint}:{SERVED}") } else { format!("[{endpoint}]:{SERVED}") };
    let mut text = format!(
        "add table {ip} kube-proxy
        delete table {ip} kube-proxy
        table {ip} kube-proxy {{
            comment \"rules for kube-proxy\"
            set cluster-ips {{ type {addr}; }}
            set nodeport-ips {{ type {addr}; elements = {{ {node} }}; }}
            map firewall-ips {{ type {addr} . inet_proto . inet_service : verdict; }}
            map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; }}
            map no-endpoint-services {{ type {addr} . inet_proto . inet_service : verdict; }}
            map service-ips {{ type {addr} . inet_proto . inet_service : verdict; }}
            map service-nodeports {{ type inet_proto . inet_service : verdict; }}
            chain cluster-ips-check {{
                {ip} daddr @cluster-ips reject
                {ip} daddr {{ {services} }} drop
            }}
            chain firewall-check {{ {ip} daddr . meta l4proto . th dport vmap @firewall-ips; }}
            chain nodeport-endpoints-check {{
                {ip} daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
            }}
            chain service-endpoints-check {{ {ip} daddr . meta l4proto . th dport vmap @no-endpoint-services; }}
            chain reject-chain {{ reject; }}
            chain mark-for-masquerade {{ mark set mark or 0x4000; }}
            chain masquerading {{
                mark and 0x4000 == 0 return
                mark set mark xor 0x4000
                masquerade fully-random
            }}
            chain services {{
                {ip} daddr . meta l4proto . th dport vmap @service-ips
                {ip} daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
            }}
            chain filter-prerouting-pre-dnat {{
                type filter hook prerouting priority -110; ct state new jump firewall-check;
            }}
            chain filter-output-pre-dnat {{
                type filter hook output priority -110; ct state new jump firewall-check;
            }}
            chain filter-input {{
                type filter hook input priority 0; ct state new jump nodeport-endpoints-check;
                ct state new jump service-endpoints-check;
            }}
            chain filter-forward {{
                type filter hook forward priority 0; ct state new jump service-endpoints-check;
                ct state new jump cluster-ips-check;
            }}
            chain filter-output {{
                type filter hook output priority 0; ct state new jump service-endpoints-check;
                ct state new jump cluster-ips-check;
            }}
            chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
            chain nat-output {{ type nat hook output priority -100; jump services; }}
            chain nat-postrouting {{ type nat hook postrouting priority 100; jump masquerading; }}\n",
    );
    for proto in Proto::ALL {
        let name = proto.name();
        let _ = writeln!(
            text,
            "chain endpoint-5OJB2KTY-ns1/svc1/{name}/p80__web/80 {{
                {ip} saddr {endpoint} jump mark-for-masquerade
                meta l4proto {name} dnat to {target}
            }}
            chain service-ULMVA6XW-ns1/svc1/{name}/p80 {{
                numgen random mod 1 vmap {{ 0 : goto endpoint-5OJB2KTY-ns1/svc1/{name}/p80__web/80 }}
            }}
            chain external-ULMVA6XW-ns1/svc1/{name}/p80 {{
                jump mark-for-masquerade
                goto service-ULMVA6XW-ns1/svc1/{name}/p80
            }}",
        );
    }
    text.push_str("}\n");
    for proto in Proto::ALL {
        let name = proto.name();
        let _ = write!(
            text,
            "add element {ip} kube-proxy service-ips \
             {{ {vip} . {name} . {PORT} : goto external-ULMVA6XW-ns1/svc1/{name}/p80 }}\n\
             add element {ip} kube-proxy service-nodeports \
             {{ {name} . {PORT} : goto external-ULMVA6XW-ns1/svc1/{name}/p80 }}\n",
        );
    }
    text
}

on_each_backend!(
    the_service_wins_at_its_node_port_and_at_the_nodes_addresses,
    a_replacement_of_the_ruleset_loses_no_request
);

/// With `backend: iptables`, the control, the chains have the same priority, and the Service wins because kube-proxy
/// came last.
fn the_service_wins_at_its_node_port_and_at_the_nodes_addresses(backend: Backend) {
    let world = World::new(backend);
    world.replace();
    let ingress = world.stage.publish();
    if backend != Backend::Iptables {
        world.expect_service("kube-proxy first");
    }
    world.replace();
    // The BPF programs look for kube-proxy when a runtime calls STATUS.
    world.stage.network(1).status().expect("STATUS");
    world.expect_service("kube-proxy last");
    let checked = world.stage.node.try_slipway("check-node").stdout;
    let warns = checked.contains("published ports of iptables beside kube-proxy's table");
    assert_eq!(warns, backend == Backend::Iptables, "{checked}");
    world.clean_up();
    for address in world.node_addresses().into_iter().chain(vips()) {
        world.stage.expect(address, "ingress", "kube-proxy is gone");
    }
    world.stage.expect_published("kube-proxy is gone");
    drop(ingress);
}

/// Clients send requests to the Service and to a published port that no Service has, while kube-proxy repeatedly writes
/// its tables. The published port must lose no request. At the moment of a commit, the kernel has kube-proxy's new
/// rules but none of their elements, so a request to the Service may be refused then with any backend, but nobody else
/// may answer it.
fn a_replacement_of_the_ruleset_loses_no_request(backend: Backend) {
    let world = World::new(backend);
    world.replace();
    let _other = world.stage.pod(1, "other", |attach| attach.port(Proto::Tcp, OTHER_PORT, SERVED));
    let asked = AtomicU32::new(0);
    let done = AtomicBool::new(false);
    let answered = AtomicU32::new(0);
    let (client, node) = (&world.stage.client, world.node_addresses()[0]);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                client.expect(Proto::Tcp, at(node, OTHER_PORT), "other");
                asked.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let answer =
                    client.request_from(Proto::Tcp, None, at(node, PORT), within(Duration::from_secs(2)));
                if let Ok(answer) = answer {
                    assert_eq!(answer.who, "service");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        for _ in 0..REPLACEMENTS {
            world.replace();
        }
        done.store(true, Ordering::Relaxed);
    });
    let asked = asked.into_inner();
    assert!(asked >= REPLACEMENTS, "{asked} requests");
    let answered = answered.into_inner();
    assert!(answered >= REPLACEMENTS, "{answered} answers of the Service");
}
