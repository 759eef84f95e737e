// SPDX-License-Identifier: GPL-2.0-or-later

//! slipwayd and the plugins as the network of a real cluster with kubelets, containerd, kube-proxy, the control plane's
//! programs, and containers that answer requests.
//!
//! A cluster takes half a minute to become ready, so each test makes many claims about the same one, and the output
//! names each claim. The main test uses plain routes, nftables, and the DaemonSet of `slipwayd render` as the agent. In
//! the other tests, the agent is a program next to kubelet. One of them kills programs and cuts a node's power, another
//! repeats the claims about packets for the remaining paths and backends. A plain run of `cargo xtask test` tries only
//! some of these.

mod agents;
mod apps;
mod churn;
mod demo;
mod faults;
mod figures;
mod paths;
mod ports;
mod requests;
mod services;

use slipway_tests::kubernetes::{Agent, Backend, Kubernetes, Network, Plan, Programs, Report};
use slipway_tests::{sample, skip};

use apps::Apps;

/// The plan of a cluster with two nodes.
fn plan(tunnel: &'static str, backend: Backend, agent: Agent) -> Plan {
    Plan { nodes: 2, network: Network::Slipway(tunnel, backend, agent) }
}

/// All claims about packets.
fn packets(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    ports::all(cluster, apps, report);
    services::all(cluster, apps, report);
    paths::all(cluster, apps, report);
}

#[test]
fn pods_have_their_network_over_plain_routes_with_nftables() {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(missing) => skip!(missing),
    };
    let report = Report::of_test();
    let plan = plan("never", Backend::Nftables, Agent::DaemonSet);
    Kubernetes::run(&programs, &plan, &report, |cluster| {
        let apps = Apps::create(cluster, &report);
        paths::check_path(cluster, "eth0");
        packets(cluster, &apps, &report);
        agents::all(cluster, &apps, &report);
        churn::sixty_pods(cluster, &report);
        let apps = churn::rolling_updates(cluster, apps, &report);
        ports::all(cluster, &apps, &report);
        services::all(cluster, &apps, &report);
        apps.delete(cluster, &report);
        agents::delete(cluster, &report);
    });
}

#[test]
fn pods_keep_their_network_when_programs_are_killed_and_get_it_back_after_a_reboot() {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(missing) => skip!(missing),
    };
    let report = Report::of_test();
    let plan = plan("never", Backend::Nftables, Agent::Program);
    Kubernetes::run(&programs, &plan, &report, |cluster| {
        let apps = Apps::create(cluster, &report);
        for program in ["kubelet", "containerd", "slipwayd"] {
            faults::killed(cluster, &apps, program, &report);
        }
        let apps = faults::reboot(cluster, apps, &report);
        packets(cluster, &apps, &report);
        apps.delete(cluster, &report);
    });
}

#[test]
fn packets_arrive_over_each_path_with_each_backend() {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(missing) => skip!(missing),
    };
    let report = Report::of_test();
    let others = [
        ("always", Backend::Ebpf),
        ("never", Backend::Ebpf),
        ("never", Backend::Iptables),
        ("always", Backend::Nftables),
        ("always", Backend::Iptables),
    ];
    for (tunnel, backend) in sample(others) {
        report.title(&format!("--tunnel {tunnel}, backend {}", backend.name()));
        Kubernetes::run(&programs, &plan(tunnel, backend, Agent::Program), &report, |cluster| {
            let apps = Apps::create(cluster, &report);
            paths::check_path(cluster, if tunnel == "always" { "slipway-vxlan" } else { "eth0" });
            ports::check_backend(cluster, backend);
            packets(cluster, &apps, &report);
            apps.delete(cluster, &report);
        });
    }
}
