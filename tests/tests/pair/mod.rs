// SPDX-License-Identifier: GPL-2.0-or-later

//! Tests for every plugin that makes a veth pair and leaves one end on the node. The suites of these plugins include
//! this module and provide the configuration.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Network, Node, Pod, Proto, Snapshot, address_of, at, has_ipv6, is_peer, needs, newest_version,
    peer_fails, with_keys,
};

use crate::{NODE_LINKS, OUTER, PREFIX, TAKEN, all, dual_stack, leading, other_keys, plugin, refused};

/// A network of this plugin only, with host-local for 10.1.2.0/24 and the additional keys `keys`.
pub(crate) fn network<'a>(node: &'a Node, keys: &Value) -> Network<'a> {
    node.network(json!({"name": "net", "plugins": [plugin(keys)]}))
}

/// Attaches the pod and returns the result.
#[track_caller]
pub(crate) fn add(network: &Network<'_>, pod: &Pod) -> Value {
    network.add(&Attach::new(pod)).expect("ADD")
}

/// The name of the node's end in a result.
pub(crate) fn outer(result: &Value) -> String {
    result["interfaces"][OUTER]["name"].as_str().expect("a name").to_owned()
}

/// The container's end in a result.
fn last(result: &Value) -> &Value {
    result["interfaces"].as_array().and_then(|all| all.last()).expect("interfaces")
}

/// The state, without counters and what is derived from the reservations.
fn state(node: &Node, pod: &Pod) -> Snapshot {
    Snapshot::take(node, &[pod]).without(&["last_reserved_ip", "/.slipway/"])
}

/// A dual-stack pod with default routes, whose CHECK succeeds.
pub(crate) fn attached<'a>(node: &'a Node, pod: &Pod, keys: Value) -> (Network<'a>, Value) {
    let network = network(node, &with_keys(with_keys(leading(), &json!({"ipam": dual_stack()})), &keys));
    let result = add(&network, pod);
    network.check(&Attach::new(pod)).expect("CHECK of what was just made");
    (network, result)
}

#[test]
fn the_mtu_is_that_of_the_configuration_or_of_the_default_route() {
    let node = Node::new();
    let client = node.host("client");
    let mtu = |name: &str, keys: Value| {
        let pod = node.pod(name);
        let network = network(&node, &keys);
        let outer = outer(&add(&network, &pod));
        let links =
            NODE_LINKS.iter().map(|name| node.link(name)).chain([node.link(&outer), pod.link("eth0")]);
        let found: Vec<Value> = links.map(|link| link["mtu"].clone()).collect();
        network.del(&Attach::new(&pod)).expect("DEL");
        found
    };
    let all = |mtu: u16| vec![json!(mtu); NODE_LINKS.len() + 2];
    assert_eq!(mtu("one", json!({"mtu": 1300})), all(1300));
    peer_fails("leaves it to the kernel", || {
        // Without a default route, the kernel's default applies. A bridge keeps the smallest MTU that any port has had.
        assert_eq!(mtu("two", json!({})).last(), Some(&json!(1500)));
        node.cmd(&format!("ip link set {} mtu 1400", client.node_link));
        node.cmd(&format!("ip route add default via {}", client.v4));
        assert_eq!(mtu("three", json!({})), all(1400));
        // A VPN replaces the default route by routes to both halves of the address space, or by a separate table.
        node.cmd("ip link add vpn0 mtu 1380 type veth peer name vpn1");
        node.cmd("ip link set vpn0 up");
        node.cmd("ip link set vpn1 up");
        node.cmd("ip route add 0.0.0.0/1 dev vpn0");
        node.cmd("ip route add 128.0.0.0/1 dev vpn0");
        assert_eq!(mtu("four", json!({})), all(1380));
        node.cmd("ip route del 0.0.0.0/1");
        node.cmd("ip route del 128.0.0.0/1");
        node.cmd("ip route add default dev vpn0 mtu 1360 table 51820");
        node.cmd("ip rule add not fwmark 51820 table 51820");
        node.cmd("ip rule add table main suppress_prefixlength 0");
        assert_eq!(mtu("five", json!({})), all(1360));
    });
}

