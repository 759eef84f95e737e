// SPDX-License-Identifier: GPL-2.0-or-later

//! Conntrack's entry of a carried flow: its timeout, and its state when the flow ends.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use aya::maps::{Array, Map};
use slipway_ebpf_abi::maps::YOUNG;
use slipway_tests::{PROGRAMS, has_programs, measure, needs};

use crate::{Connection, Engine, PORT, Stage};

/// The timeout in seconds and the state of the connection in conntrack's table.
fn tracked(stage: &Stage) -> Option<(u64, String)> {
    let lines = stage.conntrack();
    let line = lines.iter().find(|line| line.contains(&format!("dport={PORT}")))?;
    let mut words = line.split_whitespace().skip(4);
    Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
}

#[test]
fn an_idle_connection_keeps_conntracks_timeout_of_established_ones() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    let mut connection = stage.connect(&pod, own);
    for round in 0..6 {
        connection.stream(8 << 20);
        connection.requests(30).expect("replies");
        thread::sleep(Duration::from_millis(700));
        let (timeout, state) = tracked(&stage).expect("an entry");
        println!("{round}: {timeout} {state}");
        assert!(timeout > 400_000 && state == "ESTABLISHED", "{timeout} {state}");
    }
}

#[test]
fn conntrack_sees_the_end_of_a_connection() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    let mut connection = stage.connect(&pod, own);
    connection.stream(8 << 20);
    connection.requests(30).expect("replies");
    drop(connection);
    thread::sleep(Duration::from_millis(300));
    let (timeout, state) = tracked(&stage).expect("an entry");
    assert!(state == "TIME_WAIT" && timeout <= 120, "{timeout} {state}");
    assert!(stage.carried4().is_empty(), "{:?}", stage.carried4());
    // If an entry were still counted, the programs would look up the packets of all later connections that share its
    // slot.
    let slots = Array::<_, [u32; 2]>::try_from(Map::Array(stage.map(YOUNG))).expect("an array");
    assert!(slots.iter().all(|slot| slot.expect("a slot")[1] == 0), "an entry is still counted");
}

/// A connection whose entry was evicted continues through the kernel's stack and is carried again.
#[test]
fn an_evicted_flow_continues() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    let mut connection = stage.connect(&pod, own);
    for _ in 0..3 {
        connection.stream(8 << 20);
        connection.requests(300).expect("replies");
        assert_eq!(stage.carried4().len(), 2);
        stage.forget();
    }
}

/// Packets of a connection arrive in order even while some of them go through the kernel's stack, namely the first ones
/// and those that are checked. Everything runs on one processor, because two processors that handle the same connection
/// can reorder packets themselves.
#[test]
fn packets_arrive_in_order() {
    needs!(has_programs(), PROGRAMS);
    const CONNECTIONS: usize = 4;
    const BURSTS: usize = 1000;
    measure::on_one_processor();
    for engine in [Engine::Nftables, Engine::Carried] {
        let stage = Stage::new(engine);
        let (pod, own) = stage.pod("web");
        // Without offloads, segments arrive in bursts as from a wire.
        stage.client.without_offloads("eth0");
        let to = (stage.node_ips()[0], PORT).into();
        let listener = pod.bind(|| TcpListener::bind(SocketAddr::new(own[0], 80))).expect("listen");
        let all: Vec<_> = (0..CONNECTIONS)
            .map(|_| Connection::to(&stage.client, to, &listener).expect("a connection"))
            .collect();
        thread::scope(|scope| {
            for mut one in all {
                scope.spawn(move || {
                    for _ in 0..BURSTS {
                        one.stream(1 << 16);
                        thread::sleep(Duration::from_millis(2));
                    }
                });
            }
        });
        let text = pod.cmd("cat /proc/thread-self/net/netstat");
        let late = counter(&text, "TCPOFOQueue");
        let [carried, _, checked, ..] = stage.counts();
        println!("{engine:?}: {carried} carried, {checked} checked, {late} out of order");
        assert!(engine == Engine::Nftables || checked > 8 && carried > 100_000, "{:?}", stage.counts());
        assert_eq!(late, 0, "{engine:?}");
    }
}

/// The value of a counter in one of the kernel's pairs of lines, names above values.
fn counter(text: &str, name: &str) -> u64 {
    let lines: Vec<&str> = text.lines().collect();
    lines
        .chunks_exact(2)
        .find_map(|pair| {
            let at = pair[0].split_whitespace().position(|word| word == name)?;
            pair[1].split_whitespace().nth(at)?.parse().ok()
        })
        .unwrap_or_else(|| panic!("no {name}: {text}"))
}
