// SPDX-License-Identifier: GPL-2.0-or-later

//! Offloaded flows: which flows bypass the chains, and when that ends. A counter at the forward hook counts the real
//! packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use cni_nftables::conntrack::{Conntrack, Filter, Flow};
use slipway_tests::{BridgeNetfilter, FLOWTABLE, Proto, QUICK, at, has_flowtable, needs, within};

use crate::world::{PORT, SERVED, Web, World, in_every_topology};

/// Longer than the flowtable's timeout (30 s) and its garbage collector's interval.
const UNUSED: Duration = Duration::from_secs(60);
/// The number of requests that are sent while the counters are compared.
const REQUESTS: usize = 200;

/// Returns the flows that are offloaded to a flowtable.
pub(crate) fn offloaded(world: &World) -> Vec<Flow> {
    let filter = Filter {
        family: None,
        protocol: None,
        destinations: Vec::new(),
        port: None,
        reply_source: None,
        status: Flow::OFFLOADED,
    };
    world.node.run(|| {
        let mut found = Vec::new();
        let conntrack = Conntrack::open().expect("conntrack");
        conntrack.for_each(&filter, |flow| found.push(*flow)).expect("a list of flows");
        found
    })
}

/// Returns the address of the same family as `ip`.
fn of_same_family(ip: IpAddr, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
    if ip.is_ipv4() { v4.into() } else { v6.into() }
}

fn is_of(flow: &Flow, container: IpAddr) -> bool {
    flow.original.source == container || flow.reply.source == container
}

/// Returns the kernel's major and minor version.
pub(crate) fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-', '+']).map_while(|word| word.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).expect("a number and another")
}

/// True if the kernel ends the offload of deleted flows; only then is UDP offloaded.
fn ends_offload() -> bool {
    kernel() >= (6, 4)
}

/// Counts packets at the forward hook, ahead of the chain that offloads flows.
pub(crate) fn watch(world: &World) {
    world.node.nft(
        "table inet watch {
            chain forward { type filter hook forward priority 100; counter; }
        }",
    );
}

pub(crate) fn passed(world: &World) -> usize {
    let text = world.node.cmd("nft list chain inet watch forward");
    let mut words = text.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no counter: {text}"))
}

/// Sends requests until a flow of the container is offloaded.
fn request_until_offloaded(world: &World, container: IpAddr, mut request: impl FnMut()) {
    let begin = Instant::now();
    while !offloaded(world).iter().any(|flow| is_of(flow, container)) {
        assert!(begin.elapsed() < within(Duration::from_secs(30)), "no flow with {container} is offloaded");
        request();
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Offloaded packets are counted by conntrack's accounting, and therefore in `slipway ports`.
#[test]
fn offloaded_packets_are_counted() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    world.node.sysctl("net/netfilter/nf_conntrack_acct", "1");
    let network = world.network(1);
    let web = Web::published(&world, &network, "web");
    let container = web.ips()[0];
    let counted = || {
        let ports: serde_json::Value =
            serde_json::from_str(&world.node.slipway("ports --json")).expect("JSON");
        let packets =
            ports["ports"].as_array().expect("a list").iter().filter_map(|port| port["packets"].as_u64());
        usize::try_from(packets.sum::<u64>()).expect("a number")
    };
    let mut flow =
        world.client.dial(Proto::Tcp, None, at(world.client.node_v4, PORT), 5 * QUICK).expect("a connection");
    let mut request = || assert_eq!(flow.request().expect("an answer").who, "web");
    let mut counts = || {
        request_until_offloaded(&world, container, &mut request);
        let before = counted();
        (0..REQUESTS).for_each(|_| request());
        counted() - before
    };
    let more = counts();
    assert!(more >= 2 * REQUESTS, "{more} of at least {} packets are counted", 2 * REQUESTS);
}

#[test]
fn connections_to_a_published_port() {
    needs!(has_flowtable(), FLOWTABLE);
    in_every_topology(|world| {
        let network = world.network(1);
        let web = Web::published(world, &network, "web");
        watch(world);
        for (to, container) in world.node_ips().into_iter().zip(web.ips()) {
            let mut flow =
                world.client.dial(Proto::Tcp, None, at(to, PORT), 5 * QUICK).expect("a connection");
            let mut request = || {
                let answer = flow.request().expect("an answer");
                assert_eq!(
                    (answer.who.as_str(), answer.peer.ip()),
                    ("web", of_same_family(to, world.client.v4, world.client.v6))
                );
            };
            request_until_offloaded(world, container, &mut request);
            let before = passed(world);
            (0..REQUESTS).for_each(|_| request());
            let more = passed(world) - before;
            // Older kernels do not add a container's own link to the flowtable, so its packets pass the
            // forward hook.
            let both = world.interface == "bridge" || kernel() >= (7, 0);
            let most = if both { REQUESTS / 10 } else { REQUESTS * 3 };
            assert!(more <= most, "{more} of some {} packets passed the forward hook ({to})", 2 * REQUESTS);
        }
        network.del(&web.attach).expect("DEL");
    });
}

#[test]
fn connections_of_a_masqueraded_container() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let web = Web::published(&world, &network, "web");
    watch(&world);
    for (far, container) in world.client_ips().into_iter().zip(web.ips()) {
        let _server = world.client.serve(Proto::Tcp, &at(far, 9000).to_string(), "far");
        let mut flow = web.dial(Proto::Tcp, None, at(far, 9000), 5 * QUICK).expect("a connection");
        let mut request = || {
            let answer = flow.request().expect("an answer");
            assert_eq!(
                answer.peer.ip(),
                of_same_family(far, world.client.node_v4, world.client.node_v6),
                "masqueraded"
            );
        };
        request_until_offloaded(&world, container, &mut request);
        let before = passed(&world);
        (0..REQUESTS).for_each(|_| request());
        let more = passed(&world) - before;
        assert!(more <= REQUESTS / 10, "{more} packets passed the forward hook ({far})");
    }
}

