// SPDX-License-Identifier: GPL-2.0-or-later

//! CHECK, DEL and GC of containers that the reference plugins attached.

use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Reference, is_peer};

use super::bus::{Daemon, firewalld};
use super::{filter, network, recorded};

fn with_references(test: impl Fn(&Reference)) {
    let all = Reference::all();
    if all.is_empty() {
        slipway_tests::skip!(slipway_tests::REFERENCE);
    }
    if !is_peer() {
        all.iter().for_each(test);
    }
}

/// Returns the policies that this version of the plugin supports.
fn policies(reference: &Reference) -> &'static [&'static str] {
    match () {
        () if reference.knows("firewall", "ingressPolicy: same-bridge|isolated") => {
            &["open", "same-bridge", "isolated"]
        }
        () if reference.knows("firewall", "ingressPolicy: same-bridge") => &["open", "same-bridge"],
        () => &["open"],
    }
}

/// Returns the chains and rules of a family's filter table.
fn rules(node: &Node, program: &str) -> Vec<(String, String)> {
    let text = filter(node, program);
    let rules = text.lines().filter_map(|line| line.strip_prefix("-A ")?.split_once(' '));
    rules.map(|(chain, rule)| (chain.to_owned(), rule.to_owned())).collect()
}

#[test]
fn check_passes_and_names_a_rule_that_is_removed() {
    slipway_tests::needs_iptables!();
    with_references(|reference| {
        for policy in policies(reference) {
            let (node, _pod, attach) = Node::with_attachment();
            let network = network(&node, 1, &json!({"backend": "iptables", "ingressPolicy": policy}));
            let result = network.add_by(reference.dir(), &attach, |call| call);
            assert_eq!(recorded(&node), "");
            let check = || network.call_one(1, "CHECK", &attach, &result);
            assert!(check().ok().is_null(), "{policy}");
            let mut removed = 0;
            let families = [("iptables", "ip"), ("ip6tables", "ip6")];
            let families = &families[..1 + usize::from(slipway_tests::has_ipv6())];
            for (program, family) in families {
                for (chain, rule) in rules(&node, &format!("{program}-save")) {
                    // A final RETURN has the same effect as the end of the chain.
                    if rule.ends_with("-j RETURN") {
                        continue;
                    }
                    let change = |what: &str| {
                        let input = format!("*filter\n-{what} {rule}\nCOMMIT\n");
                        node.cmd_input(&format!("{program}-restore --noflush"), &input);
                    };
                    change(&format!("D {chain}"));
                    let wanted = format!("expected {chain} rule [{rule}] not found in table {family} filter");
                    // The comments that older versions write name only one policy.
                    let plain = |text: &str| text.replace("same-bridge|isolated", "same-bridge");
                    assert_eq!(plain(&check().error().msg), plain(&wanted), "{policy}");
                    change(&format!("I {chain} 1"));
                    removed += 1;
                }
            }
            assert!(removed >= 4 * families.len(), "{policy}: {removed} rules");
            assert!(check().ok().is_null(), "{policy}");
        }
    });
}

#[test]
fn del_removes_all_rules_of_the_container() {
    slipway_tests::needs_iptables!();
    with_references(|reference| {
        for policy in policies(reference) {
            let (node, _pod, attach) = Node::with_attachment();
            let network = network(&node, 1, &json!({"backend": "iptables", "ingressPolicy": policy}));
            let result = network.add_by(reference.dir(), &attach, |call| call);
            for config in network.configs(Some(&attach)).iter_mut().rev() {
                config["prevResult"] = result.clone();
                let _ = network.call("DEL", config, Some(&attach)).ok();
            }
            for (program, address) in [("iptables-save", "10.1.1."), ("ip6tables-save", "fd00:1::")] {
                let left = filter(&node, program);
                assert!(!left.contains(address) && !left.contains("br1"), "{policy}: {left}");
            }
        }
    });
}

