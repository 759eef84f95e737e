// SPDX-License-Identifier: GPL-2.0-or-later

//! A node at boot: other engines have their rules, and nothing of Slipway is loaded.

use slipway_tests::{Attach, Pod, Proto};

use crate::{PORT, Stage};

/// A pod that keeps running while programs, tables and pins are lost. `slipway restore` puts its entries back after
/// `engine` has written its rules.
pub(crate) fn restored(stage: &Stage, engine: impl FnOnce()) -> Pod {
    let pod = stage.node.pod("web");
    let attach = Attach::new(&pod).port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80);
    let network = stage.network();
    network.add(&attach).expect("ADD");
    network.write_cache(&attach);
    stage.node.slipway("node teardown");
    stage.node.cmd("nft flush ruleset");
    // An empty BPF file system as at boot, because below the node's own mount there may be one that all nodes of a VM
    // share.
    stage.node.cmd("mount -t bpf bpf /sys/fs/bpf");
    assert_eq!(stage.node.programs()["loaded"], false);
    engine();
    stage.node.slipway("restore");
    network.check(&attach).expect("CHECK");
    pod
}
