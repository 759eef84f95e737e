// SPDX-License-Identifier: GPL-2.0-or-later

//! Many pods that are created and deleted at once, and pods that replace others.

use std::collections::BTreeSet;
use std::time::Duration;

use slipway_tests::at;
use slipway_tests::image::expect;
use slipway_tests::kubernetes::{Kubernetes, Report, Worker, objects};

use crate::agents;
use crate::apps::{Apps, EDGE, NODE_PORT, TCP_PORT, WEB, wait_same};
use crate::requests::{Outcome, Requests};

/// The number of pods that are created and deleted at once.
pub(crate) const MANY: u16 = 60;
/// The label of these pods.
pub(crate) const MANY_APP: &str = "many";
/// The hostPort of the first pod.
const FIRST_PORT: u16 = 20000;

/// Creates the pods, each with a different hostPort.
pub(crate) fn create_many(cluster: &Kubernetes<'_>) {
    for number in 0..MANY {
        let spec = objects::web(&[("TCP", FIRST_PORT + number, objects::WEB_PORT)]);
        cluster.create(&objects::pod(MANY_APP, &name(number), &spec));
    }
}

pub(crate) fn delete_many(cluster: &Kubernetes<'_>) {
    cluster.server.delete(&format!("{}/pods?labelSelector=app%3D{MANY_APP}", objects::NAMESPACE));
}

fn name(number: u16) -> String {
    format!("{MANY_APP}-{number:02}")
}

pub(crate) fn sixty_pods(cluster: &Kubernetes<'_>, report: &Report) {
    report.title("Sixty pods at once");
    let before: Vec<_> = cluster.workers.iter().map(Worker::attachments).collect();
    let pods = report.claim("sixty pods become ready", || {
        create_many(cluster);
        cluster.wait_pods(MANY_APP, MANY.into())
    });
    report.claim("each answers at its hostPort", || {
        // The later comparison after the deletion must be able to see the published ports.
        let after: usize = cluster.workers.iter().map(|worker| worker.attachments().len()).sum();
        let before: usize = before.iter().map(BTreeSet::len).sum();
        assert!(after >= before + 3 * usize::from(MANY), "reservations, links and ports: {before}, {after}");
        for (number, pod) in (0..MANY).zip(&pods) {
            assert_eq!(pod.name, name(number), "sorted by name");
            let ip = cluster.workers[pod.node].node.addresses[usize::from(number % 2)];
            expect(cluster.outside(), (ip, FIRST_PORT + number), &pod.name);
        }
    });
    delete_many(cluster);
    report.claim("deleted, they leave no address, link, port or rule", || wait_same(cluster, &before));
    report.claim("and they are gone from the API server", || cluster.wait_no_pods(MANY_APP));
}

/// Waits until an app has this number of ready pods, none of which is an old one.
fn wait_replaced(cluster: &Kubernetes<'_>, app: &str, count: usize, old: &[String]) {
    cluster.wait(&format!("new pods of {app}"), Duration::from_secs(180), |cluster| {
        let pods = cluster.pods(app).unwrap_or_default();
        pods.len() == count && pods.iter().all(|pod| pod.is_ready && !old.contains(&pod.name))
    });
}

/// Replaces all pods, including those of slipwayd if a DaemonSet runs it, and returns the new ones.
pub(crate) fn rolling_updates(cluster: &Kubernetes<'_>, apps: Apps, report: &Report) -> Apps {
    report.title("Rolling updates");
    let old: Vec<String> = apps.pods().map(|pod| pod.name.clone()).collect();
    let edge: Vec<String> = apps.edge.iter().map(|pod| pod.name.clone()).collect();
    let old_agents = agents::names(cluster);
    // The number of pods of each app, and its collection.
    let counts = [(EDGE, apps.edge.len(), "daemonsets"), (WEB, apps.web.len(), "deployments")];
    let empty = apps.close();
    let targets = cluster.workers.iter().flat_map(|worker| {
        let [v4, v6] = worker.node.addresses;
        [at(v4, NODE_PORT), at(v6, NODE_PORT), at(v4, TCP_PORT)]
    });
    let requests = Requests::start(cluster.outside(), targets);
    report.claim("all pods of DaemonSets and the Deployment are replaced", || {
        for (app, _, collection) in counts {
            let path = format!("/apis/apps/v1/namespaces/default/{collection}/{app}");
            cluster.server.patch(&path, &objects::update("2"));
        }
        agents::update(cluster, &old_agents);
        for (at, name) in edge.iter().enumerate() {
            cluster.server.delete(&format!("{}/pods/{name}", objects::NAMESPACE));
            wait_replaced(cluster, EDGE, edge.len(), &edge[..=at]);
        }
        for (app, count, _) in counts {
            wait_replaced(cluster, app, count, &old);
        }
        agents::wait_updated(cluster, &old_agents);
    });
    let outcomes = requests.stop();
    report.claim("concurrently, each request to the Deployment's Service is answered", || {
        let of_service: Vec<&Outcome> =
            outcomes.iter().filter(|outcome| outcome.to.port() == NODE_PORT).collect();
        let is_answered = |outcome: &&Outcome| outcome.failures.is_empty() && outcome.answered > 0;
        assert!(of_service.iter().all(is_answered), "{of_service:?}");
    });
    report.claim("and while a node's pod is replaced, the hostPorts of the other nodes answer", || {
        let of_ports: Vec<&Outcome> =
            outcomes.iter().filter(|outcome| outcome.to.port() == TCP_PORT).collect();
        assert!(of_ports.iter().all(|outcome| outcome.answered > 0), "{of_ports:?}");
        let mut outages: Vec<_> = of_ports.iter().filter_map(|outcome| outcome.outage()).collect();
        outages.sort();
        assert!(outages.windows(2).all(|pair| pair[0].1 < pair[1].0), "{of_ports:?}");
    });
    let apps = Apps::running(cluster, empty);
    report.claim("the addresses of the former pods are free", || {
        cluster.wait("reservations of running pods alone", Duration::from_secs(60), |cluster| {
            let reserved: usize = cluster.workers.iter().map(|worker| worker.reservations().len()).sum();
            reserved == 2 * apps.pods().count()
        });
    });
    apps
}
