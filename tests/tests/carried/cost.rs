// SPDX-License-Identifier: GPL-2.0-or-later

//! The time that the BPF programs take for each packet.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap, Map};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramInfo, SchedClassifier, TcAttachType, TestRun, TestRunOptions};
use aya::sys::{Stats, enable_stats};
use aya::{Ebpf, EbpfLoader};
use slipway_ebpf_abi::maps::{CARRIED4, CARRIED6, EPOCH, EPOCH_AT, HELD_AT, YOUNG, programs};
use slipway_ebpf_abi::{Counter, Entry4, FlowKey4, HAS_ETHERNET, Port, TICK_SHIFT, TO_PEER, Way};
use slipway_tests::Node;

use crate::{Connection, Engine, PORT, Stage};

/// include/uapi/linux/pkt_cls.h
const TC_ACT_REDIRECT: u32 = 7;

/// Measures the run time of the program at an uplink for a packet of a carried connection, as the kernel
/// reports it: `cargo test -p slipway-tests --test carried -- --ignored --nocapture time_per_packet`.
#[test]
#[ignore = "a measurement"]
fn time_per_packet() {
    const RUNS: usize = 20_000;
    let object = cni_dataplane::ebpf::object().expect("the object");
    let node = Node::new();
    node.cmd("ip link add up0 type veth peer name up1");
    node.cmd("ip link set up0 up");
    node.cmd("ip link set up1 up");
    let index =
        node.link("up0")["ifindex"].as_u64().and_then(|index| u32::try_from(index).ok()).expect("an index");
    let mac: Vec<u8> =
        node.mac("up0").split(':').map(|part| u8::from_str_radix(part, 16).expect("a byte")).collect();
    let [client, own, pod] = [[192, 0, 2, 2], [192, 0, 2, 1], [10, 88, 1, 2]].map(Ipv4Addr::from);
    let packet = segment(SocketAddrV4::new(client, 40000), SocketAddrV4::new(own, 8080));
    let frame = [&mac[..], &[2, 0, 0, 0, 0, 9, 8, 0], &packet].concat();
    let taken = node.run(|| {
        let mut ebpf: Ebpf = EbpfLoader::new().load(object).unwrap_or_else(|error| panic!("load: {error:?}"));
        let mut epoch = Array::<_, u32>::try_from(ebpf.take_map(EPOCH).expect("a map")).expect("an array");
        epoch.set(0, 1, 0).expect("set the epoch");
        let mut flows = HashMap::<_, FlowKey4, Entry4>::try_from(ebpf.take_map(CARRIED4).expect("a map"))
            .expect("a hash");
        let mut slots =
            Array::<_, [u32; 2]>::try_from(ebpf.take_map(YOUNG).expect("a map")).expect("an array");
        let key = FlowKey4 {
            source: client.into(),
            destination: own.into(),
            source_port: Port::new(40000),
            destination_port: Port::new(8080),
            interface: index,
            protocol: 6,
        };
        let way = Way {
            source: client.into(),
            destination: pod.into(),
            source_port: Port::new(40000),
            destination_port: Port::new(80),
            interface: index,
            flags: HAS_ETHERNET | TO_PEER,
            ..Way::default()
        };
        let program: &mut SchedClassifier =
            ebpf.program_mut(programs::INGRESS).expect("the program").try_into().expect("a program of tc");
        program.load().expect("load");
        let mut context = [0u8; 192];
        context[40..44].copy_from_slice(&index.to_ne_bytes());
        let run = || {
            let mut out = vec![0u8; frame.len() + 256];
            let options = TestRunOptions {
                data_in: Some(&frame),
                data_out: Some(&mut out),
                ctx_in: Some(&context),
                ..TestRunOptions::new()
            };
            let result = program.test_run(options).expect("run");
            (result.return_value, result.duration.as_nanos())
        };
        // The first packets of a connection, before the connection has an entry.
        let young: Vec<_> = (0..RUNS).map(|_| run().1).collect();
        // Without random keys, every hash is 0. The programs would have counted the entry when they inserted it, so the
        // test does.
        slots.set(0, [0, 1], 0).expect("count an entry");
        let mut carried = Vec::with_capacity(RUNS);
        while carried.len() < RUNS {
            let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("the time");
            let now = u32::try_from(Duration::from(now).as_nanos() >> TICK_SHIFT).expect("32 bits");
            let entry = Entry4 {
                epoch: 1,
                checked: now,
                asked: now,
                fits: 1500,
                fits_checked: now,
                last_length: 1500,
                is_trusted: 1,
                way,
                ..Entry4::default()
            };
            flows.insert(key, entry, 0).expect("insert");
            carried.extend((0..50).map(|_| run()).filter(|one| one.0 == TC_ACT_REDIRECT).map(|one| one.1));
        }
        [("without an entry", young), ("carried", carried)]
    });
    for (what, mut taken) in taken {
        taken.sort_unstable();
        println!("IPv4 flow_ingress, {what}: {} ns, a quarter under {}", taken[RUNS / 2], taken[RUNS / 4]);
    }
}

