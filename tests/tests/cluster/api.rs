// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipwayd run` on each node, with a real API server.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{
    API_SERVER, ApiServer, ClusterNode, Daemon, api_server_programs, quoted, skip, slipway, slipwayd,
};
use slipwayd::cluster::desired::TunnelMode;

use crate::repairs::until;
use crate::{CONFLIST, Lab, SUBNET_FILE, all_reach_each_other};

pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const KUBECONFIG: &str = "/run/kube/config";
pub(crate) const LOG: &str = "/run/slipwayd.log";

/// Creates the Node object as a kubelet registers it, with its pod CIDR.
pub(crate) fn register(server: &ApiServer<'_>, node: &ClusterNode) {
    let (name, cidr) = (format!("node-{}", node.number), format!("10.244.{}.0/24", node.number));
    server.create(
        NODES,
        &json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
            "spec": { "podCIDR": cidr, "podCIDRs": [cidr] },
            "status": { "addresses": [{ "type": "InternalIP", "address": node.addresses[0] }] },
        }),
    );
}

pub(crate) fn agent(node: &ClusterNode, server: &ApiServer<'_>, tunnel: &str) -> Daemon {
    node.cmd("mkdir -p /run/kube");
    node.write(KUBECONFIG, server.kubeconfig());
    let words = words(node, tunnel);
    node.daemon(slipwayd(), &words.iter().map(String::as_str).collect::<Vec<_>>(), LOG)
}

/// The command line arguments of a node's agent.
pub(crate) fn words(node: &ClusterNode, path: &str) -> Vec<String> {
    let (name, slipway) = (format!("node-{}", node.number), slipway().display().to_string());
    let option = if path == "wireguard" { "--encrypt" } else { "--tunnel" };
    let words = [
        "run",
        "--node-name",
        &name,
        "--kubeconfig",
        KUBECONFIG,
        "--cluster-cidr",
        "10.244.0.0/16",
        "--conflist",
        CONFLIST,
        "--subnet-file",
        SUBNET_FILE,
        "--network-name",
        "pods",
        option,
        path,
        "--slipway",
        &slipway,
    ];
    words.map(str::to_owned).into()
}

pub(crate) fn condition(server: &ApiServer<'_>, node: u8) -> Option<Value> {
    let object = server.get(&format!("{NODES}/node-{node}"));
    let all = object["status"]["conditions"].as_array()?;
    all.iter().find(|condition| condition["type"] == "NetworkUnavailable").cloned()
}

#[test]
fn the_agents_make_the_network_of_a_cluster() {
    let Some(programs) = api_server_programs() else { skip!(API_SERVER) };
    let lab = Lab::new(2, TunnelMode::Always);
    let server = ApiServer::start(&programs, &lab.cluster.control);
    server.wait();
    let agents: Vec<Daemon> = lab.cluster.nodes.iter().map(|node| agent(node, &server, "always")).collect();
    // An agent whose Node does not exist yet waits.
    register(&server, lab.node(1));
    until("the configuration of node 1", || lab.node(1).read(CONFLIST).is_some());
    assert!(lab.node(2).read(CONFLIST).is_none());
    register(&server, lab.node(2));
    let other = |number: u8| format!("10.244.{}.0/24", 3 - number);
    for number in [1, 2] {
        until("routes", || lab.node(number).cmd("ip route show").contains(&other(number)));
        until("the condition", || condition(&server, number).is_some_and(|one| one["status"] == "False"));
    }
    let pods = [1, 2].map(|number| (number, lab.pod(number, "web"))).into();
    all_reach_each_other(&pods);
    // An agent that is killed leaves everything in place, and after a restart it changes nothing.
    drop(agents);
    all_reach_each_other(&pods);
    let agents: Vec<Daemon> = lab.cluster.nodes.iter().map(|node| agent(node, &server, "always")).collect();
    let log = |number: u8| lab.node(number).read(LOG).unwrap_or_default();
    until("a complete list", || [1, 2].into_iter().all(|number| log(number).contains("is complete")));
    all_reach_each_other(&pods);
    for number in [1, 2] {
        assert!(!log(number).contains("route") && !log(number).contains("wrote /"), "{}", log(number));
    }
    // When a Node is deleted, its route disappears.
    server.delete(&format!("{NODES}/node-2"));
    until("no route", || !lab.node(1).cmd("ip route show").contains("10.244.2.0/24"));
    assert!(agents.iter().all(Daemon::runs));
    std::thread::sleep(Duration::from_millis(200));
    assert!(
        lab.node(2).cmd("ip route show").contains("10.244.1.0/24"),
        "without its own Node nothing is deleted"
    );
}

/// An agent in a container whose image has no iptables runs the node's iptables.
#[test]
fn the_nodes_iptables_accepts_forwarded_packets() {
    let Some(programs) = api_server_programs() else { skip!(API_SERVER) };
    let lab = Lab::new(1, TunnelMode::Never);
    let node = lab.node(1);
    let server = ApiServer::start(&programs, &lab.cluster.control);
    server.wait();
    register(&server, node);
    node.cmd("iptables-nft -P FORWARD DROP");
    node.cmd("mkdir -p /run/kube");
    node.write(KUBECONFIG, server.kubeconfig());
    let start = |more: &str| {
        // The agent runs in a PID namespace whose process 1 has the node's mounts.
        let hide = "mount --bind /dev/null $(realpath $(command -v iptables-nft))";
        let words: Vec<String> = words(node, "never").iter().map(quoted).collect();
        let words = words.join(" ");
        let agent = format!("{hide} && exec {} {words} {more}", quoted(slipwayd()));
        let script = format!("unshare --mount sh -c {} & wait", quoted(&agent));
        let words = ["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script];
        node.daemon("unshare", &words, LOG)
    };
    let rules = || node.cmd("iptables-nft -S FORWARD").matches("made by slipway").count();
    let log = || node.read(LOG).unwrap_or_default();
    // The process of a killed agent may outlive the one that was killed, so wait for its lock.
    let stop = |agent: Daemon| {
        drop(agent);
        until("no agent", || {
            node.try_cmd("flock --nonblock /run/slipway/slipwayd.lock true").code == Some(0)
        });
    };
    // The control, without `--host-mounts`.
    let agent = start("");
    until("a report", || log().contains("chain FORWARD: "));
    assert_eq!(rules(), 0, "{}", log());
    stop(agent);
    let agent = start("--host-mounts");
    until("the rules", || rules() == 2);
    stop(agent);
    let _agent = start("--host-mounts --forward-rules never");
    until("no rules", || rules() == 0);
}
