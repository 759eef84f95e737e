// SPDX-License-Identifier: GPL-2.0-or-later

//! Packets of published ports and masquerade are carried, in both families, with TCP and UDP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Array, Map};
use cni_kernel::ethtool::Switch;
use nix::sys::socket::{setsockopt, sockopt};
use slipway_ebpf_abi::maps::{HASH_KEYS, YOUNG, YOUNG_SIZE};
use slipway_ebpf_abi::{Counter, FlowKey4, IPPROTO_UDP, KEYS, Keyed, Port, TO_PEER};
use slipway_tests::{
    Attach, PROGRAMS, Pod, Proto, Space, address_of, has_programs, needs, patience, quoted, slipway,
};

use crate::{Connection, Engine, FAR, PORT, Stage};

/// The four flows, each with its name, its client, the destination, the server, and the server's address.
fn each_way<'a>(
    stage: &'a Stage,
    pod: &'a Pod,
    own: [IpAddr; 2],
) -> Vec<(&'static str, &'a Space, SocketAddr, &'a Space, SocketAddr)> {
    let mut all: Vec<(&'static str, &'a Space, SocketAddr, &'a Space, SocketAddr)> = Vec::new();
    for (family, inside) in own.into_iter().enumerate() {
        let (node, client) = (stage.node_ips()[family], stage.client_ips()[family]);
        all.push(("port", &stage.client, (node, PORT).into(), pod, (inside, 80).into()));
        all.push(("masquerade", pod, (client, FAR).into(), &stage.client, (client, FAR).into()));
    }
    all
}

#[test]
fn requests_of_a_connection_are_carried_with_correct_packets() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    for (name, from, to, server, at) in each_way(&stage, &pod, own) {
        let before = stage.count(Counter::Carried);
        let mut connection = Connection::new(from, to, server, at).expect("a connection");
        connection.requests(200).expect("replies");
        let carried = stage.count(Counter::Carried) - before;
        // The expected count leaves out the first packets of 200 requests and replies, and those that are checked
        // again.
        assert!(carried >= 350, "{name} {to}: {carried} of 400 packets; {:?}", stage.counts());
    }
    let counts = stage.counts();
    assert_eq!((counts[3], counts[4], counts[5]), (0, 0, 0), "{counts:?}");
}

#[test]
fn a_large_transfer_is_carried() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    for (name, from, to, server, at) in each_way(&stage, &pod, own) {
        let before = (stage.count(Counter::Carried), stage.counts());
        let mut connection = Connection::new(from, to, server, at).expect("a connection");
        connection.stream(32 << 20);
        let carried = stage.count(Counter::Carried) - before.0;
        let packets = (32 << 20) / 1448;
        assert!(carried > packets * 9 / 10, "{name} {to}: {carried} of {packets}; {:?}", stage.counts());
    }
}

#[test]
fn datagrams_are_carried_from_the_fourth_on() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    for (name, from, to, server, at) in each_way(&stage, &pod, own) {
        let receiver = server.bind(|| UdpSocket::bind(at)).expect("bind");
        let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let sender = from.bind(|| UdpSocket::bind(any)).expect("bind");
        for socket in [&receiver, &sender] {
            socket.set_read_timeout(Some(patience())).expect("a limit");
        }
        let before = stage.count(Counter::Carried);
        let mut bytes = [0; 2000];
        for number in 0..100_usize {
            // The first datagrams are short, and the lengths then increase.
            let length = number * 13;
            sender.send_to(&vec![7; length], to).expect("send");
            let (received, peer) =
                receiver.recv_from(&mut bytes).unwrap_or_else(|e| panic!("{name} {number}: {e}"));
            assert_eq!(received, length);
            receiver.send_to(&bytes[..length / 2], peer).expect("send");
            assert_eq!(sender.recv(&mut bytes).expect("a reply"), length / 2, "{name}");
        }
        // A datagram that is longer than all earlier ones is checked instead of carried.
        let carried = stage.count(Counter::Carried) - before;
        assert!(carried < 100, "{name} {to}: {carried}");
        for _ in 0..100 {
            sender.send_to(&[1; 700], to).expect("send");
            let (_, peer) = receiver.recv_from(&mut bytes).expect("a datagram");
            receiver.send_to(&[1; 300], peer).expect("send");
            sender.recv(&mut bytes).expect("a reply");
        }
        let carried = stage.count(Counter::Carried) - before;
        assert!(carried >= 180, "{name} {to}: {carried}; {:?}", stage.counts());
    }
}

/// The slot of a flow without an entry in the map of young flows, and the hash of its key, computed as the programs do.
pub(crate) fn slot(key: &FlowKey4, keys: &[u64; KEYS]) -> (u32, u32) {
    let [[a, b], [c, d]] = [key.source_port, key.destination_port].map(|port| port.0.to_ne_bytes());
    let ports = u32::from_ne_bytes([a, b, c, d]);
    let words = [key.source.0, key.destination.0, ports, key.interface, key.protocol];
    let hashed = words
        .into_iter()
        .zip(&keys[1..])
        .fold(Keyed::new(keys[0]), |hash, (word, key)| hash.word(*key, word));
    let hash = hashed.hash();
    ((hash ^ hash >> 16) & (YOUNG_SIZE - 1), hash)
}

