// SPDX-License-Identifier: GPL-2.0-or-later

//! Nodes without iptables, or with a variant of it whose tables the kernel lacks.

use std::net::IpAddr;

use serde_json::json;
use slipway_tests::{Attach, Node, Proto, at, has_iptables, slipway_only};

use super::{filter, network, recorded};

/// The rule of [`filter`] for the first address.
const RULE: &str = "-s 10.1.1.2/32 -j ACCEPT";

/// The number of containers that have rules in our table. In the record, `0x100` means nftables without a policy.
fn in_our_table(node: &Node) -> usize {
    recorded(node).matches(": \"br1\" . 0x00000100").count()
}

#[test]
fn without_iptables_the_default_backend_is_nftables() {
    slipway_tests::needs_iptables!();
    slipway_only!();
    let (node, pods) = (Node::new(), ["one", "two", "three"]);
    let pods = pods.map(|name| node.pod(name));
    let attach = pods.each_ref().map(Attach::new);
    node.hide_iptables();
    let auto = network(&node, 1, &json!({}));
    auto.status().expect("STATUS");
    auto.add(&attach[0]).expect("ADD");
    auto.check(&attach[0]).expect("CHECK");
    assert_eq!(in_our_table(&node), 1, "{}", recorded(&node));
    // Although the programs are installed again, containers get rules in our table until no container has any there.
    node.show_iptables();
    auto.add(&attach[1]).expect("ADD");
    assert_eq!(in_our_table(&node), 2, "{}", recorded(&node));
    assert!(!node.ruleset().contains("CNI-FORWARD"));
    attach[..2].iter().for_each(|one| auto.del(one).expect("DEL"));
    auto.add(&attach[2]).expect("ADD");
    assert!(filter(&node, "iptables-save").contains("-j ACCEPT"), "{}", node.ruleset());
    assert_eq!(in_our_table(&node), 0, "{}", recorded(&node));
    auto.check(&attach[2]).expect("CHECK");
    auto.del(&attach[2]).expect("DEL");
}

/// The reverse: as long as a container has rules of iptables, the next one gets them too.
#[test]
fn containers_with_rules_of_iptables_keep_the_default_backend() {
    slipway_tests::needs_iptables!();
    slipway_only!();
    let node = Node::new();
    let pods = ["one", "two"].map(|name| node.pod(name));
    let attach = pods.each_ref().map(Attach::new);
    let (auto, named) = (network(&node, 1, &json!({})), network(&node, 2, &json!({"backend": "nftables"})));
    auto.add(&attach[0]).expect("ADD");
    named.add(&Attach::new(&pods[1]).ifname("eth1")).expect("ADD");
    auto.add(&attach[1]).expect("ADD");
    assert_eq!(in_our_table(&node), 0, "{}", recorded(&node));
    assert_eq!(filter(&node, "iptables-save").matches("-s 10.1.1.").count(), 2);
}

/// A variant that is installed but does not work is not used. Here, a program that fails imitates a kernel without the
/// legacy tables; in the VMs, the suite runs on such a kernel.
#[test]
fn the_variant_that_works_is_used() {
    slipway_tests::needs_iptables!();
    slipway_only!();
    for (broken, works) in [("legacy", Some("nft")), ("nft", Some("legacy")), ("both", None)] {
        let node = Node::new();
        let pod = node.pod("pod");
        let attach = Attach::new(&pod);
        for variant in ["nft", "legacy"].into_iter().filter(|variant| broken == "both" || *variant == broken)
        {
            node.replace_program(variant, "/bin/false");
        }
        let (asked, auto) =
            (network(&node, 1, &json!({"backend": "iptables"})), network(&node, 1, &json!({})));
        auto.status().expect("STATUS of the default backend");
        auto.add(&attach).expect("ADD");
        match works {
            Some(variant) => {
                asked.status().expect("STATUS");
                assert!(filter(&node, &format!("iptables-{variant}-save")).contains(RULE), "{variant}");
            }
            None => {
                assert_eq!(in_our_table(&node), 1, "{}", recorded(&node));
                let error = asked.status().expect_err("STATUS").error;
                assert!(
                    error.code == 50
                        && error.msg.starts_with("try ")
                        && error.msg.contains(" with table filter: "),
                    "{error:?}"
                );
                assert!(error.msg.contains("use backend \"nftables\""), "{error:?}");
            }
        }
        auto.check(&attach).expect("CHECK");
        auto.del(&attach).expect("DEL");
    }
}

/// The iptables programs are installed, but the kernel has no x_tables, so chains can be created but none of our rules.
#[test]
fn a_kernel_without_iptables_has_our_table() {
    slipway_tests::needs!(!has_iptables(), "a kernel without x_tables");
    slipway_only!();
    let (node, client) = Node::with_client();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let (asked, auto) = (network(&node, 1, &json!({"backend": "iptables"})), network(&node, 1, &json!({})));
    let error = asked.status().expect_err("STATUS").error;
    assert!(error.code == 50 && error.msg.contains("use backend \"nftables\""), "{error:?}");
    auto.status().expect("STATUS of the default backend");
    auto.add(&attach).expect("ADD");
    assert_eq!(in_our_table(&node), 1, "{}", recorded(&node));
    let _server = client.serve(Proto::Tcp, "0.0.0.0:80", "client");
    pod.expect(Proto::Tcp, (client.v4, 80), "client");
    auto.check(&attach).expect("CHECK");
    auto.del(&attach).expect("DEL");
    // The trial has been undone: there is neither a table of the legacy variant nor a chain.
    assert!(!node.ruleset().contains("TRIAL"), "{}", node.ruleset());
}

/// STATUS tries a variant that is not in use, and leaves no table of it behind.
#[test]
fn status_leaves_no_legacy_table() {
    slipway_tests::needs_iptables!();
    slipway_only!();
    let node = Node::new();
    node.hide_programs(&["nft"]);
    network(&node, 1, &json!({"backend": "iptables"})).status().expect("STATUS");
    assert_eq!(node.cmd("cat /proc/net/ip_tables_names"), "");
}

/// A policy with firewalld on a node without iptables, such as RHEL 10 and its derivatives.
#[test]
fn firewalld_separates_bridges_without_iptables() {
    slipway_only!();
    let node = Node::new();
    let Some(_daemon) = super::bus::Daemon::start(&node) else { slipway_tests::skip!("dbus-daemon") };
    let _zones = super::bus::firewalld(&node);
    node.hide_iptables();
    node.forward();
    let keys = json!({"backend": "firewalld", "ingressPolicy": "same-bridge"});
    let networks = [network(&node, 1, &keys), network(&node, 2, &keys)];
    let pods = ["one", "two"].map(|name| node.pod(name));
    let results: Vec<_> = networks
        .iter()
        .zip(&pods)
        .map(|(network, pod)| network.add(&Attach::new(pod)).expect("ADD"))
        .collect();
    let _servers: Vec<_> = pods.iter().map(|pod| pod.serve(Proto::Tcp, "[::]:80", pod.name())).collect();
    for ip in results[1]["ips"].as_array().expect("addresses") {
        let address = ip["address"].as_str().and_then(|net| net.split('/').next()).expect("an address");
        let address: IpAddr = address.parse().expect("an address");
        node.expect(Proto::Tcp, at(address, 80), "two");
        pods[0].expect_none(Proto::Tcp, at(address, 80));
    }
    for (network, pod) in networks.iter().zip(&pods) {
        network.check(&Attach::new(pod)).expect("CHECK");
        network.del(&Attach::new(pod)).expect("DEL");
    }
}
