// SPDX-License-Identifier: GPL-2.0-or-later

//! ADD with one and with several containers, and the objects that it makes.

use serde_json::json;
use slipway_tests::{Attach, Node, Proto, Snapshot, address_of, at, has_ipv6, peer_fails, usable};

use super::dual_stack;
use super::pair::{add, network, outer};

#[test]
fn the_result_names_the_hosts_end_and_the_containers() {
    let (node, pod) = Node::with_pod();
    let result = add(&network(&node, &json!({})), &pod);
    let interfaces = result["interfaces"].as_array().expect("interfaces");
    assert_eq!(interfaces.len(), 2);
    let outer = outer(&result);
    assert!(outer.starts_with("veth") && outer.len() == 12, "{outer}");
    assert_eq!(interfaces[0], json!({"name": outer, "mac": node.mac(&outer)}));
    let sandbox = pod.path().to_str().expect("text");
    assert_eq!(interfaces[1], json!({"name": "eth0", "mac": pod.mac("eth0"), "sandbox": sandbox}));
    assert_eq!(result["ips"], json!([{"interface": 1, "address": "10.1.2.2/24", "gateway": "10.1.2.1"}]));
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0"}]));
    assert_eq!(node.link(&outer)["operstate"], "UP");
}

/// The routes on the node and in the container must equal the reference plugin's exactly.
#[test]
fn the_routes_are_the_references() {
    slipway_tests::needs_ipv6!();
    let (node, pod) = Node::with_pod();
    let result = add(&network(&node, &json!({"ipam": dual_stack()})), &pod);
    let outer = outer(&result);
    assert_eq!(
        pod.cmd("ip route"),
        "default via 10.1.2.1 dev eth0 \n\
         10.1.2.0/24 via 10.1.2.1 dev eth0 src 10.1.2.2 \n\
         10.1.2.1 dev eth0 scope link src 10.1.2.2 \n"
    );
    let six = pod.cmd("ip -6 route");
    for line in [
        "fd00:1::1 dev eth0 src fd00:1::2 metric 1024 pref medium",
        "fd00:1::/64 via fd00:1::1 dev eth0 src fd00:1::2 metric 1024 pref medium",
        "default via fd00:1::1 dev eth0 metric 1024 pref medium",
    ] {
        assert!(six.contains(line), "{line} is not in:\n{six}");
    }
    let own: Vec<_> =
        six.lines().filter(|line| line.contains("fd00:1::/64") && !line.contains("via")).collect();
    assert!(own.is_empty(), "the kernel's own route to the subnet: {own:?}");
    assert_eq!(node.cmd("ip route"), format!("10.1.2.2 dev {outer} scope host \n"));
    let six = node.cmd("ip -6 route");
    assert!(six.contains(&format!("fd00:1::2 dev {outer} metric 1024")), "{six}");
    let addresses = node.cmd(&format!("ip address show dev {outer}"));
    assert!(
        addresses.contains("inet 10.1.2.1/32") && addresses.contains("inet6 fd00:1::1/128"),
        "{addresses}"
    );
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        assert_eq!(node.sysctl_get(key).as_deref(), Some("1"), "{key}");
    }
    assert_eq!(node.sysctl_get(&format!("net/ipv6/conf/{outer}/accept_ra")).as_deref(), Some("0"));
}

