// SPDX-License-Identifier: GPL-2.0-or-later

//! Nodes on which Docker or ufw has set the policy of iptables' chain FORWARD to DROP.

use std::time::Duration;

use cni_dataplane::iptables::forward;
use slipway_tests::{Proto, at, skip};
use slipwayd::cluster::desired::TunnelMode;

use crate::repairs::with_agent;
use crate::{Lab, all_reach_each_other};

const COMMANDS: [&str; 2] = ["iptables", "ip6tables"];

/// Pods of two nodes reach each other although one node drops what it forwards.
fn pods_reach_each_other_where_forward_drops(variant: &str) {
    let mut lab = Lab::new(2, TunnelMode::Auto);
    let node = lab.node(1);
    if node.try_cmd(&format!("iptables-{variant} -S")).code != Some(0) {
        skip!("legacy iptables");
    }
    for command in COMMANDS {
        // Like Docker, another program has rules that come before ours.
        node.cmd(&format!("{command}-{variant} -N DOCKER-USER"));
        node.cmd(&format!("{command}-{variant} -A FORWARD -j DOCKER-USER"));
        node.cmd(&format!("{command}-{variant} -A DOCKER-USER -p tcp --dport 9999 -j DROP"));
        node.cmd(&format!("{command}-{variant} -P FORWARD DROP"));
    }
    lab.settle();
    let node = lab.node(1);
    let pods = [1, 2].map(|number| (number, lab.pod(number, "web"))).into();
    all_reach_each_other(&pods);
    let (web, addresses) = &pods[&1];
    let _serving = web.serve(Proto::Tcp, "[::]:9999", "web");
    for address in addresses {
        pods[&2].0.expect_none(Proto::Tcp, at(*address, 9999));
    }
    let rules = || COMMANDS.map(|command| node.cmd(&format!("{command}-{variant} -S FORWARD")));
    assert!(rules().iter().all(|rules| rules.matches("made by slipway").count() == 2), "{:?}", rules());
    assert_eq!(node.run(|| forward::withdraw("slipway0")).expect("withdrawn").len(), 2);
    assert!(rules().iter().all(|rules| !rules.contains("slipway0")), "{:?}", rules());
    // As the control, nothing passes without our rules.
    let _serving = web.serve(Proto::Tcp, "[::]:8080", "web");
    for address in addresses {
        pods[&2].0.expect_none(Proto::Tcp, at(*address, 8080));
    }
}

#[test]
fn pods_reach_each_other_where_iptables_nft_drops() {
    pods_reach_each_other_where_forward_drops("nft");
}

#[test]
fn pods_reach_each_other_where_iptables_legacy_drops() {
    pods_reach_each_other_where_forward_drops("legacy");
}

/// This happens when Docker starts after the agent.
#[test]
fn a_policy_that_turns_to_drop_is_seen_at_once() {
    let mut lab = Lab::new(1, TunnelMode::Never);
    lab.settle();
    let node = lab.node(1);
    with_agent(&lab, 1, || {
        for command in COMMANDS {
            node.cmd(&format!("{command}-nft -P FORWARD DROP"));
            let rules = || node.cmd(&format!("{command}-nft -S FORWARD"));
            // Without a notification, the agent would notice only at the next comparison, after half a minute.
            let took = slipway_tests::until(Duration::from_secs(5), "the rules", || {
                rules().matches("made by slipway").count() == 2
            });
            println!("{command}: rules after {took:?}");
        }
    });
}

#[test]
fn other_chains_that_drop_are_reported_and_left_alone() {
    let mut lab = Lab::new(1, TunnelMode::Never);
    let table =
        "table inet admin {\n chain forward {\n type filter hook forward priority 0; policy drop;\n }\n}\n";
    lab.node(1).cmd_input("nft -f -", table);
    let before = lab.node(1).ruleset();
    let report = lab.compare(1, true);
    assert!(report.is_ready);
    let troubles: Vec<String> = report.troubles().collect();
    let expected = "chain inet admin forward drops forwarded packets by default: accept those from and to slipway0 there";
    assert_eq!(troubles, [expected]);
    assert_eq!(lab.node(1).ruleset(), before);
    lab.node(1).cmd("nft delete table inet admin");
    lab.settle();
}
