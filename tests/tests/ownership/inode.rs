// SPDX-License-Identifier: GPL-2.0-or-later

//! The kernel assigns the inode number of a namespace that is gone to a new one. Only the cookie distinguishes them.

use std::os::unix::fs::MetadataExt as _;
use std::thread::sleep;
use std::time::Duration;

use slipway_tests::{Attach, Node, Proto, needs, skip, slipway_only};

use super::{PORT, list};

/// How many namespaces are created at most until one has the number. The kernel assigns the lowest free one.
const TRIES: usize = 1500;

fn number(node: &Node, path: &str) -> u64 {
    node.run(|| std::fs::metadata(path)).expect("a namespace").ino()
}

/// Creates namespaces until one has this number, and mounts that one at the path. Returns false if none gets it, for
/// instance because another program of the machine has it by now.
fn use_again(node: &Node, number_of_old: u64, path: &str) -> bool {
    let mut kept = Vec::new();
    for number_of_try in 0..TRIES {
        let name = format!("new{number_of_try}");
        let pod = node.pod(&name);
        let made = format!("/run/netns/{name}");
        if number(node, &made) == number_of_old {
            node.write(path, "");
            node.cmd(&format!("mount --bind {made} {path}"));
            return true;
        }
        kept.push(pod);
        // The kernel removes a namespace some time after its last user.
        if number_of_try % 50 == 49 {
            sleep(Duration::from_millis(100));
        }
    }
    false
}

/// The outcome of an ADD that requests the port of a container whose namespace `name` is gone, while another namespace
/// with the same number is mounted at its path.
fn taken_over(name: &str) -> Option<Result<(), String>> {
    let node = Node::new();
    let network = node.network(list("net", "ptp", "nftables", false));
    let (old, other) = (node.pod(name), node.pod("other"));
    network.add(&Attach::new(&old).container("old").port(Proto::Tcp, PORT, 80)).expect("ADD");
    let path = old.path().display().to_string();
    let number_of_old = number(&node, &path);
    old.remove();
    if !use_again(&node, number_of_old, &path) {
        return None;
    }
    let wanted = Attach::new(&other).port(Proto::Tcp, PORT, 80);
    Some(network.add(&wanted).map(drop).map_err(|failure| failure.error.msg))
}

#[test]
fn a_number_that_is_used_again_does_not_make_the_owner_live() {
    slipway_only!();
    needs!(matches!(cni_kernel::netns::own_cookie(), Ok(Some(_))), "cookies of network namespaces");
    // The control is a record that has no room for the cookie, because its path has more than 82 bytes.
    let long = "x".repeat(75);
    for (name, is_known) in [("old", true), (long.as_str(), false)] {
        match taken_over(name) {
            None => skip!("inode numbers of namespaces that are used again"),
            Some(Ok(())) => assert!(is_known, "the owner counts as alive without a cookie"),
            Some(Err(refused)) => {
                assert!(!is_known, "{refused}");
                assert!(refused.contains("is taken by network net, container old"), "{refused}");
            }
        }
    }
}
