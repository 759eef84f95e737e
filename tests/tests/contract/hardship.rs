//! The contract under conditions that nodes in the field have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::json;
use slipway_tests::{
    Attach, BridgeNetfilter, NFT_RANGES, Proto, is_peer, newest_version, nft_loads_ranges, peer_fails, stride,
};

use crate::world::{
    Dataplane, PORT, SERVED, Web, World, each, gateways, in_every_topology, list, only_the_table,
};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Every place from which a published port is reached at once.
fn all_reach(world: &World, other: &Web, who: &str) {
    for (proto, to) in each(world.node_ips(), PORT) {
        world.client.expect(proto, to, who);
        world.node.expect(proto, to, who);
        other.expect(proto, to, who);
    }
    for (proto, to) in each([LOOPBACK], PORT) {
        world.node.expect(proto, to, who);
    }
}

/// Distributions switch the strict reverse path filter on, and some the loose one.
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
            all_reach(world, &other, "web");
            for (proto, to) in each(gateways(1), PORT) {
                web.expect(proto, to, "web");
            }
        });
    }
}

/// Without hairpinMode the bridge does not send a frame back where it came from; what is routed comes
/// from the bridge itself, so that a pod still reaches its own port.
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

/// `nft list ruleset` into a file, and back after a flush: what distributions do at shutdown and boot,
/// and firewall tools at each change. Names, comments and elements must survive it.
#[test]
fn the_ruleset_survives_a_reload() {
    if !nft_loads_ranges() {
        slipway_tests::skip!(NFT_RANGES);
    }
    only_the_table("iptables' matches cannot be read back by nft", || {
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
            // iptables' rules look different after they were read.
            assert_eq!(world.node.ruleset(), before);
        }
        all_reach(&world, &other, "web");
        one.check(&web.attach).expect("CHECK");
        // A later ADD works on the reloaded table, and DEL finds what belongs to it.
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

/// Somebody flushes everything: the next ADD makes the table again, and the DEL of those whose elements
/// are gone succeeds.
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
        network.del(&old.attach).expect("DEL of what is gone");
        network.del(&web.attach).expect("DEL");
    });
}

/// `nft flush table` empties the chains and keeps maps and elements: the next ADD repairs them.
#[test]
fn add_repairs_flushed_chains() {
    only_the_table("nothing is published in that table", || {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network(1);
        let _old = Web::published(&world, &network, "old");
        world.node.cmd("nft flush table inet slipway");
        world.client.expect_none(Proto::Tcp, (world.client.node_v4, PORT));
        let other = Web::new(&world, &network, "other", |a| a.port(Proto::Tcp, PORT + 1, SERVED));
        world.client.expect(Proto::Tcp, (world.client.node_v4, PORT + 1), "other");
        all_reach(&world, &other, "old");
        // The guard and the masquerade are back too.
        let _outside = world.client.serve(Proto::Tcp, "0.0.0.0:9000", "outside");
        let answer = other.expect(Proto::Tcp, (world.client.v4, 9000), "outside");
        assert_eq!(answer.peer.ip(), world.client.node_v4);
    });
}

/// Somebody deletes a base chain's rule set entirely, hooks and all.
#[test]
fn add_repairs_deleted_chains() {
    peer_fails("it has no table of that name", || {
        for chain in ["prerouting", "output", "postrouting", "guard"] {
            let world = World::new(BridgeNetfilter::Off);
            let network = world.network(1);
            let _old = Web::published(&world, &network, "old");
            world.node.cmd(&format!("nft flush chain inet slipway {chain}"));
            world.node.cmd(&format!("nft delete chain inet slipway {chain}"));
            let other = Web::new(&world, &network, "other", |a| a.port(Proto::Tcp, PORT + 1, SERVED));
            all_reach(&world, &other, "old");
            let rules = world.node.cmd(&format!("nft list chain inet slipway {chain}"));
            assert!(rules.contains("hook"), "{rules}");
        }
    });
}

/// A caller that sees other paths (a daemon in a container) cannot prove that a namespace is gone: it
/// must not take a living pod's port.
#[test]
fn a_caller_with_other_mounts_takes_nothing() {
    peer_fails("conflicts are silent", || {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network(1);
        let _first = Web::published(&world, &network, "first");
        let second = world.node.pod("second");
        // The second pod's namespace is elsewhere, and /run/netns is empty in the caller's world.
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

/// Many ports of one pod, alone and in runs, in one ADD.
#[test]
fn a_pod_may_publish_many_ports() {
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    // The reference needs a rule for each, and with the iptables backend the tool takes its time for each:
    // where tests are to be short, there are fewer.
    let count = match crate::DATAPLANE {
        _ if is_peer() => 40,
        Dataplane::Default | Dataplane::Flowtable | Dataplane::Ebpf => 1500,
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
        // The older reference fails its own CHECK of a dual-stack pod.
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

/// The pod behind a port has only IPv4: the port is not published in IPv6, and the node's own service
/// there is not hidden.
#[test]
fn a_single_family_pod_publishes_in_its_family() {
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

/// After a reboot the reservations are there and nothing else: no links, no rules, no namespaces. DEL of
/// the old attachments succeeds, with what a runtime remembers and without, and the same names start
/// afresh.
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
