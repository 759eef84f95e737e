// SPDX-License-Identifier: GPL-2.0-or-later

//! The contract under conditions that occur on real nodes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::json;
use slipway_tests::{
    Attach, BridgeNetfilter, NFT_RANGES, Proto, is_peer, needs_ipv6, newest_version, nft_loads_ranges,
    peer_fails, stride,
};

use crate::world::{
    Dataplane, PORT, SERVED, Web, World, each, gateways, in_every_topology, list, only_nftables,
};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The client, the node and another pod reach the published port.
fn all_reach_the_port(world: &World, other: &Web, who: &str) {
    for (proto, to) in each(world.node_ips(), PORT) {
        world.client.expect(proto, to, who);
        world.node.expect(proto, to, who);
        other.expect(proto, to, who);
    }
    for (proto, to) in each([LOOPBACK], PORT) {
        world.node.expect(proto, to, who);
    }
}

/// Some distributions use the strict reverse path filter, others the loose one.
#[test]
fn reverse_path_filters_do_not_matter() {
    for filter in ["1", "2"] {
        in_every_topology(|world| {
            for place in ["all", "default", "out0"] {
                world.node.sysctl(&format!("net/ipv4/conf/{place}/rp_filter"), filter);
            }
            let (one, two) = (world.network(1), world.network(2));
            let web = Web::published(world, &one, "web");
            let other = Web::new(world, &two, "other", |a| a);
            all_reach_the_port(world, &other, "web");
            for (proto, to) in each(gateways(1), PORT) {
                web.expect(proto, to, "web");
            }
        });
    }
}

/// Without hairpinMode, a bridge does not send a frame out of the port on which it came in. A routed packet is sent by
/// the bridge itself, so a pod still reaches its own port.
#[test]
fn hairpin_works_without_hairpin_mode() {
    let world = World::new(BridgeNetfilter::Off);
    let mut list = list(1, &json!({}));
    list["plugins"][0]["hairpinMode"] = false.into();
    let network = world.node.network(list);
    let web = Web::published(&world, &network, "web");
    for (proto, to) in each(world.node_ips().into_iter().chain(gateways(1)), PORT) {
        web.expect(proto, to, "web");
    }
}

/// Distributions save the ruleset with `nft list ruleset` at shutdown and load it at boot, and firewall tools do so at
/// each change. Names, comments and elements must survive that.
#[test]
fn the_ruleset_survives_a_reload() {
    if !nft_loads_ranges() {
        slipway_tests::skip!(NFT_RANGES);
    }
    only_nftables("iptables' matches cannot be read back by nft", || {
        let world = World::new(BridgeNetfilter::Off);
        let (one, two) = (world.network(1), world.network(2));
        let web = Web::published(&world, &one, "web");
        let other = Web::new(&world, &two, "other", |a| {
            a.port_on("192.0.2.1", Proto::Tcp, PORT + 1, SERVED).port(Proto::Tcp, 9000, 9000)
        });
        let before = world.node.ruleset();
        world.node.cmd("nft flush ruleset");
        world.node.nft(&before);
        if !is_peer() {
            // nft prints the rules of iptables differently after it has loaded them.
            assert_eq!(world.node.ruleset(), before);
        }
        all_reach_the_port(&world, &other, "web");
        one.check(&web.attach).expect("CHECK");
        // ADD works on the reloaded table, and DEL finds its elements.
        let late = Web::new(&world, &one, "late", |a| a.port(Proto::Tcp, PORT + 2, SERVED));
        world.client.expect(Proto::Tcp, (world.client.node_v4, PORT + 2), "late");
        for (network, pod) in [(&one, &web), (&two, &other), (&one, &late)] {
            network.del(&pod.attach).expect("DEL");
        }
        if !is_peer() {
            let left = world.node.ruleset();
            assert!(!left.contains("slipway1"), "{left}");
        }
    });
}

/// Another program flushes the ruleset. The next ADD creates the table again, and DEL of attachments without
/// elements succeeds.
#[test]
fn add_and_del_work_after_a_flush() {
    peer_fails("DEL fails when its rules are gone", || {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network(1);
        let old = Web::published(&world, &network, "old");
        world.node.cmd("nft flush ruleset");
        network.check(&old.attach).expect_err("CHECK sees that the port is gone");
        let web = Web::new(&world, &network, "web", |a| {
            a.port(Proto::Tcp, PORT + 1, SERVED).port(Proto::Udp, PORT + 1, SERVED)
        });
        for (proto, to) in each(world.node_ips(), PORT + 1) {
            world.client.expect(proto, to, "web");
            world.node.expect(proto, to, "web");
        }
        network.del(&old.attach).expect("DEL without elements");
        network.del(&web.attach).expect("DEL");
    });
}

/// Another program deletes a base chain with its hook.
#[test]
fn add_repairs_deleted_chains() {
    peer_fails("it has no such table", || {
        for chain in ["prerouting", "output", "postrouting", "guard", "guard-input"] {
            let world = World::new(BridgeNetfilter::Off);
            let network = world.network(1);
            let _old = Web::published(&world, &network, "old");
            world.node.cmd(&format!("nft flush chain inet slipway {chain}"));
            world.node.cmd(&format!("nft delete chain inet slipway {chain}"));
            let other = Web::new(&world, &network, "other", |a| a.port(Proto::Tcp, PORT + 1, SERVED));
            all_reach_the_port(&world, &other, "old");
            let rules = world.node.cmd(&format!("nft list chain inet slipway {chain}"));
            assert!(rules.contains("hook"), "{rules}");
        }
    });
}

