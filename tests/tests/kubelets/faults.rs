// SPDX-License-Identifier: GPL-2.0-or-later

//! Programs are killed, and the power of a node is cut.

use std::time::Duration;

use slipway_tests::image::{ask_once, expect};
use slipway_tests::kubernetes::{Kubernetes, Report, Worker, objects};
use slipway_tests::{at, within};

use crate::apps::{Apps, EDGE, TCP_PORT, WEB, wait_same};
use crate::{ports, services};

/// The label and the hostPort of a pod that is created after the restart.
const LATE: &str = "late";
const LATE_PORT: u16 = 9090;

/// Kills a program of the first node and starts it again.
pub(crate) fn killed(cluster: &mut Kubernetes<'_>, apps: &Apps, program: &'static str, report: &Report) {
    report.title(&format!("{program} is killed"));
    let before: Vec<_> = cluster.workers.iter().map(Worker::attachments).collect();
    cluster.workers[0].kill(program);
    report.claim(&format!("without {program}, hostPorts and Services answer"), || {
        ports::from_outside(cluster, apps, report);
        services::all(cluster, apps, report);
    });
    cluster.workers[0].start(program);
    report.claim(&format!("with {program} again, a new pod on the node answers at its hostPort"), || {
        let mut spec = objects::web(&[("TCP", LATE_PORT, objects::WEB_PORT)]);
        spec["nodeName"] = cluster.workers[0].name().into();
        let pod = objects::pod(LATE, LATE, &spec);
        cluster.create(&pod);
        cluster.wait_pods(LATE, 1);
        for ip in cluster.workers[0].node.addresses {
            expect(cluster.outside(), (ip, LATE_PORT), LATE);
        }
        cluster.delete(&pod);
    });
    report.claim("deleted, it leaves nothing, and the others have what they had", || {
        wait_same(cluster, &before);
        cluster.wait_no_pods(LATE);
    });
}

/// Cuts the power of the first node while pods run, and returns the pods that run afterwards.
pub(crate) fn reboot(cluster: &mut Kubernetes<'_>, apps: Apps, report: &Report) -> Apps {
    let empty = apps.close();
    report.title("A node's power is cut");
    let old = cluster.workers[0].reservations();
    assert!(!old.is_empty(), "pods with addresses");
    let [v4, v6] = cluster.workers[0].node.addresses;
    report.step("the node boots", || cluster.workers[0].reboot());
    report.claim("hostPorts answer again", || {
        for ip in [v4, v6] {
            cluster.wait(&format!("an answer of {ip}"), Duration::from_secs(180), |cluster| {
                ask_once(cluster.outside(), at(ip, TCP_PORT), within(Duration::from_secs(1))).is_ok()
            });
        }
    });
    report.claim("the addresses of before are free, and each pod of the node has new ones", || {
        cluster.wait("reservations of running pods alone", Duration::from_secs(180), |cluster| {
            let pods = [EDGE, WEB].map(|app| cluster.pods(app).unwrap_or_default()).concat();
            let here = pods.iter().filter(|pod| pod.node == 0);
            let addresses: Vec<String> =
                here.flat_map(|pod| pod.ips.iter().map(ToString::to_string)).collect();
            let reserved = cluster.workers[0].reservations();
            reserved.len() == addresses.len()
                && addresses.iter().all(|ip| reserved.contains(ip) && !old.contains(ip))
        });
    });
    Apps::running(cluster, empty)
}
