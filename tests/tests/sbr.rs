// SPDX-License-Identifier: GPL-2.0-or-later

//! The sbr plugin, on a container with two links.

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Network, Node, Pod, Proto, Snapshot, address_of, at, is_peer, peer_fails, with_keys,
};

/// The container's first network, which has its default route.
fn first(node: &Node) -> Network<'_> {
    node.network(json!({"name": "first", "plugins": [{
        "type": "ptp",
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
    }]}))
}

/// The second network, on a separate bridge, with sbr chained.
fn second<'a>(node: &'a Node, keys: &Value) -> Network<'a> {
    let sbr = with_keys(json!({"type": "sbr"}), keys);
    let ipam = json!({
        "type": "host-local", "ranges": [[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]],
        "routes": [{"dst": "172.16.0.0/16"}],
    });
    node.network(json!({"name": "second", "plugins": [
        {"type": "bridge", "bridge": "br2", "isGateway": true, "ipam": ipam}, sbr,
    ]}))
}

fn net1(pod: &Pod) -> Attach {
    Attach::new(pod).ifname("net1")
}

fn rules(pod: &Pod) -> Vec<String> {
    let text = format!("{}{}", pod.cmd("ip rule"), pod.cmd("ip -6 rule"));
    let own =
        text.lines().filter_map(|line| line.split_once("from ")).map(|(_, rest)| rest.trim().to_owned());
    own.filter(|rule| !rule.starts_with("all")).collect()
}

#[test]
fn packets_leave_by_the_link_of_their_address() {
    let node = Node::new();
    let client = node.host("client");
    let pod = node.pod("pod");
    first(&node).add(&Attach::new(&pod)).expect("ADD of eth0");
    let network = second(&node, &json!({}));
    let attach = net1(&pod);
    let result = network.add(&attach).expect("ADD of net1");
    assert_eq!(result["ips"].as_array().map(Vec::len), Some(2), "{result}");
    if !is_peer() {
        network.check(&attach).expect("CHECK");
    }
    assert_eq!(rules(&pod), ["10.2.0.2 lookup 100", "fd00:2::2 lookup 101"]);
    let table = pod.cmd("ip route show table 100");
    for line in
        ["default via 10.2.0.1 dev net1", "10.2.0.0/24 dev net1", "172.16.0.0/16 via 10.2.0.1 dev net1"]
    {
        assert!(table.contains(line), "{line}: {table}");
    }
    let table = pod.cmd("ip -6 route show table 101");
    for line in ["default via fd00:2::1 dev net1", "fd00:2::/64 dev net1"] {
        assert!(table.contains(line), "{line}: {table}");
    }
    let main = pod.cmd("ip route");
    assert!(main.contains("default via 10.1.0.1 dev eth0") && !main.contains("net1"), "{main}");

    // The reply must leave through the link of the request, because the node would not accept it from eth0.
    node.cmd("iptables -A FORWARD -i br2 -s 10.1.0.0/24 -j DROP");
    node.cmd("iptables -A FORWARD ! -i br2 -s 10.2.0.0/24 -j DROP");
    for address in ["10.1.0.2", "10.2.0.2"] {
        for proto in Proto::ALL {
            let _server = pod.serve(proto, &format!("{address}:80"), address);
            let to: std::net::IpAddr = address.parse().expect("an address");
            client.expect(proto, (to, 80), address);
        }
    }
    let _server = client.serve(Proto::Tcp, "0.0.0.0:81", "client");
    for from in ["10.1.0.2", "10.2.0.2"] {
        let from = at(from.parse::<std::net::IpAddr>().expect("an address"), 0);
        let answer =
            pod.request_from(Proto::Tcp, Some(from), (client.v4, 81).into(), slipway_tests::patience());
        assert_eq!(answer.expect("an answer").peer.ip(), from.ip());
    }
    network.del(&attach).expect("DEL");
    assert_eq!(rules(&pod), Vec::<String>::new());
    let _server = pod.serve(Proto::Tcp, "10.1.0.2:80", "first");
    client.expect(Proto::Tcp, ([10, 1, 0, 2], 80), "first");
}

