// SPDX-License-Identifier: GPL-2.0-or-later

//! ADD with one and with several containers: its result, links, addresses and routes.

use std::time::Duration;

use serde_json::json;
use slipway_tests::{
    Attach, Node, Proto, QUICK, Snapshot, addresses_of, at, has_ipv6, is_peer, needs_ipv6, peer_fails,
    slipway_only, until, usable, within,
};

use super::dual_stack;
use super::pair::{add, network, outer};

#[test]
fn the_result_names_bridge_port_and_container() {
    let (node, pod) = Node::with_pod();
    let result = add(&network(&node, &json!({"isGateway": true})), &pod);
    let interfaces = result["interfaces"].as_array().expect("interfaces");
    assert_eq!(interfaces.len(), 3);
    assert_eq!(interfaces[0]["name"], "br0");
    assert_eq!(interfaces[0]["mac"], node.mac("br0"));
    let port = outer(&result);
    assert!(port.starts_with("veth") && port.len() == 12, "{port}");
    assert_eq!(interfaces[1]["mac"], node.mac(&port));
    assert_eq!(interfaces[2]["name"], "eth0");
    assert_eq!(interfaces[2]["mac"], pod.mac("eth0"));
    assert_eq!(interfaces[2]["sandbox"], pod.path().to_str().expect("text"));
    assert_eq!(result["ips"], json!([{"interface": 2, "address": "10.1.2.2/24", "gateway": "10.1.2.1"}]));
    assert_eq!(node.link(&port)["master"], "br0");
    assert_eq!(node.link(&port)["operstate"], "UP");
}

#[test]
fn the_gateway_serves_each_family() {
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    let client = node.host("client");
    let network = network(&node, &json!({"isDefaultGateway": true, "ipam": dual_stack()}));
    let results = [add(&network, &one), add(&network, &two)];
    let _servers = [one.serve(Proto::Tcp, "[::]:80", "one"), client.serve(Proto::Tcp, "[::]:80", "client")];
    let [one, own] = results.each_ref().map(addresses_of);
    for (family, outside) in usable([client.v4.into(), client.v6.into()]).into_iter().enumerate() {
        two.expect(Proto::Tcp, (one[family], 80), "one");
        // Traffic takes the default route with the node as router; the client sees the pod's own address.
        assert_eq!(two.expect(Proto::Tcp, (outside, 80), "client").peer.ip(), own[family]);
    }
}

#[test]
fn the_gateway_given_by_ipam_is_the_bridges_address() {
    let (node, pod) = Node::with_pod();
    let ipam = json!({"type": "host-local", "subnet": "10.1.2.0/24", "gateway": "10.1.2.254"});
    let result = add(&network(&node, &json!({"isGateway": true, "ipam": ipam})), &pod);
    assert_eq!(result["ips"][0]["gateway"], "10.1.2.254");
    assert!(node.cmd("ip address show dev br0").contains("10.1.2.254/24"));
    assert_eq!(node.sysctl_get("net/ipv4/ip_forward").as_deref(), Some("1"));
    // Without IPv6 addresses, the plugin does not switch IPv6 forwarding on.
    assert_ne!(node.sysctl_get("net/ipv6/conf/all/forwarding").as_deref(), Some("1"));
}

#[test]
fn without_is_gateway_the_bridge_has_no_address() {
    let (node, pod) = Node::with_pod();
    let result = add(&network(&node, &json!({})), &pod);
    assert_eq!(result["ips"][0]["address"], "10.1.2.2/24");
    assert!(!node.cmd("ip -4 address show dev br0").contains("inet"));
    assert_eq!(pod.cmd("ip route"), "10.1.2.0/24 dev eth0 proto kernel scope link src 10.1.2.2 \n");
}

#[test]
fn without_ipam_the_link_is_up_and_bare() {
    let (node, pod) = Node::with_pod();
    let result = add(&network(&node, &json!({"ipam": {}, "isGateway": true, "ipMasq": true})), &pod);
    assert!(result["ips"].is_null(), "{result}");
    assert_eq!(pod.link("eth0")["operstate"], "UP");
    assert!(!pod.cmd("ip -4 address show dev eth0").contains("inet"));
}

#[test]
fn routes_keep_all_their_fields() {
    peer_fails(
        "MTU and AdvMSS of routes are not installed, a route for IsDefaultGateway without gateway fails",
        || {
            let (node, pod) = Node::with_pod();
            let ipam = json!({
                "type": "host-local", "subnet": "10.1.2.0/24",
                "routes": [
                    {"dst": "0.0.0.0/0"},
                    {"dst": "10.9.0.0/16", "mtu": 1400, "advmss": 1300, "priority": 5},
                    {"dst": "10.8.0.0/16", "gw": "10.1.2.9", "table": 100},
                    {"dst": "10.7.0.0/16", "scope": 253, "gw": "10.1.2.8"},
                ],
            });
            let keys = json!({"isDefaultGateway": true, "ipam": ipam});
            let mut keys = keys;
            // The kernel refuses a next hop of link scope.
            keys["ipam"]["routes"].as_array_mut().expect("a list").pop();
            let network = network(&node, &keys);
            let result = add(&network, &pod);
            assert_eq!(result["routes"].as_array().expect("routes").len(), 3);
            let main = pod.cmd("ip route");
            assert!(main.contains("default via 10.1.2.1 dev eth0"), "{main}");
            assert!(
                main.contains("10.9.0.0/16 via 10.1.2.1 dev eth0 metric 5 mtu 1400 advmss 1300"),
                "{main}"
            );
            assert!(pod.cmd("ip route show table 100").contains("10.8.0.0/16 via 10.1.2.9 dev eth0"));
            network.check(&Attach::new(&pod)).expect("CHECK");
        },
    );
}