/// A segment without payload and with the flag ACK.
fn segment(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    crate::attacks::packet(from, to, 16, (7, 9))
}

/// Measures the run time of each program during connections of one request to a published port:
/// `cargo test -p slipway-tests --test carried -- --ignored --nocapture time_per_connection`.
#[test]
#[ignore = "a measurement"]
fn time_per_connection() {
    const CONNECTIONS: u32 = 5000;
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    let to = SocketAddr::new(stage.node_ips()[0], PORT);
    let listener = pod.bind(|| TcpListener::bind(SocketAddr::new(own[0], 80))).expect("listen");
    let _statistics = enable_stats(Stats::RunTime).expect("statistics");
    let before = stage.counts();
    for _ in 0..CONNECTIONS {
        let mut one = Connection::to(&stage.client, to, &listener).expect("a connection");
        one.requests(1).expect("a reply");
    }
    let after = stage.counts();
    println!("counters: {:?}", [0, 1, 2, 3, 4, 5, 6].map(|index| after[index] - before[index]));
    for name in programs::ALL {
        let pin = stage.pin(name);
        let info = stage.node.run(|| ProgramInfo::from_pin(&pin));
        let info = info.expect("the program's info");
        let (runs, time) = (info.run_count(), info.run_time());
        let each = time.as_nanos() / u128::from(runs.max(1));
        println!("{name}: {:.1} runs of a connection, {each} ns each", runs as f64 / f64::from(CONNECTIONS));
    }
}

/// Measures how much of the time of a request on a carried connection the programs take. Without them it could be shorter
/// by as much, and no more: `cargo test -p slipway-tests --test carried -- --ignored --nocapture time_per_request`.
#[test]
#[ignore = "a measurement"]
fn time_per_request() {
    const REQUESTS: u32 = 20_000;
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    let mut connection = stage.connect(&pod, own);
    connection.requests(1000).expect("replies");
    let _statistics = enable_stats(Stats::RunTime).expect("statistics");
    let carried = stage.count(Counter::Carried);
    let begun = Instant::now();
    connection.requests(REQUESTS as usize).expect("replies");
    let whole = begun.elapsed().as_nanos() / u128::from(REQUESTS);
    let carried = f64::from(u32::try_from(stage.count(Counter::Carried) - carried).expect("few packets"));
    println!("figure: {whole} ns per request, {:.2} packets carried of each", carried / f64::from(REQUESTS));
    for name in programs::ALL {
        let pin = stage.pin(name);
        let info = stage.node.run(|| ProgramInfo::from_pin(&pin)).expect("the program's info");
        let (runs, time) = (info.run_count() as f64 / f64::from(REQUESTS), info.run_time());
        let each = time.as_nanos() / u128::from(REQUESTS);
        println!("figure: {name}: {runs:.2} runs of a request, {each} ns in all");
    }
}

/// What is in place while connections of one request to a published port pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passed {
    /// The rules of the nftables backend alone.
    Rules,
    /// The rules of the eBPF backend, without programs.
    Detached,
    /// Programs that return at once, attached with tcx.
    ReturnAtTcx,
    /// Programs that return at once, attached to clsact as on a node.
    ReturnAtClsact,
    /// Programs that parse each packet and do nothing else.
    Parse,
    /// The real programs.
    Programs,
}

impl Passed {
    const ALL: [Self; 6] =
        [Self::Rules, Self::Detached, Self::ReturnAtTcx, Self::ReturnAtClsact, Self::Parse, Self::Programs];
}

