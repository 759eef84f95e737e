//! A kernel, or a node, on which the programs cannot be: it is said why, and nftables serves.

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, PROGRAMS, Proto, has_programs, needs, skip, slipway};

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
    assert_eq!(stage.node.programs()["loaded"], true);
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
    assert!(report.contains("this kernel accepts them"), "{report}");
    let pod = stage.node.pod("web");
    stage.node.network(list("ebpf")).add(&attach(&pod)).expect("ADD");
    assert_eq!(stage.node.programs()["containers"], 1);
}

/// What a process sees of a seccomp filter, of a security module's policy, and of a kernel without bpf(2).
const REFUSALS: [(&str, &str); 3] = [
    ("EPERM", "Operation not permitted"),
    ("EACCES", "Permission denied"),
    ("ENOSYS", "Function not implemented"),
];

/// A program under strace(1), for which bpf(2) fails with this error.
fn refusing(error: &str) -> Vec<String> {
    let inject = format!("inject=bpf:error={error}");
    ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=bpf", "-e", &inject].map(str::to_owned).to_vec()
}

/// ADD of the whole list, each plugin so; what they said on standard error comes with the result.
fn add_so(network: &Network<'_>, attach: &Attach, wrapper: &[String]) -> (Value, String) {
    let words: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    let (mut result, mut said) = (Value::Null, String::new());
    for mut config in network.configs(Some(attach)) {
        if !result.is_null() {
            config["prevResult"] = result;
        }
        let call = network.prepare("ADD", &config, Some(attach)).env("SLIPWAY_LOG", "warn");
        let output = call.through(&words).run();
        said.push_str(&output.process.stderr);
        result = output.ok();
    }
    (result, said)
}

#[test]
fn where_bpf_is_refused_nftables_serves_and_it_is_said() {
    needs!(has_programs(), PROGRAMS);
    for (error, text) in REFUSALS {
        let stage = Stage::new();
        stage.node.own_etc();
        stage.node.write("/etc/cni/slipway.json", json!({"backend": "ebpf"}).to_string());
        stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
        let wrapper = refusing(error);
        let so =
            |args: &str| stage.node.try_cmd(&format!("{} {} {args}", wrapper.join(" "), slipway().display()));
        let failed = so("node setup");
        assert!(failed.code == Some(1) && failed.stderr.contains(text), "{failed}");
        assert!(failed.stderr.contains("bpf(2)"), "{failed}");
        let report = so("check-node").stdout;
        let line = report.lines().find(|line| line.contains("  cannot be loaded: ")).unwrap_or_default();
        assert!(line.starts_with("warning") && line.contains(text), "{report}");
        let pod = stage.node.pod("web");
        let attach = attach(&pod);
        let network = stage.network();
        let (result, said) = add_so(&network, &attach, &wrapper);
        assert!(said.contains("is left to nftables: ") && said.contains(text), "{said}");
        let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
        let _far = stage.client.serve(Proto::Tcp, &format!("{}:7000", stage.client.v4), "far");
        stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
        assert_eq!(pod.expect(Proto::Tcp, (stage.client.v4, 7000), "far").peer.ip(), stage.client.node_v4);
        assert_eq!(stage.node.programs()["loaded"], false);
        // Once it is allowed, the same container's ADD has the programs serve it.
        crate::publish(&network, &attach, &result);
        stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
        assert!(stage.carried() > 0, "{}", stage.node.programs());
        network.del(&attach).expect("DEL");
    }
}

/// The programs are there and serve; whoever comes later is not allowed to speak to them.
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
    let (result, said) = add_so(&network, &attach, &wrapper);
    assert!(said.contains("is left to nftables: ") && said.contains("Operation not permitted"), "{said}");
    let _two = two.serve(Proto::Tcp, &format!("{}:80", address(&result)), "two");
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT + 1), "two");
    assert_eq!(stage.carried(), 0, "{}", stage.node.programs());
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "one");
    assert!(stage.carried() > 0, "{}", stage.node.programs());
    let words: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    for mut config in network.configs(Some(&attach)).into_iter().rev() {
        config["prevResult"] = result.clone();
        network.prepare("DEL", &config, Some(&attach)).through(&words).run().ok();
    }
    stage.client.expect_none(Proto::Tcp, (stage.client.node_v4, PORT + 1));
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "one");
}
