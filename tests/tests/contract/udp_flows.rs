// SPDX-License-Identifier: GPL-2.0-or-later

//! When a port is published, conntrack is left alone if the table has recorded no flow to that port. Otherwise the
//! flows must be found wherever there may be some.

use std::net::UdpSocket;
use std::thread;

use slipway_tests::{
    Attach, BridgeNetfilter, Disturbance, Flow, Network, Proto, QUICK, at, disturbed, kill_points,
    nft_loads_ranges, peer_fails, within,
};

use crate::world::{PORT, SERVED, Web, World};

/// The first of several ports to which a client sends before the port is published.
const LATER: u16 = 9100;
/// Keeps connection tracking enabled while Slipway's table has no rules.
const KEEPER: &str =
    "table inet keeper { chain c { type filter hook input priority 0; ct state new counter; }; }";
/// The element that marks the set as complete. nft shows the mark as an element with a comment.
const MARK: &str = "0 comment \"no port: the state of this set\"";

/// A node that tracks flows.
fn world() -> World {
    let world = World::new(BridgeNetfilter::Off);
    world.node.nft(KEEPER);
    world
}

fn udp(world: &World, network: &Network<'_>, name: &str, port: u16) -> Web {
    Web::new(world, network, name, |attach| attach.port(Proto::Udp, port, SERVED))
}

/// Clients that have sent to a port of the node where nothing answers, one for each family.
fn early(world: &World, port: u16) -> Vec<Flow> {
    let dial = |ip| world.client.dial(Proto::Udp, None, at(ip, port), QUICK / 2).expect("a socket");
    let mut flows: Vec<Flow> = world.node_ips().into_iter().map(dial).collect();
    thread::scope(|scope| {
        for flow in &mut flows {
            scope.spawn(|| flow.request().expect_err("nothing answers"));
        }
    });
    flows
}

#[track_caller]
fn reach(flows: &mut [Flow], who: &str, why: &str) {
    for flow in flows {
        flow.be_patient();
        let answer = flow.request().unwrap_or_else(|error| panic!("{why}: {error}"));
        assert_eq!(answer.who, who, "{why}");
    }
}

fn set(world: &World) -> String {
    world.node.cmd("nft list set inet slipway udp-seen")
}

/// Adds a flow to the node itself to conntrack's table, without a packet that a rule could see.
fn inject(world: &World, port: u16) {
    let node = world.client.node_v4;
    world
        .node
        .cmd(&format!("conntrack -I -p udp -t 600 -s 192.0.2.77 -d {node} --sport 7777 --dport {port}"));
}

fn injected(world: &World) -> bool {
    world.node.cmd("conntrack -L -p udp -s 192.0.2.77").contains("192.0.2.77")
}

