// SPDX-License-Identifier: GPL-2.0-or-later

//! The configuration that the node's agent writes, as containerd reads it: which version of the specification each
//! release takes from it, and which commands it calls.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use slipway_tests::image::expect;
use slipway_tests::system::System;
use slipway_tests::{Host, Node, slipway_only};
use slipwayd::cluster::annotations::Annotations;
use slipwayd::cluster::desired::{self, TunnelMode};
use slipwayd::cluster::reconcile::{Settings, reconcile};

use crate::containerd::{LIST, pod, start_with_its_list, tcp};
use crate::cri::Cri;
use crate::garbage::with_plugin;

const NODE: &str = "node-1";
const SUBNETS: [&str; 2] = ["10.244.1.0/24", "fd44:1::/64"];
const SUBNET_FILE: &str = "/run/slipway/subnet.json";
const CALLS: &str = "/tmp/calls";

/// A plugin that appends the command and the configuration's version to [`CALLS`] and then calls bridge.
const RECORDING: &str = "#!/bin/busybox sh\n\
     config=$(/bin/busybox cat)\n\
     version=$(echo \"$config\" | /bin/busybox grep -o '\"cniVersion\": *\"[^\"]*' | /bin/busybox head -n 1)\n\
     echo \"$CNI_COMMAND ${version##*\\\"}\" >> /tmp/calls\n\
     echo \"$config\" | /opt/cni/bin/slipway plugin bridge\n";

/// Compares a node that is the only one in its cluster with its desired state, as the agent does.
fn agent(system: &System, node: &Node, outside: &Host) {
    let name: slipwayd::cluster::NodeName = NODE.parse().expect("a name");
    let object = slipwayd::cluster::Node {
        name: name.clone(),
        uid: "".into(),
        created: Some(1),
        pod_cidrs: SUBNETS.map(|net| net.parse().expect("a prefix")).into(),
        addresses: vec![outside.node_v4.into(), outside.node_v6.into()],
        annotations: Annotations::default(),
        unusable: Vec::new(),
    };
    let settings = Settings {
        node: name.clone(),
        paths: desired::Settings {
            tunnel: TunnelMode::Auto,
            vni: 1,
            port: 4789.try_into().expect("not 0"),
            pod_cidrs: Vec::new(),
            cluster_cidrs: SUBNETS.map(|net| net.parse().expect("a prefix")).into(),
            service_cidrs: Vec::new(),
            path_mtu: None,
            encryption: None,
        },
        network: "pods".to_owned(),
        bridge: "slipway0".to_owned(),
        conflist: system.path(LIST),
        subnet_file: SUBNET_FILE.into(),
        flannel_file: None,
        sysctl_dir: "/proc/sys".into(),
        without_masquerade: Vec::new(),
        accepts_forwarded: true,
        in_host_mounts: false,
    };
    let nodes = [(name, Arc::new(object))].into();
    let report = node.run(|| reconcile(&nodes, true, &settings, None)).expect("the node's state");
    assert!(report.is_ready, "{:?}", report.troubles().collect::<Vec<_>>());
}

/// containerd 2 calls STATUS, with version 1.1.0. Earlier releases do not know `cniVersions`, and call the commands
/// that they know with 1.0.0.
pub(crate) fn the_agents_list(packages: &Path, specification: &str) {
    slipway_only!();
    let (node, client) = Node::with_client();
    let system = System::start(&node, packages);
    agent(&system, &node, &client);
    let _daemon = start_with_its_list(&system);
    let cri = Cri(&node);
    with_plugin(&system, "bridge", RECORDING, || {
        assert_eq!(cri.network_trouble(), Ok(None));
        let web = pod(&system, "web", &[tcp(8080)]);
        let id = cri.run_pod(&web).unwrap();
        cri.start_web(&web, &id, "web").unwrap();
        for address in [client.node_v4.into(), client.node_v6.into()] as [IpAddr; 2] {
            expect(&client, (address, 8080), "web");
        }
        cri.stop_pod(&id).unwrap();
        cri.remove_pod(&id).unwrap();
    });
    let recorded = system.read(CALLS);
    let calls: BTreeSet<&str> = recorded.lines().collect();
    let calls_status = specification == "1.1.0";
    let commands = ["ADD", "DEL", "STATUS"].into_iter().filter(|name| calls_status || *name != "STATUS");
    let expected: Vec<String> = commands.map(|command| format!("{command} {specification}")).collect();
    assert!(calls.iter().eq(&expected), "{recorded}");

    // Without the file no pod can start, and containerd 2 tells kubelet the reason beforehand.
    let away = format!("{SUBNET_FILE}.away");
    let rename = |from: &str, to: &str| node.run(|| fs::rename(from, to)).expect("rename the node's subnets");
    rename(SUBNET_FILE, &away);
    let trouble = cri.network_trouble().expect("a reply");
    assert_eq!(trouble.is_some(), calls_status, "{trouble:?}");
    assert!(trouble.is_none_or(|text| text.contains(SUBNET_FILE)));
    let refused = cri.run_pod(&pod(&system, "late", &[])).expect_err("no subnets");
    assert!(refused.contains(SUBNET_FILE), "{refused}");
    rename(&away, SUBNET_FILE);
    assert_eq!(cri.network_trouble(), Ok(None));
}
