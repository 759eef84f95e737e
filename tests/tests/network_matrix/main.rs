// SPDX-License-Identifier: GPL-2.0-or-later

//! The connections that a Kubernetes cluster promises, between two nodes: docs/reports/network-matrix.md.
//!
//! kube-proxy itself translates Services, and gets them from an API server. Each test tries its rows with one backend
//! of the plugins, with TCP and UDP over IPv4 and IPv6, and reports all cases that differ.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod kube;
mod late_proxy;
mod nftables_mode;
mod objects;
mod rows;
mod services;
mod world;

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;

use slipway_tests::{
    ApiServer, IPVS, Proto, QUICK, VirtualServers, has_api_server, has_ipvs, needs, patience, skip,
};

use kube::{KUBE_PROXY, Mode};
use rows::{From, ROWS, ROWS_OF_IPVS, Row, Seen, To};
use world::World;

/// The page that contains the same table.
const PAGE: &str = include_str!("../../../docs/reports/network-matrix.md");

/// The backend for published ports and masquerade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    Nftables,
    Iptables,
    Ebpf,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ebpf => "ebpf",
        }
    }
}

/// Generates a test for each backend of each function.
macro_rules! on_each_backend {
    ($($test:ident),+) => {
        mod nftables {
            $(#[test] fn $test() { super::$test(crate::Backend::Nftables); })+
        }
        mod iptables {
            $(#[test] fn $test() { super::$test(crate::Backend::Iptables); })+
        }
        mod ebpf {
            $(#[test] fn $test() {
                slipway_tests::needs!(slipway_tests::has_programs(), slipway_tests::PROGRAMS);
                super::$test(crate::Backend::Ebpf);
            })+
        }
    };
}

on_each_backend!(
    rows_without_services,
    rows_with_kube_proxy,
    rows_with_kube_proxy_in_mode_ipvs,
    rows_with_rules_of_mode_nftables
);

/// Tries the rows that need no kube-proxy.
fn rows_without_services(backend: Backend) {
    let world = World::new(backend, |_| {});
    expect_all(&world, ROWS.iter().filter(|row| !row.to.is_service()), |row| row.seen);
}

/// Tries all rows with kube-proxy in mode iptables.
fn rows_with_kube_proxy(backend: Backend) {
    let Some(programs) = kube::programs() else { skip!(KUBE_PROXY) };
    rows_with(backend, &programs, Mode::Iptables);
}

fn rows_with_kube_proxy_in_mode_ipvs(backend: Backend) {
    needs!(has_ipvs(), IPVS);
    let Some(programs) = kube::programs() else { skip!(KUBE_PROXY) };
    rows_with(backend, &programs, Mode::Ipvs);
}

/// Tries all rows with a kube-proxy that is started after the pods were added.
fn rows_with(backend: Backend, programs: &Path, mode: Mode) {
    let world = World::new(backend, |_| {});
    let mut real = None;
    let url = if has_api_server(programs) {
        let server = real.insert(ApiServer::start(programs, &world.cluster.control));
        server.wait();
        kube::publish(server, &world.cluster);
        server.url.clone()
    } else {
        objects::serve(&world.cluster)
    };
    let nodes = &world.cluster.nodes;
    nodes.iter().for_each(kube::kubelet);
    let _servers: Vec<_> =
        nodes.iter().filter(|_| mode == Mode::Ipvs).map(|node| VirtualServers(node)).collect();
    let proxies: Vec<_> = nodes.iter().map(|node| kube::proxy(programs, node, &url, mode)).collect();
    for (node, proxy) in nodes.iter().zip(&proxies) {
        kube::wait_for_rules(node, proxy, mode);
    }
    expect_all(&world, ROWS, |row| row.with(mode));
}

/// Tries all rows with rules like those of kube-proxy's mode nftables, written before the pods are added. That mode
/// does not serve nodePorts on the loopback.
fn rows_with_rules_of_mode_nftables(backend: Backend) {
    let world = World::new(backend, |cluster| {
        cluster.nodes.iter().for_each(|node| nftables_mode::write(cluster, node));
    });
    let closed = |row: &Row| row.seen.map(|seen| if seen == Seen::NotAsked { seen } else { Seen::Closed });
    let is_loopback = |row: &Row| matches!(row.to, To::LoopbackNodePort(_));
    expect_all(&world, ROWS, |row| if is_loopback(row) { closed(row) } else { row.seen });
}

/// Tries every case of these rows, with the expectations that `seen` returns.
fn expect_all<'a>(world: &World, rows: impl IntoIterator<Item = &'a Row>, seen: impl Fn(&Row) -> [Seen; 6]) {
    let mut tried = 0;
    let mut wrong = Vec::new();
    for row in rows {
        let cases = cases(world, row, seen(row));
        tried += cases.len();
        // The cases run at the same time, because those that must get no reply wait for their time limit.
        thread::scope(|scope| {
            let running: Vec<_> = cases.iter().map(|case| scope.spawn(|| case.run(world))).collect();
            wrong.extend(running.into_iter().filter_map(|one| one.join().expect("no panic")));
        });
    }
    assert!(wrong.is_empty(), "{} of {tried} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// A case: one client, one address and one protocol.
struct Case<'a> {
    row: &'a Row,
    from: From,
    seen: Seen,
    proto: Proto,
    to: SocketAddr,
}

fn cases<'a>(world: &World, row: &'a Row, seen: [Seen; 6]) -> Vec<Case<'a>> {
    let mut cases = Vec::new();
    let asked = From::ALL.into_iter().zip(seen).filter(|(_, seen)| *seen != Seen::NotAsked);
    for (from, seen) in asked {
        for to in [0, 1].into_iter().flat_map(|family| row.to.addresses(world, family)) {
            cases.extend(Proto::ALL.map(|proto| Case { row, from, seen, proto, to }));
        }
    }
    cases
}

