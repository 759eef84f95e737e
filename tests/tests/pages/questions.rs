// SPDX-License-Identifier: GPL-2.0-or-later

//! The pages of `docs/questions`.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::json;
use slipway_tests::{Attach, BridgeNetfilter, Proto};

use crate::outputs::shown;
use crate::reader::Reader;
use crate::tutorials::serve_http;
use crate::world::{NETWORKS, World};

pub(crate) fn add_fails_with_code_11(page: &mut Reader) {
    let world = World::new();
    let _web = world.web("web1");
    let network = world.network();
    let late = world.node.pod("web2");
    let attach = Attach::new(&late).port(Proto::Tcp, 8080, 80);
    let failure = network.add(&attach).expect_err("the port is taken");
    let printed =
        json!({"code": failure.error.code, "msg": failure.error.msg, "details": failure.error.details});
    assert_eq!(printed, shown("docs/questions/add-fails-with-code-11.md"));
    page.types(&world.node, "slipway ports");
    page.types(&world.node, "slipway detach");
}

pub(crate) fn after_a_reboot(page: &mut Reader) {
    let world = World::new();
    let web = world.web("web3");
    // Imitates a reboot: rules and links are gone, and the runtime has created the namespace again.
    world.node.cmd("ip link delete cni0");
    world.node.cmd("nft flush ruleset");
    web.pod.cmd("ip link delete eth0");
    page.types(&world.node, "slipway restore");
    page.types(&world.node, "ls");
    page.types(&world.node, "slipway detach");
}

pub(crate) fn container_cannot_reach_outside(page: &mut Reader) {
    let world = World::new();
    let web = world.web("web1");
    let outside = Ipv4Addr::new(192, 0, 2, 9);
    world.drops_forwarded();
    world.while_tried(&web.pod, (outside, 9000), || page.types(&world.node, "slipway trace"));
    world.node.nft("delete table ip filter");
    page.types(&world.node, "slipway explain");
    for (family, next) in [("-4", IpAddr::from(world.client.v4)), ("-6", world.client.v6.into())] {
        world.node.cmd(&format!("ip {family} route add default via {next}"));
    }
    page.types(&world.node, "slipway connectivity-test");
}

pub(crate) fn ipv6_loopback_does_not_answer(page: &mut Reader) {
    let world = World::new();
    let web = world.attached("web1", |attach| attach.port(Proto::Tcp, 8080, 80));
    assert!(world.node.bridge_netfilter(BridgeNetfilter::On), "the kernel has no br_netfilter");
    serve_http(&web);
    page.types(&world.node, "slipway explain");
    for begin in ["curl", "sysctl", "curl"] {
        page.types(&world.node, begin);
    }
    world.node.cmd("ip -6 route delete local ::1 dev cni0 table local");
    page.types(&world.node, "slipway explain");
}

pub(crate) fn no_address_left(page: &mut Reader) {
    let world = World::new();
    let _web = world.attached("web1", |attach| attach);
    let list = json!({
        "cniVersion": "1.1.0", "name": "small", "plugins": [{
            "type": "bridge", "bridge": "cni1", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.23.0.0/29"}]]},
        }],
    });
    world.node.write(&format!("{NETWORKS}/20-small.conflist"), list.to_string());
    let network = world.node.network(list);
    for name in ["s1", "s2", "s3", "s4", "s5"] {
        let pod = world.node.pod(name);
        let attach = Attach::new(&pod);
        network.add(&attach).expect("ADD");
        network.write_cache(&attach);
    }
    let failure = network.add(&Attach::new(&world.node.pod("s6"))).expect_err("no address is left");
    assert!(failure.error.msg.contains("no IP addresses available in range set"), "{failure}");
    for begin in
        ["slipwayd top", "ls", "cat", "CNI_PATH=/opt/cni/bin slipway cnitool status", "slipway detach"]
    {
        page.types(&world.node, begin);
    }
}

pub(crate) fn port_does_not_answer(page: &mut Reader) {
    let world = World::new();
    let _web = world.web("web1");
    world.drops_forwarded();
    world.while_tried(&world.client, (world.client.node_v4, 8080), || {
        page.types(&world.node, "slipway trace")
    });
}

pub(crate) fn ruleset_was_flushed(page: &mut Reader) {
    let world = World::new();
    let _web = world.web("web1");
    world.node.cmd("nft flush ruleset");
    let output = page.types(&world.node, "slipway restore --dry-run");
    assert_eq!(output.code, Some(3));
    page.types(&world.node, "slipway restore");
    world.client.expect(Proto::Tcp, (world.client.node_v4, 8080), "web1");
}

pub(crate) fn what_slipway_changes(page: &mut Reader) {
    let world = World::new();
    let _web = world.web("web1");
    world.node.wait_up("veth0fa651da");
    for begin in ["nft list tables", "ip link show type veth", "sysctl", "ls"] {
        page.types(&world.node, begin);
    }
}
