// SPDX-License-Identifier: GPL-2.0-or-later

//! The instructions that the verifier processes for the programs.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use aya::maps::{Array, HashMap};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use slipway_ebpf_abi::carried::{
    CARRIED4, CARRIED6, Carried4, CarriedKey4, EPOCH, HAS_ETHERNET, INGRESS, PROGRAMS, TO_PEER, Way,
};
use slipway_ebpf_abi::{Port, TICK_SHIFT};
use slipway_tests::{Node, has_programs, needs};

/// The programs that decide themselves verify several times as many.
const CEILING: u32 = 20_000;

#[test]
fn the_verifier_processes_few_instructions() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    let object = cni_dataplane::ebpf::object().expect("the object");
    let node = Node::new();
    let counts = node.run(|| {
        let mut ebpf: Ebpf = EbpfLoader::new()
            .map_max_entries(CARRIED4, 64)
            .map_max_entries(CARRIED6, 64)
            .load(object)
            .unwrap_or_else(|error| panic!("load the object: {error:?}"));
        PROGRAMS.map(|name| {
            let program: &mut SchedClassifier =
                ebpf.program_mut(name).expect("the program").try_into().expect("a program of tc");
            program.load().unwrap_or_else(|error| panic!("load {name}: {error}"));
            let info = program.info().expect("the program's info");
            (name, info.verified_instruction_count().unwrap_or_default(), info.size_translated())
        })
    });
    println!("{counts:?}");
    for (name, verified, _) in counts {
        assert!(verified < CEILING, "{name}: {verified}");
    }
}

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
        let mut flows =
            HashMap::<_, CarriedKey4, Carried4>::try_from(ebpf.take_map(CARRIED4).expect("a map"))
                .expect("a hash");
        let key = CarriedKey4 {
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
            ebpf.program_mut(INGRESS).expect("the program").try_into().expect("a program of tc");
        program.load().expect("load");
        let mut context = [0u8; 192];
        context[40..44].copy_from_slice(&index.to_ne_bytes());
        let mut taken = Vec::with_capacity(RUNS);
        while taken.len() < RUNS {
            let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("the time");
            let now = u32::try_from(Duration::from(now).as_nanos() >> TICK_SHIFT).expect("32 bits");
            let entry =
                Carried4 { epoch: 1, checked: now, asked: now, fits: 1500, way, ..Carried4::default() };
            flows.insert(key, entry, 0).expect("insert");
            for _ in 0..50 {
                let mut out = vec![0u8; frame.len() + 256];
                let options = TestRunOptions {
                    data_in: Some(&frame),
                    data_out: Some(&mut out),
                    ctx_in: Some(&context),
                    ..TestRunOptions::new()
                };
                let result = program.test_run(options).expect("run");
                if result.return_value == 7 {
                    taken.push(result.duration.as_nanos());
                }
            }
        }
        taken
    });
    let mut taken = taken;
    taken.sort_unstable();
    println!("IPv4 flow_ingress: {} ns, a quarter under {}", taken[RUNS / 2], taken[RUNS / 4]);
}

/// A segment without payload, with an ACK.
fn segment(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    crate::attacks::packet(from, to, 16, (7, 9))
}
