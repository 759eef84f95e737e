// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway migrate` for podman's containers.

use std::net::Ipv4Addr;

use slipway_tests::{Host, Node, PROGRAMS, Pod, Proto, has_programs, needs, slipway_only};

use crate::{Call, Net};

#[test]
fn from_nftables_to_iptables_and_back() {
    slipway_only!();
    moves(&["iptables", "nftables"]);
}

#[test]
fn from_nftables_by_iptables_to_the_programs() {
    needs!(has_programs(), PROGRAMS);
    slipway_only!();
    moves(&["iptables", "ebpf"]);
}

/// Migrates a container to each backend in turn. Its ports and masquerade must work after each step, and its teardown
/// must leave nothing.
fn moves(backends: &[&str]) {
    let (node, client) = Node::with_client();
    let pod = node.pod("web");
    let net = Net::new();
    let call =
        Call::new(&node, &net, &pod, 5).publish("", "tcp", 8080, 80, 1).publish("", "udp", 8053, 53, 1);
    call.setup();
    let _web = pod.serve(Proto::Tcp, "[::]:80", "web");
    let _dns = [0, 1].map(|at| {
        let address = slipway_tests::at(call.address(at), 53).to_string();
        pod.serve(Proto::Udp, &address, "dns")
    });
    let _outside = client.serve(Proto::Tcp, "[::]:7", "outside");
    answers(&client, &pod);
    for backend in backends {
        let report = node.slipway(&format!("migrate --to {backend}"));
        assert!(report.contains("web"), "{backend}: {report}");
        answers(&client, &pod);
        node.expect(Proto::Tcp, (Ipv4Addr::LOCALHOST, 8080), "web");
        assert_eq!(node.ruleset().contains("CNI-DN-"), *backend == "iptables", "{}", node.ruleset());
        let listed = node.slipway("ports");
        assert!(listed.contains("8080") && listed.contains(backend), "{backend}: {listed}");
    }
    // The records tell the teardown where everything was moved.
    call.teardown();
    client.expect_none_of([8080, 8053].map(|port| (Proto::Tcp, (client.node_v4, port).into())));
    let rules = node.ruleset();
    for word in ["8080", "8053", "10.89.0.5", "fd00:89::5", "CNI-DN-"] {
        assert!(!rules.contains(word), "{word}: {rules}");
    }
    assert!(node.slipway("ports --output json").contains("\"ports\": []"));
    assert_eq!(node.cmd("find /run/slipway/netavark/results /run/slipway/netavark/pending -type f"), "");
    assert!(!node.has_link("sw0"));
    // A second teardown finds nothing to do.
    call.teardown();
}

fn answers(client: &Host, pod: &Pod) {
    let seen = client.expect(Proto::Tcp, (client.node_v4, 8080), "web").peer.ip();
    assert_eq!(seen.to_canonical(), client.v4);
    assert_eq!(client.expect(Proto::Tcp, (client.node_v6, 8080), "web").peer.ip(), client.v6);
    client.expect(Proto::Udp, (client.node_v4, 8053), "dns");
    client.expect(Proto::Udp, (client.node_v6, 8053), "dns");
    // Connections of the container are masqueraded.
    let seen = pod.expect(Proto::Tcp, (client.v4, 7), "outside").peer.ip();
    assert_eq!(seen.to_canonical(), client.node_v4);
    assert_eq!(pod.expect(Proto::Tcp, (client.v6, 7), "outside").peer.ip(), client.node_v6);
}
