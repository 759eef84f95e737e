// SPDX-License-Identifier: GPL-2.0-or-later

//! The distributed binary depends on nothing of the system on which it runs.
//!
//! These tests run if the plugin directory contains the static build (`cargo xtask dist`, the test VMs). Otherwise they
//! are skipped, because the everyday build is dynamically linked.

use std::path::Path;

use serde_json::{Value, json};
use slipway_tests::{Node, Proto, SHARED_IN_NFTABLES, Snapshot, quoted, skip, slipway};

/// The plugin directory in the jail.
const BIN: &str = "/opt/cni/bin";
const JAIL: &str = "/mnt";

/// Returns the types of the program headers, among which is the header for the dynamic loader (elf(5), 64-bit
/// little-endian).
fn segments(file: &[u8]) -> Vec<u32> {
    assert_eq!(&file[..6], b"\x7fELF\x02\x01", "a 64-bit little-endian ELF file");
    let number = |at: usize, size: usize| {
        file[at..at + size].iter().rev().fold(0_usize, |value, byte| value << 8 | usize::from(*byte))
    };
    let (offset, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    (0..count).map(|i| u32::try_from(number(offset + i * size, 4)).expect("four bytes")).collect()
}

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;

fn is_static() -> bool {
    let file = std::fs::read(slipway()).expect("read the binary");
    !segments(&file).contains(&PT_INTERP)
}

#[test]
fn no_loader_is_needed() {
    if !is_static() {
        skip!("a static binary");
    }
    let file = std::fs::read(slipway()).expect("read the binary");
    assert!(!segments(&file).contains(&PT_DYNAMIC), "it has a dynamic section");
}

/// Creates a file system that contains only the plugins, /proc, /sys and the pod's namespace.
fn jail(node: &Node, netns: &Path) {
    // The mount is in the node's mount namespace, outside the folders of a snapshot.
    node.cmd(&format!("mount -t tmpfs tmpfs {JAIL}"));
    for folder in ["proc", "sys", "opt/cni/bin", "run/netns"] {
        node.cmd(&format!("mkdir -p {JAIL}/{folder}"));
    }
    node.cmd(&format!("mount -t proc proc {JAIL}/proc"));
    node.cmd(&format!("mount -t sysfs sysfs {JAIL}/sys"));
    node.cmd(&format!("mount --bind {} {JAIL}{BIN}", quoted(node.bin())));
    node.write(&format!("{JAIL}/run/netns/pod"), "");
    node.cmd(&format!("mount --bind {} {JAIL}/run/netns/pod", netns.display()));
}

#[test]
fn the_binary_runs_in_an_empty_file_system() {
    if !is_static() {
        skip!("a static binary");
    }
    let (node, client) = Node::with_client();
    let pod = node.pod("pod");
    jail(&node, pod.path());
    let call = |verb: &str, config: &Value| {
        let program = Path::new(BIN).join(config["type"].as_str().expect("a type"));
        let call = node.plugin("bridge").through(&["chroot", JAIL]).instead(&program).command(verb);
        call.container("pod").netns("/run/netns/pod").ifname("eth0").env("CNI_PATH", BIN).config(config).run()
    };
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipMasq": true, "ipam": {
            "type": "host-local", "subnet": "10.1.2.0/24", "routes": [{"dst": "0.0.0.0/0"}],
        },
    });
    let mut portmap = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "portmap", "runtimeConfig": {
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
        },
    });
    let state = || Snapshot::take(&node, &[&pod]).without(SHARED_IN_NFTABLES);
    let before = state();
    let first = call("ADD", &bridge).ok();
    portmap["prevResult"] = first.clone();
    let result = call("ADD", &portmap).ok();
    assert_eq!(result["ips"], first["ips"]);
    let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "pod");
    client.expect(Proto::Tcp, (client.node_v4, 8080), "pod");
    let mut check = bridge.clone();
    check["prevResult"] = result;
    assert!(call("CHECK", &check).ok().is_null());
    for config in [&portmap, &bridge] {
        assert!(call("DEL", config).ok().is_null());
    }
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
    let after = state();
    assert!(before.matching("nft element") == after.matching("nft element"), "nftables elements are left");
    assert!(!pod.has_link("eth0"));
}
