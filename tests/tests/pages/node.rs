// SPDX-License-Identifier: GPL-2.0-or-later

//! The pages about installing, operating and migrating a node.

use std::path::Path;

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Proto, REFERENCE, Reference, pages, plugin_names, quoted};

use crate::reader::Reader;
use crate::world::{PLUGINS, World};

/// The file with the node's settings.
const SETTINGS: &str = "/etc/cni/slipway.json";

pub(crate) fn readme(page: &mut Reader) {
    let world = World::bare();
    world.node.cmd("/opt/sbin/slipway install");
    page.types(&world.node, "slipway check-node");
    page.types(&world.node, "slipway uninstall");
    let ports = |attach: Attach| attach.port(Proto::Tcp, 8080, 80).port_on("192.0.2.2", Proto::Udp, 5353, 53);
    let web = world.attached("web1", ports);
    let _server = web.pod.serve(Proto::Tcp, "[::]:80", "web1");
    for _ in 0..3 {
        world.client.expect(Proto::Tcp, (world.client.node_v4, 8080), "web1");
    }
    for _ in 0..2 {
        world.client.expect(Proto::Tcp, (world.client.node_v6, 8080), "web1");
    }
    page.types(&world.node, "slipway ports");
}

pub(crate) fn installing(page: &mut Reader) {
    let world = World::bare();
    for name in plugin_names() {
        world.node.write(&format!("{PLUGINS}/{name}"), "#!/bin/sh\n");
    }
    world.node.cmd("cp -L /opt/sbin/slipway /root/slipway");
    page.types_in(&world.node, "/root", "./slipway install");
    page.types_in(&world.node, "/root", "./slipway install --replace");
    let web = world.web("web1");
    world.delete(&web);
    world.node.cmd(&format!("{PLUGINS}/slipway uninstall"));
    assert_eq!(world.node.list(PLUGINS), plugin_names(), "the former plugins are back");
}

pub(crate) fn logs(page: &mut Reader) {
    let world = World::new();
    world.node.write(SETTINGS, pages::file("docs/logs.md", SETTINGS));
    let _web = world.web("web1");
    page.types(&world.node, "grep");
    page.types_without_numbers(&world.node, "/root", "slipway support-bundle");
}

pub(crate) fn inspecting(page: &mut Reader) {
    let world = World::new();
    let node = &world.node;
    let _web = world.web("web1");
    world.drops_forwarded();
    page.types(node, "slipway explain");
}

pub(crate) fn removing(page: &mut Reader) {
    let world = World::bare();
    let node = &world.node;
    node.cmd("/opt/sbin/slipway install");
    let web = world.web("web1");
    page.types(node, "slipway uninstall");
    page.plays("crictl rmp");
    world.delete(&web);
    page.types(node, "slipway uninstall");
}

pub(crate) fn moving_to_ebpf(page: &mut Reader) {
    let world = World::new();
    if !slipway_tests::has_programs() {
        slipway_tests::record_skip("pages::moving_to_ebpf", slipway_tests::PROGRAMS);
        return page.leaves();
    }
    let _web = world.web("web1");
    page.types(&world.node, "slipway check-node");
    page.types(&world.node, "slipway node setup");
    world.node.write(SETTINGS, pages::file("docs/moving-to-ebpf.md", SETTINGS));
    page.types(&world.node, "slipway migrate --to ebpf");
    world.client.expect(Proto::Tcp, (world.client.node_v4, 8080), "web1");
    page.types(&world.node, "slipway migrate --to nftables");
    page.types(&world.node, "slipway node teardown");
    world.client.expect(Proto::Tcp, (world.client.node_v4, 8080), "web1");
}

pub(crate) fn second_network(page: &mut Reader) {
    let world = World::new();
    let blocks = pages::blocks("docs/second-network.md");
    let list = blocks.iter().find(|block| block.language == "json").expect("a configuration");
    world.node.write("/etc/cni/net.d/20-storage.conflist", list.text());
    for begin in ["slipwayd pod up", "slipway ports", "slipwayd pod down"] {
        page.types(&world.node, begin);
    }
}

pub(crate) fn thousand_pods(page: &mut Reader) {
    let world = World::new();
    let _web = world.web("web1");
    page.types(&world.node, "slipway node limits");
    page.types(&world.node, "slipwayd top");
}

/// A node with the reference plugins, or none if the machine does not have them.
pub(crate) fn with_reference(test: &str) -> Option<World> {
    let Some(reference) = Reference::any() else {
        slipway_tests::record_skip(test, REFERENCE);
        return None;
    };
    let world = World::bare();
    for name in ["bridge", "host-local", "portmap"] {
        world.node.cmd(&format!("cp {} {PLUGINS}", quoted(reference.plugin(name))));
    }
    Some(world)
}

pub(crate) fn migrating(page: &mut Reader) {
    let Some(mut world) = with_reference("pages::migrating") else { return page.leaves() };
    let ipam = &mut world.list["plugins"][0]["ipam"];
    ipam["ranges"] = json!([ipam["ranges"][0]]);
    let pod = world.node.pod("web1");
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    let network = world.network();
    network.remember(&attach, called(&world, &network, "ADD", &attach, Value::Null));
    network.write_cache(&attach);
    let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web1");
    world.node.cmd("/opt/sbin/slipway install --replace");
    let output = page.types(&world.node, "slipway migrate --to nftables --dry-run");
    assert_eq!(output.code, Some(3));
    page.types(&world.node, "slipway migrate --to nftables");
    world.client.expect(Proto::Tcp, (world.client.node_v4, 8080), "web1");
}