#[test]
fn the_bridges_address_outlives_its_ports() {
    let node = Node::new();
    let network = network(&node, &json!({"isGateway": true}));
    let pods = ["a", "b", "c", "d"].map(|name| node.pod(name));
    add(&network, &pods[0]);
    let mac = node.mac("br0");
    for pod in &pods[1..] {
        add(&network, pod);
        assert_eq!(node.mac("br0"), mac);
    }
    for pod in &pods {
        network.del(&Attach::new(pod)).expect("DEL");
        assert_eq!(node.mac("br0"), mac);
    }
}

#[test]
fn a_full_bridge_is_reported_with_its_limit() {
    peer_fails("fails with \"exchange full\"", || {
        let (node, pod) = Node::with_pod();
        let mut batch = String::from("link add br0 type bridge\n");
        for number in 0..512 {
            batch.push_str(&format!("link add a{number} type veth peer name b{number}\n"));
            batch.push_str(&format!("link set a{number} master br0\n"));
            if number < 511 {
                batch.push_str(&format!("link set b{number} master br0\n"));
            }
        }
        node.cmd_input("ip -batch -", &batch);
        let before = Snapshot::take(&node, &[&pod]).without(&["last_reserved_ip"]);
        let network = network(&node, &json!({"isGateway": true}));
        let failure = network.add(&Attach::new(&pod)).expect_err("the bridge is full");
        assert_eq!(
            failure.error.msg,
            "bridge \"br0\" is full: it has 1023 ports, the most that a bridge can have"
        );
        let after = Snapshot::take(&node, &[&pod]).without(&["last_reserved_ip", "/var/lib/cni", "br0"]);
        before.without(&["/var/lib/cni", "br0"]).assert_same(&after);
        // If the links were deleted together with the namespace, all at once, they would block all other namespaces for
        // up to a minute on a busy machine.
        let links: String = (0..512).map(|number| format!("link del a{number}\n")).collect();
        node.cmd_input("ip -batch -", &links);
    });
}

/// The bridge stays after an ADD that failed, as other containers may use it by then. It has to be known as Slipway's, because
/// `slipway uninstall` deletes no bridge of another program.
#[test]
fn a_bridge_is_marked_before_anything_else_can_fail() {
    slipway_only!();
    needs_ipv6!();
    let (node, pod) = Node::with_pod();
    let network = network(&node, &json!({}));
    // A new bridge would accept advertisements of routers, and the plugin cannot forbid that here.
    node.sysctl("net/ipv6/conf/default/accept_ra", "1");
    node.cmd("mount --bind /proc/sys /proc/sys");
    node.cmd("mount -o remount,bind,ro /proc/sys");
    let failure = network.add(&Attach::new(&pod)).expect_err("a read-only /proc/sys");
    assert!(failure.error.msg.contains("accept_ra"), "{failure}");
    node.cmd("umount /proc/sys");
    assert!(node.cmd("ip link show dev br0").contains("alias made by slipway"));
    network.add(&Attach::new(&pod)).expect("ADD");
    assert!(node.cmd("ip link show dev br0").contains("alias made by slipway"));
    network.del(&Attach::new(&pod)).expect("DEL");
}

#[test]
fn one_container_may_have_several_interfaces() {
    let (node, pod) = Node::with_pod();
    let network = network(&node, &json!({}));
    let (first, second) = (Attach::new(&pod), Attach::new(&pod).ifname("net1"));
    network.add(&first).expect("ADD of eth0");
    network.add(&second).expect("ADD of net1");
    network.del(&first).expect("DEL of eth0");
    assert!(!pod.has_link("eth0") && pod.has_link("net1"));
    network.check(&second).expect("CHECK of net1");
}

/// Holds in both families. For IPv6, the link-local address of the new bridge must not be tentative, because the kernel
/// uses it to solicit a container that it does not know yet.
#[test]
fn the_first_container_of_a_bridge_is_reached_from_outside_at_once() {
    let (node, client) = Node::with_client();
    let all = usable(["fd00:1::7", "10.1.2.7"].map(|text| text.parse().expect("an address")));
    let addresses: Vec<_> = all
        .iter()
        .map(|ip| json!({"address": format!("{ip}/{}", if ip.is_ipv4() { 24 } else { 64 })}))
        .collect();
    let network = network(
        &node,
        &json!({"isGateway": true, "isDefaultGateway": true, "ipam": {"type": "static", "addresses": addresses}}),
    );
    let pod = node.pod("pod");
    network.add(&Attach::new(&pod)).expect("ADD");
    let _server = pod.serve(Proto::Tcp, "[::]:80", "pod");
    for to in all {
        let answer = client.request_from(Proto::Tcp, None, at(to, 80), within(QUICK));
        assert!(answer.is_ok_and(|answer| answer.who == "pod"), "{to}");
    }
    if !is_peer() && has_ipv6() {
        // Duplicate address detection would take at least a second.
        until(Duration::from_millis(500), "a link-local address that can be used", || {
            let addresses = node.cmd("ip -6 address show dev br0 scope link");
            addresses.contains("fe80::") && !addresses.contains("tentative")
        });
    }
}