/// If all settings already have the right values, nothing has to be written.
#[test]
fn a_read_only_proc_sys_is_enough() {
    let node = Node::new();
    let first = node.pod("first");
    let network = network(&node, &json!({}));
    network.add(&Attach::new(&first)).expect("ADD");
    // The kernel gives every new link the values of `default`.
    for (setting, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv6/conf/default/accept_ra", "0"),
    ] {
        node.sysctl(setting, value);
    }
    node.cmd("mount --bind /proc/sys /proc/sys");
    node.cmd("mount -o remount,bind,ro /proc/sys");
    let second = node.pod("second");
    let result = network.add(&Attach::new(&second)).expect("ADD with a read-only /proc/sys");
    network.check(&Attach::new(&second)).expect("CHECK");
    let _server = second.serve(Proto::Tcp, "[::]:80", "second");
    first.expect(Proto::Tcp, at(address_of(&result, 0), 80), "second");
    network.del(&Attach::new(&second)).expect("DEL");
}

/// The IPv4 range on its own works, as all other tests on such a kernel show.
#[test]
fn an_ipv6_range_is_refused_in_a_kernel_without_ipv6() {
    needs!(!has_ipv6(), "a kernel without IPv6");
    peer_fails("the kernel's own words, and the link stays", || {
        let (node, pod) = Node::with_pod();
        let both = json!({"type": "host-local", "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]]});
        let one = json!({"type": "host-local", "subnet": "fd00:1::/64"});
        for ipam in [both, one] {
            let network = network(&node, &with_keys(all(), &json!({"ipam": ipam})));
            let failure = network.add(&Attach::new(&pod)).expect_err("no IPv6");
            let text =
                "this node's kernel has no IPv6, so the container cannot have the address fd00:1::2/64";
            assert!(failure.error.msg.contains(text), "{failure}");
            assert!(!pod.has_link("eth0") && node.reserved("net").is_empty(), "{:?}", node.reserved("net"));
            network.del(&Attach::new(&pod)).expect("DEL");
        }
    });
}

#[test]
fn dns_is_the_configurations_if_it_has_any() {
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    node.write("/var/lib/resolv.conf", "nameserver 192.0.2.53\nsearch ipam.example\n");
    let ipam = json!({"type": "host-local", "subnet": "10.1.2.0/24", "resolvConf": "/var/lib/resolv.conf"});
    let result = add(&network(&node, &json!({"ipam": ipam})), &one);
    assert_eq!(result["dns"], json!({"nameservers": ["192.0.2.53"], "search": ["ipam.example"]}));
    let result = add(&network(&node, &json!({"ipam": ipam, "dns": {"domain": "conf.example"}})), &two);
    assert_eq!(result["dns"], json!({"domain": "conf.example"}));
}

#[test]
fn errors_name_invalid_values_and_change_nothing() {
    peer_fails("other codes, and some are not noticed", || {
        let (node, pod) = Node::with_pod();
        let both = [
            (json!({"mtu": "x"}), "mtu"),
            (json!({"mtu": -5}), "-5"),
            (json!({"ipMasq": true, "ipMasqBackend": "x"}), "unknown ipmasq backend \"x\""),
        ];
        for (keys, part) in both.into_iter().chain(refused()) {
            let before = Snapshot::take(&node, &[&pod]);
            let failure = network(&node, &keys).add(&Attach::new(&pod)).expect_err("bad value");
            assert_eq!(failure.error.code, 7, "{failure}");
            assert!(failure.to_string().contains(part), "{part} is not in: {failure}");
            before.assert_same(&Snapshot::take(&node, &[&pod]));
        }
    });
}

#[test]
fn concurrent_adds_do_not_collide() {
    let node = Node::new();
    let network = network(&node, &with_keys(all(), &json!({"ipam": dual_stack()})));
    let pods: Vec<_> = (0..16).map(|number| node.pod(&format!("pod{number}"))).collect();
    let addresses: BTreeSet<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            pods.iter().map(|pod| scope.spawn(|| address_of(&add(&network, pod), 0))).collect();
        threads.into_iter().map(|thread| thread.join().expect("ADD")).collect()
    });
    assert_eq!(addresses.len(), pods.len());
    let first = *addresses.iter().next().expect("one");
    let server =
        pods.iter().find(|pod| pod.cmd("ip address").contains(&format!("{first}/24"))).expect("the pod");
    let _server = server.serve(Proto::Tcp, "0.0.0.0:80", "server");
    for pod in pods.iter().filter(|pod| pod.name() != server.name()) {
        pod.expect(Proto::Tcp, (first, 80), "server");
    }
    std::thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(|| network.del(&Attach::new(pod)).expect("DEL"));
        }
    });
    assert!(!node.cmd("ip -o link show type veth").contains("veth"));
    // A bridge remains, together with the route to its own subnet.
    let routes = node.cmd("ip route");
    assert!(NODE_LINKS.is_empty() == routes.is_empty(), "{routes}");
}

