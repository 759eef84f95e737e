// SPDX-License-Identifier: GPL-2.0-or-later

//! Rules of iptables that decide about single packets, in both variants, tested with datagrams. A node with the
//! nftables backend has the same rules and is the control.

use std::thread;

use slipway_tests::{PROGRAMS, has_programs, needs};

use crate::certain::{Datagrams, assert_all, collector, copies, follow};
use crate::{Engine, PORT, Stage};

/// The number of datagrams per second, and the number for each rule.
const RATE: u32 = 300;
const COUNT: u32 = 150;
/// The difference between two nodes that the clock alone can cause.
const CHANCE: usize = 15;

/// The names of the cases and their rules, which are inserted at the top of `FORWARD`.
const RULES: [(&str, &[&str]); 9] = [
    ("limit", &["-p udp -m limit --limit 50/second --limit-burst 5 -j ACCEPT", "-p udp -j DROP"]),
    (
        "hashlimit",
        &["-p udp -m hashlimit --hashlimit-above 50/second --hashlimit-burst 5 --hashlimit-mode srcip \
           --hashlimit-name drawn -j DROP"],
    ),
    ("statistic", &["-p udp -m statistic --mode nth --every 2 --packet 0 -j DROP"]),
    ("quota", &["-p udp -m quota --quota 5000 -j ACCEPT", "-p udp -j DROP"]),
    ("length", &["-p udp -m length --length 100:65535 -j DROP"]),
    ("u32", &["-p udp -m u32 --u32 28&0x1=0x1 -j DROP"]),
    (
        "recent",
        &[
            "-p udp -m recent --set --name drawn",
            "-p udp -m recent --update --hitcount 15 --name drawn -j DROP",
        ],
    ),
    (
        "connbytes",
        &["-p udp -m connbytes --connbytes 20: --connbytes-dir both --connbytes-mode packets -j DROP"],
    ),
    ("tos", &["-p udp -m tos --tos 0x03/0x03 -j DROP"]),
];

/// Calls `act` with both nodes at the same time.
fn on_both<T: Send>(stages: &[Stage; 2], act: impl Fn(&Stage) -> T + Sync) -> [T; 2] {
    thread::scope(|scope| {
        let runs = [&stages[0], &stages[1]].map(|stage| scope.spawn(|| act(stage)));
        runs.map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[test]
fn rules_of_iptables_decide_about_each_datagram() {
    needs!(has_programs(), PROGRAMS);
    let stages = [Engine::Nftables, Engine::Carried].map(Stage::new);
    let pods = [&stages[0], &stages[1]].map(|stage| stage.pod("web"));
    for variant in ["iptables-nft", "iptables-legacy"] {
        for (name, rules) in RULES {
            let arrived = on_both(&stages, |stage| {
                let (pod, own) = &pods[usize::from(stage.engine == Engine::Carried)];
                for (number, rule) in rules.iter().enumerate() {
                    stage.node.cmd(&format!("{variant} -I FORWARD {} {rule}", number + 1));
                }
                follow(stage);
                let mut flow = Datagrams::to_pod(stage, pod, *own, 0);
                // Every third datagram reports congestion.
                let arrived = flow.send_with(COUNT, RATE, |number, sender| {
                    set_congestion(sender, if number % 3 == 0 { 3 } else { 2 });
                    if number.is_multiple_of(2) { 20 } else { 200 }
                });
                let held = stage.engine == Engine::Carried;
                let listed = || stage.node.programs()["holding_rules"].as_array().map_or(0, Vec::len);
                assert!(!held || listed() > 0, "{variant}, {name}: no rule is listed");
                for rule in rules {
                    stage.node.cmd(&format!("{variant} -D FORWARD {rule}"));
                }
                follow(stage);
                arrived.len()
            });
            println!("{variant}, {name}: {arrived:?} of {COUNT}");
            assert!(arrived[0] < COUNT as usize * 3 / 4, "{variant}, {name}: the rule drops: {arrived:?}");
            assert!(arrived[0].abs_diff(arrived[1]) <= CHANCE, "{variant}, {name}: {arrived:?} arrived");
        }
    }
}

/// `-j TEE` is the target of the bug report that led to these tests.
#[test]
fn copies_that_iptables_makes_divert_no_flow() {
    needs!(has_programs(), PROGRAMS);
    let stages = [Engine::Nftables, Engine::Carried].map(Stage::new);
    // The collectors come first, because programs are attached to the links that exist at an ADD.
    let collectors = [&stages[0], &stages[1]].map(collector);
    let pods = [&stages[0], &stages[1]].map(|stage| stage.pod("web"));
    for variant in ["iptables-nft", "iptables-legacy"] {
        for chain in ["PREROUTING", "FORWARD", "POSTROUTING"] {
            on_both(&stages, |stage| {
                let index = usize::from(stage.engine == Engine::Carried);
                let ((pod, own), collector) = (&pods[index], &collectors[index]);
                let rule = format!("{chain} -p udp --dport PORTS -j TEE --gateway {}", collector.v4);
                // In PREROUTING packets still have the published port, in later chains the container's.
                let port = if chain == "PREROUTING" { PORT } else { 80 };
                let rule = rule.replace("PORTS", &port.to_string());
                let what = format!("{:?}, {variant}, {chain}", stage.engine);
                let mut running = Datagrams::to_pod(stage, pod, *own, 0);
                assert_all(&running.send(20), 0..20, &what);
                stage.node.cmd(&format!("{variant} -t mangle -A {rule}"));
                let (arrived, copied) = copies(collector, || running.send(60));
                assert_all(&arrived, 20..80, &what);
                assert!(copied >= 20, "{what}: {copied} copies of 60");
                follow(stage);
                let (arrived, copied) = copies(collector, || running.send(40));
                assert_all(&arrived, 80..120, &format!("{what}, followed"));
                assert!(copied >= 40, "{what}, followed: {copied} copies of 40");
                stage.node.cmd(&format!("{variant} -t mangle -D {rule}"));
                follow(stage);
            });
        }
    }
}

/// Sets the ECN bits of the next datagrams.
fn set_congestion(sender: &std::net::UdpSocket, bits: i32) {
    nix::sys::socket::setsockopt(sender, nix::sys::socket::sockopt::Ipv4Tos, &bits).expect("set IP_TOS");
}
