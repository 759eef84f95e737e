// SPDX-License-Identifier: GPL-2.0-or-later

//! DEL and GC of a whole list.

use serde_json::{Value, json};
use slipway_tests::Attach;

use crate::world::{PORT, World};

/// Calls DEL with and without the namespace and the cached result.
pub(crate) fn del_works_without_namespace_or_result_and_twice(world: &World) {
    world.warm_up();
    let before = world.state(&[]);
    let network = world.network();
    for (netns, remembered) in [(true, true), (true, false), (false, true), (false, false)] {
        let why = format!("with a namespace: {netns}, with a result: {remembered}");
        let pod = world.pod("pod");
        let clean = world.state(&[&pod]);
        let attach = world.chain.attach(&pod, PORT);
        network.add(&attach).unwrap_or_else(|failure| panic!("{why}: ADD: {failure}"));
        if !remembered {
            network.forget();
        }
        let del =
            |attach: &Attach| network.del(attach).unwrap_or_else(|failure| panic!("{why}: DEL: {failure}"));
        if netns {
            del(&attach);
            clean.assert_same(&world.state(&[&pod]));
            // containerd repeats DEL, the second time possibly without a namespace.
            del(&attach);
            del(&attach.clone().netns(""));
            clean.assert_same(&world.state(&[&pod]));
        } else {
            // The namespace is deleted, so its path does not exist any more.
            let path = attach.netns.clone();
            world.end(pod);
            del(&attach.clone().netns(if remembered { path } else { "".into() }));
            del(&attach.netns(""));
            let after = before.changes_in_the_end(|| world.state(&[]));
            assert!(after.is_empty(), "{why}: left:\n{}", after.join("\n"));
            continue;
        }
        world.end(pod);
    }
}

/// The runtime has lost its cache, but still lists the valid attachments.
pub(crate) fn gc_keeps_valid_attachments(world: &World) {
    world.warm_up();
    let network = world.node.network(world.chain.modern());
    let (first, living) = (world.pod("first"), world.pod("living"));
    let kept = [world.chain.attach(&first, PORT + 1), world.chain.attach(&living, PORT + 2)];
    let empty = world.state(&[]);
    for attach in &kept {
        network.add(attach).expect("ADD of a valid attachment");
    }
    let dead = world.pod("dead");
    let before = world.state(&[&first, &living]);
    let attach = world.chain.attach(&dead, PORT);
    network.add(&attach).expect("ADD of a stale attachment");
    network.forget();
    let list = kept.each_ref().map(|a| json!({"containerID": a.container, "ifname": a.ifname}));
    // The stale attachment still has its namespace.
    network.gc_plugins(&list.to_vec().into()).unwrap_or_else(|failures| panic!("GC: {failures:?}"));
    before.assert_same(&world.state(&[&first, &living]));
    network.del(&attach).expect("DEL after a GC");
    world.end(dead);
    // Now no attachment is valid.
    network.gc_plugins(&Value::Null).unwrap_or_else(|failures| panic!("GC: {failures:?}"));
    // Chains that containers of a subnet share are removed with the last of these containers.
    let mut left = empty.changes(&world.state(&[]));
    left.retain(|line| line.starts_with('+'));
    assert!(left.is_empty(), "left:\n{}", left.join("\n"));
}
