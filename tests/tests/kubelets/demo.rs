// SPDX-License-Identifier: GPL-2.0-or-later

//! The demonstration of `cargo xtask demo --cluster`.

use slipway_tests::kubernetes::{Agent, Backend, Kubernetes, Network, Plan, Programs, Report};

use crate::apps::Apps;
use crate::{churn, faults, packets, ports};

#[test]
#[ignore = "`cargo xtask demo --cluster` runs it"]
fn demonstration() {
    let programs = Programs::find().unwrap_or_else(|missing| panic!("{missing} is missing"));
    let report = Report::of_demo();
    let plan = Plan { nodes: 3, network: Network::Slipway("auto", Backend::Nftables, Agent::Program) };
    report.title("A control plane and three nodes with kubelet, containerd, kube-proxy and slipwayd");
    Kubernetes::run(&programs, &plan, &report, |cluster| {
        let apps = Apps::create(cluster, &report);
        packets(cluster, &apps, &report);
        let apps = churn::rolling_updates(cluster, apps, &report);
        let apps = faults::reboot(cluster, apps, &report);
        ports::all(cluster, &apps, &report);
        report.title("The pods go");
        apps.delete(cluster, &report);
    });
}
