// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway uninstall` removes what an agent has left in the kernel, once the agent has ended and no pod needs it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use slipway_tests::{
    ClusterNode, Daemon, Pod, Snapshot, Sniffer, WIREGUARD, comes, has_wireguard, needs, quoted,
    slipway_only, slipwayd,
};
use slipwayd::cluster::desired::TunnelMode;

use crate::api::{KUBECONFIG, LOG};
use crate::encryption::in_clear_text;
use crate::repairs::until;
use crate::{Lab, SUBNET_FILE, all_reach_each_other};

const UNINSTALL: &str = "uninstall --to /run/cni-bin";
const COMMANDS: [&str; 2] = ["iptables-nft", "ip6tables-nft"];
/// Routes that have something in common with those of an agent, but that no agent makes.
const FOREIGN_ROUTES: [&str; 6] = [
    "10.250.0.0/24 dev other proto 83 metric 512",
    "fd60::/64 dev other proto 83 metric 512",
    "10.251.0.0/24 via 192.168.50.2 proto 83 metric 7",
    "10.252.0.0/24 via 192.168.50.2 proto 83 metric 512 table 100",
    "10.253.0.0/24 via 192.168.50.2 proto bird metric 512",
    "blackhole 10.254.0.0/24 proto 83 metric 512",
];
/// Routes that an agent makes with WireGuard only, which not every kernel has.
const REFUSALS: [&str; 2] =
    ["unreachable 10.244.0.0/16 proto 83 metric 512", "unreachable fd44::/32 proto 83 metric 512"];

fn routes(node: &ClusterNode, verb: &str, routes: &[&str]) {
    let lines: String = routes.iter().map(|route| format!("route {verb} {route}\n")).collect();
    node.cmd_input("ip -batch -", &lines);
}

/// Starts an agent that waits for an API server, and waits until it answers.
fn agent_without_server(node: &ClusterNode) -> Daemon {
    node.cmd("mkdir -p /run/kube");
    node.write(KUBECONFIG, "{}");
    let words = format!(
        "run --node-name node-1 --kubeconfig {KUBECONFIG} --listen none --probe-listen none --cri-socket none \
         --limits never --conflist /run/none.conflist --slipway /run/none"
    );
    let agent = node.daemon(slipwayd(), &words.split_whitespace().collect::<Vec<_>>(), LOG);
    let status = format!("{} status", quoted(slipwayd()));
    until("a reply", || node.try_cmd(&status).code == Some(0));
    agent
}

/// The state of a node without the files that `slipway uninstall` leaves.
fn state(node: &ClusterNode) -> Snapshot {
    Snapshot::take(node, &[]).without(&["/run/net.d", "/run/flannel", "/run/kube", LOG])
}

/// Makes a node drop what it forwards, like Docker, so that an agent adds its rules.
fn drop_forwarded(node: &ClusterNode) {
    for command in COMMANDS {
        node.cmd(&format!("{command} -P FORWARD DROP"));
    }
}

#[track_caller]
fn assert_lines(printed: &str, lines: &[&str]) {
    for line in lines {
        assert!(printed.lines().any(|found| found == *line), "{line:?} is not in:\n{printed}");
    }
}

