// SPDX-License-Identifier: GPL-2.0-or-later

//! What the BPF programs cost the kernel's verifier: the instructions that it processes, and the states that it remembers.
#![allow(unsafe_code, reason = "aya does not return the verifier's log of a program that was loaded")]

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use aya::maps::MapData;
use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader};
use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_insn, bpf_prog_type};
use aya_obj::{Map, Object};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use slipway_ebpf_abi::maps::{CARRIED4, CARRIED6, programs};
use slipway_tests::{Node, PROGRAMS, has_programs, needs};

/// The numbers of instructions and of states, as a line `<kernel> <program> <instructions> <states>` for each.
const GOLDEN: &str = include_str!("verifier.golden");
/// The limit on both for kernels that the file does not contain.
const CEILING: u32 = 20_000;

/// A line of the file, without the kernel.
struct Golden {
    program: &'static str,
    instructions: u32,
    states: u32,
}

/// The lines of the file, by kernel.
fn golden() -> BTreeMap<&'static str, Vec<Golden>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for line in GOLDEN.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [kernel, program, instructions, states] = words[..] else { panic!("verifier.golden: {line:?}") };
        let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("verifier.golden: {line:?}"));
        let of = Golden { program, instructions: number(instructions), states: number(states) };
        all.entry(kernel).or_default().push(of);
    }
    all
}

/// Loads a program and returns the verifier's statistics: `processed … insns … total_states … peak_states …`.
fn statistics(instructions: &[bpf_insn]) -> io::Result<String> {
    /// `kernel/bpf/verifier.c`, `BPF_LOG_STATS`.
    const LOG_STATS: u32 = 4;
    let mut log = vec![0_u8; 1 << 16];
    // SAFETY: all fields are integers.
    let mut attr: bpf_attr = unsafe { std::mem::zeroed() };
    attr.__bindgen_anon_3.prog_type = bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS as u32;
    attr.__bindgen_anon_3.insns = instructions.as_ptr() as u64;
    attr.__bindgen_anon_3.insn_cnt = u32::try_from(instructions.len()).expect("few instructions");
    attr.__bindgen_anon_3.license = c"GPL".as_ptr() as u64;
    attr.__bindgen_anon_3.log_level = LOG_STATS;
    attr.__bindgen_anon_3.log_buf = log.as_mut_ptr() as u64;
    attr.__bindgen_anon_3.log_size = u32::try_from(log.len()).expect("a short log");
    // SAFETY: all pointers in the structure lead to memory that lives until the call returns, with the sizes beside them.
    let fd = unsafe {
        nix::libc::syscall(
            nix::libc::SYS_bpf,
            bpf_cmd::BPF_PROG_LOAD as u32,
            &raw mut attr,
            size_of::<bpf_attr>(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, which nobody else has.
    drop(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).expect("a descriptor")) });
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    Ok(String::from_utf8_lossy(&log[..end]).into_owned())
}

/// The number of instructions that the verifier processed for each program, and the most states that it remembered at a time.
fn figures() -> BTreeMap<&'static str, [u32; 2]> {
    // Before Linux 5.11, BPF's memory counts against this limit.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let mut object = Object::parse(cni_dataplane::ebpf::object().expect("the object")).expect("an object");
    Node::new().run(|| {
        let maps: Vec<(String, Map, MapData)> = std::mem::take(&mut object.maps)
            .into_iter()
            .map(|(name, mut map)| {
                if [CARRIED4, CARRIED6].contains(&name.as_str()) {
                    map.set_max_entries(64);
                }
                let made = MapData::create(map.clone(), &name, None);
                let made = made.unwrap_or_else(|error| panic!("{name}: {error}"));
                (name, map, made)
            })
            .collect();
        let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let descriptors =
            maps.iter().map(|(name, map, made)| (name.as_str(), made.fd().as_fd().as_raw_fd(), map));
        object.relocate_maps(descriptors, &sections).expect("maps");
        object.relocate_calls(&sections).expect("calls");
        let of = |name: &'static str| {
            let function = &object.functions[&object.programs[name].function_key()];
            let text = statistics(&function.instructions).unwrap_or_else(|error| panic!("{name}: {error}"));
            let words: Vec<&str> = text.split_whitespace().collect();
            let after = |word: &str| {
                let at = words.iter().position(|one| *one == word);
                let number = at.and_then(|at| words.get(at + 1)?.parse().ok());
                number.unwrap_or_else(|| panic!("{name}: no number of {word} in {text:?}"))
            };
            (name, ["processed", "peak_states"].map(after))
        };
        programs::ALL.map(of).into()
    })
}