#[test]
fn a_third_link_has_tables_of_its_own() {
    let (node, pod) = Node::with_pod();
    pod.cmd("ip link set lo up");
    pod.cmd("ip route add blackhole 192.0.2.0/24 table 100");
    pod.cmd("ip rule add to 192.0.2.0/24 lookup 102");
    let network = second(&node, &json!({}));
    network.add(&net1(&pod)).expect("ADD of net1");
    network.add(&net1(&pod).ifname("net2")).expect("ADD of net2");
    let own: Vec<_> = rules(&pod);
    let mut tables: Vec<&str> = own.iter().filter_map(|rule| rule.split(' ').nth(2)).collect();
    tables.sort_unstable();
    assert_eq!(tables, ["101", "103", "104", "105"], "{own:?}");
    network.del(&net1(&pod)).expect("DEL of net1");
    assert_eq!(rules(&pod).len(), 2, "net2 has its own: {:?}", rules(&pod));
}

/// Rules of other programs that name the kernel's own tables do not count as those of an earlier ADD.
#[test]
fn the_kernels_tables_are_not_used() {
    let node = Node::new();
    for table in ["main", "default"] {
        let pod = node.pod(table);
        let network = second(&node, &json!({}));
        let attach = net1(&pod);
        let previous = network.add_first(&attach);
        let address = address_of(&previous, 0);
        pod.cmd(&format!("ip rule add from {address} lookup {table}"));
        let result = network.call_one(1, "ADD", &attach, &previous).ok();
        let own = rules(&pod);
        assert_eq!(own[0], format!("{address} lookup 100"), "{own:?}");
        assert!(own.contains(&format!("{address} lookup {table}")), "{own:?}");
        let routes = pod.cmd("ip route show table 100");
        for line in ["default via 10.2.0.1 dev net1", "10.2.0.0/24 dev net1", "172.16.0.0/16 via 10.2.0.1"] {
            assert!(routes.contains(line), "{line}: {routes}");
        }
        if !is_peer() {
            assert!(network.call_one(1, "CHECK", &attach, &result).ok().is_null());
            let before = Snapshot::take(&node, &[&pod]);
            let _ = network.call_one(1, "ADD", &attach, &previous).ok();
            before.assert_same(&Snapshot::take(&node, &[&pod]));
        }
        network.del(&attach).expect("DEL");
    }
}

/// Concurrent ADDs of two links must not choose the same table.
#[test]
fn links_added_concurrently_have_tables_of_their_own() {
    let (node, pod) = Node::with_pod();
    let network = second(&node, &json!({}));
    let attaches: Vec<_> = (1..5).map(|n| net1(&pod).ifname(&format!("net{n}"))).collect();
    std::thread::scope(|scope| {
        for attach in &attaches {
            scope.spawn(|| network.add(attach).expect("ADD"));
        }
    });
    let own = rules(&pod);
    let mut tables: Vec<&str> = own.iter().filter_map(|rule| rule.split(' ').nth(2)).collect();
    tables.sort_unstable();
    tables.dedup();
    assert_eq!(tables.len(), 8, "{own:?}");
}

#[test]
fn a_table_of_another_program_gets_rules_only() {
    let (node, pod) = Node::with_pod();
    let network = second(&node, &json!({"table": 5000}));
    let attach = net1(&pod);
    let previous = network.add_first(&attach);
    pod.cmd("ip route add 192.0.2.0/24 via 10.2.0.9 table 5000");
    let before = Snapshot::take(&node, &[&pod]);
    let result = network.call_one(1, "ADD", &attach, &previous).ok();
    assert_eq!(result, previous);
    assert_eq!(rules(&pod), ["10.2.0.2 lookup 5000", "fd00:2::2 lookup 5000"]);
    let changes = before.changes(&Snapshot::take(&node, &[&pod]));
    assert!(changes.iter().all(|line| line.contains("rule")), "{changes:?}");
    assert!(network.call_one(1, "CHECK", &attach, &result).ok().is_null());
    assert!(network.call_one(1, "DEL", &attach, &result).ok().is_null());
    before.assert_same(&Snapshot::take(&node, &[&pod]));
}

