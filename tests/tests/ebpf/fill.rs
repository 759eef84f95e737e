// SPDX-License-Identifier: GPL-2.0-or-later

//! The counts of the BPF maps' elements in `slipway node status`.

use std::time::{Duration, Instant};

use aya::maps::{HashMap, Map, MapData};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use slipway_ebpf_abi::{Addr4, Flow4, FlowKey4, IPPROTO_TCP, Port, PortKey4, PortTarget4, maps};
use slipway_tests::{Attach, PROGRAMS, Proto, has_programs, needs};

use crate::{PORT, Stage};

/// The elements of some flows' map: more than one call of the kernel returns.
const SOME: u32 = 10_000;
/// The rounds of a measurement.
const ROUNDS: usize = 11;

/// Writes elements to a pinned map.
fn write<K: aya::Pod, V: aya::Pod>(stage: &Stage, map: &str, all: impl Iterator<Item = (K, V)> + Send) {
    stage.node.run(|| {
        let path = format!("/sys/fs/bpf/slipway/{}/{map}", slipway_ebpf_abi::VERSION);
        let data = MapData::from_pin(path).and_then(Map::from_map_data).expect("the pinned map");
        let mut table: HashMap<MapData, K, V> = data.try_into().expect("its layout");
        for (key, value) in all {
            table.insert(key, value, 0).expect("write an element");
        }
    });
}

fn flows(count: u32) -> impl Iterator<Item = (FlowKey4, Flow4)> {
    (0..count).map(|number| {
        let key = FlowKey4 { source: Addr4(number), protocol: IPPROTO_TCP, ..FlowKey4::default() };
        (key, Flow4::default())
    })
}

/// Elements of the map of ports: those of pod 0 are reserved, and no ports of a pod.
fn ports(count: u16, pod: u32) -> impl Iterator<Item = (PortKey4, PortTarget4)> {
    (0..count).map(move |number| {
        let key = PortKey4 {
            address: Addr4(pod),
            port: Port::new(number),
            protocol: IPPROTO_TCP,
            ..PortKey4::default()
        };
        (key, PortTarget4 { pod, ..PortTarget4::default() })
    })
}

/// A stage with the BPF programs, and a container's port.
fn stage() -> Stage {
    let stage = Stage::new();
    let pod = stage.node.pod("web");
    stage.network().add(&Attach::new(&pod).port_on("0.0.0.0", Proto::Tcp, PORT, 80)).expect("ADD");
    stage
}

#[test]
fn many_elements_are_counted() {
    needs!(has_programs(), PROGRAMS);
    let stage = stage();
    write(&stage, maps::FLOWS4, flows(SOME));
    write(&stage, maps::PORTS4, ports(5000, 0));
    write(&stage, maps::PORTS4, ports(6000, 1));
    let status = stage.node.programs();
    let elements = |name: &str| {
        let all = status["maps"].as_array().expect("a list");
        all.iter().find(|map| map["name"] == name).expect("the map")["elements"].clone()
    };
    assert_eq!(["flows4", "flows6", "ports4"].map(elements), [SOME, 0, 11_001]);
    assert_eq!(status["ports"], 6001);
}

/// The processor time of all children so far.
fn spent() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("the usage");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).expect("positive"))
}

/// Prints the cost of `slipway node status` with empty and full maps: `cargo test --release -p slipway-tests --test ebpf --
/// --ignored --nocapture cost_of_counting`.
#[test]
#[ignore = "a measurement"]
fn cost_of_counting() {
    needs!(has_programs(), PROGRAMS);
    let stage = stage();
    let measure = |what: &str| {
        let mut times: Vec<(Duration, Duration)> = (0..ROUNDS)
            .map(|_| {
                let (before, begun) = (spent(), Instant::now());
                let _status = stage.node.programs();
                (spent() - before, begun.elapsed())
            })
            .collect();
        times.sort();
        let (cpu, wall) = times[ROUNDS / 2];
        println!("{what}: {cpu:?} of processor time, {wall:?}; all: {times:?}");
    };
    measure("empty maps");
    write(&stage, maps::FLOWS4, flows(maps::FLOWS_SIZE / 2));
    measure("65,536 elements");
    write(&stage, maps::FLOWS4, flows(maps::FLOWS_SIZE));
    write(&stage, maps::PORTS4, ports(u16::MAX, 1));
    measure("131,072 elements and 65,535 ports");
}