/// The kernel's major and minor version: `6.18` of `6.18.44-something`.
fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the release");
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// True if the kernel compiles BPF programs to machine code.
fn is_compiler_on() -> bool {
    std::fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").is_ok_and(|value| value.trim() != "0")
}

/// The programs with the number of instructions that the verifier processed, and the time that verifier and compiler
/// took.
fn verify() -> [(&'static str, Option<u32>, Duration); programs::ALL.len()] {
    let object = cni_dataplane::ebpf::object().expect("the object");
    // Only the machine's initial network namespace has this setting.
    let is_compiled = is_compiler_on();
    let node = Node::new();
    node.run(|| {
        let mut ebpf: Ebpf = EbpfLoader::new()
            .map_max_entries(CARRIED4, 64)
            .map_max_entries(CARRIED6, 64)
            .load(object)
            .unwrap_or_else(|error| panic!("load the object: {error:?}"));
        programs::ALL.map(|name| {
            let program: &mut SchedClassifier =
                ebpf.program_mut(name).expect("the program").try_into().expect("a program of tc");
            let begun = Instant::now();
            program.load().unwrap_or_else(|error| panic!("load {name}: {error}"));
            let (taken, info) = (begun.elapsed(), program.info().expect("the program's info"));
            let compiled = info.size_jitted();
            assert_eq!(compiled > 0, is_compiled, "{name}: {compiled} bytes of machine code");
            (name, info.verified_instruction_count(), taken)
        })
    })
}

#[test]
fn the_verifier_has_as_much_work_as_before() {
    needs!(has_programs(), PROGRAMS);
    let mut golden = golden();
    let golden = golden.remove(kernel().as_str()).unwrap_or_default();
    // Other compiler versions order instructions differently, so the numbers may vary.
    let around = |number: u32| number - number / 5..=number + number / 5;
    let figures = figures();
    for (name, reported, _) in verify() {
        let [instructions, states] = figures[name];
        // Kernels before 5.16 report no number of a loaded program.
        assert!(
            reported.is_none_or(|reported| reported == instructions),
            "{name}: {reported:?} {instructions}"
        );
        let golden = golden.iter().find(|golden| golden.program == name);
        let expected = golden.map_or(1..=CEILING, |golden| around(golden.instructions));
        assert!(expected.contains(&instructions), "{name}: {instructions} instructions, not {expected:?}");
        let expected = golden.map_or(1..=CEILING, |golden| around(golden.states));
        assert!(expected.contains(&states), "{name}: {states} states, not {expected:?}");
    }
}

/// The documentation states the sums for each kernel.
#[test]
fn the_page_has_the_verifiers_numbers() {
    let page = include_str!("../../../docs/dataplane/ebpf-reference.md");
    // Versions are ordered by number, not alphabetically.
    let mut kernels: Vec<_> = golden().into_iter().collect();
    kernels.sort_by_key(|(kernel, _)| {
        kernel.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>()
    });
    let thousands =
        |sum: u32| if sum < 1000 { sum.to_string() } else { format!("{},{:03}", sum / 1000, sum % 1000) };
    let row = |title: &str, cell: &dyn Fn(&str, &[Golden]) -> String| {
        let cells = kernels.iter().map(|(kernel, of)| cell(kernel, of)).collect::<Vec<_>>();
        format!("| {title} | {} |\n", cells.join(" | "))
    };
    let table = [
        row("Linux", &|kernel, _| kernel.to_owned()),
        format!("|---|{}|\n", vec!["---:"; kernels.len()].join("|")),
        row("instructions", &|_, of| thousands(of.iter().map(|one| one.instructions).sum())),
        row("states", &|_, of| thousands(of.iter().map(|one| one.states).sum())),
    ]
    .concat();
    assert!(page.contains(&table), "docs/dataplane/ebpf-reference.md lacks:\n{table}");
}

/// Prints the numbers of instructions and states, and the time, for each program:
/// `cargo xtask vm-test --measure --suite carried --filter verification`.
#[test]
#[ignore = "a measurement"]
fn verification() {
    let (kernel, figures) = (kernel(), figures());
    for (name, _, taken) in verify() {
        let [instructions, states] = figures[name];
        println!("figure: {kernel} {name} {instructions} {states} {} us", taken.as_micros());
    }
}
