// SPDX-License-Identifier: GPL-2.0-or-later

//! Many pods that come and go at once, and pods that take the place of others.

use std::collections::BTreeSet;
use std::time::Duration;

use slipway_tests::image::expect;
use slipway_tests::kubernetes::{Kubernetes, Report, Worker, objects};

use crate::apps::{Apps, EDGE, WEB, wait_same};

/// The number of pods that are created and deleted at once.
pub(crate) const MANY: u16 = 60;
/// Their label.
pub(crate) const MANY_APP: &str = "many";
/// The hostPort of the first.
const FIRST_PORT: u16 = 20000;

/// Creates the pods, each with a hostPort of its own.
pub(crate) fn create_many(cluster: &Kubernetes<'_>) {
    for number in 0..MANY {
        let spec = objects::web(&[("TCP", FIRST_PORT + number, objects::WEB_PORT)]);
        cluster.create(&objects::pod(MANY_APP, &name(number), &spec));
    }
}

/// Deletes them.
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
        // The comparison after the deletion sees the published ports.
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

/// Replaces all pods; returns the new ones.
pub(crate) fn rolling_updates(cluster: &Kubernetes<'_>, apps: Apps, report: &Report) -> Apps {
    report.title("Rolling updates");
    let old: Vec<String> = apps.pods().map(|pod| pod.name.clone()).collect();
    // The number of pods, and the collection, of each app.
    let counts = [(EDGE, apps.edge.len(), "daemonsets"), (WEB, apps.web.len(), "deployments")];
    let empty = apps.close();
    report.claim("all pods of the DaemonSet and the Deployment are replaced", || {
        for (app, _, collection) in counts {
            let path = format!("/apis/apps/v1/namespaces/default/{collection}/{app}");
            cluster.server.patch(&path, &objects::update("2"));
        }
        for (app, count, _) in counts {
            cluster.wait(&format!("new pods of {app}"), Duration::from_secs(180), |cluster| {
                let pods = cluster.pods(app).unwrap_or_default();
                pods.len() == count && pods.iter().all(|pod| pod.is_ready && !old.contains(&pod.name))
            });
        }
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