/// An offloaded connection does not need the migrated rules, but new connections do.
#[test]
fn a_running_connection_survives_migrations() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let web = Web::published(&world, &network, "web");
    for (to, container) in world.node_ips().into_iter().zip(web.ips()) {
        let mut flow = world.client.dial(Proto::Tcp, None, at(to, PORT), 5 * QUICK).expect("a connection");
        let mut request = || assert_eq!(flow.request().expect("an answer").who, "web");
        request_until_offloaded(&world, container, &mut request);
        for backend in ["iptables", "nftables"] {
            world.node.slipway(&format!("migrate --to {backend}"));
            (0..REQUESTS).for_each(|_| request());
            world.client.expect(Proto::Tcp, (to, PORT), "web");
            network.check(&web.attach).unwrap_or_else(|e| panic!("CHECK in {backend}: {e}"));
        }
        request_until_offloaded(&world, container, &mut request);
    }
    network.del(&web.attach).expect("DEL");
}

/// The client keeps its UDP socket while the pod is replaced. UDP is offloaded only if the kernel can end the offload.
#[test]
fn a_udp_client_reaches_the_next_pod() {
    needs!(has_flowtable(), FLOWTABLE);
    for netfilter in [BridgeNetfilter::Off, BridgeNetfilter::On] {
        let world = World::new(netfilter);
        let network = world.network(1);
        let first = Web::published(&world, &network, "first");
        for (to, container) in world.node_ips().into_iter().zip(first.ips()) {
            let mut flow = world.client.dial(Proto::Udp, None, at(to, PORT), 5 * QUICK).expect("a socket");
            let begin = Instant::now();
            // conntrack treats a UDP flow as a stream after two seconds.
            while begin.elapsed() < Duration::from_secs(3) {
                assert_eq!(flow.request().expect("an answer").who, "first");
                std::thread::sleep(Duration::from_millis(50));
            }
            let there = offloaded(&world).iter().any(|flow| is_of(flow, container));
            assert_eq!(there, ends_offload(), "{to}");
        }
        let dial = |ip| world.client.dial(Proto::Udp, None, at(ip, PORT), 5 * QUICK).expect("a socket");
        let mut flows: Vec<_> = world.node_ips().into_iter().map(dial).collect();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(3) {
            for flow in &mut flows {
                assert_eq!(flow.request().expect("an answer").who, "first");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        network.del(&first.attach).expect("DEL");
        let _second = Web::published(&world, &network, "second");
        for flow in &mut flows {
            assert_eq!(flow.request().expect("an answer").who, "second");
        }
    }
}

/// After DEL, no flow of the container stays offloaded. The offload ends at once if the kernel can end it, and
/// otherwise after no packets have come for the time-out.
#[test]
fn flows_of_a_deleted_container_are_not_offloaded() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let first = Web::published(&world, &network, "first");
    let stays = Web::new(&world, &network, "stays", |a| a.port(Proto::Tcp, PORT + 1, SERVED));
    let dial = |port| {
        let mut flow = world
            .client
            .dial(Proto::Tcp, None, at(world.client.node_v4, port), 5 * QUICK)
            .expect("a connection");
        move || drop(flow.request().expect("an answer"))
    };
    let (mut to_first, mut to_other) = (dial(PORT), dial(PORT + 1));
    request_until_offloaded(&world, first.v4, &mut to_first);
    request_until_offloaded(&world, stays.v4, &mut to_other);
    let addresses = first.ips();
    network.del(&first.attach).expect("DEL");
    let theirs = || offloaded(&world).iter().any(|flow| addresses.iter().any(|ip| is_of(flow, *ip)));
    if ends_offload() {
        assert!(!theirs(), "{:?}", offloaded(&world));
        assert!(
            offloaded(&world).iter().any(|flow| is_of(flow, stays.v4)),
            "the other container's flow is not offloaded any more"
        );
    }
    let begin = Instant::now();
    while theirs() {
        assert!(begin.elapsed() < UNUSED, "{:?}", offloaded(&world));
        std::thread::sleep(Duration::from_millis(500));
    }
    to_other();
    // The port and new connections belong to another pod, even while old flows are offloaded.
    let _second = Web::published(&world, &network, "second");
    world.client.expect(Proto::Tcp, (world.client.node_v4, PORT), "second");
}

/// A flow translated by another engine to the same container is not offloaded.
#[test]
fn flows_of_another_engine_are_not_offloaded() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let web = Web::published(&world, &network, "web");
    world.node.nft(&format!(
        "table ip service {{
            chain prerouting {{
                type nat hook prerouting priority -110;
                ip daddr 10.96.0.1 tcp dport 443 dnat to {}:{SERVED};
            }}
        }}",
        web.v4
    ));
    let gateway = world.client.node_v4;
    world.client.cmd(&format!("ip route add 10.96.0.1 via {gateway}"));
    let service: IpAddr = [10, 96, 0, 1].into();
    let mut flow = world.client.dial(Proto::Tcp, None, at(service, 443), 5 * QUICK).expect("a connection");
    for _ in 0..20 {
        assert_eq!(flow.request().expect("an answer").who, "web");
    }
    assert!(offloaded(&world).is_empty(), "{:?}", offloaded(&world));
}
