// SPDX-License-Identifier: GPL-2.0-or-later

//! The keys one by one, and unusual results from IPAM.

use serde_json::json;
use slipway_tests::{Attach, Node, Proto, Snapshot, address_of, has_ipv6, peer_fails, usable};

use super::dual_stack;
use super::pair::{add, network};

#[test]
fn ip_masq_translates_packets_that_leave_the_subnet() {
    let node = Node::new();
    let client = node.host("client");
    // The client has no route to the containers.
    client.cmd("ip route delete default");
    if has_ipv6() {
        client.cmd("ip -6 route delete default");
    }
    let (one, two) = (node.pod("one"), node.pod("two"));
    let network = network(&node, &json!({"ipMasq": true, "ipam": dual_stack()}));
    let results = [add(&network, &one), add(&network, &two)];
    let mut servers = Vec::new();
    for proto in Proto::ALL {
        servers.push(one.serve(proto, "[::]:80", "one"));
        servers.push(client.serve(proto, "[::]:80", "client"));
    }
    let nodes = usable([client.node_v4.into(), client.node_v6.into()]);
    let outside: Vec<_> = usable([client.v4.into(), client.v6.into()]).into_iter().zip(nodes).collect();
    for proto in Proto::ALL {
        for (family, (to, node_ip)) in outside.iter().copied().enumerate() {
            assert_eq!(two.expect(proto, (to, 80), "client").peer.ip(), node_ip);
            // Packets within the subnet are not translated.
            let peer = address_of(&results[0], family);
            assert_eq!(two.expect(proto, (peer, 80), "one").peer.ip(), address_of(&results[1], family));
        }
    }
    for (to, _) in outside {
        two.ping(to).expect("an answer to echo");
    }
    network.del(&Attach::new(&two)).expect("DEL");
    let ruleset = node.ruleset();
    assert!(ruleset.is_empty() || !ruleset.contains(&address_of(&results[1], 0).to_string()), "{ruleset}");
}

/// Installs an IPAM plugin with a fixed result, for results that host-local never returns.
fn answering(node: &Node, ips: &str) -> serde_json::Value {
    let answer = format!(r#"{{"cniVersion": "1.0.0", "ips": {ips}}}"#);
    node.write("/run/bin/fixed", format!("#!/bin/sh\n[ $CNI_COMMAND = ADD ] && echo '{answer}' || exit 0\n"));
    node.cmd("chmod 755 /run/bin/fixed");
    json!({"cniVersion": "1.0.0", "name": "net", "type": "ptp", "ipam": {"type": "fixed"}})
}

#[test]
fn the_gateway_may_be_anywhere() {
    peer_fails("an address without a subnet fails", || {
        let (node, pod) = Node::with_pod();
        let ips = r#"[{"address": "10.1.2.5/32", "gateway": "169.254.1.1"}]"#;
        let config = answering(&node, ips);
        let path = format!("{}:/run/bin", node.bin().display());
        let call = |verb: &str| node.plugin("ptp").command(verb).for_pod(&pod).args("").config(&config);
        let result = call("ADD").env("CNI_PATH", &path).run().ok();
        assert_eq!(result["ips"][0]["gateway"], "169.254.1.1");
        assert_eq!(pod.cmd("ip route"), "169.254.1.1 dev eth0 scope link src 10.1.2.5 \n");
        node.expect_ping(&pod);
        call("DEL").env("CNI_PATH", &path).run().ok();
        assert!(!pod.has_link("eth0"));
    });
}

trait Pings {
    fn expect_ping(&self, pod: &slipway_tests::Pod);
}

impl Pings for Node {
    /// Pings in both directions, with the addresses of the test above.
    fn expect_ping(&self, pod: &slipway_tests::Pod) {
        self.ping("10.1.2.5".parse().expect("an address")).expect("the container answers");
        pod.ping("169.254.1.1".parse().expect("an address")).expect("the gateway answers");
    }
}

#[test]
fn an_ipam_result_without_a_gateway_is_refused() {
    peer_fails("the veth pair stays, and the error does not name what is missing", || {
        let (node, pod) = Node::with_pod();
        for (ips, text) in [
            (r#"[{"address": "10.1.2.5/24"}]"#, "IPAM returned no gateway for 10.1.2.5/24: ptp needs one"),
            (
                r#"[{"address": "10.1.2.5/24", "gateway": "fd00::1"}]"#,
                "IPAM returned gateway fd00::1 for 10.1.2.5/24: not of the same family",
            ),
            ("[]", "IPAM plugin returned missing IP config"),
        ] {
            let config = answering(&node, ips);
            let before = Snapshot::take(&node, &[&pod]);
            let path = format!("{}:/run/bin", node.bin().display());
            let call = node.plugin("ptp").command("ADD").for_pod(&pod).args("").config(&config);
            assert_eq!(call.env("CNI_PATH", &path).run().error().msg, text);
            before.assert_same(&Snapshot::take(&node, &[&pod]));
        }
    });
}