/// As with bridge, this makes a pair of links for users who assign addresses by other means.
#[test]
fn without_ipam_there_is_a_pair_of_links_and_nothing_else() {
    peer_fails("IPAM is required", || {
        for ipam in [json!({}), json!(null)] {
            let (node, pod) = Node::with_pod();
            let bare = Snapshot::take(&node, &[&pod]);
            let network = network(&node, &json!({"ipam": ipam, "ipMasq": true, "mtu": 1400}));
            let attach = Attach::new(&pod);
            network.status().expect("STATUS");
            let result = add(&network, &pod);
            assert!(result["ips"].is_null() && result["routes"].is_null(), "{result}");
            assert_eq!(result["interfaces"].as_array().map(Vec::len), Some(2), "{result}");
            let outer = outer(&result);
            for link in [node.link(&outer), pod.link("eth0")] {
                assert_eq!((&link["operstate"], &link["mtu"]), (&json!("UP"), &json!(1400)));
            }
            assert!(!pod.cmd("ip -4 address show dev eth0").contains("inet"));
            assert_eq!((node.cmd("ip route"), pod.cmd("ip route")), (String::new(), String::new()));
            assert!(
                node.reserved("net").is_empty() && !node.ruleset().contains("eth0"),
                "{}",
                node.ruleset()
            );

            // Packets pass once somebody has assigned addresses. CHECK does not look at addresses.
            network.check(&attach).expect("CHECK");
            node.cmd(&format!("ip address add 10.9.9.1/24 dev {outer}"));
            pod.cmd("ip address add 10.9.9.2/24 dev eth0");
            let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "bare");
            node.expect(Proto::Tcp, at(std::net::Ipv4Addr::new(10, 9, 9, 2), 80), "bare");
            network.check(&attach).expect("CHECK");

            let explained = node.slipway("explain tcp 10.9.9.2:80");
            assert!(explained.contains("10.9.9.2"), "{explained}");
            node.cmd(&format!("ip link set {outer} down"));
            network.differs(&pod, &format!("Interface {outer} is down"));
            network.write_cache(&attach);
            node.slipway("restore");
            network.check(&attach).expect("CHECK after `slipway restore`");

            network.gc(&[&attach]).expect("GC that keeps it");
            network.check(&attach).expect("CHECK after a GC");
            network.gc(&[]).expect("GC that removes it");
            assert!(!pod.has_link("eth0") && !node.has_link(&outer));
            add(&network, &pod);
            network.del(&attach).expect("DEL");
            network.del(&attach).expect("the second DEL");
            bare.without(&["/run/slipway", "/var/lib/cni"])
                .assert_same(&Snapshot::take(&node, &[&pod]).without(&["/run/slipway", "/var/lib/cni"]));
        }
    });
}

#[test]
fn all_hosts_are_reached_through_the_node() {
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    let client = node.host("client");
    let network = network(&node, &json!({"ipam": dual_stack()}));
    let results = [add(&network, &one), add(&network, &two)];
    let _servers = [
        one.serve(Proto::Tcp, "[::]:80", "one"),
        client.serve(Proto::Tcp, "[::]:80", "client"),
        node.serve(Proto::Tcp, "[::]:81", "node"),
    ];
    for (family, outside) in usable([client.v4.into(), client.v6.into()]).into_iter().enumerate() {
        let (peer, own) = (address_of(&results[0], family), address_of(&results[1], family));
        // Another container in the subnet is reached through the gateway and without masquerade.
        assert_eq!(two.expect(Proto::Tcp, (peer, 80), "one").peer.ip(), own);
        // An outside host to which the node routes is reached, and the other way round.
        assert_eq!(two.expect(Proto::Tcp, (outside, 80), "client").peer.ip(), own);
        assert_eq!(client.expect(Proto::Tcp, (peer, 80), "one").peer.ip(), outside);
        // The node itself connects from the gateway's address.
        let gateway: std::net::IpAddr =
            results[0]["ips"][family]["gateway"].as_str().expect("a gateway").parse().expect("an address");
        assert_eq!(node.expect(Proto::Tcp, (peer, 80), "one").peer.ip(), gateway);
        two.expect(Proto::Tcp, (gateway, 81), "node");
        two.ping(gateway).expect("the gateway answers");
    }
}

/// Duplicate address detection is on, which is the kernel's default. The first packet from outside must not have to
/// wait for that of the link-local address.
#[test]
fn ipv6_works_when_add_returns() {
    slipway_tests::needs_ipv6!();
    peer_fails("its ADD takes one to two seconds, and the host's end is not ready then", || {
        let node = Node::new();
        let client = node.host("client");
        client.ping(client.node_v6.into()).expect("the way to the node is open");
        node.sysctl("net/ipv6/conf/default/accept_dad", "1");
        let pod = node.pod("pod");
        pod.sysctl("net/ipv6/conf/default/accept_dad", "1");
        let begin = std::time::Instant::now();
        let result = add(&network(&node, &json!({"ipam": dual_stack()})), &pod);
        let _server = pod.serve(Proto::Udp, "[::]:80", "pod");
        // Duplicate address detection takes at least one second.
        let patience = std::time::Duration::from_millis(950);
        let target = (address_of(&result, 1), 80).into();
        let answer = client.request_from(Proto::Udp, None, target, patience);
        assert!(answer.is_ok(), "{answer:?} {:?} after the ADD began", begin.elapsed());
        assert!(!pod.cmd("ip -6 address").contains("tentative"));
    });
}

