// SPDX-License-Identifier: GPL-2.0-or-later

//! A node on which programs that decided themselves have left pins, filters and a chain.

use std::os::fd::AsFd;
use std::path::Path;

use aya::maps::Array;
use aya::programs::tc::{NlOptions, TcAttachOptions, TcHandle, qdisc_add_clsact};
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use slipway_ebpf_abi::maps::programs;
use slipway_tests::{Attach, PROGRAMS, Proto, at, attach_tcx, has_programs, needs};

use crate::{FAR, PORT, Stage, address, attach, list};

const FOLDER: &str = "/sys/fs/bpf/slipway";

/// The object with other names for two of its programs.
fn renamed() -> Vec<u8> {
    let mut object = cni_dataplane::ebpf::object().expect("the object").to_vec();
    for (name, former) in [(programs::INGRESS_POD, "pod_ingress"), (programs::EGRESS_POD, "uplink_l3")] {
        let wanted = format!("{name}\0");
        let at = object.windows(wanted.len()).position(|window| window == wanted.as_bytes());
        let at = at.unwrap_or_else(|| panic!("{name} is in the table of strings"));
        // A shorter name ends with zeros.
        object[at..at + name.len()].fill(0);
        object[at..at + former.len()].copy_from_slice(former.as_bytes());
    }
    object
}

fn make_folder(stage: &Stage, folder: &str) {
    if !stage.node.cmd("mount").contains("on /sys/fs/bpf type bpf") {
        stage.node.cmd("mount -t bpf bpf /sys/fs/bpf");
    }
    stage.node.cmd(&format!("mkdir -p {folder}"));
}

/// Leaves pins of a map and of the programs, a filter at the uplink, and one at a container's link: by tcx, if that is
/// wanted and the kernel has it.
fn leave_programs(stage: &Stage, container: &str, by_tcx: bool) {
    let folder = format!("{FOLDER}/3/programs-0123456789abcdef");
    make_folder(stage, &folder);
    let uplink = stage.client.node_link.clone();
    stage.node.run(|| {
        let mut ebpf = EbpfLoader::new().load(&renamed()).unwrap_or_else(|error| panic!("load: {error:?}"));
        let map = ebpf.take_map("flowhome").expect("a map");
        Array::<_, u64>::try_from(map).expect("an array").pin(format!("{FOLDER}/3/pods")).expect("pin a map");
        for (name, link) in [("uplink_l3", uplink.as_str()), ("pod_ingress", container)] {
            let program: &mut SchedClassifier =
                ebpf.program_mut(name).expect("the program").try_into().expect("a program of tc");
            program.load().unwrap_or_else(|error| panic!("load {name}: {error}"));
            program.pin(Path::new(&folder).join(name)).expect("pin the program");
            if by_tcx && name == "pod_ingress" {
                let index = if_nametoindex(link).expect("the link");
                match attach_tcx(index, program.fd().expect("a descriptor").as_fd()) {
                    Ok(()) => continue,
                    Err(errno) => assert_eq!(errno, Errno::EINVAL),
                }
            }
            // It may have clsact already.
            let _ = qdisc_add_clsact(link);
            attach_filter(&mut ebpf, name, link);
        }
    });
}

/// Attaches a program with the preference that such programs had.
fn attach_filter(ebpf: &mut Ebpf, name: &str, link: &str) {
    let program: &mut SchedClassifier =
        ebpf.program_mut(name).expect("the program").try_into().expect("a program of tc");
    if program.fd().is_err() {
        program.load().unwrap_or_else(|error| panic!("load {name}: {error}"));
    }
    let options = NlOptions { priority: 21324, handle: TcHandle::new(0, 1), classid: None };
    let id = program
        .attach_with_options(link, TcAttachType::Ingress, TcAttachOptions::Netlink(options))
        .expect("attach");
    std::mem::forget(program.take_link(id).expect("the link"));
}

