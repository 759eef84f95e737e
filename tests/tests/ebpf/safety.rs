// SPDX-License-Identifier: GPL-2.0-or-later

//! Kernels and nodes that refuse the BPF programs. nftables then does the work, and the reason is reported.

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, PROGRAMS, Proto, has_programs, needs, quoted, skip, slipway};

use crate::{PORT, Stage, address, attach, list};

/// `r0 = *(u64 *)(r10 + 8)`, a read outside the program's stack frame
/// (Documentation/bpf/standardization/instruction-set.rst).
const READS_BEYOND: [u8; 8] = [0x79, 0xa0, 8, 0, 0, 0, 0, 0];

/// The opcode that loads a 64-bit immediate, the only instruction of 16 bytes.
const LOADS: u8 = 0x18;

/// Returns the offset of a section in a 64-bit object file (elf(5)).
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
fn the_error_contains_the_verifiers_log() {
    let Some(object) = cni_dataplane::ebpf::object().filter(|_| has_programs()) else {
        skip!(PROGRAMS);
    };
    let stage = Stage::new();
    stage.node.run(|| cni_dataplane::ebpf::try_object(object)).expect("the kernel loads the object");
    let mut broken = object.to_vec();
    let code = section(&broken, "classifier");
    // Skips the instructions that load the address of a map, because the loader changes them.
    let mut at = code;
    while broken[at] == LOADS {
        at += 16;
    }
    broken[at..at + 8].copy_from_slice(&READS_BEYOND);
    let error =
        stage.node.run(|| cni_dataplane::ebpf::try_object(&broken)).expect_err("the verifier refuses");
    let text = error.to_string();
    assert!(
        text.starts_with("load the BPF program ") && text.contains("the verifier's last lines:"),
        "{text}"
    );
    assert!(text.contains("stack") && text.contains("off=8 size=8"), "{text}");
}

/// The programs do not need the kernel's BTF, because they read no kernel structures whose layout changes.
#[test]
fn the_programs_load_without_btf_of_the_kernel() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    if stage.node.list("/sys/kernel/btf").contains(&"vmlinux".to_owned()) {
        stage.node.cmd("mount -t tmpfs tmpfs /sys/kernel/btf");
    }
    stage.node.slipway("node setup");
    assert_eq!(stage.node.programs()["loaded"], true);
}

#[test]
fn without_a_bpf_file_system_nftables_serves_and_check_node_warns() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.write("/etc/cni/slipway.json", json!({"backend": "ebpf"}).to_string());
    // The directory for the mount does not exist, as on a kernel without a BPF file system.
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

/// As in a container without CAP_BPF, or under a policy that forbids bpf(2).
#[test]
fn a_missing_bpf_capability_is_reported() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.write("/etc/cni/slipway.json", json!({"backend": "ebpf"}).to_string());
    let without = |args: &str| {
        let program = slipway();
        stage.node.try_cmd(&format!("setpriv --bounding-set=-bpf,-sys_admin {} {args}", quoted(program)))
    };
    let failed = without("node setup");
    assert!(failed.code == Some(1) && failed.stderr.contains("Operation not permitted"), "{failed}");
    let report = without("check-node").stdout;
    let line = report.lines().find(|line| line.contains("  cannot be loaded: ")).unwrap_or_default();
    assert!(line.starts_with("warning") && line.contains("not permitted"), "{report}");
    // With the capabilities, `check-node` does not warn about the same configuration.
    let report = stage.node.try_slipway("check-node").stdout;
    assert!(report.contains("this kernel accepts them"), "{report}");
    let pod = stage.node.pod("web");
    stage.node.network(list("ebpf")).add(&attach(&pod)).expect("ADD");
    assert_eq!(stage.node.programs()["containers"], 1);
}

/// Errors of a seccomp filter, of a security module, and of a kernel without bpf(2).
const REFUSALS: [(&str, &str); 3] = [
    ("EPERM", "Operation not permitted"),
    ("EACCES", "Permission denied"),
    ("ENOSYS", "Function not implemented"),
];