/// The random keys of the programs' hash function.
pub(crate) fn hash_keys(stage: &Stage) -> [u64; KEYS] {
    let map = Array::<_, [u64; KEYS]>::try_from(Map::Array(stage.map(HASH_KEYS))).expect("an array");
    map.get(&0, 0).expect("the keys")
}

/// One flow in 32,768 has both directions in the same slot of the map that counts packets of flows without an entry.
/// When requests and replies alternate, each direction would restart the other's count.
#[test]
fn a_flow_whose_directions_share_a_slot_is_carried() {
    needs!(has_programs(), PROGRAMS);
    const PORTS: u16 = 8;
    let stage = Stage::new(Engine::Carried);
    let pod = stage.node.pod("web");
    let attach = (PORT..PORT + PORTS).fold(Attach::new(&pod), |all, port| all.port(Proto::Udp, port, 80));
    let result = stage.network().add(&attach).expect("ADD");
    let IpAddr::V4(own) = address_of(&result, 0) else { panic!("no IPv4 address: {result}") };
    let index = |link: &str| -> u32 {
        let text = stage.node.cmd(&format!("ip -o link show dev {link}"));
        text.split(':').next().and_then(|index| index.parse().ok()).expect("an index")
    };
    let outside = index(&stage.client.node_link);
    let inside = index(result["interfaces"][1]["name"].as_str().expect("the node's end"));
    let (client, node, keys) = (stage.client.v4, stage.client.node_v4, hash_keys(&stage));
    let key = |source: (Ipv4Addr, u16), destination: (Ipv4Addr, u16), interface| FlowKey4 {
        source: source.0.into(),
        destination: destination.0.into(),
        source_port: Port::new(source.1),
        destination_port: Port::new(destination.1),
        interface,
        protocol: IPPROTO_UDP.into(),
    };
    let (local, port) = (PORT..PORT + PORTS)
        .flat_map(|port| (1024..u16::MAX).map(move |local| (local, port)))
        .find(|&(local, port)| {
            let request = key((client, local), (node, port), outside);
            let reply = key((own, 80), (client, local), inside);
            slot(&request, &keys).0 == slot(&reply, &keys).0
        })
        .expect("two keys with one slot");

    let receiver = pod.bind(|| UdpSocket::bind((own, 80))).expect("bind");
    let sender = stage.client.bind(|| UdpSocket::bind((client, local))).expect("bind");
    sender.connect((node, port)).expect("connect");
    let mut byte = [0];
    for socket in [&receiver, &sender] {
        socket.set_read_timeout(Some(patience())).expect("a limit");
    }
    for _ in 0..200 {
        sender.send(b"?").expect("send");
        let (_, peer) = receiver.recv_from(&mut byte).expect("a request");
        receiver.send_to(b"!", peer).expect("send");
        sender.recv(&mut byte).expect("a reply");
    }
    let slots = Array::<_, [u32; 2]>::try_from(Map::Array(stage.map(YOUNG))).expect("an array");
    let used = slots.iter().filter(|slot| slot.as_ref().expect("a slot")[0] != 0).count();
    assert_eq!(used, 1, "the test's hash is not that of the programs");
    assert!(stage.count(Counter::Carried) > 200, "{:?}", stage.counts());
}

/// Datagrams that are longer than earlier ones go through the kernel's stack. Those that follow must not overtake them,
/// even where the kernel collects packets, as it does for network cards.
#[test]
fn datagrams_behind_longer_ones_arrive_in_order() {
    needs!(has_programs(), PROGRAMS);
    for engine in [Engine::Nftables, Engine::Carried] {
        let stage = Stage::new(engine);
        let (pod, own) = stage.pod("web");
        // The kernel splits a train when the client's link sends it, and the node's end receives the packets through
        // NAPI.
        for feature in ["tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation"] {
            stage.client.set_feature("eth0", feature, Switch::Off);
        }
        stage.node.set_feature("out0", "rx-gro", Switch::On);
        for (family, inside) in own.into_iter().enumerate() {
            let receiver = pod.bind(|| UdpSocket::bind((inside, 80))).expect("bind");
            receiver.set_read_timeout(Some(patience())).expect("a limit");
            let any = if inside.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let sender = stage.client.bind(|| UdpSocket::bind(any)).expect("bind");
            sender.connect((stage.node_ips()[family], PORT)).expect("connect");
            let mut bytes = [0; 2000];
            for size in (50..1400).step_by(50) {
                // The last datagram of a train is shorter than the others.
                let sizes = [size, size, size, 10];
                setsockopt(&sender, sockopt::UdpGsoSegment, &(size as i32)).expect("UDP_SEGMENT");
                for _ in 0..3 {
                    sender.send(&vec![7; sizes.iter().sum()]).expect("send");
                    let found = sizes.map(|_| receiver.recv(&mut bytes).expect("a datagram"));
                    assert_eq!(found, sizes, "{engine:?} {inside}");
                }
            }
        }
        let [carried, _, checked, ..] = stage.counts();
        println!("{engine:?}: {carried} carried, {checked} checked");
        assert!(engine == Engine::Nftables || carried > 200 && checked > 50, "{:?}", stage.counts());
    }
}

