//! DEL and GC of a whole list.

use serde_json::{Value, json};
use slipway_tests::Attach;

use crate::world::{PORT, World};

/// However little the runtime knows by then.
pub(crate) fn del_needs_nothing_and_may_come_again(world: &World) {
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
            // As containerd does it.
            del(&attach);
            del(&attach.clone().netns(""));
            clean.assert_same(&world.state(&[&pod]));
        } else {
            // It has gone, and its path leads nowhere.
            let path = attach.netns.clone();
            world.end(pod);
            del(&attach.clone().netns(if remembered { path } else { "".into() }));
            del(&attach.netns(""));
            let after = settled(world, &before);
            assert!(after.is_empty(), "{why}: left:\n{}", after.join("\n"));
            continue;
        }
        world.end(pod);
    }
}

/// What differs from before, also after a while: the kernel takes a namespace apart in its own time.
fn settled(world: &World, before: &slipway_tests::Snapshot) -> Vec<String> {
    let mut changes = Vec::new();
    for _ in 0..50 {
        changes = before.changes(&world.state(&[]));
        if changes.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(40));
    }
    changes
}

/// The runtime has lost its memory, and says who is alive.
pub(crate) fn gc_leaves_the_living_alone(world: &World) {
    world.warm_up();
    let network = world.node.network(world.chain.modern());
    let (first, living) = (world.pod("first"), world.pod("living"));
    let kept = [world.chain.attach(&first, PORT + 1), world.chain.attach(&living, PORT + 2)];
    let nobody = world.state(&[]);
    for attach in &kept {
        network.add(attach).expect("ADD of one that stays");
    }
    let dead = world.pod("dead");
    let before = world.state(&[&first, &living]);
    let attach = world.chain.attach(&dead, PORT);
    network.add(&attach).expect("ADD of one that goes");
    network.forget();
    let list = kept.each_ref().map(|a| json!({"containerID": a.container, "ifname": a.ifname}));
    // Its namespace is there still when the runtime says that it is dead.
    network.gc_plugins(&list.to_vec().into()).unwrap_or_else(|failures| panic!("GC: {failures:?}"));
    before.assert_same(&world.state(&[&first, &living]));
    network.del(&attach).expect("DEL after a GC");
    world.end(dead);
    // Nobody is alive.
    network.gc_plugins(&Value::Null).unwrap_or_else(|failures| panic!("GC: {failures:?}"));
    // Chains that containers of a subnet share go with the last of them.
    let mut left = nobody.changes(&world.state(&[]));
    left.retain(|line| line.starts_with('+'));
    assert!(left.is_empty(), "left:\n{}", left.join("\n"));
}
