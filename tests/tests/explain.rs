// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway explain` on real nodes: its output is compared with golden files and with the path of a real
//! packet.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Host, Network, Node, Pod, Proto, QUICK, Server, Space, at, golden, host_local, with_keys,
};

struct World {
    node: Node,
    client: Host,
}

impl World {
    fn new() -> Self {
        let (node, client) = Node::with_client();
        Self { node, client }
    }

    fn network(&self, portmap: &Value) -> Network<'_> {
        let portmap = with_keys(json!({"type": "portmap", "capabilities": {"portMappings": true}}), portmap);
        self.node.network(json!({"name": "pods", "plugins": [
            {
                "type": "bridge", "bridge": "br1", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": host_local("10.22.0.0/24", "fd00:22::/64"),
            },
            portmap,
        ]}))
    }

    /// Runs `slipway explain`, and compares its output with the golden file.
    fn explain(&self, name: &str, args: &str) -> String {
        let text = self.node.slipway(&format!("explain {args}"));
        golden(&format!("explain/{name}.txt"), &format!("$ slipway explain {args}\n{text}"));
        text
    }
}

fn add(
    world: &World,
    network: &Network<'_>,
    name: &str,
    prepare: impl Fn(Attach) -> Attach,
) -> (Pod, Attach, Server) {
    let pod = world.node.pod(name);
    let attach = prepare(Attach::new(&pod));
    network.add(&attach).unwrap_or_else(|e| panic!("ADD {name}: {e}"));
    network.write_cache(&attach);
    let server = pod.serve(Proto::Tcp, "[::]:80", name);
    (pod, attach, server)
}

fn answers(from: &Space, to: impl Into<IpAddr>, port: u16) -> bool {
    from.request(Proto::Tcp, at(to, port)).is_ok()
}

fn is_silent(from: &Space, to: impl Into<IpAddr>, port: u16) -> bool {
    from.request_from(Proto::Tcp, None, at(to, port), QUICK).is_err()
}

#[test]
fn a_published_port_from_everywhere() {
    let world = World::new();
    let network = world.network(&json!({}));
    let (pod, _attach, _server) =
        add(&world, &network, "web", |a| a.port(Proto::Tcp, 8080, 80).port(Proto::Tcp, 8443, 443));
    let node = world.client.node_v4;
    assert!(world.explain("another-host", "tcp 192.0.2.1:8080").ends_with("interface eth0.\n"));
    assert!(answers(&world.client, node, 8080));
    world.explain("a-host-by-address", "tcp 192.0.2.1:8080 --from 192.0.2.2");
    world.explain("ipv6", "tcp [2001:db8::1]:8080 --from 2001:db8::2");
    assert!(world.explain("loopback", "tcp 127.0.0.1:8080").contains("It reaches 10.22.0.2:80"));
    assert!(answers(&world.node, Ipv4Addr::LOCALHOST, 8080));
    assert!(world.explain("loopback-ipv6", "tcp [::1]:8080").contains("It reaches [fd00:22::2]:80"));
    assert!(answers(&world.node, Ipv6Addr::LOCALHOST, 8080));
    world.explain("the-container-itself", "tcp 192.0.2.1:8080 --from 10.22.0.2");
    assert!(answers(&pod, node, 8080));
    let text = world.explain("loopback-from-outside", "tcp 127.0.0.1:8080 --iif out0");
    assert!(text.contains("It is dropped"), "{text}");
    let text = world.explain("forwarded", "tcp 192.0.2.2:8080 --from 10.22.0.2");
    assert!(text.contains("masqueraded"), "{text}");
}

#[test]
fn an_unpublished_port() {
    let world = World::new();
    let network = world.network(&json!({}));
    let text = world.explain("no-table", "tcp 192.0.2.1:8081");
    assert!(text.contains("there is no table"), "{text}");
    let _web = add(&world, &network, "web", |a| {
        a.port(Proto::Tcp, 8080, 80).port(Proto::Udp, 8081, 80).port_on("127.0.0.1", Proto::Tcp, 8081, 80)
    });
    let _sshd = world.node.serve(Proto::Tcp, "0.0.0.0:8081", "the node");
    let text = world.explain("unpublished", "tcp 192.0.2.1:8081");
    assert!(text.ends_with("It goes to the node itself, where something listens on the port.\n"), "{text}");
    world.client.expect(Proto::Tcp, at(world.client.node_v4, 8081), "the node");
}