/// Measures how much each part of the programs' work costs a connection of one request, and how long tcx takes to
/// attach:
/// `cargo test -p slipway-tests --test carried -- --ignored --nocapture time_of_each_part`.
#[test]
#[ignore = "a measurement"]
fn time_of_each_part() {
    const ROUNDS: usize = 150;
    const CONNECTIONS: u32 = 200;
    let stages = [Engine::Nftables, Engine::Carried, Engine::Carried, Engine::Carried].map(Stage::new);
    let listeners = stages.each_ref().map(|stage| {
        let (pod, own) = stage.pod("web");
        (pod.bind(|| TcpListener::bind(SocketAddr::new(own[0], 80))).expect("listen"), pod)
    });
    for stage in &stages[1..3] {
        hooked(stage)
            .iter()
            .for_each(|link| drop(stage.node.cmd(&format!("tc qdisc del dev {link} clsact"))));
    }
    let (_attached, attaching) = at_tcx(&stages[2]);
    println!("to attach a program by tcx: {attaching:?}");
    let epoch = Map::Array(stages[3].map(EPOCH));
    let mut epoch = Array::<_, u32>::try_from(epoch).expect("an array");
    let before = [EPOCH_AT, HELD_AT].map(|index| epoch.get(&index, 0).expect("a word"));
    let mut taken: Vec<Vec<f64>> = vec![Vec::new(); Passed::ALL.len()];
    for round in 0..ROUNDS {
        for turn in 0..Passed::ALL.len() {
            let index = (round + turn) % Passed::ALL.len();
            let (stage, words) = match Passed::ALL[index] {
                Passed::Rules => (0, before),
                Passed::Detached => (1, before),
                Passed::ReturnAtTcx => (2, before),
                Passed::ReturnAtClsact => (3, [0, before[1]]),
                Passed::Parse => (3, [before[0], u32::MAX]),
                Passed::Programs => (3, before),
            };
            epoch.set(EPOCH_AT, words[0], 0).expect("set the epoch");
            epoch.set(HELD_AT, words[1], 0).expect("set what is held");
            let to = SocketAddr::new(stages[stage].node_ips()[0], PORT);
            let listener = &listeners[stage].0;
            let begun = stages[stage].client.run(|| {
                let one = || {
                    let mut client = TcpStream::connect(to).expect("connect");
                    let (mut server, _) = listener.accept().expect("accept");
                    let mut byte = [0];
                    client.write_all(b"?").expect("write");
                    server.read_exact(&mut byte).expect("read");
                    server.write_all(b"!").expect("write");
                    client.read_exact(&mut byte).expect("read");
                };
                (0..20).for_each(|_| one());
                let begun = Instant::now();
                (0..CONNECTIONS).for_each(|_| one());
                begun.elapsed()
            });
            taken[index].push(begun.as_secs_f64() * 1e6 / f64::from(CONNECTIONS));
        }
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    for (index, passed) in Passed::ALL.iter().enumerate() {
        let more = taken[index].iter().zip(&taken[0]).map(|(one, rules)| one - rules).collect();
        println!(
            "{passed:?}: {:.1} us, {:+.2} us to the rules alone",
            median(taken[index].clone()),
            median(more)
        );
    }
}

/// The uplink and the node's end of the container's link.
fn hooked(stage: &Stage) -> Vec<String> {
    let links: serde_json::Value =
        serde_json::from_str(&stage.node.cmd("ip -json link show type veth")).expect("a list of links");
    let names: Vec<_> =
        links.as_array().expect("an array").iter().map(|link| link["ifname"].as_str()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    names.into_iter().map(|name| name.expect("a name").to_owned()).collect()
}

/// Attaches programs that return at once to both links of a node with tcx, until the result is dropped, and returns the
/// time of each attachment.
fn at_tcx(stage: &Stage) -> (Ebpf, Vec<Duration>) {
    let object = cni_dataplane::ebpf::object().expect("the object");
    let links = hooked(stage);
    stage.node.run(|| {
        let mut taken = Vec::new();
        let mut ebpf: Ebpf = EbpfLoader::new()
            .map_max_entries(CARRIED4, 64)
            .map_max_entries(CARRIED6, 64)
            .load(object)
            .unwrap_or_else(|error| panic!("load: {error:?}"));
        let sides = [(programs::INGRESS, TcAttachType::Ingress), (programs::EGRESS, TcAttachType::Egress)];
        for (name, side) in sides {
            let program: &mut SchedClassifier =
                ebpf.program_mut(name).expect("the program").try_into().expect("a program of tc");
            program.load().expect("load");
            for link in &links {
                let (order, begun) = (TcAttachOptions::TcxOrder(LinkOrder::default()), Instant::now());
                program.attach_with_options(link, side, order).expect("attach");
                taken.push(begun.elapsed());
            }
        }
        (ebpf, taken)
    })
}