/// A flow is taken off the queue of the pod's link as soon as none of its packets is left there.
#[test]
fn a_flow_leaves_the_queue_of_the_pods_link() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    let mut connection = stage.connect(&pod, own);
    let begin = Instant::now();
    loop {
        connection.requests(20).expect("replies");
        let entries = stage.carried4();
        let to_pod = entries.iter().filter(|(_, entry)| entry.way.flags & TO_PEER != 0);
        let queued: Vec<_> = to_pod.map(|(_, entry)| entry.queued).collect();
        println!("{queued:?}");
        if queued == [0] {
            break;
        }
        assert!(begin.elapsed() < patience(), "{queued:?}");
    }
}

/// Only a container's link has a queue that carried packets could overtake. A flow out of a container therefore needs a
/// single copy in each tick.
#[test]
fn a_flow_out_of_a_container_is_copied_once_a_tick() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    let (client, outside) = (stage.client.v4, (stage.client.v4, FAR));
    let _receiver = stage.client.bind(|| UdpSocket::bind(outside)).expect("bind");
    let sender = pod.bind(|| UdpSocket::bind((own[0], 0))).expect("bind");
    sender.connect((client, FAR)).expect("connect");
    let begin = Instant::now();
    // The first datagram of each length goes through the kernel's stack, because it is longer than all earlier ones.
    const LENGTHS: u64 = 50;
    for length in 1..=LENGTHS {
        for _ in 0..20 {
            sender.send(&vec![7; length as usize]).expect("send");
        }
    }
    let ticks = begin.elapsed().as_secs() + 2;
    let [carried, asked, ..] = stage.counts();
    assert!(carried > 900 && asked <= LENGTHS + ticks, "{asked} in {ticks} ticks; {:?}", stage.counts());
}

#[test]
fn netfilter_judges_one_packet_of_a_direction_in_each_tick() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    // The ADD comes first, because it loads conntrack if that is a module.
    stage.node.sysctl("net/netfilter/nf_conntrack_acct", "1");
    let mut connection = stage.connect(&pod, own);
    connection.requests(20).expect("replies");
    let before = stage.counts();
    for _ in 0..50 {
        connection.requests(40).expect("replies");
        thread::sleep(Duration::from_millis(100));
    }
    let after = stage.counts();
    let checked = after[2] - before[2];
    let carried = after[0] - before[0];
    assert!(carried > 3500 && (4..=40).contains(&checked), "{before:?} {after:?}");
    assert_eq!(after[1] - before[1], checked, "each packet came out: {before:?} {after:?}");
    let entries = stage.carried4();
    assert!(entries.iter().all(|(_, entry)| entry.packets > 1500), "{entries:?}");
    let line = stage.conntrack().into_iter().find(|line| line.contains("dport=8080")).expect("an entry");
    println!("{line}");
    assert!(line.contains("ESTABLISHED"), "{line}");
}

#[test]
fn another_pods_published_port_on_the_same_node_is_carried() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (web, own) = stage.pod("web");
    let (other, _) = stage.pod_at("other", PORT + 1);
    for (family, inside) in own.into_iter().enumerate() {
        let before = stage.count(Counter::Carried);
        let to = (stage.node_ips()[family], PORT).into();
        let mut connection = Connection::new(&other, to, &web, (inside, 80).into()).expect("a connection");
        connection.requests(200).expect("replies");
        connection.stream(4 << 20);
        let carried = stage.count(Counter::Carried) - before;
        println!("{to}: {carried} {:?}", stage.counts());
        assert!(carried > 350, "{to}: {carried}; {:?}", stage.counts());
    }
}

#[test]
fn connections_survive_the_teardown_of_the_programs() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    let mut connections: Vec<_> = each_way(&stage, &pod, own)
        .into_iter()
        .map(|(_, from, to, server, at)| {
            let mut connection = Connection::new(from, to, server, at).expect("a connection");
            connection.requests(100).expect("replies");
            connection
        })
        .collect();
    assert!(stage.count(Counter::Carried) > 0);
    let slipway = slipway();
    stage.node.cmd(&format!("{} node teardown", quoted(&slipway)));
    assert!(!stage.node.list("/sys/fs/bpf").iter().any(|name| name.starts_with("slipway")), "pins are left");
    let links = stage.node.cmd("ip -brief link");
    for link in links.lines().filter_map(|line| line.split(['@', ' ']).next()) {
        for side in ["ingress", "egress"] {
            let filters = stage.node.try_cmd(&format!("tc filter show dev {link} {side}")).stdout;
            assert_eq!(filters, "", "{link} {side}");
        }
    }
    for connection in &mut connections {
        connection.requests(100).expect("replies after the teardown");
    }
    let again = stage.node.cmd(&format!("{} node teardown", quoted(&slipway)));
    assert!(again.contains("not loaded"), "{again}");
}
