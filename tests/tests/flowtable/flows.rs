//! Which flows go past the chains, and what ends that. Real packets: a counter at the forward hook tells
//! whether they pass there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use cni_nftables::conntrack::{Conntrack, Filter, Flow, FlowFamily};
use slipway_tests::{BridgeNetfilter, FLOWTABLE, Proto, QUICK, at, has_flowtable, needs, within};

use crate::world::{PORT, SERVED, Web, World, in_every_topology};

/// Long enough for the flowtable to let go of a flow that nobody uses (30 s, and its collector's pace).
const UNUSED: Duration = Duration::from_secs(60);
/// As often as a conversation is gone on with, while the counters are looked at.
const LINES: usize = 200;

/// The flows that the kernel's flowtables carry.
pub(crate) fn offloaded(world: &World) -> Vec<Flow> {
    let filter = Filter {
        family: FlowFamily::Both,
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

/// The one of the two addresses that is of this one's family.
fn like(ip: IpAddr, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
    if ip.is_ipv4() { v4.into() } else { v6.into() }
}

fn is_of(flow: &Flow, container: IpAddr) -> bool {
    flow.original.source == container || flow.reply.source == container
}

/// The kernel's major and minor number.
pub(crate) fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-', '+']).map_while(|word| word.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).expect("a number and another")
}

/// Whether this kernel lets flows go that are offloaded, so that UDP is offloaded at all.
fn cuts_flows() -> bool {
    kernel() >= (6, 4)
}

/// Counts what passes the forward hook, before the chain that offloads.
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

/// Goes on with a conversation until a flow with the container is offloaded.
fn until_offloaded(world: &World, container: IpAddr, mut say: impl FnMut()) {
    let begin = Instant::now();
    while !offloaded(world).iter().any(|flow| is_of(flow, container)) {
        assert!(begin.elapsed() < within(Duration::from_secs(30)), "no flow with {container} is offloaded");
        say();
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Packets that pass by the chains are in conntrack's accounting, and so in the table of ports. A flowtable of an
/// earlier version begins to count with the next ADD, from Linux 5.12 on.
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
    let mut talk =
        world.client.dial(Proto::Tcp, None, at(world.client.node_v4, PORT), 5 * QUICK).expect("a connection");
    let mut say = || assert_eq!(talk.say().expect("an answer").who, "web");
    let mut counts = || {
        until_offloaded(&world, container, &mut say);
        let before = counted();
        (0..LINES).for_each(|_| say());
        counted() - before
    };
    let more = counts();
    assert!(more >= 2 * LINES, "{more} of at least {} packets are counted", 2 * LINES);
    if kernel() < (5, 12) {
        return;
    }
    // As an earlier version made it.
    let rule = world.node.cmd("nft list chain inet slipway forward");
    let rule = rule.lines().find(|line| line.contains("flow add")).expect("the rule").trim().to_owned();
    let named = crate::table::devices(&world).expect("a flowtable").join(", ");
    if kernel() < (7, 0) {
        world.node.nft(&format!(
            "flush chain inet slipway forward\ndelete flowtable inet slipway flows\n\
             add flowtable inet slipway flows {{ hook ingress priority 0; devices = {{ {named} }}; }}\n\
             add rule inet slipway forward {rule}"
        ));
        let more = counts();
        assert!(more < LINES, "{more} packets are counted without the flag");
        let _next = Web::new(&world, &network, "next", |a| a.port(Proto::Tcp, PORT + 1, 80));
        let more = counts();
        assert!(more >= 2 * LINES, "{more} packets are counted after an ADD");
    }
}

#[test]
fn connections_to_a_published_port() {
    needs!(has_flowtable(), FLOWTABLE);
    in_every_topology(|world| {
        let network = world.network(1);
        let web = Web::published(world, &network, "web");
        watch(world);
        for (to, container) in world.node_ips().into_iter().zip(web.ips()) {
            let mut talk =
                world.client.dial(Proto::Tcp, None, at(to, PORT), 5 * QUICK).expect("a connection");
            let mut say = || {
                let answer = talk.say().expect("an answer");
                assert_eq!(
                    (answer.who.as_str(), answer.peer.ip()),
                    ("web", like(to, world.client.v4, world.client.v6))
                );
            };
            until_offloaded(world, container, &mut say);
            let before = passed(world);
            (0..LINES).for_each(|_| say());
            let more = passed(world) - before;
            // A container with a link of its own, which is not in the flowtable of older kernels: what it sends
            // comes in by that.
            let both = world.interface == "bridge" || kernel() >= (7, 0);
            let most = if both { LINES / 10 } else { LINES * 3 };
            assert!(more <= most, "{more} of some {} packets passed the forward hook ({to})", 2 * LINES);
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
    for (far, container) in [IpAddr::from(world.client.v4), world.client.v6.into()].into_iter().zip(web.ips())
    {
        let _server = world.client.serve(Proto::Tcp, &at(far, 9000).to_string(), "far");
        let mut talk = web.dial(Proto::Tcp, None, at(far, 9000), 5 * QUICK).expect("a connection");
        let mut say = || {
            let answer = talk.say().expect("an answer");
            assert_eq!(
                answer.peer.ip(),
                like(far, world.client.node_v4, world.client.node_v6),
                "masqueraded"
            );
        };
        until_offloaded(&world, container, &mut say);
        let before = passed(&world);
        (0..LINES).for_each(|_| say());
        let more = passed(&world) - before;
        assert!(more <= LINES / 10, "{more} packets passed the forward hook ({far})");
    }
}

/// A flow that goes past the chains does not need what moves; whoever comes next does.
#[test]
fn a_running_connection_survives_migrations() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let web = Web::published(&world, &network, "web");
    for (to, container) in world.node_ips().into_iter().zip(web.ips()) {
        let mut talk = world.client.dial(Proto::Tcp, None, at(to, PORT), 5 * QUICK).expect("a connection");
        let mut say = || assert_eq!(talk.say().expect("an answer").who, "web");
        until_offloaded(&world, container, &mut say);
        for backend in ["iptables", "nftables"] {
            world.node.slipway(&format!("migrate --to {backend}"));
            (0..LINES).for_each(|_| say());
            world.client.expect(Proto::Tcp, (to, PORT), "web");
            network.check(&web.attach).unwrap_or_else(|e| panic!("CHECK in {backend}: {e}"));
        }
        until_offloaded(&world, container, &mut say);
    }
    network.del(&web.attach).expect("DEL");
}

/// UDP, where the kernel lets go of it again: the client keeps its socket while the pod is replaced.
#[test]
fn a_udp_conversation_follows_the_port() {
    needs!(has_flowtable(), FLOWTABLE);
    for netfilter in [BridgeNetfilter::Off, BridgeNetfilter::On] {
        let world = World::new(netfilter);
        let network = world.network(1);
        let first = Web::published(&world, &network, "first");
        for (to, container) in world.node_ips().into_iter().zip(first.ips()) {
            let mut talk = world.client.dial(Proto::Udp, None, at(to, PORT), 5 * QUICK).expect("a socket");
            let begin = Instant::now();
            // The kernel calls it a conversation after two seconds.
            while begin.elapsed() < Duration::from_secs(3) {
                assert_eq!(talk.say().expect("an answer").who, "first");
                std::thread::sleep(Duration::from_millis(50));
            }
            let there = offloaded(&world).iter().any(|flow| is_of(flow, container));
            assert_eq!(there, cuts_flows(), "{to}");
        }
        let mut talks = world
            .node_ips()
            .map(|ip| world.client.dial(Proto::Udp, None, at(ip, PORT), 5 * QUICK).expect("a socket"));
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(3) {
            for talk in &mut talks {
                assert_eq!(talk.say().expect("an answer").who, "first");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        network.del(&first.attach).expect("DEL");
        let _second = Web::published(&world, &network, "second");
        for talk in &mut talks {
            assert_eq!(talk.say().expect("an answer").who, "second");
        }
    }
}

/// After DEL nothing of the container is offloaded any more: at once where the kernel can be told, else as
/// soon as nobody sends.
#[test]
fn a_deleted_containers_flows_are_gone() {
    needs!(has_flowtable(), FLOWTABLE);
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let first = Web::published(&world, &network, "first");
    let stays = Web::new(&world, &network, "stays", |a| a.port(Proto::Tcp, PORT + 1, SERVED));
    let dial = |port| {
        let mut talk = world
            .client
            .dial(Proto::Tcp, None, at(world.client.node_v4, port), 5 * QUICK)
            .expect("a connection");
        move || drop(talk.say().expect("an answer"))
    };
    let (mut to_first, mut to_other) = (dial(PORT), dial(PORT + 1));
    until_offloaded(&world, first.v4, &mut to_first);
    until_offloaded(&world, stays.v4, &mut to_other);
    let addresses = first.ips();
    network.del(&first.attach).expect("DEL");
    let theirs = || offloaded(&world).iter().any(|flow| addresses.iter().any(|ip| is_of(flow, *ip)));
    if cuts_flows() {
        assert!(!theirs(), "{:?}", offloaded(&world));
        assert!(offloaded(&world).iter().any(|flow| is_of(flow, stays.v4)), "others' flows stay");
    }
    let begin = Instant::now();
    while theirs() {
        assert!(begin.elapsed() < UNUSED, "{:?}", offloaded(&world));
        std::thread::sleep(Duration::from_millis(500));
    }
    to_other();
    // The port and new connections are another pod's, whatever became of the old ones.
    let _second = Web::published(&world, &network, "second");
    world.client.expect(Proto::Tcp, (world.client.node_v4, PORT), "second");
}

/// A Service of another engine that leads to the same container is none of our business.
#[test]
fn what_another_engine_translates_is_left_to_it() {
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
    let mut talk = world.client.dial(Proto::Tcp, None, at(service, 443), 5 * QUICK).expect("a connection");
    for _ in 0..20 {
        assert_eq!(talk.say().expect("an answer").who, "web");
    }
    assert!(offloaded(&world).is_empty(), "{:?}", offloaded(&world));
}
