// SPDX-License-Identifier: GPL-2.0-or-later

//! UDP flows have no end that conntrack could see, so its entries must follow the port to its new pod.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use serde_json::json;
use slipway_tests::{Flow, Proto, QUICK, Server, at, peer_fails, within};

use crate::world::{PORT, SERVED, Web, World, in_every_topology};

/// A client keeps its socket while the pod behind the port is replaced.
#[test]
fn a_client_survives_the_replacement_of_the_pod() {
    in_every_topology(|world| {
        let network = world.network(1);
        let first = Web::published(world, &network, "first");
        let dial =
            |ip| world.client.dial(Proto::Udp, None, at(ip, PORT), within(3 * QUICK)).expect("a socket");
        let mut flows: Vec<_> = world.node_ips().into_iter().map(dial).collect();
        for flow in &mut flows {
            assert_eq!(flow.request().expect("an answer").who, "first");
        }
        let attach = first.vanish();
        network.del(&attach).expect("DEL");
        // The client keeps sending, so conntrack now has flows whose destination is the node itself.
        thread::scope(|scope| {
            for flow in &mut flows {
                scope.spawn(|| flow.request().expect_err("nothing answers"));
            }
        });
        let _second = Web::published(world, &network, "second");
        for flow in &mut flows {
            assert_eq!(flow.request().expect("an answer").who, "second");
        }
    });
}

/// Does the same without a pause between DEL and ADD.
#[test]
fn a_client_reaches_the_new_pod_at_once() {
    let world = World::new(slipway_tests::BridgeNetfilter::Off);
    let network = world.network(1);
    let first = Web::published(&world, &network, "first");
    let mut flow =
        world.node.dial(Proto::Udp, None, at([127, 0, 0, 1], PORT), within(3 * QUICK)).expect("a socket");
    assert_eq!(flow.request().expect("an answer").who, "first");
    // The old pod still runs and would answer, but its port is withdrawn.
    network.del(&first.attach).expect("DEL");
    let _closed = flow.request().expect_err("the port is withdrawn");
    let _second = Web::published(&world, &network, "second");
    assert_eq!(flow.request().expect("an answer").who, "second");
}

/// GC also withdraws ports. A flow that remained would lead to the container that gets the address next.
#[test]
fn a_garbage_collection_ends_the_flows_of_its_ports() {
    peer_fails("GC removes nothing", || {
        let world = World::new(slipway_tests::BridgeNetfilter::Off);
        let network = world.network(1);
        let _first = Web::published(&world, &network, "first");
        let mut flows = served_by(&world, PORT, "first");
        let _hidden = node_services(&world, PORT);
        network.gc_plugins(&json!([])).expect("GC");
        reach_the_node(&mut flows);
    });
}

/// An ADD that takes a port of a dead container removes all ports of that container.
#[test]
fn flows_of_a_dead_container_end_with_its_ports() {
    peer_fails("ports of dead containers stay", || {
        let world = World::new(slipway_tests::BridgeNetfilter::Off);
        let network = world.network(1);
        let first = Web::new(&world, &network, "first", |attach| {
            attach.port(Proto::Udp, PORT, SERVED).port(Proto::Udp, PORT + 1, SERVED)
        });
        let mut flows = served_by(&world, PORT + 1, "first");
        let _hidden = node_services(&world, PORT + 1);
        first.vanish();
        let _second = Web::new(&world, &network, "second", |attach| attach.port(Proto::Udp, PORT, SERVED));
        reach_the_node(&mut flows);
    });
}

/// Clients with flows to a port of the node, one for each family.
fn served_by(world: &World, port: u16, who: &str) -> Vec<Flow> {
    let dial = |ip| world.client.dial(Proto::Udp, None, at(ip, port), within(3 * QUICK)).expect("a socket");
    let mut flows: Vec<Flow> = world.node_ips().into_iter().map(dial).collect();
    for flow in &mut flows {
        assert_eq!(flow.request().expect("an answer").who, who);
    }
    flows
}

/// Services of the node itself that a published port hides.
fn node_services(world: &World, port: u16) -> Vec<Server> {
    let serve = |ip| world.node.serve(Proto::Udp, &at(ip, port).to_string(), "node");
    world.node_ips().into_iter().map(serve).collect()
}

#[track_caller]
fn reach_the_node(flows: &mut [Flow]) {
    for flow in flows {
        assert_eq!(flow.request().expect("an answer").who, "node");
    }
}

/// Flows to other addresses and ports remain. Flushing by port number alone once made a cluster lose its DNS.
#[test]
fn other_flows_are_untouched() {
    peer_fails("flows are flushed by port number alone", || {
        let world = World::new(slipway_tests::BridgeNetfilter::Off);
        let network = world.network(1);
        // A forwarded flow to the same port of another host, and a flow to another published port.
        let far = world.node.host("far");
        let _far = far.serve(Proto::Udp, &at(far.v4, PORT).to_string(), "far");
        let _other = Web::new(&world, &network, "other", |a| a.port(Proto::Udp, PORT + 1, SERVED));
        let node = world.client.node_v4;
        world.client.expect(Proto::Udp, (far.v4, PORT), "far");
        world.client.expect(Proto::Udp, (node, PORT + 1), "other");
        let flows = |dst: &str| {
            let text = world.node.cmd(&format!("conntrack -L -p udp -o id --orig-dst {dst}"));
            let mut ids: Vec<_> = text
                .split_whitespace()
                .filter_map(|word| word.strip_prefix("id="))
                .map(str::to_owned)
                .collect();
            ids.sort();
            ids
        };
        let (far_flows, node_flows) = (flows(&far.v4.to_string()), flows(&node.to_string()));
        assert_eq!((far_flows.len(), node_flows.len()), (1, 1));
        let web = Web::published(&world, &network, "web");
        network.del(&web.attach).expect("DEL");
        assert_eq!(flows(&far.v4.to_string()), far_flows);
        assert_eq!(flows(&node.to_string()), node_flows);
    });
}

/// Fragmented datagrams reach the container, and fragmented replies reach the client.
#[test]
fn fragments_pass() {
    in_every_topology(|world| {
        let network = world.network(1);
        let _web = Web::published(world, &network, "web");
        for to in world.node_ips().into_iter().map(|ip| at(ip, PORT)) {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = world.client.run(|| UdpSocket::bind(any).expect("bind"));
            socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a time-out");
            let big = vec![b'x'; 4000];
            socket.send_to(&big, to).expect("send");
            let mut buffer = vec![0; 8000];
            let (length, from) = socket.recv_from(&mut buffer).expect("an answer");
            assert_eq!(from, to);
            assert!(buffer.starts_with(b"web|") && length > big.len(), "{length} bytes");
        }
    });
}