#[test]
fn the_configuration_may_choose_the_gateways() {
    peer_fails("1.9.1 does not know the key", || {
        let (node, pod) = Node::with_pod();
        let network = second(&node, &json!({"gateways": ["10.2.0.7", "fd00:2::7"]}));
        network.add(&net1(&pod)).expect("ADD");
        network.check(&net1(&pod)).expect("CHECK");
        let default = |command: &str| {
            pod.cmd(command).lines().find(|line| line.starts_with("default")).map(str::to_owned)
        };
        assert!(default("ip route show table 100").is_some_and(|line| line.contains("via 10.2.0.7")));
        assert!(default("ip -6 route show table 101").is_some_and(|line| line.contains("via fd00:2::7")));
    });
}

#[test]
fn hints_leave_the_neighbours_in_the_main_table() {
    peer_fails("1.9.1 does not know the key", || {
        let (node, pod) = Node::with_pod();
        first(&node).add(&Attach::new(&pod)).expect("ADD of eth0");
        let network = second(&node, &json!({"addSourceHints": true}));
        network.add(&net1(&pod)).expect("ADD");
        network.check(&net1(&pod)).expect("CHECK");
        let main = pod.cmd("ip route");
        assert!(main.contains("10.2.0.0/24 dev net1 proto kernel scope link src 10.2.0.2"), "{main}");
        assert!(!main.contains("172.16.0.0"), "{main}");
        let main = pod.cmd("ip -6 route");
        let own: Vec<_> = main.lines().filter(|line| line.starts_with("fd00:2::/64")).collect();
        assert_eq!(own.len(), 1, "{main}");
        assert!(own[0].contains("dev net1") && own[0].contains("src fd00:2::2"), "{main}");
        // Without an explicit source address, the right one is chosen.
        let _server = node.serve(Proto::Tcp, "10.2.0.1:80", "node");
        let answer = pod.request(Proto::Tcp, ([10, 2, 0, 1], 80)).expect("an answer");
        assert_eq!(answer.own.ip(), std::net::IpAddr::from([10, 2, 0, 2]));
        network.del(&net1(&pod)).expect("DEL");
    });
}

/// A link-local address implies its link, and IPv6 requires it to work.
#[test]
fn link_local_addresses_stay_reachable() {
    peer_fails("it takes them out of the main table", || {
        let (node, pod) = Node::with_pod();
        second(&node, &json!({})).add(&net1(&pod)).expect("ADD");
        let main = pod.cmd("ip -6 route");
        assert!(main.contains("fe80::/64 dev net1"), "{main}");
    });
}

#[test]
fn a_repeated_add_changes_nothing() {
    peer_fails("it takes a further table", || {
        let (node, pod) = Node::with_pod();
        let network = second(&node, &json!({}));
        let attach = net1(&pod);
        let previous = network.add_first(&attach);
        let _ = network.call_one(1, "ADD", &attach, &previous).ok();
        let before = Snapshot::take(&node, &[&pod]);
        let _ = network.call_one(1, "ADD", &attach, &previous).ok();
        before.assert_same(&Snapshot::take(&node, &[&pod]));
    });
}

