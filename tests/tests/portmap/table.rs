// SPDX-License-Identifier: GPL-2.0-or-later

//! The table, which is created once, repaired and upgraded, and refused if another program made it.

use serde_json::json;
use slipway_tests::{Attach, Node, Proto, golden, normalise};

use crate::{Call, elements_of, map, map_on, run_of};

#[test]
fn the_ruleset_of_a_container_with_everything_is_the_golden_one() {
    let (node, pod) = Node::with_pod();
    let mut ports = run_of(9000, 20);
    // Each hash map has only one element, because the kernel lists elements in no particular order.
    ports.extend([map("tcp", 8080, 80), map_on("192.0.2.1", "sctp", 7, 7)]);
    let call = Call::new(&node, &pod, 2, &ports).key("conditionsV4", json!(["ip saddr != 192.0.2.0/24"]));
    call.key("markMasqBit", json!(5)).add();
    golden("portmap-everything.nft", &normalise(&node.ruleset()));
}

/// `nft flush table` empties the chains and keeps the maps, so no port works.
#[test]
fn flushed_chains_are_detected_and_restored() {
    let node = Node::new();
    let client = node.host("client");
    let network = node.network(json!({"name": "net", "plugins": [
        {"type": "bridge", "isGateway": true, "hairpinMode": true, "ipMasq": true,
            "ipam": {"type": "host-local", "subnet": "10.88.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]}));
    let (one, two) = (node.pod("one"), node.pod("two"));
    let attach = Attach::new(&one).port(Proto::Tcp, 8080, 80);
    network.add(&attach).expect("ADD");
    let _server = one.serve(Proto::Tcp, "0.0.0.0:80", "one");
    let to = (client.node_v4, 8080);
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let before = sorted(&node.ruleset());
    let damages = [
        "flush table inet slipway",
        "flush chain inet slipway postrouting",
        "flush chain inet slipway prerouting; delete chain inet slipway prerouting",
        "flush chain inet slipway guard; add rule inet slipway guard accept",
        "flush chain inet slipway output; delete chain inet slipway output; add chain inet slipway output \
            { type nat hook output priority -50; }",
        "add table inet slipway { flags dormant; }",
    ];
    for damage in damages {
        node.nft(damage);
        let Err(slipway_tests::Failure { error, .. }) = network.check(&attach) else {
            panic!("{damage}: unseen")
        };
        assert!(error.msg.contains("table inet slipway"), "{damage}: {error:?}");
        let other = Attach::new(&two).port(Proto::Tcp, 8081, 80);
        network.add(&other).unwrap_or_else(|e| panic!("{damage}: {e}"));
        network.check(&attach).unwrap_or_else(|e| panic!("{damage}: {e}"));
        client.expect(Proto::Tcp, to, "one");
        one.expect(Proto::Tcp, to, "one");
        node.expect(Proto::Tcp, ([127, 0, 0, 1], 8080), "one");
        network.del(&other).expect("DEL");
        assert_eq!(sorted(&node.ruleset()), before, "{damage}: the same chains, in whatever order");
    }
}

#[test]
fn a_foreign_or_later_table_is_refused_and_left_alone() {
    let tables = [
        ("add table inet slipway; add chain inet slipway mine", "was not made by slipway"),
        ("add table inet slipway; add chain inet slipway schema-99", "schema 99"),
        (
            "add table inet slipway; add map inet slipway hostports4 { type mark : mark; }",
            "was not made by slipway",
        ),
    ];
    for (table, text) in tables {
        let (node, pod) = Node::with_pod();
        node.nft(table);
        let before = node.ruleset();
        let call = Call::new(&node, &pod, 2, &[map("tcp", 80, 80)]);
        for verb in ["ADD", "CHECK"] {
            let error = call.call(verb).run().error();
            assert!(error.msg.contains(text), "{verb}: {error:?}");
        }
        let error = call.call("STATUS").run().error();
        assert!(error.code == 50 && error.msg.contains(text), "{error:?}");
        call.del();
        assert_eq!(node.ruleset(), before);
    }
}

/// DEL and GC leave a table of a later version alone, because this version does not know all of its objects.
#[test]
fn a_later_versions_table_is_left_alone() {
    let (node, pod) = Node::with_pod();
    let call = Call::new(&node, &pod, 2, &[map("tcp", 80, 80)]);
    call.add();
    node.nft("delete chain inet slipway schema-3; add chain inet slipway schema-4");
    let before = node.ruleset();
    let error = call.call("DEL").run().error();
    assert!(error.msg.contains("schema 4"), "{error:?}");
    let error = call.clone().key("cni.dev/valid-attachments", json!([])).call("GC").run().error();
    assert!(error.msg.contains("schema 4"), "{error:?}");
    assert_eq!(node.ruleset(), before);
}

#[test]
fn an_older_schema_is_upgraded_in_place() {
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    let first = Call::new(&node, &one, 2, &[map("tcp", 80, 80)]);
    first.add();
    let before = node.ruleset();
    // Imitates the table of schema 2, in which each address has an element that leads to its chain, with other rules, one
    // map fewer, and a chain with another priority.
    let owner = before.split('"').find(|text| text.ends_with(" net eth0 one")).expect("an owner's comment");
    node.nft(&format!(
        "delete chain inet slipway schema-3; add chain inet slipway schema-2; flush chain inet slipway hostports4; \
        flush chain inet slipway output; delete chain inet slipway output; \
        add chain inet slipway output {{ type nat hook output priority -100; policy accept; }}; \
        flush chain inet slipway guard; flush chain inet slipway hostports6; flush chain inet slipway translate6; \
        delete map inet slipway ranges6; flush chain inet slipway postrouting; \
        add map inet slipway hairpin4 {{ type ipv4_addr : verdict; }}; \
        add map inet slipway hairpin6 {{ type ipv6_addr : verdict; }}; \
        add rule inet slipway postrouting ip daddr vmap @hairpin4; \
        add rule inet slipway postrouting ip6 daddr vmap @hairpin6; \
        add element inet slipway hairpin4 {{ 10.77.0.2 comment \"{owner}\" : jump hairpin-10.77.0.0/24-13 }}; \
        add element inet slipway hairpin6 {{ fd00:77::2 comment \"{owner}\" : jump hairpin-fd00_77__/64-13 }}"
    ));
    for family in ["4", "6"] {
        for chain in ["published", "masqueraded"] {
            let name = format!("inet slipway {chain}{family}");
            node.nft(&format!("flush chain {name}; delete chain {name}; delete set {name}"));
        }
        for map in ["hairpin", "masquerade"] {
            for kind in ["networks", "own"] {
                node.nft(&format!("delete map inet slipway {map}-{kind}{family}"));
            }
        }
    }
    Call::new(&node, &two, 3, &[map("tcp", 81, 80)]).add();
    first.check();
    assert_eq!(elements_of(&node, "one"), 5);
    Call::new(&node, &two, 3, &[map("tcp", 81, 80)]).del();
    let ruleset = node.ruleset();
    assert!(ruleset.contains("chain schema-3") && !ruleset.contains("schema-2"), "{ruleset}");
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&ruleset), sorted(&before));
}

/// The kernel refuses the socket, as it does without nfnetlink.
#[test]
fn a_kernel_without_nf_tables_is_named_by_add_and_del_succeeds() {
    let (node, pod) = Node::with_pod();
    let call = Call::new(&node, &pod, 2, &[map("tcp", 80, 80)]).key("backend", json!("nftables"));
    let without = |verb: &str| {
        let inject = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=socket:error=EPROTONOSUPPORT"];
        call.call(verb).through(&inject).run()
    };
    for (verb, code) in [("ADD", 999), ("CHECK", 999), ("STATUS", 50)] {
        let error = without(verb).error();
        assert!(error.code == code && error.msg.contains("netfilter netlink"), "{verb}: {error:?}");
    }
    without("DEL").ok();
    assert_eq!(node.ruleset(), "");
}

/// As in a container that lacks CAP_NET_ADMIN in the node's network namespace.
#[test]
fn a_refusal_is_named() {
    let (node, pod) = Node::with_pod();
    let call = Call::new(&node, &pod, 2, &[map("tcp", 80, 80)]);
    for verb in ["ADD", "DEL"] {
        let error =
            call.call(verb).through(&["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]).run();
        let error = error.error();
        assert!(error.msg.contains("EPERM"), "{verb}: {error:?}");
    }
}