#[test]
fn conditions_that_do_not_hold() {
    let world = World::new();
    let keys = json!({"conditionsV4": ["ip saddr 192.0.2.0/28", "iifname \"out0\"", "ip ttl 64"]});
    let network = world.network(&keys);
    let (_pod, attach, _server) = add(&world, &network, "web", |a| a.port(Proto::Tcp, 8080, 80));
    let node = world.client.node_v4;
    assert!(
        world
            .explain("conditions-hold", "tcp 192.0.2.1:8080 --from 192.0.2.2")
            .contains("It reaches 10.22.0.2:80")
    );
    assert!(answers(&world.client, node, 8080));
    let text = world.explain("conditions-do-not-hold", "tcp 192.0.2.1:8080 --from 192.0.2.99");
    assert!(text.contains("It is not translated"), "{text}");
    assert!(is_silent(&world.node, node, 8080));
    world.node.cmd(&format!("rm {}", network.cache_path(&attach)));
    let said = world.node.slipway("explain tcp 192.0.2.1:8080");
    assert!(said.contains("that are in no runtime's cache"), "{said}");
}

#[test]
fn a_forward_chain_that_drops() {
    let world = World::new();
    let network = world.network(&json!({}));
    let _web = add(&world, &network, "web", |a| a.port(Proto::Tcp, 8080, 80));
    world.node.nft(
        "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }
         table ip6 filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }",
    );
    let text = world.explain("forward-drops", "tcp 192.0.2.1:8080");
    assert!(text.contains("unless chain ip filter FORWARD drops it"), "{text}");
    assert!(is_silent(&world.client, world.client.node_v4, 8080));
    world.node.cmd("nft delete table ip filter");
    world.node.cmd("nft flush table inet slipway");
    let text = world.explain("damaged", "tcp 192.0.2.1:8080");
    assert!(text.contains("`slipway restore`"), "{text}");
    world.node.cmd("nft flush ruleset");
    world.node.slipway("restore");
    world.node.sysctl("net/ipv4/ip_forward", "0");
    let text = world.explain("no-forwarding", "tcp 192.0.2.1:8080");
    assert!(text.contains("net/ipv4/ip_forward is 0, and should be 1"), "{text}");
}

#[test]
fn a_container_that_is_gone() {
    let world = World::new();
    let network = world.network(&json!({}));
    let (pod, _attach, server) = add(&world, &network, "web", |a| a.port(Proto::Tcp, 8080, 80));
    drop(server);
    pod.remove();
    let said = world.explain("gone", "tcp 192.0.2.1:8080");
    assert!(said.contains("but the container is gone"), "{said}");
}

#[test]
fn chains_of_iptables() {
    slipway_tests::needs_iptables!();
    let world = World::new();
    let network = world.network(&json!({"backend": "iptables"}));
    let _web = add(&world, &network, "web", |a| {
        a.port(Proto::Tcp, 8080, 80).port_on("127.0.0.1", Proto::Tcp, 8080, 81)
    });
    let text = world.explain("iptables", "tcp 192.0.2.1:8080");
    assert!(text.contains("It reaches 10.22.0.2:80"), "{text}");
    assert!(answers(&world.client, world.client.node_v4, 8080));
}

#[test]
fn wrong_arguments() {
    let node = Node::new();
    for args in [
        "",
        "tcp",
        "icmp 192.0.2.1:1",
        "tcp 192.0.2.1",
        "tcp 192.0.2.1:80 --from fd00::1",
        "tcp 192.0.2.1:80 x",
    ] {
        let output = node.try_slipway(&format!("explain {args}"));
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{args}: {output}");
    }
}
