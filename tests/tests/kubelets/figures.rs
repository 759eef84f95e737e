// SPDX-License-Identifier: GPL-2.0-or-later

//! The time that sixty pods take, compared with the reference plugins in a cluster of the same programs.

use std::time::{Duration, Instant};

use slipway_tests::Reference;
use slipway_tests::kubernetes::{Agent, Backend, Kubernetes, Network, Plan, Programs, Report};

use crate::churn::{MANY, MANY_APP, create_many, delete_many};

/// How often the pods are created and deleted.
const ROUNDS: usize = 2;

/// The durations of one round in seconds: until all pods are ready, and after the deletion until their networks are
/// gone and until they are gone from the API server.
struct Round {
    ready: f64,
    networks_gone: f64,
    pods_gone: f64,
}

#[test]
#[ignore = "it measures; cargo test --test kubelets -- --ignored --exact figures::sixty_pods"]
fn sixty_pods() {
    let programs = Programs::find().unwrap_or_else(|missing| panic!("{missing} is missing"));
    let mut networks = vec![Network::Slipway("never", Backend::Nftables, Agent::Program)];
    networks.extend(Reference::any().map(|reference| Network::Reference(reference.dir().to_owned())));
    for network in networks {
        let plan = Plan { nodes: 2, network: network.clone() };
        Kubernetes::run(&programs, &plan, &Report::of_test(), |cluster| {
            for round in 1..=ROUNDS {
                let Round { ready, networks_gone, pods_gone } = measure(cluster);
                eprintln!(
                    "{network:?}, round {round}: {MANY} pods ready after {ready:.1} s; deleted, networks gone after \
                     {networks_gone:.1} s, pods after {pods_gone:.1} s"
                );
            }
        });
    }
}

fn measure(cluster: &Kubernetes<'_>) -> Round {
    let begin = Instant::now();
    create_many(cluster);
    cluster.wait_pods(MANY_APP, MANY.into());
    let ready = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    delete_many(cluster);
    cluster.wait("no networks", Duration::from_secs(180), |cluster| {
        cluster.workers.iter().all(|worker| {
            let links = worker.node.cmd("ip -o link show type veth");
            // The uplink is the one veth that remains.
            worker.reservations().is_empty() && links.lines().count() == 1
        })
    });
    let networks_gone = begin.elapsed().as_secs_f64();
    cluster.wait_no_pods(MANY_APP);
    Round { ready, networks_gone, pods_gone: begin.elapsed().as_secs_f64() }
}