/// Leaves the chain that kept source ports free.
fn leave_chain(stage: &Stage) {
    let mut script =
        "add chain inet slipway spare-ports\nadd rule inet slipway spare-ports masquerade\n".to_owned();
    let masquerade = "masquerade-10.88.1.0/24";
    let listed = stage.node.cmd(&format!("nft list chain inet slipway {masquerade}"));
    assert!(listed.contains("\t\tmasquerade\n"), "{listed}");
    script.push_str(&format!("flush chain inet slipway {masquerade}\n"));
    for rule in listed.lines().filter_map(|line| line.strip_prefix("\t\t")) {
        let rule = if rule == "masquerade" { "goto spare-ports" } else { rule };
        script.push_str(&format!("add rule inet slipway {masquerade} {rule}\n"));
    }
    stage.node.nft(&script);
}

fn sorted(ruleset: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = ruleset.lines().collect();
    lines.sort_unstable();
    lines
}

fn filters(stage: &Stage, link: &str) -> [String; 2] {
    ["ingress", "egress"].map(|side| stage.node.cmd(&format!("tc filter show dev {link} {side}")))
}

/// Runs a command, or an ADD, on a node with leftovers; the container was added before.
fn are_removed(command: Option<&str>, by_tcx: bool) {
    let stage = Stage::new();
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    let network = stage.node.network(list("nftables"));
    let pod = stage.node.pod("web");
    let result = network.add(&attach(&pod)).expect("ADD");
    let link = result["interfaces"][1]["name"].as_str().expect("the node's end").to_owned();
    let before = stage.node.ruleset();
    leave_programs(&stage, &link, by_tcx);
    leave_chain(&stage);
    let other = stage.node.pod("other");
    match command {
        Some(command) => drop(stage.node.slipway(command)),
        None => drop(stage.network().add(&Attach::new(&other)).expect("ADD")),
    }
    assert!(!stage.node.list("/sys/fs/bpf").contains(&"slipway".to_owned()));
    let ruleset = stage.node.ruleset();
    assert!(!ruleset.contains("spare-ports"), "{ruleset}");
    if command.is_some() {
        assert_eq!(sorted(&ruleset), sorted(&before));
    }
    let found = [filters(&stage, &stage.client.node_link), filters(&stage, &link)];
    let all = found.concat().concat();
    assert!(!all.contains("pod_ingress") && !all.contains("uplink_l3"), "{all}");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    let _far = stage.client.serve(Proto::Tcp, &at(stage.client.v4, FAR).to_string(), "far");
    let is_carried = command != Some("node teardown");
    stage.expect_carried(is_carried, Proto::Tcp, &stage.client, (stage.client.node_v4, PORT));
    let seen = stage.expect_carried(is_carried, Proto::Tcp, &pod, (stage.client.v4, FAR)).peer.ip();
    assert_eq!(seen, stage.client.node_v4);
}

#[test]
fn the_setup_removes_former_programs_and_attaches_to_their_containers() {
    needs!(has_programs(), PROGRAMS);
    are_removed(Some("node setup"), false);
    are_removed(Some("node setup"), true);
}

#[test]
fn the_next_add_removes_former_programs() {
    needs!(has_programs(), PROGRAMS);
    are_removed(None, false);
}

#[test]
fn the_teardown_removes_former_programs() {
    needs!(has_programs(), PROGRAMS);
    are_removed(Some("node teardown"), true);
}

/// A filter of another program with the same preference stays.
#[test]
fn filters_of_other_programs_stay() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let link = stage.client.node_link.clone();
    make_folder(&stage, FOLDER);
    stage.node.cmd(&format!("tc qdisc add dev {link} clsact"));
    stage.node.run(|| {
        let object = cni_dataplane::ebpf::object().expect("the object");
        let mut ebpf = EbpfLoader::new().load(object).unwrap_or_else(|error| panic!("load: {error:?}"));
        attach_filter(&mut ebpf, programs::EGRESS_L3, &link);
    });
    stage.node.slipway("node setup");
    assert!(!stage.node.list("/sys/fs/bpf").contains(&"slipway".to_owned()));
    let found = stage.filters(&link);
    assert!(found.contains("pref 21324 bpf chain 0 handle 0x1 flow_egress_l3"), "{found}");
}