#[test]
fn uninstall_removes_what_an_agent_has_left_and_nothing_else() {
    slipway_only!();
    for tunnel in [TunnelMode::Never, TunnelMode::Always] {
        let mut lab = Lab::new(2, tunnel);
        let node = lab.node(1);
        drop_forwarded(node);
        for command in COMMANDS {
            node.cmd(&format!("{command} -A FORWARD -i slipway0 -j ACCEPT"));
            node.cmd(&format!("{command} -A FORWARD -i other -m comment --comment mine -j ACCEPT"));
        }
        node.cmd_input(
            "ip -batch -",
            "link add other type bridge\n\
             link set other up\n\
             link add vxlan9 type vxlan id 9 dstport 4790 dev eth0\n",
        );
        routes(node, "add", &FOREIGN_ROUTES);
        let before = state(node);
        // An agent takes some of these routes for those of an earlier version.
        routes(node, "del", &FOREIGN_ROUTES);
        lab.settle();
        let node = lab.node(1);
        routes(node, "add", &FOREIGN_ROUTES);
        routes(node, "add", &REFUSALS);
        assert_eq!(node.has_link("slipway-vxlan"), tunnel == TunnelMode::Always);

        // The agent of the lab is not a process. As long as one runs, everything stays.
        let agent = agent_without_server(node);
        let with_paths = || state(node).without(&["/run/slipway/"]);
        let running = with_paths();
        let printed = node.slipway(UNINSTALL);
        let why = "(slipwayd is running: stop it first)";
        for what in [
            "link slipway0",
            "4 routes of protocol 83",
            "rules for slipway0 in FORWARD of iptables-nft",
            "rules for slipway0 in FORWARD of ip6tables-nft",
            "/run/slipway",
        ] {
            assert_lines(&printed, &[&format!("leave   {what} {why}")]);
        }
        assert!(!printed.contains("remove  "), "{printed}");
        running.assert_same(&with_paths());
        assert!(agent.runs() && node.read(SUBNET_FILE).is_some());
        drop(agent);

        let planned = node.slipway(&format!("{UNINSTALL} --dry-run"));
        running.assert_same(&with_paths());
        let printed = node.slipway(UNINSTALL);
        assert_eq!(planned.replace("would be ", ""), printed);
        let lines = [
            "remove  link slipway0",
            "remove  4 routes of protocol 83",
            "remove  rules for slipway0 in FORWARD of iptables-nft",
            "remove  rules for slipway0 in FORWARD of ip6tables-nft",
            "remove  /run/slipway",
        ];
        assert_lines(&printed, &lines);
        assert_eq!(printed.contains("\nremove  link slipway-vxlan\n"), tunnel == TunnelMode::Always);
        before.assert_same(&state(node));
        let again = node.slipway(UNINSTALL);
        assert!(again.ends_with("this node: 0 of 0 things removed\n"), "{again}");
        before.assert_same(&state(node));
    }
}

/// A link that another program has made with the name of the agent's stays.
#[test]
fn a_foreign_link_with_an_agents_name_stays() {
    slipway_only!();
    let lab = Lab::new(1, TunnelMode::Never);
    let node = lab.node(1);
    node.cmd("ip link add slipway-vxlan type vxlan id 9 dstport 4790 dev eth0");
    let before = state(node);
    let printed = node.slipway(UNINSTALL);
    assert!(!printed.contains("slipway-vxlan"), "{printed}");
    before.assert_same(&state(node));
}

/// The paths stay as long as a node has pods, even if their tables are removed by force.
fn paths_stay_until_the_pods_have_gone(mut lab: Lab, device: &str, count: usize) {
    drop_forwarded(lab.node(1));
    lab.settle();
    let mut pods: BTreeMap<u8, (Pod, Vec<IpAddr>)> =
        [1, 2].map(|number| (number, lab.pod(number, "web"))).into();
    all_reach_each_other(&pods);
    let node = lab.node(1);
    let sniffer = Sniffer::new(lab.cluster.lan());
    let printed = node.slipway(&format!("{UNINSTALL} --force"));
    assert_lines(&printed, &["leave   link slipway0 (it has a port)"]);
    for what in [
        format!("link {device}"),
        format!("{count} routes of protocol 83"),
        "rules for slipway0 in FORWARD of iptables-nft".to_owned(),
        "rules for slipway0 in FORWARD of ip6tables-nft".to_owned(),
    ] {
        assert_lines(&printed, &[&format!("leave   {what} (link slipway0 has a port)")]);
    }
    all_reach_each_other(&pods);
    if lab.encrypts {
        assert_eq!(in_clear_text(&sniffer.frames(), &[1, 2]), 0);
    }
    let (pod, _) = pods.remove(&1).expect("the pod of node 1");
    pod.remove();
    // The kernel removes the links in the background.
    assert!(comes(|| node.cmd("ip -o link show master slipway0").is_empty()));
    let printed = node.slipway(UNINSTALL);
    let (link, routes) = (format!("remove  link {device}"), format!("remove  {count} routes of protocol 83"));
    assert_lines(&printed, &[&link, &routes]);
    let left = node.cmd("ip route show proto 83") + &node.cmd("ip -6 route show proto 83");
    assert!(!node.has_link(device) && left.is_empty(), "{left}");
}

#[test]
fn a_tunnel_stays_until_the_pods_have_gone() {
    slipway_only!();
    paths_stay_until_the_pods_have_gone(Lab::new(2, TunnelMode::Always), "slipway-vxlan", 2);
}

#[test]
fn encrypted_paths_stay_until_the_pods_have_gone() {
    slipway_only!();
    needs!(has_wireguard(), WIREGUARD);
    // Besides the routes to the other node, one for each prefix of the cluster refuses packets.
    paths_stay_until_the_pods_have_gone(Lab::encrypted(2), "slipway-wg", 4);
}
