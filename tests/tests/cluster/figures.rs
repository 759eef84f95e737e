// SPDX-License-Identifier: GPL-2.0-or-later

//! Measurements of the paths between nodes.
//!
//! `cargo xtask vm-test --measure --kernel 6.12 --suite cluster` runs these on a kernel with WireGuard. On the host,
//! run the test program with `--ignored figures`. Pods of two nodes communicate over routes on the link, VXLAN and
//! WireGuard, and the nodes themselves communicate without pods. The order alternates on the same nodes.

use slipway_tests::has_wireguard;
use slipway_tests::measure::{Path, Work, compare, serve};
use slipwayd::cluster::desired::TunnelMode;

use crate::Lab;

#[test]
#[ignore = "a measurement"]
fn streams_and_requests_between_nodes() {
    let mut lab = Lab::new(2, TunnelMode::Auto);
    let mut modes = vec![("routes", TunnelMode::Auto, false), ("VXLAN", TunnelMode::Always, false)];
    if has_wireguard() {
        modes.push(("WireGuard", TunnelMode::Auto, true));
    }
    let own = lab.node(2).addresses[0];
    serve(lab.node(2), own);
    let mut paths = vec![Path::to("nodes", lab.node(1), own)];
    // The MTU of a pod is that of the path for which the pod was added.
    let mut pods = Vec::new();
    for (name, tunnel, encrypts) in &modes {
        (lab.tunnel, lab.encrypts) = (*tunnel, *encrypts);
        lab.settle();
        let pod = name.to_lowercase();
        let (client, _) = lab.pod(1, &pod);
        let (server, addresses) = lab.pod(2, &pod);
        serve(&server, addresses[0]);
        paths.push(Path::to(name, &client, addresses[0]));
        pods.push((client, server));
    }
    modes.insert(0, ("nodes", TunnelMode::Auto, false));
    let figures = compare(&paths, &[Work::Stream, Work::Requests], |next| {
        (lab.tunnel, lab.encrypts) = (modes[next].1, modes[next].2);
        lab.settle();
    });
    for figure in figures {
        println!("{figure}");
    }
}