#[test]
fn a_failed_add_leaves_nothing() {
    peer_fails("the rule stays", || {
        let (node, pod) = Node::with_pod();
        // Nothing leads to this gateway.
        let network = second(&node, &json!({"gateways": ["10.2.0.7", "fd00:9::7"]}));
        let attach = net1(&pod);
        let previous = network.add_first(&attach);
        let before = Snapshot::take(&node, &[&pod]);
        let error = network.call_one(1, "ADD", &attach, &previous).error();
        assert!(error.msg.contains("fd00:9::7"), "{error:?}");
        before.assert_same(&Snapshot::take(&node, &[&pod]));
        // The second case is a link that does not exist.
        let error = network.call_one(1, "ADD", &attach.clone().ifname("net9"), &previous).error();
        assert!(error.msg.contains("net9"), "{error:?}");
        before.assert_same(&Snapshot::take(&node, &[&pod]));
    });
}

#[test]
fn check_names_the_missing_rule_or_route() {
    peer_fails("it looks at nothing", || {
        let (node, pod) = Node::with_pod();
        let network = second(&node, &json!({}));
        let attach = net1(&pod);
        network.add(&attach).expect("ADD");
        network.check(&attach).expect("CHECK");
        pod.cmd("ip route del default table 100");
        let error = network.check(&attach).expect_err("CHECK").error;
        assert_eq!(error.msg, "table 100 has no default route by net1");
        pod.cmd("ip route add default via 10.2.0.1 dev net1 table 100");
        network.check(&attach).expect("CHECK");
        pod.cmd("ip rule del from 10.2.0.2");
        let error = network.check(&attach).expect_err("CHECK").error;
        assert_eq!(error.msg, "there is no rule from 10.2.0.2 to a table of its own");
    });
}

#[test]
fn a_del_needs_neither_an_add_nor_a_namespace() {
    peer_fails("it makes a file at the namespace's path, and needs the link", || {
        let (node, pod) = Node::with_pod();
        let network = second(&node, &json!({}));
        let attach = net1(&pod);
        assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null(), "nothing was added");
        let result = network.add(&attach).expect("ADD");
        for netns in ["", "/run/netns/gone"] {
            assert!(network.call_one(1, "DEL", &attach.clone().netns(netns), &Value::Null).ok().is_null());
        }
        assert!(!node.list("/run/netns").contains(&"gone".to_owned()));
        // The link is gone, but the result is known.
        pod.cmd("ip link del net1");
        assert_eq!(rules(&pod).len(), 2);
        assert!(network.call_one(1, "DEL", &attach, &result).ok().is_null());
        assert_eq!(rules(&pod), Vec::<String>::new());
        network.del(&attach).expect("DEL");
        // DEL also works without the result, as long as the link exists.
        network.add(&attach).expect("ADD");
        assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null());
        assert_eq!(rules(&pod), Vec::<String>::new());
        assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null(), "a second time");
    });
}

/// Rules of other programs with the same address stay.
#[test]
fn rules_with_other_conditions_stay() {
    peer_fails("it deletes whatever has the address", || {
        let (node, pod) = Node::with_pod();
        let network = second(&node, &json!({}));
        let attach = net1(&pod);
        network.add(&attach).expect("ADD");
        pod.cmd("ip rule add from 10.2.0.2 fwmark 7 lookup main");
        pod.cmd("ip rule add from 10.2.0.0/24 lookup main");
        network.del(&attach).expect("DEL");
        assert_eq!(rules(&pod).len(), 2, "{:?}", rules(&pod));
    });
}

#[test]
fn errors_name_invalid_values() {
    let (node, pod) = Node::with_pod();
    let network = second(&node, &json!({}));
    let error = network.call_one(1, "ADD", &net1(&pod), &Value::Null).error();
    assert_eq!(error.msg, "This plugin must be called as chained plugin");
    let mut previous = network.add_first(&net1(&pod));
    previous["ips"] = json!([]);
    let error = network.call_one(1, "ADD", &net1(&pod), &previous).error();
    assert_eq!(error.msg, "No IP addresses supplied on interface: net1");
}