#[test]
fn a_second_add_leaves_the_first_alone() {
    let (node, pod) = Node::with_pod();
    let network = network(&node, &all());
    let result = add(&network, &pod);
    let before = Snapshot::take(&node, &[&pod]);
    let failure = network.add(&Attach::new(&pod)).expect_err("it is attached");
    // The reference's ptp reports the kernel's error instead.
    let is_named = failure.error.msg.contains(TAKEN) || (is_peer() && NODE_LINKS.is_empty());
    assert!(is_named, "{failure}");
    before.without(&["/.slipway/"]).assert_same(&Snapshot::take(&node, &[&pod]).without(&["/.slipway/"]));
    assert!(pod.cmd("ip address").contains(&address_of(&result, 0).to_string()));
}

#[test]
fn del_removes_what_add_made_and_may_be_repeated() {
    let node = Node::new();
    let (first, pod) = (node.pod("first"), node.pod("pod"));
    let network = network(&node, &with_keys(all(), &json!({"ipam": dual_stack()})));
    add(&network, &first);
    let before = state(&node, &pod);
    add(&network, &pod);
    for _ in 0..2 {
        network.del(&Attach::new(&pod)).expect("DEL");
        before.assert_same(&state(&node, &pod));
    }
    // These attachments never existed.
    network.del(&Attach::new(&pod).container("unknown").netns("/run/netns/none")).expect("DEL");
    network.del(&Attach::new(&pod).container("unknown").netns("")).expect("DEL");
    before.assert_same(&state(&node, &pod));
}

#[test]
fn del_without_a_namespace_finds_the_hosts_end() {
    peer_fails("leaves the link and the masquerade", || {
        let node = Node::new();
        let (first, pod) = (node.pod("first"), node.pod("pod"));
        let network = network(&node, &with_keys(all(), &json!({"ipam": dual_stack()})));
        add(&network, &first);
        for netns in ["", "/run/netns/gone"] {
            let before = state(&node, &pod);
            add(&network, &pod);
            network.forget();
            network.del(&Attach::new(&pod).netns(netns)).expect("DEL");
            before.assert_same(&state(&node, &pod));
        }
    });
}

#[test]
fn del_leaves_a_foreign_link() {
    peer_fails("deletes any link of that name", || {
        let (node, pod) = Node::with_pod();
        pod.cmd("ip link add eth0 type bridge");
        let network = network(&node, &json!({}));
        network.add(&Attach::new(&pod)).expect_err("the name is taken");
        network.del(&Attach::new(&pod)).expect("DEL");
        assert!(pod.has_link("eth0"));
        pod.cmd("ip link delete eth0");
        // The link belongs to another attachment with the same name and namespace, but another container ID.
        add(&network, &pod);
        network.del(&Attach::new(&pod).container("other")).expect("DEL");
        assert!(pod.has_link("eth0"));
        network.check(&Attach::new(&pod)).expect("CHECK");
    });
}

#[test]
fn del_continues_after_an_error() {
    peer_fails("stops at the first error", || {
        let (node, pod) = Node::with_pod();
        add(&network(&node, &all()), &pod);
        let broken = with_keys(all(), &json!({"ipam": {"type": "absent"}}));
        let failure = network(&node, &broken).del(&Attach::new(&pod)).expect_err("no such IPAM");
        assert!(failure.to_string().contains("absent"), "{failure}");
        assert!(!pod.has_link("eth0"));
        assert!(!node.ruleset().contains("10.1.2.2"), "{}", node.ruleset());
    });
}