/// A flow that no rule has seen remains, which proves that conntrack was not searched. After another flow to the port,
/// or with the node's setting, the flow is found.
#[test]
fn conntrack_is_searched_only_for_ports_that_were_seen() {
    peer_fails("it has no such table", || {
        let world = world();
        let network = world.network(1);
        let _first = udp(&world, &network, "first", PORT);
        let mut flows = early(&world, LATER);
        // This ADD completes the set.
        let second = udp(&world, &network, "second", LATER);
        reach(&mut flows, "second", "before the set was begun");
        let text = set(&world);
        assert!(text.contains(MARK) && text.contains(&LATER.to_string()), "{text}");

        inject(&world, LATER + 1);
        let third = udp(&world, &network, "third", LATER + 1);
        assert!(injected(&world), "conntrack was searched for a port that no packet was sent to");
        network.del(&third.attach).expect("DEL");
        assert!(injected(&world), "conntrack was searched by DEL");
        world.client.expect_none(Proto::Udp, (world.client.node_v4, LATER + 1));
        let third = udp(&world, &network, "fourth", LATER + 1);
        assert!(!injected(&world), "conntrack was not searched");
        network.del(&third.attach).expect("DEL");

        inject(&world, LATER + 2);
        world.node.own_etc();
        world.node.write("/etc/cni/slipway.json", r#"{"searchUdpFlows": "always"}"#);
        let fifth = udp(&world, &network, "fifth", LATER + 2);
        assert!(!injected(&world), "conntrack was not searched, in spite of the setting");
        assert!(!set(&world).contains(MARK), "DEL would trust the set");
        world.client.expect(Proto::Udp, (world.client.node_v4, LATER + 2), "fifth");
        network.del(&fifth.attach).expect("DEL");
        let left = world.node.cmd(&format!("conntrack -L -p udp --orig-port-dst {}", LATER + 2));
        assert!(!left.contains("udp"), "{left}");
        network.del(&second.attach).expect("DEL");
    });
}

/// After any change of the table by another program, a client that sent before reaches the port.
#[test]
fn flows_are_found_after_a_change_by_another_program() {
    peer_fails("it has no such table", || {
        let world = world();
        let network = world.network(1);
        let _first = udp(&world, &network, "first", PORT);
        let save = "nft list table inet slipway > /run/saved";
        let load =
            "printf 'add table inet slipway\\nflush table inet slipway\\n' | cat - /run/saved | nft -f -";
        // For each case, a command to run before the client sends, and one to run after it.
        let changes: &[(&str, &str)] = &[
            ("true", "true"),
            ("nft flush table inet slipway", "true"),
            ("nft flush table inet slipway", load),
            ("nft delete table inet slipway", "nft -f /run/saved"),
            ("nft flush chain inet slipway udp-seen-in", "true"),
            ("nft insert rule inet slipway udp-seen-in accept", "true"),
            ("nft insert rule inet slipway udp-seen-in accept", "nft flush chain inet slipway udp-seen-in"),
            ("true", "nft flush set inet slipway udp-seen"),
            ("nft add table inet slipway '{ flags dormant; }'", "true"),
        ];
        let loads = nft_loads_ranges();
        let changes = changes.iter().filter(|(_, after)| loads || !after.contains("/run/saved"));
        for (port, (before, after)) in (LATER..).step_by(2).zip(changes) {
            let why = format!("{before}; {after}");
            let sh = |line: &str| world.node.cmd_input("sh -e", line);
            let mut filler = early(&world, port + 1);
            let one = udp(&world, &network, "one", port + 1);
            reach(&mut filler, "one", &why);
            assert!(set(&world).contains(MARK), "{why}: not complete");
            network.del(&one.vanish()).expect("DEL");
            sh(save);
            sh(before);
            let mut flows = early(&world, port);
            sh(after);
            let two = udp(&world, &network, "two", port);
            reach(&mut flows, "two", &why);
            network.del(&two.vanish()).expect("DEL");
        }
    });
}

/// The chains of other engines come before ours and translate the flow, which must be recorded nevertheless.
#[test]
fn flows_that_another_engine_translated_are_found() {
    peer_fails("it has no such table", || {
        let world = world();
        let network = world.network(1);
        let theirs = udp(&world, &network, "theirs", PORT);
        let mut filler = early(&world, LATER);
        let _filler = udp(&world, &network, "filler", LATER);
        reach(&mut filler, "filler", "the filler");
        let to = theirs.v4;
        world.node.nft(&format!(
            "table ip theirs {{ chain pre {{ type nat hook prerouting priority -150; udp dport {} dnat to {to}:{SERVED}; }}; }}",
            LATER + 1
        ));
        let node = world.client.node_v4;
        let mut flow =
            world.client.dial(Proto::Udp, None, at(node, LATER + 1), within(3 * QUICK)).expect("a socket");
        assert_eq!(flow.request().expect("an answer").who, "theirs");
        world.node.nft("delete table ip theirs");
        let _ours = udp(&world, &network, "ours", LATER + 1);
        assert_eq!(flow.request().expect("an answer").who, "ours");
    });
}

/// A port scan fills the set, which has room for every port.
#[test]
fn a_scan_of_all_ports_is_recorded() {
    peer_fails("it has no such table", || {
        let world = world();
        let network = world.network(1);
        let _first = udp(&world, &network, "first", PORT);
        let mut flows = early(&world, LATER);
        let _second = udp(&world, &network, "second", LATER);
        reach(&mut flows, "second", "before the scan");
        let node = world.client.node_v4;
        let socket = world.client.run(|| UdpSocket::bind("0.0.0.0:0").expect("bind"));
        for port in 1..=u16::MAX {
            // The kernel may report the refusal of an earlier datagram instead of sending this one.
            let sent = (0..100).any(|_| socket.send_to(b"x", (node, port)).is_ok());
            assert!(sent, "port {port}");
        }
        // While the kernel enlarges the hash table, a listing may lack elements.
        let is_whole = |text: &str| {
            let words = text.split(['{', ',', '}']);
            let ports = words.filter(|word| word.trim().parse::<u16>().is_ok()).count();
            text.contains(MARK) && ports >= usize::from(u16::MAX) - 1
        };
        assert!((0..10).any(|_| is_whole(&set(&world))), "the mark or ports are gone");
        let chain = world.node.cmd("nft list chain inet slipway udp-seen-in");
        assert!(chain.contains("counter packets 0"), "flows were not recorded: {chain}");
        let mut flows = early(&world, LATER + 1);
        let _third = udp(&world, &network, "third", LATER + 1);
        reach(&mut flows, "third", "after the scan");
    });
}

/// With concurrent ADDs, either one of them begins and completes the set, or none does.
#[test]
fn clients_reach_ports_that_are_published_at_once() {
    let world = world();
    let network = world.network(1);
    let _first = udp(&world, &network, "first", PORT);
    let count = 8;
    let mut clients: Vec<_> = (0..count).map(|n| early(&world, LATER + n)).collect();
    let names: Vec<String> = (0..count).map(|n| format!("pod{n}")).collect();
    let pods: Vec<Web> = thread::scope(|scope| {
        let (world, network) = (&world, &network);
        let adding: Vec<_> = (0u16..)
            .zip(&names)
            .map(|(n, name)| scope.spawn(move || udp(world, network, name, LATER + n)))
            .collect();
        adding.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    for ((flows, pod), name) in clients.iter_mut().zip(&pods).zip(&names) {
        reach(flows, name, "at once");
        network.del(&pod.attach).expect("DEL");
    }
}

/// A publishing that is killed at any step leaves either an incomplete set or a correct one.
#[test]
fn clients_reach_the_port_after_a_kill_at_any_step() {
    peer_fails("it has no such table", || {
        let world = world();
        let network = world.network(1);
        let _first = udp(&world, &network, "first", PORT);
        let pod = world.node.pod("pod");
        let attach = Attach::new(&pod).port(Proto::Udp, LATER, SERVED);
        let prepare = || {
            world.node.cmd("nft delete table inet slipway");
            let mut configs = network.configs(Some(&attach));
            let result = network.call("ADD", &configs[0], Some(&attach)).ok();
            configs[1]["prevResult"] = result;
            network.prepare("ADD", &configs[1], Some(&attach))
        };
        let _flows = early(&world, LATER);
        let (output, found) = kill_points(&world.node, prepare());
        let _ = output.ok();
        network.del(&attach).expect("DEL");
        let found: Vec<_> = found.into_iter().filter(|point| point.after_change).collect();
        assert!(found.len() > 3, "{found:?}");
        for point in slipway_tests::sample(found) {
            let why = format!("killed at {point:?}");
            let call = prepare();
            let mut flows = early(&world, LATER + 1);
            let _ = disturbed(&world.node, call, &point, Disturbance::Kill);
            network.del(&attach).unwrap_or_else(|failure| panic!("{why}: DEL: {failure}"));
            let mut later = early(&world, LATER + 2);
            for (port, flows) in [(LATER + 1, &mut flows), (LATER + 2, &mut later)] {
                let web = udp(&world, &network, "web", port);
                reach(flows, "web", &why);
                network.del(&web.vanish()).unwrap_or_else(|failure| panic!("{why}: DEL: {failure}"));
            }
        }
    });
}