/// Returns a strace(1) wrapper under which bpf(2) fails with this error.
fn refusing(error: &str) -> Vec<String> {
    let inject = format!("inject=bpf:error={error}");
    ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=bpf", "-e", &inject].map(str::to_owned).to_vec()
}

/// Calls ADD of each plugin through the wrapper. Returns the result and the plugins' standard error.
fn add_through(network: &Network<'_>, attach: &Attach, wrapper: &[String]) -> (Value, String) {
    let words: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    let (mut result, mut stderr) = (Value::Null, String::new());
    for mut config in network.configs(Some(attach)) {
        if !result.is_null() {
            config["prevResult"] = result;
        }
        let call = network.prepare("ADD", &config, Some(attach)).env("SLIPWAY_LOG", "warn");
        let output = call.through(&words).run();
        stderr.push_str(&output.process.stderr);
        result = output.ok();
    }
    (result, stderr)
}

#[test]
fn where_bpf_is_refused_nftables_serves_and_the_plugin_warns() {
    needs!(has_programs(), PROGRAMS);
    for (error, text) in REFUSALS {
        let stage = Stage::new();
        stage.node.write("/etc/cni/slipway.json", json!({"backend": "ebpf"}).to_string());
        stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
        let wrapper = refusing(error);
        let run_wrapped =
            |args: &str| stage.node.try_cmd(&format!("{} {} {args}", wrapper.join(" "), quoted(slipway())));
        let failed = run_wrapped("node setup");
        assert!(failed.code == Some(1) && failed.stderr.contains(text), "{failed}");
        assert!(failed.stderr.contains("bpf(2)"), "{failed}");
        let report = run_wrapped("check-node").stdout;
        let line = report.lines().find(|line| line.contains("  cannot be loaded: ")).unwrap_or_default();
        assert!(line.starts_with("warning") && line.contains(text), "{report}");
        let pod = stage.node.pod("web");
        let attach = attach(&pod);
        let network = stage.network();
        let (result, stderr) = add_through(&network, &attach, &wrapper);
        assert!(stderr.contains("is left to nftables: ") && stderr.contains(text), "{stderr}");
        let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
        let _far = stage.client.serve(Proto::Tcp, &format!("{}:7000", stage.client.v4), "far");
        stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
        assert_eq!(pod.expect(Proto::Tcp, (stage.client.v4, 7000), "far").peer.ip(), stage.client.node_v4);
        assert_eq!(stage.node.programs()["loaded"], false);
        // Once bpf(2) is allowed, a repeated ADD of the same container lets the programs carry its packets.
        crate::publish(&network, &attach, &result);
        stage.expect_carried(true, Proto::Tcp, &stage.client, (stage.client.node_v4, PORT));
        network.del(&attach).expect("DEL");
    }
}

/// The BPF programs serve one container, and then bpf(2) is refused to the next container's ADD.
#[test]
fn where_bpf_is_refused_later_the_next_container_is_left_to_nftables() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let network = stage.network();
    let (one, two) = (stage.node.pod("one"), stage.node.pod("two"));
    let result = network.add(&Attach::new(&one).port(Proto::Tcp, PORT, 80)).expect("ADD");
    let _one = one.serve(Proto::Tcp, &format!("{}:80", address(&result)), "one");
    let wrapper = refusing("EPERM");
    let attach = Attach::new(&two).port(Proto::Tcp, PORT + 1, 80);
    let (result, stderr) = add_through(&network, &attach, &wrapper);
    assert!(
        stderr.contains("is left to nftables: ") && stderr.contains("Operation not permitted"),
        "{stderr}"
    );
    let _two = two.serve(Proto::Tcp, &format!("{}:80", address(&result)), "two");
    stage.expect_carried(false, Proto::Tcp, &stage.client, (stage.client.node_v4, PORT + 1));
    stage.expect_carried(true, Proto::Tcp, &stage.client, (stage.client.node_v4, PORT));
    let words: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    for mut config in network.configs(Some(&attach)).into_iter().rev() {
        config["prevResult"] = result.clone();
        network.prepare("DEL", &config, Some(&attach)).through(&words).run().ok();
    }
    stage.client.expect_none(Proto::Tcp, (stage.client.node_v4, PORT + 1));
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "one");
}
