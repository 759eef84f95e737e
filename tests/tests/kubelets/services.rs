// SPDX-License-Identifier: GPL-2.0-or-later

//! Services, which kube-proxy provides beside the plugins.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use slipway_tests::image::ask_once;
use slipway_tests::kubernetes::{Kubernetes, PodState, Report, objects};
use slipway_tests::{Space, at, within};

use crate::apps::{Apps, NODE_PORT, SERVICE_PORT, WEB};

/// The time limit for one request. kube-proxy may not have written its rules yet.
const REQUEST: Duration = Duration::from_secs(1);

pub(crate) fn all(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    report.title("Services by kube-proxy");
    cluster_ips(cluster, apps, report);
    report.claim("another host reaches the NodePort at each address of each node", || {
        for ip in cluster.workers.iter().flat_map(|worker| worker.node.addresses) {
            answer(cluster, ("outside", cluster.outside()), at(ip, NODE_PORT), &apps.web, report);
        }
    });
}

fn cluster_ips(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    let service = cluster.server.get(&format!("{}/services/{WEB}", objects::NAMESPACE));
    let ips = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
    let ips: Vec<IpAddr> = ips.filter_map(|ip| ip.as_str()?.parse().ok()).collect();
    assert_eq!(ips.len(), 2, "an address of each family: {service}");
    report.claim("pods reach a ClusterIP of each family, and other pods see their own addresses", || {
        for (client, inside) in apps.clients(cluster) {
            for ip in &ips {
                let peer = answer(cluster, (&client.name, &inside), at(*ip, SERVICE_PORT), &apps.web, report);
                assert!(client.ips.contains(&peer), "{} at {ip} is seen as {peer}", client.name);
            }
        }
    });
    report.claim("so do the nodes", || {
        for worker in &cluster.workers {
            for ip in &ips {
                answer(cluster, (&worker.name(), &worker.node), at(*ip, SERVICE_PORT), &apps.web, report);
            }
        }
    });
}

/// Requests the page until one of the pods answers, and returns the address that the pod sees.
fn answer(
    cluster: &Kubernetes<'_>,
    (client, from): (&str, &Space),
    to: SocketAddr,
    pods: &[PodState],
    report: &Report,
) -> IpAddr {
    let mut seen = None;
    cluster.wait(&format!("{client}: an answer of {to}"), Duration::from_secs(60), |_| {
        let answer = ask_once(from, to, within(REQUEST)).ok();
        seen = answer.filter(|(name, _)| pods.iter().any(|pod| pod.name == *name));
        seen.is_some()
    });
    let (name, peer) = seen.expect("an answer");
    report.request(client, &format!("http://{to}"), &format!("{name} sees {peer}"));
    peer
}
