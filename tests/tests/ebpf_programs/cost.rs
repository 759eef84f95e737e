// SPDX-License-Identifier: GPL-2.0-or-later

//! The cost of the BPF programs: instructions that the verifier processes, and time for each packet.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::programs::{CgroupSockAddr, ProgramInfo, SchedClassifier};
use slipway_ebpf_abi::maps::programs;
use slipway_tests::Node;

use crate::wire::{ACK, Ip, SYN};
use crate::{bed, rig};

/// Instructions that the verifier processed, `<kernel> <program> <number>` on each line.
const GOLDEN: &str = include_str!("instructions.golden");

/// The limit on kernels that are not in the file: a fifth of BPF_COMPLEXITY_LIMIT_INSNS, the verifier's own.
const CEILING: u32 = 200_000;

/// The kernel's major and minor version: `6.18` of `6.18.44-something`.
fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

fn verified(info: Result<ProgramInfo, aya::programs::ProgramError>) -> Option<u32> {
    info.expect("read the program's info").verified_instruction_count()
}

#[test]
fn every_program_loads_and_the_verifier_processes_as_many_instructions_as_before() {
    let Some(object) = bed::object() else {
        slipway_tests::skip!("the BPF programs, built by `cargo xtask ebpf`");
    };
    let node = Node::new();
    let counts: BTreeMap<String, Option<u32>> = node.run(|| {
        let mut ebpf = Ebpf::load(object).unwrap_or_else(|error| panic!("load the object: {error:?}"));
        let mut counts = BTreeMap::new();
        for name in [programs::UPLINK_INGRESS, programs::UPLINK_L3, programs::POD_INGRESS] {
            let program: &mut SchedClassifier = ebpf
                .program_mut(name)
                .expect("the object has the program")
                .try_into()
                .expect("the program is of type tc");
            bed::load(name, || program.load());
            counts.insert(name.to_owned(), verified(program.info()));
        }
        for name in programs::SOCKET {
            let program: &mut CgroupSockAddr = ebpf
                .program_mut(name)
                .expect("the object has the program")
                .try_into()
                .expect("the program is of type cgroup/sock_addr");
            bed::load(name, || program.load());
            counts.insert(name.to_owned(), verified(program.info()));
        }
        counts
    });
    let kernel = kernel();
    let golden: BTreeMap<&str, u32> = GOLDEN
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some(&kernel)).then(|| {
                let name = words.next().expect("a program name in instructions.golden");
                (
                    name,
                    words
                        .next()
                        .expect("a number in instructions.golden")
                        .parse()
                        .expect("a number in instructions.golden"),
                )
            })
        })
        .collect();
    let found: String = counts
        .iter()
        .map(|(name, count)| format!("{kernel} {name} {}\n", count.unwrap_or_default()))
        .collect();
    for (name, count) in counts {
        // Kernels before 5.16 do not report the number.
        let Some(count) = count else { continue };
        let (least, most) = match golden.get(&name[..]) {
            // Other compiler versions order instructions differently.
            Some(golden) => (golden - golden / 5, golden + golden / 5),
            None => (1, CEILING),
        };
        assert!((least..=most).contains(&count), "{name}: {count}; now:\n{found}");
    }
}

/// Measures each program's run time for a packet of an established connection, as the kernel reports it:
/// `cargo test -p slipway-tests --test ebpf_programs -- --ignored --nocapture time_per_packet`.
#[test]
#[ignore = "a measurement"]
fn time_per_packet() {
    const RUNS: usize = 20_000;
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let to_port = |flags| Ip::new(at.client, at.node).tcp((40000, bed::HOST_PORT), flags);
        let reply = |flags| Ip::new(at.pod, at.client).tcp((bed::POD_PORT, 40000), flags);
        rig.arrives(&to_port(SYN)).translated();
        rig.sends(&reply(SYN | ACK)).translated();
        rig.arrives(&to_port(ACK)).translated();
        let mut taken = [Vec::with_capacity(RUNS), Vec::with_capacity(RUNS)];
        for _ in 0..RUNS {
            taken[0].push(rig.arrives(&to_port(ACK)).nanoseconds);
            taken[1].push(rig.sends(&reply(ACK)).nanoseconds);
        }
        let name = if v6 { "IPv6" } else { "IPv4" };
        for (taken, program) in taken.iter_mut().zip(["uplink_ingress", "pod_ingress"]) {
            taken.sort_unstable();
            println!("{name} {program}: {} ns, a quarter under {}", taken[RUNS / 2], taken[RUNS / 4]);
        }
    }
}
