// SPDX-License-Identifier: GPL-2.0-or-later

//! slipwayd as the DaemonSet of `slipwayd render`, whose pods are run by kubelets and containerd.

use std::time::Duration;

use serde_json::Value;
use slipway_tests::kubernetes::{Kubernetes, PodState, Report, Worker, objects};
use slipway_tests::{at, capabilities, capability_bit, pod_of};

use crate::apps::{Apps, DNS_PORT, UDP_PORT, wait_same};
use crate::ports;

const DAEMON_SET: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/slipwayd";
const EVENTS: &str = "/api/v1/namespaces/kube-system/events";

/// The interval between two datagrams of a flow.
const INTERVAL: Duration = Duration::from_millis(20);

/// A pod whose attachments the plugins leave behind.
const LEFT: &str = "left";
const LEFT_PORT: u16 = 19999;

/// The claims about the agents' pods. Afterwards, kube-proxy may need half a minute to restore its rules.
pub(crate) fn all(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    report.title("slipwayd as the DaemonSet of slipwayd render");
    let agents = report.claim("its pods are ready by their probes, without a restart or a pull", || {
        let agents = cluster.wait_agents("ready pods of slipwayd", |_| true);
        assert!(agents.iter().all(|pod| pod.restarts == 0), "{agents:?}");
        nothing_is_pulled(cluster, agents.len());
        agents
    });
    report.claim("they have the rights of the object, and reach the API server by its Service", || {
        let daemon_set = cluster.server.get(DAEMON_SET);
        for pod in &agents {
            is_confined(&cluster.workers[pod.node], pod, &daemon_set);
        }
    });
    report.claim("slipwayd status in them reports a complete network", || {
        agents.iter().for_each(|pod| status(&cluster.workers[pod.node], pod));
    });
    report.claim("one deleted and one killed are replaced, and no datagram to other pods is lost", || {
        replaced(cluster, apps, &agents);
    });
    report.claim(
        "after a flush of a node's ruleset its hostPorts answer again, and all pods have their rules",
        || {
            let before: Vec<_> = cluster.workers.iter().map(Worker::attachments).collect();
            // kube-proxy notices within half a minute that its rules are missing. Claims about Services come later.
            cluster.workers[0].node.cmd("nft flush ruleset");
            ports::from_outside(cluster, apps, report);
            wait_same(cluster, &before);
        },
    );
    let agents = cluster.wait_agents("pods of slipwayd", |_| true);
    garbage(cluster, apps, &agents, report);
}

/// The agents reach containerd from their containers, and delete what containerd has left behind.
fn garbage(cluster: &Kubernetes<'_>, apps: &Apps, agents: &[PodState], report: &Report) {
    report.title("Garbage of containerd");
    let (worker, agent) = (&cluster.workers[0], &agents[0]);
    let before = worker.attachments();
    let mut spec = objects::web(&[("TCP", LEFT_PORT, objects::WEB_PORT)]);
    spec["nodeName"] = worker.name().into();
    let object = objects::pod(LEFT, LEFT, &spec);
    report.claim("plugins without effect leave the addresses and ports of a deleted pod", || {
        cluster.create(&object);
        let pod = cluster.wait_pods(LEFT, 1).remove(0);
        let sandbox = worker.reserved_by(pod.ips[0]);
        // kubelet stops a sandbox several times, and removes it within a minute.
        worker.with_idle_plugins(&["bridge", "portmap"], || {
            cluster.delete(&object);
            cluster.wait_no_pods(LEFT);
            let forgotten = |_: &Kubernetes<'_>| !worker.has_container(&sandbox);
            cluster.wait("no sandbox of the deleted pod", Duration::from_secs(180), forgotten);
        });
        for ip in &pod.ips {
            assert_eq!(worker.reserved_by(*ip), sandbox);
        }
    });
    report.claim("the agent deletes them from its container, and nothing else", || {
        let deleted = || garbage_deleted(worker, agent);
        cluster.wait("the deletion", Duration::from_secs(180), |_| deleted() == Some(1));
        assert_eq!(worker.attachments(), before);
        ports::from_outside(cluster, apps, report);
    });
}

/// The number of attachments that an agent has deleted, according to its status. None if the agent does not reply in
/// time, because kubelet gives pods little processor time.
fn garbage_deleted(worker: &Worker, pod: &PodState) -> Option<u64> {
    let output =
        worker.try_run_in(&pod.container, &["/usr/local/bin/slipwayd", "status", "--output", "json"]);
    if output.code != Some(0) {
        return None;
    }
    let status: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|e| panic!("{output}: {e}"));
    status["garbage"]["deleted"].as_u64()
}

/// Deletes the DaemonSet and with it the agents' pods.
pub(crate) fn delete(cluster: &Kubernetes<'_>, report: &Report) {
    report.claim("slipwayd's pods end with their DaemonSet, and leave the nodes their network", || {
        cluster.server.delete(DAEMON_SET);
        cluster.wait_no_agents();
        for worker in &cluster.workers {
            assert_eq!(worker.networks(), ["10-slipway.conflist"]);
        }
    });
}

/// The names of the agents' pods.
pub(crate) fn names(cluster: &Kubernetes<'_>) -> Vec<String> {
    cluster.agents().expect("a reply").into_iter().map(|pod| pod.name).collect()
}

