// SPDX-License-Identifier: GPL-2.0-or-later

//! The node's clock jumps between calls, as by NTP after a boot with an empty battery.
//!
//! Plugins see the clock only in the times of files. So a jump is the same to them as files whose times are moved the other
//! way, which needs no machine of its own.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::json;
use slipway_tests::{Attach, Node, Proto, Snapshot, addresses_of, slipway_only, tally};

const DAY: Duration = Duration::from_secs(86_400);
/// The folders with files of Slipway and of the runtime.
const FOLDERS: [&str; 2] = ["/var/lib/cni", "/run/slipway"];

/// Moves the times of all files.
fn move_times(node: &Node, to: impl Fn(SystemTime) -> SystemTime + Sync) {
    fn walk(path: &Path, to: &impl Fn(SystemTime) -> SystemTime) {
        let Ok(metadata) = path.symlink_metadata() else { return };
        if metadata.is_dir() {
            for entry in std::fs::read_dir(path).expect("list a folder").flatten() {
                walk(&entry.path(), to);
            }
        }
        if metadata.is_dir() || metadata.is_file() {
            let time = to(metadata.modified().expect("a time"));
            File::open(path).and_then(|file| file.set_modified(time)).expect("set a file's time");
        }
    }
    node.run(|| FOLDERS.iter().for_each(|folder| walk(Path::new(folder), &to)));
}

/// Whatever the clock shows, no address is given out twice or lost, CHECK and restore find nothing wrong, GC removes only
/// stale attachments, and DEL leaves nothing.
#[test]
fn a_clock_that_jumps_changes_nothing() {
    slipway_only!();
    let earlier = |time: SystemTime| time - DAY;
    let later = |time: SystemTime| time + DAY;
    let epoch = |_: SystemTime| SystemTime::UNIX_EPOCH;
    let far = |_: SystemTime| SystemTime::UNIX_EPOCH + 50_000 * DAY;
    let jumps: [&(dyn Fn(SystemTime) -> SystemTime + Sync); 4] = [&earlier, &later, &epoch, &far];
    for (number, jump) in jumps.into_iter().enumerate() {
        let node = Node::new();
        let network = node.network(json!({"name": "net", "plugins": [
            {"type": "bridge", "isGateway": true, "ipMasq": true,
                "ipam": {"type": "host-local", "subnet": "10.1.2.0/29"}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ]}));
        let attach = |name: &str, port| Attach::new(&node.pod(name)).port(Proto::Tcp, port, 80);
        let mut taken = BTreeSet::new();
        let mut add = |attach: &Attach| -> IpAddr {
            let result = network.add(attach).unwrap_or_else(|e| panic!("jump {number}: ADD: {e}"));
            network.write_cache(attach);
            move_times(&node, jump);
            let address = addresses_of(&result)[0];
            assert!(taken.insert(address), "jump {number}: {address} of {taken:?}");
            address
        };
        let first = attach("first", 8001);
        let pods = [attach("a", 8002), attach("b", 8003), attach("c", 8004), attach("d", 8005)];
        let first_address = add(&first);
        for pod in &pods[..2] {
            add(pod);
        }
        network.del(&first).expect("DEL");
        node.cmd(&format!("rm {}", network.cache_path(&first)));
        move_times(&node, jump);
        for pod in &pods[2..] {
            add(pod);
        }
        let stale = attach("stale", 8006);
        let before = Snapshot::take(&node, &[]);
        let result = network.add(&stale).expect("the address that is left");
        move_times(&node, jump);
        assert_eq!(addresses_of(&result), [first_address], "jump {number}");
        let valid = pods.each_ref().map(|pod| json!({"containerID": pod.container, "ifname": pod.ifname}));
        network.gc_plugins(&json!(valid)).expect("GC");
        assert_eq!(node.reserved("net").len(), pods.len(), "jump {number}");
        for pod in &pods {
            network.check(pod).unwrap_or_else(|e| panic!("jump {number}: CHECK: {e}"));
        }
        let restored = node.slipway("restore");
        assert!(restored.starts_with("0 restored, 0 missing, "), "jump {number}: {restored}");
        let shared = ["last_reserved_ip", "networks/.slipway/", "folder "];
        before.without(&shared).assert_same(&Snapshot::take(&node, &[]).without(&shared));
        for pod in &pods {
            move_times(&node, jump);
            network.del(pod).unwrap_or_else(|e| panic!("jump {number}: DEL: {e}"));
        }
        assert!(node.reserved("net").is_empty() && !node.slipway("ports").contains("net"), "jump {number}");
        tally("jumps of the clock", 1);
    }
}
