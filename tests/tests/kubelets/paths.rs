// SPDX-License-Identifier: GPL-2.0-or-later

//! Paths from pods to other pods and to outside hosts.

use slipway_tests::image::expect;
use slipway_tests::kubernetes::objects::WEB_PORT;
use slipway_tests::kubernetes::{Kubernetes, Report};
use slipway_tests::{Proto, at};

use crate::apps::{Apps, DNS_PORT};

/// The port of a server on the outside host.
const OUTSIDE_PORT: u16 = 9000;

pub(crate) fn all(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    report.title("Pods to pods, and to the rest of the world");
    report.claim("each pod reaches each other pod, which sees its own address", || {
        between_pods(cluster, apps, report);
    });
    report.claim("a host outside sees the pods with the addresses of their nodes", || {
        to_outside(cluster, apps, report);
    });
}

fn between_pods(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    for client in apps.pods() {
        let inside = cluster.inside(client);
        for server in apps.pods().filter(|server| server.name != client.name) {
            for (ip, own) in server.ips.iter().zip(&client.ips) {
                let peer = expect(&inside, (*ip, WEB_PORT), &server.name);
                assert_eq!(peer, *own, "TCP from {} to {}", client.name, server.name);
                if client.node != server.node {
                    let answer = format!("{} sees {peer}", server.name);
                    report.request(&client.name, &format!("http://{}", at(*ip, WEB_PORT)), &answer);
                }
            }
        }
        // Only the pods of the DaemonSet have a server for UDP.
        for server in apps.edge.iter().filter(|server| server.name != client.name) {
            for (ip, own) in server.ips.iter().zip(&client.ips) {
                let answer = inside.expect(Proto::Udp, at(*ip, DNS_PORT), &server.name);
                assert_eq!(answer.peer.ip(), *own, "UDP from {} to {}", client.name, server.name);
            }
        }
    }
}

fn to_outside(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    let outside = cluster.outside();
    for (index, ip) in cluster.lan.outside.addresses.into_iter().enumerate() {
        let to = at(ip, OUTSIDE_PORT);
        let _servers = Proto::ALL.map(|proto| outside.serve(proto, &to.to_string(), "outside"));
        for (client, inside) in apps.clients(cluster) {
            for proto in Proto::ALL {
                let peer = inside.expect(proto, to, "outside").peer.ip();
                report.request(
                    &client.name,
                    &format!("{}://{to}", proto.name()),
                    &format!("outside sees {peer}"),
                );
                let node = cluster.workers[client.node].node.addresses[index];
                assert_eq!(peer, node, "{} from {}", proto.name(), client.name);
            }
        }
    }
}

/// Asserts that each node's routes to other nodes' pods lead through this link.
pub(crate) fn check_path(cluster: &Kubernetes<'_>, link: &str) {
    for worker in &cluster.workers {
        for family in ["-4", "-6"] {
            let routes = worker.node.cmd(&format!("ip {family} route show proto 83"));
            let by_link = routes.lines().filter(|route| route.contains(&format!(" dev {link} "))).count();
            assert_eq!(by_link, cluster.workers.len() - 1, "{}: {routes}", worker.name());
            assert_eq!(by_link, routes.lines().count(), "{}: {routes}", worker.name());
        }
    }
}