#[test]
fn only_the_families_in_use_are_forwarded() {
    let (node, pod) = Node::with_pod();
    add(&network(&node, &json!({})), &pod);
    assert_eq!(node.sysctl_get("net/ipv4/ip_forward").as_deref(), Some("1"));
    assert_ne!(node.sysctl_get("net/ipv6/conf/all/forwarding").as_deref(), Some("1"));
}

#[test]
fn routes_have_all_configured_attributes() {
    slipway_tests::needs_ipv6!();
    peer_fails("MTU and AdvMSS of routes are not installed, a route to the own subnet fails", || {
        let (node, pod) = Node::with_pod();
        let mut ipam = dual_stack();
        ipam["routes"] = json!([
            {"dst": "0.0.0.0/0"},
            {"dst": "10.1.2.0/24"},
            {"dst": "fd00:1::/64"},
            {"dst": "10.9.0.0/16", "mtu": 1400, "advmss": 1300, "priority": 5},
            {"dst": "10.8.0.0/16", "table": 100},
        ]);
        let network = network(&node, &json!({"ipam": ipam}));
        let result = add(&network, &pod);
        assert_eq!(result["routes"].as_array().expect("routes").len(), 5);
        assert_eq!(
            pod.cmd("ip route"),
            "default via 10.1.2.1 dev eth0 \n\
             10.1.2.0/24 via 10.1.2.1 dev eth0 src 10.1.2.2 \n\
             10.1.2.1 dev eth0 scope link src 10.1.2.2 \n\
             10.9.0.0/16 via 10.1.2.1 dev eth0 metric 5 mtu 1400 advmss 1300 \n"
        );
        assert!(pod.cmd("ip route show table 100").contains("10.8.0.0/16 via 10.1.2.1 dev eth0"));
        network.check(&Attach::new(&pod)).expect("CHECK");
    });
}

/// The reservations are lost while the container is running. Its address must not be routed to another container.
#[test]
fn an_address_routed_to_another_container_is_refused() {
    peer_fails("the veth pair stays, and the owner is not named", || {
        let node = Node::new();
        let (one, two) = (node.pod("one"), node.pod("two"));
        let of_ipv6 = has_ipv6().then_some("fd00:1::/64");
        for subnet in ["10.1.2.0/24"].into_iter().chain(of_ipv6) {
            let ipam = json!({"type": "host-local", "subnet": subnet});
            let network = network(&node, &json!({"ipam": ipam}));
            add(&network, &one);
            node.cmd("rm -r /var/lib/cni/networks/net");
            // The kernel adds its own IPv6 routes with some delay.
            let state = || Snapshot::take(&node, &[&one, &two]).without(&["/var/lib/cni", "table local"]);
            let before = state();
            let failure = network.add(&Attach::new(&two)).expect_err("the address is taken");
            assert_eq!(failure.error.code, 11, "{failure}");
            let text = "is taken by network net, container one, interface eth0";
            assert!(failure.error.msg.contains(text), "{failure}");
            before.assert_same(&state());
            network.del(&Attach::new(&one)).expect("DEL");
            add(&network, &two);
            network.del(&Attach::new(&two)).expect("DEL");
        }
    });
}

/// Two interfaces of one container are in one network, as Multus can set them up.
#[test]
fn one_container_may_have_several_interfaces() {
    let (node, pod) = Node::with_pod();
    let network = network(&node, &json!({"ipam": dual_stack()}));
    let (first, second) = (Attach::new(&pod), Attach::new(&pod).ifname("net1"));
    network.add(&first).expect("ADD of eth0");
    peer_fails("the subnet's route exists already", || {
        network.add(&second).expect("ADD of net1");
        network.check(&first).expect("CHECK of eth0");
        network.del(&first).expect("DEL of eth0");
        assert!(!pod.has_link("eth0") && pod.has_link("net1"));
        network.check(&second).expect("CHECK of net1");
    });
}
