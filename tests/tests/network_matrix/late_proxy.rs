// SPDX-License-Identifier: GPL-2.0-or-later

//! kube-proxy itself starts after pods that already have connections. The pods can then use Services, and flows that
//! the BPF programs carry follow kube-proxy's rules.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use slipway_tests::{Flow, PROGRAMS, Proto, Server, Space, at, has_programs, needs, skip, within};

use crate::Backend;
use crate::kube::{self, KUBE_PROXY, Mode};
use crate::objects;
use crate::rows::From;
use crate::services::{CLUSTER, SERVICES};
use crate::world::World;

/// The time within which carried flows follow changed rules.
const FOLLOWS: Duration = Duration::from_secs(3);
/// The pause between two requests of a flow.
const PACE: Duration = Duration::from_millis(20);
/// More requests than a flow needs to be carried.
const REQUESTS: usize = 40;

/// A flow to a Service's address, which an outside host has until kube-proxy runs.
struct Running {
    proto: Proto,
    ip: IpAddr,
    flow: Flow,
}

impl Running {
    /// Sends a request, and returns the name of the server that replies.
    fn who(&mut self) -> String {
        let reply = self.flow.request();
        reply.unwrap_or_else(|e| panic!("{} {}: {e}", self.proto.name(), self.ip)).who
    }
}

/// Starts servers outside at the addresses of a Service.
fn serve_outside(outside: &Space, ips: &[IpAddr], port: u16) -> Vec<Server> {
    for ip in ips {
        outside.cmd(&format!("ip address add {ip} dev lo"));
        outside.wait_local(*ip);
    }
    let all = ips.iter().flat_map(|ip| Proto::ALL.map(|proto| (proto, at(*ip, port).to_string())));
    all.map(|(proto, at)| outside.serve(proto, &at, "outside")).collect()
}

/// The replies to running flows and to new ones after kube-proxy has written its rules, with the time since then.
fn replies(backend: Backend) -> Vec<String> {
    let programs = kube::programs().expect("kube-proxy was there before");
    let world = World::new(backend, |_| {});
    let (pod, node) = (world.client(From::SameNode), &world.cluster.nodes[0]);
    let ips = CLUSTER.cluster_ips.map(|ip| ip.parse::<IpAddr>().expect("an address"));
    let port = CLUSTER.own_ports()[0];
    let _outside = serve_outside(world.client(From::Outside), &ips, port);
    let limit = within(Duration::from_secs(10));
    let mut running: Vec<Running> = ips
        .into_iter()
        .flat_map(|ip| Proto::ALL.map(|proto| (proto, ip)))
        .map(|(proto, ip)| {
            let flow = pod.dial(proto, None, at(ip, port), limit).expect("a flow");
            Running { proto, ip, flow }
        })
        .collect();
    let before = node.counted("carried_packets");
    for _ in 0..REQUESTS {
        running.iter_mut().for_each(|one| assert_eq!(one.who(), "outside"));
    }
    let carried = node.counted("carried_packets") - before;
    assert!(backend == Backend::Nftables || carried > 100, "{carried} packets were carried");
    kube::kubelet(node);
    let proxy = kube::proxy(&programs, node, &objects::serve(&world.cluster), Mode::Iptables);
    kube::wait_for_rules(node, &proxy, Mode::Iptables);
    let begin = Instant::now();
    while begin.elapsed() < within(FOLLOWS) {
        running.iter_mut().for_each(|one| drop(one.who()));
        thread::sleep(PACE);
    }
    let mut seen: Vec<String> = running
        .iter_mut()
        .map(|one| {
            let who = one.who();
            format!("running {} {}: {who}", one.proto.name(), one.ip)
        })
        .collect();
    for service in &SERVICES {
        for (ip, proto) in service.cluster_ips.iter().flat_map(|ip| Proto::ALL.map(|proto| (ip, proto))) {
            let to = at(ip.parse::<IpAddr>().expect("an address"), service.own_ports()[0]);
            let reply = pod.request(proto, to).map(|reply| (reply.who, reply.peer.ip()));
            seen.push(format!("new {} {ip}: {:?}", proto.name(), reply.map_err(|e| e.kind())));
        }
    }
    seen
}

#[test]
fn pods_that_started_before_kube_proxy_get_their_services() {
    needs!(has_programs(), PROGRAMS);
    let Some(_) = kube::programs() else { skip!(KUBE_PROXY) };
    let (control, found) = (replies(Backend::Nftables), replies(Backend::Ebpf));
    println!("{control:#?}");
    assert_eq!(found, control);
    for service in &SERVICES {
        let who = if service.on_node { "node" } else { "web" };
        for ip in service.cluster_ips {
            let of_service = found.iter().filter(|line| line.starts_with("new") && line.contains(ip));
            of_service.for_each(|line| assert!(line.contains(who), "{line}"));
        }
    }
}
