// SPDX-License-Identifier: GPL-2.0-or-later

//! Many pods at once, and many operations on the same pod.

use std::collections::BTreeSet;

use cni_runtime::CallOptions;
use cni_runtime::pods::{Attach, PodError};
use cni_spec::PortMapping;
use slipway_tests::{Proto, slipway_only, stride};

use crate::stage::{Stage, joined, request};

/// The number of pods, which is smaller in a run that samples.
fn count() -> u16 {
    if stride() == 1 { 200 } else { 50 }
}

fn port(host_port: u16) -> PortMapping {
    PortMapping { host_port, container_port: 80, protocol: "tcp".to_owned(), host_ip: String::new() }
}

#[test]
fn many_pods_are_set_up_and_torn_down_in_parallel() {
    slipway_only!();
    let stage = Stage::new();
    stage.warm_up();
    let client = stage.node.host("client");
    let pods: Vec<_> = (0..count()).map(|number| stage.node.pod(&format!("p{number}"))).collect();
    for pod in &pods {
        pod.cmd("ip link set lo up");
    }
    let before = stage.state(&[]);
    let requests: Vec<_> = pods
        .iter()
        .zip(9000..)
        .map(|(pod, host_port)| {
            let mut request = request(pod);
            let mut attach = Attach::to("pods");
            attach.parameters.port_mappings.push(port(host_port));
            request.networks.push(attach);
            request
        })
        .collect();
    stage.block_on(async || {
        let manager = stage.manager().start().await.expect("a manager");
        let up = requests.iter().cloned().map(|pod| {
            let manager = manager.clone();
            async move { manager.set_up(&pod, &CallOptions::new()).await }
        });
        let mut addresses = BTreeSet::new();
        for attached in joined(up).await {
            let attached = attached.expect("a set-up");
            addresses.insert(attached[0].result.ips[0].address.to_string());
        }
        assert_eq!(addresses.len(), pods.len());
        for at in [0, pods.len() / 2, pods.len() - 1] {
            let name = pods[at].name().to_owned();
            let _server = pods[at].serve(Proto::Tcp, "0.0.0.0:80", &name);
            let host_port = 9000 + u16::try_from(at).expect("few pods");
            client.expect(Proto::Tcp, (client.node_v4, host_port), &name);
        }
        let down = requests.iter().cloned().map(|pod| {
            let manager = manager.clone();
            async move { manager.tear_down(&pod, &CallOptions::new()).await }
        });
        for torn_down in joined(down).await {
            torn_down.expect("a teardown");
        }
        manager.shut_down().await;
    });
    before.assert_same(&stage.state(&[]));
}

#[test]
fn concurrent_set_ups_and_teardowns_of_one_pod_leave_it_whole_or_gone() {
    slipway_only!();
    let stage = Stage::new();
    stage.warm_up();
    let space = stage.node.pod("web");
    space.cmd("ip link set lo up");
    let before = stage.state(&[&space]);
    let pod = request(&space);
    stage.block_on(async || {
        // Two managers behave like two processes, because they share nothing but files.
        let managers = [stage.manager().open(), stage.manager().open()];
        for _ in 0..4 {
            let all = (0..8).map(|number| {
                let (manager, pod) = (managers[number % 2].clone(), pod.clone());
                async move {
                    let options = CallOptions::new();
                    match number {
                        0..6 => manager.set_up(&pod, &options).await.map(drop),
                        _ => manager.tear_down(&pod, &options).await,
                    }
                }
            });
            for done in joined(all).await {
                assert!(matches!(done, Ok(()) | Err(PodError::Attached { .. })), "{done:?}");
            }
            // Whichever operation came last, the pod is either complete or gone.
            let is_cached = !managers[0].attachments().await.expect("a cache").is_empty();
            assert_eq!(space.has_link("eth0"), is_cached);
            if is_cached {
                managers[1].status(&pod, &CallOptions::new()).await.expect("a whole pod");
            }
        }
        managers[0].tear_down(&pod, &CallOptions::new()).await.expect("a teardown");
    });
    before.assert_same(&stage.state(&[&space]));
}