/// The rules belong to the address's next owner, and not to the attachment for which CHECK is called.
#[test]
fn check_fails_for_an_address_of_another_container() {
    slipway_tests::needs_iptables!();
    with_references(|reference| {
        let node = Node::new();
        let (old, new) = (node.pod("old"), node.pod("new"));
        let network = network(&node, 1, &json!({"backend": "iptables"}));
        let result = network.add_by(reference.dir(), &Attach::new(&old), |call| call);
        let _ = network.call_one(1, "ADD", &Attach::new(&new), &result).ok();
        let error = network.call_one(1, "CHECK", &Attach::new(&old), &result).error();
        assert_eq!(
            error.msg,
            "address 10.1.1.2 belongs to another attachment in table inet slipway-firewall"
        );
        assert!(network.call_one(1, "CHECK", &Attach::new(&new), &result).ok().is_null());
    });
}

#[test]
fn check_queries_firewalld() {
    slipway_tests::needs_iptables!();
    with_references(|reference| {
        for keys in [json!({"backend": "firewalld"}), json!({"firewalldZone": "public"})] {
            let node = Node::new();
            let Some(_daemon) = Daemon::start(&node) else { slipway_tests::skip!("dbus-daemon") };
            let zones = firewalld(&node);
            let pod = node.pod("pod");
            let attach = Attach::new(&pod);
            let network = network(&node, 1, &keys);
            let result = network.add_by(reference.dir(), &attach, |call| call);
            let count = || zones.lock().expect("not poisoned").len();
            assert_eq!((count(), recorded(&node).as_str()), (2, ""));
            let check = || network.call_one(1, "CHECK", &attach, &result);
            assert!(check().ok().is_null(), "{keys}");
            let zone = zones.lock().expect("not poisoned").remove("10.1.1.2/32").expect("its zone");
            assert_eq!(check().error().msg, format!("firewalld: 10.1.1.2 is not in zone {zone}"));
            assert!(network.call_one(1, "DEL", &attach, &result).ok().is_null());
            assert_eq!(count(), 0);
        }
    });
}

/// `slipway migrate` records a container whose rules stay in iptables, so that GC finds them.
#[test]
fn migrate_records_live_containers() {
    slipway_tests::needs_iptables!();
    with_references(|reference| {
        let node = Node::new();
        let (one, two) = (node.pod("one"), node.pod("two"));
        let network = network(&node, 1, &json!({"backend": "iptables", "ingressPolicy": "same-bridge"}));
        for pod in [&one, &two] {
            let attach = Attach::new(pod);
            network.remember(&attach, network.add_by(reference.dir(), &attach, |call| call));
            network.write_cache(&attach);
        }
        two.remove();
        let before = filter(&node, "iptables-save");
        let addresses = if slipway_tests::has_ipv6() { "10.1.1.2, fd00:1::2" } else { "10.1.1.2" };
        let migrate = |more: &str, wanted: i32, line: &str| {
            let output = node.try_slipway(&format!("migrate --to nftables {more}"));
            assert_eq!(output.code, Some(wanted), "{output}");
            assert_eq!(
                output.stdout.contains(&format!("net1 one eth0: firewall rules of {addresses}")),
                !line.is_empty()
            );
            assert!(output.stdout.contains(line) && !output.stdout.contains("net1 two"), "{output}");
        };
        migrate("--dry-run", 3, "0 failed, 1 to record");
        assert_eq!(recorded(&node), "");
        migrate("--network other", 0, "");
        migrate("", 0, "0 failed, 1 recorded");
        migrate("", 0, "");
        assert_eq!(filter(&node, "iptables-save"), before);
        network.check(&Attach::new(&one)).expect("CHECK");
        network.gc_plugins(&Value::Null).expect("GC");
        let left = filter(&node, "iptables-save");
        assert!(!left.contains("10.1.1.2/32") && left.contains("10.1.1.3/32"), "{left}");
    });
}
