// SPDX-License-Identifier: GPL-2.0-or-later

//! Conflicts, which decide the attachment that owns a port.

use slipway_tests::{Attach, BridgeNetfilter, Network, Proto, Snapshot, address_of, has_ipv6, peer_fails};

use crate::world::{PORT, SERVED, Web, World, each};

/// Calls ADD, which must fail with "try again later" and name the owner.
#[track_caller]
fn refused(network: &Network<'_>, attach: &Attach, owner: [&str; 3]) {
    let failure = network.add(attach).expect_err("the port is taken");
    assert_eq!((failure.plugin.as_str(), failure.error.code), ("portmap", 11), "{failure}");
    let text = format!("{} {}", failure.error.msg, failure.error.details);
    for part in owner {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert!(text.contains(&PORT.to_string()), "the port is not in: {text}");
    // A runtime calls DEL after a failed ADD.
    network.del(attach).expect("DEL");
}

#[test]
fn a_live_owner_keeps_its_port() {
    peer_fails("conflicts are silent", || {
        let world = World::new(BridgeNetfilter::Off);
        let (one, two) = (world.network(1), world.network(2));
        let first = Web::published(&world, &one, "first");
        let pod = world.node.pod("second");
        let owner = ["net1", "first", "eth0"];
        let of_ipv6 = has_ipv6().then_some("::");
        for mapping in ["", "0.0.0.0"].into_iter().chain(of_ipv6) {
            for network in [&one, &two] {
                for proto in Proto::ALL {
                    let attach = match mapping {
                        "" => Attach::new(&pod).port(proto, PORT, SERVED),
                        ip => Attach::new(&pod).port_on(ip, proto, PORT, SERVED),
                    };
                    refused(network, &attach, owner);
                }
            }
        }
        for (proto, to) in each(world.node_ips(), PORT) {
            world.client.expect(proto, to, "first");
        }
        // After the owner's DEL, the second container's ADD succeeds.
        one.del(&first.attach).expect("DEL");
        let attach = Attach::new(&pod).port(Proto::Tcp, PORT, SERVED).port(Proto::Udp, PORT, SERVED);
        let result = two.add(&attach).expect("ADD");
        let _second = Web::serve(pod, attach, &result);
        for (proto, to) in each(world.node_ips(), PORT) {
            world.client.expect(proto, to, "second");
        }
    });
}

#[test]
fn a_refused_add_leaves_nothing() {
    peer_fails("conflicts are silent", || {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network(1);
        let _first = Web::published(&world, &network, "first");
        let pod = world.node.pod("second");
        let before = Snapshot::take(&world.node, &[&pod]);
        // The second port would be free, but ADD publishes all ports or none.
        let attach = Attach::new(&pod).port(Proto::Tcp, PORT + 1, SERVED).port(Proto::Tcp, PORT, SERVED);
        refused(&network, &attach, ["net1", "first", "eth0"]);
        let after = Snapshot::take(&world.node, &[&pod]);
        let may_change = ["last_reserved_ip", "networks/.slipway/"];
        before.without(&may_change).assert_same(&after.without(&may_change));
    });
}

#[test]
fn one_container_may_have_two_attachments() {
    let world = World::new(BridgeNetfilter::Off);
    let (one, two) = (world.network(1), world.network(2));
    let pod = world.node.pod("pod");
    let first = Attach::new(&pod).port(Proto::Tcp, PORT, SERVED);
    let second = Attach::new(&pod).ifname("eth1").port(Proto::Tcp, PORT + 1, SERVED);
    // Only one of the attachments can have the default routes.
    let ip = address_of(&one.add(&first).expect("ADD eth0"), 0);
    let _web = pod.serve(Proto::Tcp, &format!("{ip}:{SERVED}"), "pod");
    let mut list = crate::world::list(2, &serde_json::json!({}));
    list["plugins"][0]["ipam"]["routes"] = serde_json::json!([]);
    drop(two);
    let two = world.node.network(list);
    two.add(&second).expect("ADD eth1");
    let to = (world.client.node_v4, PORT);
    world.client.expect(Proto::Tcp, to, "pod");
    two.del(&second).expect("DEL eth1");
    world.client.expect(Proto::Tcp, to, "pod");
    one.del(&first).expect("DEL eth0");
    world.client.expect_none(Proto::Tcp, to);
}

/// The pod's namespace disappears without a DEL (after a crash, a reboot, or with `ctr run`). The next ADD gets the
/// port and removes all elements of the dead owner.
#[test]
fn a_dead_owner_loses_its_port() {
    peer_fails("the older rule wins", || {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network(1);
        let first = Web::new(&world, &network, "first", |a| {
            let a = a.port(Proto::Tcp, PORT, SERVED).port(Proto::Udp, PORT, SERVED);
            a.port(Proto::Tcp, PORT + 1, SERVED)
        });
        let old = first.vanish();
        network.forget();
        let _second = Web::published(&world, &network, "second");
        for (proto, to) in each(world.node_ips(), PORT) {
            world.client.expect(proto, to, "second");
        }
        // All elements of the dead owner are removed, not only the conflicting one.
        let after = Snapshot::take(&world.node, &[]);
        let left: Vec<_> =
            after.matching("nft element").into_iter().filter(|line| line.contains("first")).collect();
        assert!(left.is_empty(), "{left:#?}");
        // A late DEL of the dead owner removes nothing that belongs to the new owner.
        network.del(&old).expect("a late DEL");
        for (proto, to) in each(world.node_ips(), PORT) {
            world.client.expect(proto, to, "second");
        }
    });
}

/// A new namespace at the same path is not the same namespace.
#[test]
fn a_recreated_namespace_does_not_keep_a_dead_owner_alive() {
    peer_fails("the older rule wins", || {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network(1);
        Web::published(&world, &network, "first").vanish();
        let _same_path = world.node.pod("first");
        let _second = Web::published(&world, &network, "second");
        world.client.expect(Proto::Tcp, (world.client.node_v4, PORT), "second");
    });
}

#[test]
fn gc_removes_stale_attachments_only() {
    peer_fails("GC does nothing", || {
        let world = World::new(BridgeNetfilter::Off);
        let (one, two) = (world.network(1), world.network(2));
        let stays = Web::new(&world, &one, "stays", |a| a.port(Proto::Tcp, PORT, SERVED));
        let _other = Web::new(&world, &two, "other", |a| a.port(Proto::Tcp, PORT + 1, SERVED));
        let gone = Web::new(&world, &one, "gone", |a| a.port(Proto::Tcp, PORT + 2, SERVED));
        gone.vanish();
        // The runtime has lost its cache, so only the plugins know the attachments.
        one.forget();
        one.gc(&[&stays.attach]).expect("GC");
        let node = world.client.node_v4;
        world.client.expect(Proto::Tcp, (node, PORT), "stays");
        world.client.expect(Proto::Tcp, (node, PORT + 1), "other");
        let after = Snapshot::take(&world.node, &[]);
        let left: Vec<_> = after.matching("gone");
        assert!(left.is_empty(), "{left:#?}");
    });
}