/// Calls the reference plugins in the plugin directory.
pub(crate) fn called(
    world: &World,
    network: &Network<'_>,
    verb: &str,
    attach: &Attach,
    mut result: Value,
) -> Value {
    let mut configs = network.configs(Some(attach));
    if verb == "DEL" {
        configs.reverse();
    }
    for mut config in configs {
        let program = Path::new(PLUGINS).join(config["type"].as_str().expect("a type"));
        if !result.is_null() {
            config["prevResult"] = result.clone();
        }
        assert!(world.node.run(|| program.is_file()), "{} is missing", program.display());
        let call = network.prepare(verb, &config, Some(attach)).env("CNI_PATH", PLUGINS).instead(&program);
        let printed = call.run().ok();
        if verb == "ADD" {
            result = printed;
        }
    }
    result
}

pub(crate) fn back_to_the_reference_plugins(page: &mut Reader) {
    let Some(world) = with_reference("pages::back_to_the_reference_plugins") else { return page.leaves() };
    let node = &world.node;
    node.cmd("/opt/sbin/slipway install --replace");
    let web = world.web("web3");
    page.types(node, "slipway migrate --to iptables");
    node.cmd("cp -L /opt/cni/bin/slipway /root/slipway");
    page.types(node, "slipway uninstall --keep-state");
    // The container is replaced by another one.
    let network = world.network();
    let result: Value =
        serde_json::from_str(&node.read(&network.cache_path(&web.attach)).expect("a cache")).expect("JSON");
    called(&world, &network, "DEL", &web.attach, result["result"].clone());
    node.cmd(&format!("rm {}", network.cache_path(&web.attach)));
    let next = node.pod("web4");
    called(&world, &network, "ADD", &Attach::new(&next).port(Proto::Tcp, 8080, 80), Value::Null);
    let _server = next.serve(Proto::Tcp, "0.0.0.0:80", "web4");
    world.client.expect(Proto::Tcp, (world.client.node_v4, 8080), "web4");
    let refused = node.try_cmd("/root/slipway uninstall");
    assert_eq!(refused.code, Some(1), "{refused}");
    page.types(node, "/root/slipway uninstall --force");
    world.client.expect(Proto::Tcp, (world.client.node_v4, 8080), "web4");
}

pub(crate) fn cnitool(page: &mut Reader) {
    let world = World::new();
    for begin in ["ip netns add", "CNI_PATH=/opt/cni/bin cnitool add", "CNI_PATH=/opt/cni/bin cnitool check"]
    {
        page.types(&world.node, begin);
    }
    page.types(&world.node, "CNI_PATH=/opt/cni/bin cnitool del");
    page.types(&world.node, "CNI_PATH=/opt/cni/bin cnitool add");
    page.types(&world.node, "CNI_PATH=/opt/cni/bin cnitool validate");
}

pub(crate) fn runtimes(page: &mut Reader) {
    let world = World::new();
    world.node.cmd("rm /etc/cni/net.d/10-pods.conflist");
    world.node.cmd("ip netns add web");
    world.node.write("/root/10-slipway.conflist", world.list.to_string());
    page.types_in(&world.node, "/root", "cp 10-slipway.conflist");
    page.types(&world.node, "mv /etc/cni/net.d/");
    page.types(&world.node, "CNI_PATH=/opt/cni/bin CAP_ARGS=");
    assert!(world.node.slipway("ports").contains("0.0.0.0:8080"));
}

pub(crate) fn pods(page: &mut Reader) {
    let world = World::new();
    for command in ["up", "status", "list", "down"] {
        page.types(&world.node, &format!("slipwayd pod {command}"));
    }
    assert!(!world.node.slipway("ports").contains("8080"));
}

pub(crate) fn cluster_install(page: &mut Reader) {
    let world = World::new();
    page.types_in(&world.node, "/root", "slipwayd render");
    world.node.cmd("mkdir -p /etc/systemd/system");
    page.types_in(&world.node, "/root", "cp deploy/slipwayd.service");
}

pub(crate) fn table(page: &mut Reader) {
    let world = World::new();
    let _web = world.web("web1");
    page.types(&world.node, "nft list map inet slipway hostports4");
}

pub(crate) fn sbr(page: &mut Reader) {
    sbr_in(&World::new(), page);
}

pub(crate) fn sbr_in(world: &World, page: &mut Reader) {
    let blocks = pages::blocks("docs/plugins/sbr.md");
    let config = blocks.iter().find(|block| block.language == "json").expect("a configuration");
    let network = world.node.network(serde_json::from_str(&config.text()).expect("JSON"));
    let pod = world.node.pod("web");
    network.add(&Attach::new(&pod).ifname("net1")).expect("ADD");
    page.types(&pod, "ip rule");
    page.types(&pod, "ip route show table 100");
}