#[test]
fn gc_removes_stale_attachments_only() {
    peer_fails("does nothing", || {
        let node = Node::new();
        let (live, dead, elsewhere) = (node.pod("live"), node.pod("dead"), node.pod("elsewhere"));
        let ours = network(&node, &all());
        let mut list = json!({"name": "other", "plugins": [plugin(&other_keys())]});
        list["plugins"][0]["ipam"]["subnet"] = "10.9.0.0/24".into();
        let other = node.network(list);
        let dead_link = outer(&add(&ours, &dead));
        let live_link = outer(&add(&ours, &live));
        let other_link = outer(&add(&other, &elsewhere));
        // The runtime's cache is lost, so only the plugin knows the stale attachment.
        ours.forget();
        let live_attach = Attach::new(&live);
        ours.gc(&[&live_attach]).expect("GC");
        assert!(!node.has_link(&dead_link) && !dead.has_link("eth0"));
        assert!(node.has_link(&live_link) && node.has_link(&other_link));
        assert_eq!(node.reserved("net"), ["10.1.2.3"]);
        let ruleset = node.ruleset();
        assert!(!ruleset.contains("10.1.2.2 ") && ruleset.contains("10.1.2.3 "), "{ruleset}");
        assert!(!ruleset.contains(&dead_link), "{ruleset}");
        ours.gc_plugins(&Value::Null).expect("GC");
        assert!(!node.has_link(&live_link) && node.has_link(&other_link));
        assert!(node.reserved("net").is_empty());
    });
}

#[test]
fn gc_without_a_list_removes_nothing() {
    let (node, pod) = Node::with_pod();
    let network = network(&node, &json!({}));
    add(&network, &pod);
    if newest_version() == "1.0.0" {
        return; // An older peer does not know the verb.
    }
    // The kernel adds the multicast route with some delay.
    let state = || Snapshot::take(&node, &[&pod]).without(&["ff00::/8"]);
    let before = state();
    network.call("GC", &network.configs(None)[0], None).ok();
    before.assert_same(&state());
}

#[test]
fn status_reports_an_exhausted_range() {
    peer_fails("reports no error", || {
        let (node, pod) = Node::with_pod();
        let ipam = json!({"type": "host-local", "subnet": "10.1.2.0/30"});
        let network = network(&node, &with_keys(all(), &json!({"ipam": ipam})));
        network.status().expect("one address is free");
        add(&network, &pod);
        assert_eq!(network.status().expect_err("none is free").error.code, 50);
        network.del(&Attach::new(&pod)).expect("DEL");
        network.status().expect("it is free again");
    });
}

#[test]
fn check_compares_the_containers_link() {
    let (node, pod) = Node::with_pod();
    let (network, result) = attached(&node, &pod, json!({}));
    let mac = last(&result)["mac"].as_str().expect("a MAC");
    pod.cmd("ip link set eth0 address 02:00:00:00:00:77");
    network.differs(
        &pod,
        &format!("{PREFIX}Interface eth0 Mac {mac} doesn't match container Mac: 02:00:00:00:00:77"),
    );
    pod.cmd(&format!("ip link set eth0 address {mac}"));
    network.check(&Attach::new(&pod)).expect("CHECK");
    pod.cmd("ip link delete eth0");
    network.differs(&pod, "eth0");
}

#[test]
fn check_compares_the_containers_addresses_and_routes() {
    let (node, pod) = Node::with_pod();
    let (network, _) = attached(&node, &pod, json!({}));
    pod.cmd("ip route delete default");
    network.differs(&pod, "Expected Route");
    // Another interface of the container has taken the default route over, as multus permits.
    pod.cmd("ip link add other type veth peer name end");
    pod.cmd("ip link set other up");
    pod.cmd("ip route add default dev other");
    network.check(&Attach::new(&pod)).expect("CHECK with another default route");
    pod.cmd("ip route delete default");
    pod.cmd("ip route add default via 10.1.2.1");
    network.check(&Attach::new(&pod)).expect("CHECK");
    let last = if has_ipv6() { "fd00:1::2/64" } else { "10.1.2.2/24" };
    pod.cmd(&format!("ip address delete {last} dev eth0"));
    network.differs(&pod, "Failed to match addr");
}

#[test]
fn a_previous_result_is_required() {
    let (node, pod) = Node::with_pod();
    let (network, _) = attached(&node, &pod, json!({}));
    network.forget();
    network.differs(&pod, &format!("{PREFIX}Required prevResult missing"));
}

#[test]
fn masquerade_is_compared() {
    peer_fails("does not look at it", || {
        let (node, pod) = Node::with_pod();
        let (network, _) = attached(&node, &pod, json!({"ipMasq": true}));
        // This deletes everything that the container has in the table, whatever the layout is.
        node.nft("delete table inet slipway");
        network.check(&Attach::new(&pod)).expect_err("CHECK should notice");
    });
}
