//! What the programs cost: the verifier's time, and each packet's.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::programs::{CgroupSockAddr, ProgramInfo, SchedClassifier};
use slipway_ebpf_abi::maps::programs;
use slipway_tests::Node;

use crate::wire::{ACK, Ip, SYN};
use crate::{bed, rig};

/// Instructions that the verifier looked at, `<kernel> <program> <number>` on each line.
const GOLDEN: &str = include_str!("instructions.golden");

/// On kernels that are not in the file: a fifth of what the verifier accepts (BPF_COMPLEXITY_LIMIT_INSNS).
const CEILING: u32 = 200_000;

/// `6.18` of `6.18.44-something`.
fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

fn verified(info: Result<ProgramInfo, aya::programs::ProgramError>) -> Option<u32> {
    info.expect("read what the kernel says").verified_instruction_count()
}

#[test]
fn every_program_loads_and_the_verifier_looks_at_as_many_instructions_as_before() {
    let Some(object) = bed::object() else {
        slipway_tests::skip!("the BPF programs, built by `cargo xtask ebpf`");
    };
    let node = Node::new();
    let counts: BTreeMap<String, Option<u32>> = node.run(|| {
        let mut ebpf = Ebpf::load(object).unwrap_or_else(|error| panic!("load the object: {error:?}"));
        let mut counts = BTreeMap::new();
        for name in [programs::UPLINK_INGRESS, programs::UPLINK_L3, programs::POD_INGRESS] {
            let program: &mut SchedClassifier =
                ebpf.program_mut(name).expect("is in the object").try_into().expect("is for tc");
            bed::load(name, || program.load());
            counts.insert(name.to_owned(), verified(program.info()));
        }
        for name in programs::SOCKET {
            let program: &mut CgroupSockAddr =
                ebpf.program_mut(name).expect("is in the object").try_into().expect("is for a cgroup");
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
                let name = words.next().expect("a program");
                (name, words.next().expect("a number").parse().expect("a number"))
            })
        })
        .collect();
    let found: String = counts
        .iter()
        .map(|(name, count)| format!("{kernel} {name} {}\n", count.unwrap_or_default()))
        .collect();
    for (name, count) in counts {
        // Before 5.16 the kernel does not say.
        let Some(count) = count else { continue };
        let (least, most) = match golden.get(&name[..]) {
            // Another compiler may order things differently.
            Some(golden) => (golden - golden / 5, golden + golden / 5),
            None => (1, CEILING),
        };
        assert!((least..=most).contains(&count), "{name}: {count}; now:\n{found}");
    }
}

/// What a packet of an established connection takes in each program, by the kernel's own clock. A measurement, and
/// no test: `cargo test -p slipway-tests --test ebpf_programs -- --ignored --nocapture takes`.
#[test]
#[ignore = "a measurement"]
fn what_a_packet_takes() {
    const RUNS: usize = 20_000;
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let to_port = |flags| Ip::new(at.client, at.node).tcp((40000, bed::HOST_PORT), flags);
        let answer = |flags| Ip::new(at.pod, at.client).tcp((bed::POD_PORT, 40000), flags);
        rig.arrives(&to_port(SYN)).translated();
        rig.sends(&answer(SYN | ACK)).translated();
        rig.arrives(&to_port(ACK)).translated();
        let mut taken = [Vec::with_capacity(RUNS), Vec::with_capacity(RUNS)];
        for _ in 0..RUNS {
            taken[0].push(rig.arrives(&to_port(ACK)).nanoseconds);
            taken[1].push(rig.sends(&answer(ACK)).nanoseconds);
        }
        let name = if v6 { "IPv6" } else { "IPv4" };
        for (taken, program) in taken.iter_mut().zip(["uplink_ingress", "pod_ingress"]) {
            taken.sort_unstable();
            println!("{name} {program}: {} ns, a quarter under {}", taken[RUNS / 2], taken[RUNS / 4]);
        }
    }
}