/// Begins to replace the pods of slipwayd if a DaemonSet runs it.
pub(crate) fn update(cluster: &Kubernetes<'_>, old: &[String]) {
    if !old.is_empty() {
        cluster.server.patch(DAEMON_SET, &objects::update("2"));
    }
}

/// Waits until the pods are replaced.
pub(crate) fn wait_updated(cluster: &Kubernetes<'_>, old: &[String]) {
    if !old.is_empty() {
        let agents = cluster
            .wait_agents("new pods of slipwayd", |agents| agents.iter().all(|pod| !old.contains(&pod.name)));
        assert!(agents.iter().all(|pod| pod.restarts == 0), "{agents:?}");
    }
}

fn nothing_is_pulled(cluster: &Kubernetes<'_>, agents: usize) {
    let events = cluster.server.get(EVENTS);
    let events = events["items"].as_array().expect("a list");
    let of_reason =
        |reason: &str| -> Vec<&Value> { events.iter().filter(|event| event["reason"] == reason).collect() };
    for reason in ["Pulling", "Failed", "BackOff"] {
        let found = of_reason(reason);
        assert!(found.is_empty(), "{reason}: {found:?}");
    }
    // One event each for the init container and the agent.
    let present = of_reason("Pulled");
    assert_eq!(present.len(), 2 * agents, "{present:?}");
    for event in present {
        let message = event["message"].as_str().unwrap_or_default();
        assert!(message.contains("already present on machine"), "{message}");
    }
}

/// Asserts that the container runtime has applied everything that the object demands.
fn is_confined(worker: &Worker, pod: &PodState, daemon_set: &Value) {
    let spec = pod_of(daemon_set);
    let security = &spec["securityContext"]["seccompProfile"]["type"];
    assert_eq!(*security, "RuntimeDefault", "{spec}");
    let process = worker.process(&pod.container);
    let read = |file: &str| worker.run(&["/bin/busybox", "cat", &format!("/proc/{process}/{file}")]);
    let text = read("status");
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).unwrap_or_else(|| panic!("no {name}: {text}"))
    };
    // 2 means SECCOMP_MODE_FILTER (seccomp(2)).
    assert_eq!((field("Seccomp"), field("NoNewPrivs"), field("Uid")), ("2", "1", "0\t0\t0\t0"));
    let names = capabilities(&spec["containers"][0]);
    let bits = names.iter().fold(0, |bits, name| bits | capability_bit(name));
    assert_eq!((field("CapEff"), field("CapBnd")), (&*format!("{bits:016x}"), &*format!("{bits:016x}")));
    let environment = read("environ");
    let variables: Vec<&str> = environment.split('\0').collect();
    for variable in ["KUBERNETES_SERVICE_HOST=10.96.0.1", &format!("NODE_NAME={}", worker.name())] {
        assert!(variables.contains(&variable), "{variables:?}");
    }
    let mounts = read("mountinfo");
    let is_read_only = |point: &str| {
        let line =
            mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|line| line[4] == point);
        line.unwrap_or_else(|| panic!("no {point}: {mounts}"))[5].split(',').any(|option| option == "ro")
    };
    for point in ["/", "/opt/cni/bin", "/var/run/secrets/kubernetes.io/serviceaccount"] {
        assert!(is_read_only(point), "{point}: {mounts}");
    }
}

/// Asserts that the agent reports from inside its container that the node is ready.
fn status(worker: &Worker, pod: &PodState) {
    let text = worker.run_in(&pod.container, &["/usr/local/bin/slipwayd", "status", "--output", "json"]);
    let status: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
    assert_eq!((&status["node"], &status["ready"]), (&worker.name().into(), &true.into()), "{status}");
}

/// Deletes the agent's pod on the first node, and kills the agent's process on the second.
fn replaced(cluster: &Kubernetes<'_>, apps: &Apps, agents: &[PodState]) {
    let [deleted, killed, ..] = agents else { panic!("{agents:?}") };
    let outside = apps.edge.iter().flat_map(|pod| {
        let addresses = cluster.workers[pod.node].node.addresses;
        addresses.map(|ip| cluster.outside().steady(at(ip, UDP_PORT), &pod.name, INTERVAL))
    });
    let mut flows: Vec<_> = outside.collect();
    for (client, inside) in apps.clients(cluster) {
        for server in apps.edge.iter().filter(|server| server.node != client.node) {
            let flow = |ip| inside.steady(at(ip, DNS_PORT), &server.name, INTERVAL);
            flows.extend(server.ips.iter().copied().map(flow));
        }
    }
    cluster.server.delete(&format!("/api/v1/namespaces/kube-system/pods/{}", deleted.name));
    let worker = &cluster.workers[killed.node];
    let _ = worker.run(&["/bin/busybox", "kill", "-s", "KILL", &worker.process(&killed.container)]);
    let running = cluster.wait_agents("pods of slipwayd after one was deleted and one killed", |running| {
        running[deleted.node].name != deleted.name && running[killed.node].restarts == 1
    });
    assert_eq!(running[killed.node].name, killed.name);
    for flow in flows {
        let deliveries = flow.stop();
        assert_eq!(deliveries.lost(), 0, "{deliveries:?}");
        assert!(deliveries.sent() > 100, "{deliveries:?}");
    }
    running.iter().for_each(|pod| status(&cluster.workers[pod.node], pod));
}
