// SPDX-License-Identifier: GPL-2.0-or-later

//! Published ports in all forms that `--publish` has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::json;
use slipway_tests::{Node, Proto, SCTP, at, expect_sctp, has_sctp, needs, slipway_only};

use crate::{Call, GATEWAYS, Net, state};

#[test]
fn every_form_of_publish_reaches_the_container() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
    let (near, far) = (node.host("near"), node.host("far"));
    let pod = node.pod("web");
    let net = Net::new();
    let one = near.node_v4.to_string();
    let call = Call::new(&node, &net, &pod, 5)
        .publish("", "tcp", 8080, 80, 1)
        .publish("", "tcp,udp", 9000, 100, 3)
        .publish(&one, "tcp", 8081, 80, 1)
        .publish(&far.node_v6.to_string(), "tcp", 8082, 80, 1)
        .publish("127.0.0.1", "tcp", 8083, 80, 1)
        .publish("0.0.0.0", "tcp", 8084, 80, 1)
        .publish("::", "tcp", 8085, 80, 1)
        .publish("", "sctp", 8086, 80, 1)
        .publish("", "", 8087, 80, 0);
    call.setup();
    let mut servers = vec![pod.serve(Proto::Tcp, "[::]:80", "80")];
    for port in [100, 101, 102] {
        servers.push(pod.serve(Proto::Tcp, &format!("[::]:{port}"), &port.to_string()));
        for address in [call.address(0), call.address(1)] {
            let address = std::net::SocketAddr::new(address, port).to_string();
            servers.push(pod.serve(Proto::Udp, &address, &port.to_string()));
        }
    }
    // The container sees the client's own address.
    assert_eq!(near.expect(Proto::Tcp, (near.node_v4, 8080), "80").peer.ip().to_canonical(), near.v4);
    assert_eq!(near.expect(Proto::Tcp, (near.node_v6, 8080), "80").peer.ip(), near.v6);
    for offset in 0..3 {
        for proto in [Proto::Tcp, Proto::Udp] {
            near.expect(proto, (near.node_v4, 9000 + offset), &(100 + offset).to_string());
            near.expect(proto, (near.node_v6, 9000 + offset), &(100 + offset).to_string());
        }
    }
    near.expect_none(Proto::Tcp, (near.node_v4, 9003));
    near.expect(Proto::Tcp, (near.node_v4, 8081), "80");
    far.expect_none(Proto::Tcp, (far.node_v4, 8081));
    far.expect(Proto::Tcp, (far.node_v6, 8082), "80");
    near.expect_none(Proto::Tcp, (near.node_v6, 8082));
    node.expect(Proto::Tcp, (Ipv4Addr::LOCALHOST, 8083), "80");
    near.expect_none(Proto::Tcp, (near.node_v4, 8083));
    near.expect(Proto::Tcp, (near.node_v4, 8084), "80");
    near.expect_none(Proto::Tcp, (near.node_v6, 8084));
    near.expect(Proto::Tcp, (near.node_v6, 8085), "80");
    near.expect_none(Proto::Tcp, (near.node_v4, 8085));
    near.expect(Proto::Tcp, (near.node_v4, 8087), "80");
    // The node itself reaches the ports, and so does the container by way of the node.
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into(), near.node_v4.into()] {
        node.expect(Proto::Tcp, (address, 8080), "80");
    }
    for gateway in GATEWAYS {
        let gateway: IpAddr = gateway.parse().expect("an address");
        pod.expect(Proto::Tcp, (gateway, 8080), "80");
    }
    let listed = node.slipway("ports");
    for port in [8080, 8081, 8082, 8083, 8084, 8085, 8086, 8087, 9000] {
        assert!(listed.contains(&port.to_string()), "{port} is missing:\n{listed}");
    }
    assert!(listed.contains("sctp"), "{listed}");
    call.teardown();
    near.expect_none_of([8080, 8081, 8084, 9000].map(|port| (Proto::Tcp, (near.node_v4, port).into())));
    let left = node.slipway("ports");
    assert!(!left.contains("8080") && !left.contains("8086"), "{left}");
}

#[test]
fn sctp_of_both_families() {
    needs!(has_sctp(), SCTP);
    slipway_only!();
    let (node, client) = Node::with_client();
    let pod = node.pod("web");
    let call = Call::new(&node, &Net::new(), &pod, 5).publish("", "sctp", 8080, 80, 1);
    call.setup();
    let to: [IpAddr; 2] = [client.node_v4.into(), client.node_v6.into()];
    for (index, to) in to.into_iter().enumerate() {
        expect_sctp(&client, at(to, 8080), &pod, at(call.address(index), 80));
    }
    call.teardown();
    assert!(!node.ruleset().contains("8080"), "{}", node.ruleset());
}

/// With two networks, the ports are on the one that was joined first, and move to the other when that one is left.
#[test]
fn ports_move_to_the_networks_that_are_left() {
    slipway_only!();
    let (node, client) = Node::with_client();
    let pod = node.pod("web");
    let green = Net::with_subnets("green", "sw1", "10.90.0", "fd00:90:");
    let (first, second) = (Call::new(&node, &Net::new(), &pod, 5), Call::new(&node, &green, &pod, 7));
    let first = first.publish("", "tcp", 8080, 80, 1);
    let second = second.publish("", "tcp", 8080, 80, 1).option("interface_name", json!("eth1"));
    first.setup();
    second.setup();
    let _web = pod.serve(Proto::Tcp, "[::]:80", "web");
    let default = || pod.cmd("ip route show default");
    let routes = default();
    assert!(routes.contains("10.89.0.1 dev eth0 metric 100"), "{routes}");
    assert!(routes.contains("10.90.0.1 dev eth1 metric 101"), "{routes}");
    let open = || {
        // Packets must use the interface on which the ports are published, because the reverse path filter would drop
        // replies from another one.
        assert_eq!(
            client.expect(Proto::Tcp, (client.node_v4, 8080), "web").peer.ip().to_canonical(),
            client.v4
        );
        assert_eq!(client.expect(Proto::Tcp, (client.node_v6, 8080), "web").peer.ip(), client.v6);
        node.expect(Proto::Tcp, (Ipv4Addr::LOCALHOST, 8080), "web");
    };
    for link in ["all", "sw0", "sw1"] {
        node.sysctl(&format!("net/ipv4/conf/{link}/rp_filter"), "1");
    }
    open();
    let on = || node.slipway("ports --output json");
    assert!(on().contains("\"blue\"") && !on().contains("\"green\""), "{}", on());
    // This happens on `podman network disconnect`.
    first.teardown();
    assert!(on().contains("\"green\"") && !on().contains("\"blue\""), "{}", on());
    assert!(!default().contains("eth0") && default().contains("eth1"));
    open();
    // This happens on `podman network connect`.
    first.setup();
    assert!(default().contains("10.89.0.1 dev eth0 metric 102"), "{}", default());
    open();
    second.teardown();
    open();
    assert!(on().contains("\"blue\""), "{}", on());
    let before = state(&node, &[&pod]);
    second.setup();
    second.teardown();
    before.assert_same(&state(&node, &[&pod]));
    first.teardown();
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
}