impl Case<'_> {
    /// Connects, and returns how the outcome differs from the expectation, if it does.
    fn run(&self, world: &World) -> Option<String> {
        let limit = if self.seen == Seen::Closed { QUICK } else { patience() };
        let request = || world.client(self.from).request_from(self.proto, None, self.to, limit);
        // Neighbour discovery fails after three seconds, even if the machine was too busy to reply in time, so the
        // request is repeated.
        let answer = match request() {
            Err(e) if e.kind() == io::ErrorKind::HostUnreachable && self.seen != Seen::Closed => request(),
            answer => answer,
        };
        let found = match &answer {
            Ok(answer) => {
                let expected = world.addresses(self.seen, answer.own.ip());
                if answer.who == self.row.to.server() && expected.contains(&answer.peer.ip()) {
                    return None;
                }
                format!("{} replied and saw {}", answer.who, answer.peer.ip())
            }
            Err(_) if self.seen == Seen::Closed => return None,
            Err(e) => e.to_string(),
        };
        Some(format!(
            "{} → {} ({} {}): {found}; expected: {}",
            self.from.name(),
            self.row.name,
            self.proto.name(),
            self.to,
            self.seen.name(),
        ))
    }
}

/// The table of the page, generated from its rows.
fn table(rows: &[Row]) -> String {
    let columns = From::ALL.map(From::name);
    let mut text = format!("| to | {} |\n|---{}|\n", columns.join(" | "), "|---".repeat(columns.len()));
    for row in rows {
        let _ = writeln!(text, "| {} | {} |", row.name, row.seen.map(Seen::name).join(" | "));
    }
    text
}

#[test]
fn the_page_has_the_same_tables() {
    for table in [ROWS, ROWS_OF_IPVS].map(table) {
        assert!(PAGE.contains(&table), "docs/reports/network-matrix.md lacks this table:\n{table}");
    }
}
