//! A kernel, or a node, on which the programs cannot be: it is said why, and nftables serves.

use serde_json::json;
use slipway_tests::{PROGRAMS, Proto, has_programs, needs, skip, slipway};

use crate::{PORT, Stage, address, attach, list};

/// `r0 = *(u64 *)(r9 + 0)` with a register that holds nothing yet: Documentation/bpf/standardization/instruction-set.rst.
const READS_NOTHING: [u8; 8] = [0x79, 0x90, 0, 0, 0, 0, 0, 0];

/// Where the sections of this name are in an object of 64 bits: elf(5).
fn section(object: &[u8], wanted: &str) -> usize {
    let number = |at: usize, length: usize| {
        let mut bytes = [0; 8];
        bytes[..length].copy_from_slice(&object[at..at + length]);
        usize::try_from(u64::from_le_bytes(bytes)).expect("64 bits")
    };
    let (headers, size, count, names) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2), number(0x3e, 2));
    let header = |index: usize| headers + index * size;
    let strings = number(header(names) + 0x18, 8);
    for index in 0..count {
        let name = strings + number(header(index), 4);
        if object[name..].starts_with(wanted.as_bytes()) && object[name + wanted.len()] == 0 {
            return number(header(index) + 0x18, 8);
        }
    }
    panic!("no section {wanted}");
}

#[test]
fn what_the_verifier_says_is_shown() {
    let Some(object) = cni_dataplane::ebpf::object().filter(|_| has_programs()) else {
        skip!(PROGRAMS);
    };
    let stage = Stage::new();
    stage.node.run(|| cni_dataplane::ebpf::try_object(object)).expect("the kernel takes what was built");
    let mut broken = object.to_vec();
    let code = section(&broken, "classifier");
    broken[code..code + 8].copy_from_slice(&READS_NOTHING);
    let error =
        stage.node.run(|| cni_dataplane::ebpf::try_object(&broken)).expect_err("the verifier refuses");
    let text = error.to_string();
    assert!(
        text.starts_with("load the BPF program ") && text.contains("the verifier's last lines:"),
        "{text}"
    );
    assert!(text.contains("R9 !read_ok"), "{text}");
}

/// The kernel's type information is of no importance: the programs ask for nothing that moves.
#[test]
fn they_load_without_type_information_of_the_kernel() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    if stage.node.list("/sys/kernel/btf").contains(&"vmlinux".to_owned()) {
        stage.node.cmd("mount -t tmpfs tmpfs /sys/kernel/btf");
    }
    stage.node.slipway("node setup");
    assert_eq!(stage.node.programs()["setUp"], true);
}

#[test]
fn without_a_bpf_file_system_nftables_serves_and_it_is_said() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.own_etc();
    stage.node.write("/etc/cni/slipway.json", json!({"backend": "ebpf"}).to_string());
    // As with a kernel that has no such file system: there is no place to mount it.
    stage.node.cmd("mount -t tmpfs tmpfs /sys/fs");
    let network = stage.network();
    let pod = stage.node.pod("web");
    let attach = attach(&pod);
    let result = network.add(&attach).expect("ADD");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
    let report = stage.node.try_slipway("check-node").stdout;
    let line = report.lines().find(|line| line.contains("  cannot be loaded: ")).unwrap_or_default();
    assert!(line.starts_with("warning") && line.contains("/sys/fs/bpf"), "{report}");
    let failed = stage.node.try_slipway("node setup");
    assert!(failed.code == Some(1) && failed.stderr.contains("/sys/fs/bpf"), "{failed}");
    network.check(&attach).expect("CHECK");
    network.del(&attach).expect("DEL");
}

/// As in a container that may not load programs, or under a policy that forbids it.
#[test]
fn a_kernel_that_forbids_bpf_says_so() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.own_etc();
    stage.node.write("/etc/cni/slipway.json", json!({"backend": "ebpf"}).to_string());
    let without = |args: &str| {
        let program = slipway();
        stage.node.try_cmd(&format!("setpriv --bounding-set=-bpf,-sys_admin {} {args}", program.display()))
    };
    let failed = without("node setup");
    assert!(failed.code == Some(1) && failed.stderr.contains("Operation not permitted"), "{failed}");
    let report = without("check-node").stdout;
    let line = report.lines().find(|line| line.contains("  cannot be loaded: ")).unwrap_or_default();
    assert!(line.starts_with("warning") && line.contains("not permitted"), "{report}");
    // Where it is allowed, the same file is no reason for a warning.
    let report = stage.node.try_slipway("check-node").stdout;
    assert!(report.contains("this kernel takes them"), "{report}");
    let pod = stage.node.pod("web");
    stage.node.network(list("ebpf")).add(&attach(&pod)).expect("ADD");
    assert_eq!(stage.node.programs()["containers"], 1);
}