/// A caller with other mounts (a daemon in a container, for instance) cannot prove that a namespace is gone, so it must
/// not take a live pod's port.
#[test]
fn a_caller_with_other_mounts_takes_no_port() {
    peer_fails("conflicts are silent", || {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network(1);
        let _first = Web::published(&world, &network, "first");
        let second = world.node.pod("second");
        // The second pod's namespace has another path, and /run/netns is empty for the caller.
        world.node.cmd("touch /run/second");
        world.node.cmd("mount --bind /run/netns/second /run/second");
        let attach = Attach::new(&second).netns("/run/second").port(Proto::Tcp, PORT, SERVED);
        let configs = network.configs(Some(&attach));
        let result = network.call("ADD", &configs[0], Some(&attach)).ok();
        let mut portmap = configs[1].clone();
        portmap["prevResult"] = result;
        let script = "mount -t tmpfs tmpfs /run/netns && exec \"$0\"";
        let call = world.node.plugin("portmap").command("ADD").for_pod(&second).netns("/run/second");
        let call = call.config(&portmap).through(&["unshare", "--mount", "sh", "-c", script]);
        let error = call.run().error();
        assert_eq!(error.code, 11, "{error:?}");
        assert!(error.msg.contains("first"), "{error:?}");
        for (proto, to) in each(world.node_ips(), PORT) {
            world.client.expect(proto, to, "first");
        }
    });
}

/// A single ADD with many ports, given as single ports and as ranges.
#[test]
fn a_pod_may_publish_many_ports() {
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    // The reference needs a rule per port, and the iptables programs take time for each rule, so those
    // backends get fewer ports.
    let count = match crate::DATAPLANE {
        _ if is_peer() => 40,
        Dataplane::Default | Dataplane::Flowtable | Dataplane::Ebpf | Dataplane::UdpGro => 1500,
        Dataplane::Iptables(_) => 1500 / u16::try_from(stride()).expect("a stride is small"),
    };
    let prepare = |mut attach: Attach| {
        for n in 0..count {
            attach = attach.port(Proto::Tcp, 10_000 + 2 * n, SERVED);
        }
        for n in 0..count {
            attach = attach.port(Proto::Udp, 20_000 + n, 20_000 + n);
        }
        attach
    };
    let web = Web::new(&world, &network, "web", prepare);
    let _udp = web.serve(Proto::Udp, &format!("{}:{}", web.v4, 20_000 + count - 1), "last");
    let node = world.client.node_v4;
    for port in [10_000, 10_000 + count, 10_000 + 2 * (count - 1)] {
        world.client.expect(Proto::Tcp, (node, port & !1), "web");
    }
    world.client.expect_none(Proto::Tcp, (node, 10_001));
    world.client.expect(Proto::Udp, (node, 20_000 + count - 1), "last");
    if newest_version() != "1.0.0" {
        // CHECK of a dual-stack pod fails with the older reference plugins, even without other changes.
        network.check(&web.attach).expect("CHECK");
    }
    network.del(&web.attach).expect("DEL");
    for port in [10_000, 10_000 + count] {
        world.client.expect_none(Proto::Tcp, (node, port));
    }
    if !is_peer() {
        let left = world.node.ruleset();
        assert!(!left.contains("slipway1"), "{left}");
    }
}

/// The pod has only IPv4, so the port is not published for IPv6, where the node's own service stays reachable.
#[test]
fn a_single_family_pod_publishes_in_its_family() {
    needs_ipv6!();
    let world = World::new(BridgeNetfilter::Off);
    let mut list = list(1, &json!({}));
    list["plugins"][0]["ipam"]["ranges"] = json!([[{"subnet": "10.88.1.0/24"}]]);
    list["plugins"][0]["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
    let network = world.node.network(list);
    let pod = world.node.pod("web");
    let attach = Attach::new(&pod).port(Proto::Tcp, PORT, SERVED);
    network.add(&attach).expect("ADD");
    let _web = pod.serve(Proto::Tcp, &format!("0.0.0.0:{SERVED}"), "web");
    let _own = world.node.serve(Proto::Tcp, &format!("[::]:{PORT}"), "own");
    world.client.expect(Proto::Tcp, (world.client.node_v4, PORT), "web");
    world.client.expect(Proto::Tcp, (world.client.node_v6, PORT), "own");
    world.node.expect(Proto::Tcp, (Ipv6Addr::LOCALHOST, PORT), "own");
    network.del(&attach).expect("DEL");
}

/// After a reboot, only the reservations are left, but no links, rules or namespaces. DEL of old attachments succeeds
/// with and without the cached result, and the same names can be added again.
#[test]
fn del_and_add_work_after_a_reboot() {
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let remembered = Web::published(&world, &network, "remembered").vanish();
    let forgotten =
        Web::new(&world, &network, "forgotten", |a| a.port(Proto::Tcp, PORT + 1, SERVED)).vanish();
    world.node.cmd("nft flush ruleset");
    world.node.cmd("ip link delete br1");
    network.del(&remembered).expect("DEL with the cached result");
    network.forget();
    network.del(&forgotten).expect("DEL without");
    network.del(&forgotten.clone().netns("")).expect("DEL without a namespace");
    let reserved = world.node.list("/var/lib/cni/networks/net1");
    let left: Vec<_> = reserved.iter().filter(|name| name.starts_with("10.")).collect();
    assert!(left.is_empty(), "{left:?}");
    let web = Web::published(&world, &network, "remembered");
    for (proto, to) in each(world.node_ips(), PORT) {
        world.client.expect(proto, to, "remembered");
    }
    network.del(&web.attach).expect("DEL");
}
