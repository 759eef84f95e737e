// SPDX-License-Identifier: GPL-2.0-or-later

//! Ports that are not restored: those of dead or unknown containers, and those that another container owns.

use serde_json::{Value, json};
use slipway_tests::{Attach, Proto, at};

use crate::{PORT, SERVED, Web, World, count, line, silent};

#[test]
fn ports_of_a_removed_container_are_not_restored() {
    let world = World::new();
    let network = world.bridge(1);
    let live = Web::published(&world, &network, "live", PORT);
    let dead = Web::published(&world, &network, "dead", PORT + 1);
    let dead = dead.vanish();
    world.node.cmd("nft flush ruleset");
    let (report, code) = world.restore("");
    assert_eq!(code, 0, "{report:#}");
    let left = line(&report, "dead", "container");
    assert_eq!(left["state"], "skipped");
    assert_eq!(left["reason"], "the container is gone: no namespace at /run/netns/dead");
    assert!(!world.node.ruleset().contains("dead"));
    world.client.expect(Proto::Tcp, at(world.client.node_v4, PORT), "live");
    silent(&world.client, at(world.client.node_v4, PORT + 1));
    drop((live, dead));
}

/// Another container, which has no such port, has a namespace at the same path.
#[test]
fn another_container_at_the_same_path_gets_no_port() {
    let world = World::new();
    let network = world.bridge(1);
    let old = Web::published(&world, &network, "pod", PORT).vanish();
    let pod = world.node.pod("pod");
    let new = Attach::new(&pod).container("new");
    network.add(&new).expect("ADD");
    network.write_cache(&new);
    world.node.cmd("nft flush ruleset");
    let (report, code) = world.restore("");
    assert_eq!(code, 0, "{report:#}");
    let left = line(&report, "pod", "container");
    assert_eq!(
        left["reason"], "its link belongs to network net1, container new, interface eth0",
        "{report:#}"
    );
    assert!(!world.node.slipway("ports").contains("8080"), "{report:#}");
    assert_eq!(line(&report, "new", "masquerade")["state"], "restored");
    drop(old);
}

/// A container whose link names no owner, like a link of the reference plugins, is identified by its addresses.
#[test]
fn a_link_without_an_owner_is_identified_by_its_addresses() {
    let world = World::new();
    let network = world.bridge(1);
    let web = Web::published(&world, &network, "web", PORT);
    let host_end = world.node.cmd("ip -o link show type veth master br1");
    let host_end = host_end.split([':', '@']).nth(1).expect("a name").trim().to_owned();
    world.node.cmd_input("ip -batch -", &format!("link set {host_end} alias \"\"\n"));
    world.node.cmd("nft flush ruleset");
    assert!(world.restored() > 0);
    world.client.expect(Proto::Tcp, at(world.client.node_v4, PORT), "web");
    world.node.cmd("nft flush ruleset");
    web.cmd(&format!("ip address del {}/24 dev eth0", web.ips[0]));
    let (report, _) = world.restore("");
    let left = line(&report, "web", "container");
    assert!(left["reason"].as_str().unwrap().contains("does not have the address"), "{report:#}");
    web.cmd(&format!("ip address add {}/24 dev eth0", web.ips[0]));
    web.cmd("ip link set eth0 address 02:00:00:00:00:99");
    let (report, _) = world.restore("");
    let left = line(&report, "web", "container");
    assert!(
        left["reason"].as_str().unwrap().contains("does not have the result's MAC address"),
        "{report:#}"
    );
    assert_eq!(count(&report, "restored"), 0, "{report:#}");
}

/// According to the cache, two live containers have the same port. Its current owner keeps it.
#[test]
fn a_port_of_a_live_container_is_not_taken() {
    let world = World::new();
    let network = world.bridge(1);
    let first = Web::new(&world, &network, "first", |attach| attach);
    let second = Web::published(&world, &network, "second", PORT);
    let path = network.cache_path(&first.attach);
    let mut file: Value = serde_json::from_str(&world.node.read(&path).unwrap()).unwrap();
    file["capabilityArgs"] =
        json!({"portMappings": [{"hostPort": PORT, "containerPort": SERVED, "protocol": "tcp"}]});
    world.node.write(&path, file.to_string());
    let (report, code) = world.restore("");
    assert_eq!(code, 1, "{report:#}");
    let failed = line(&report, "first", "published ports");
    assert_eq!(failed["state"], "failed");
    assert!(failed["reason"].as_str().unwrap().contains("container second"), "{failed}");
    world.client.expect(Proto::Tcp, at(world.client.node_v4, PORT), "second");
    drop(second);
}

/// A container on two networks requests its ports on both, and gets them back on the first one.
#[test]
fn ports_of_a_container_on_two_networks_are_on_the_first() {
    let world = World::new();
    let (one, two) = (world.bridge(1), world.bridge(2));
    let web = Web::published(&world, &two, "web", PORT);
    let second = web.attach.clone().ifname("eth1");
    one.add(&second).expect("ADD on another network");
    std::thread::sleep(std::time::Duration::from_millis(20));
    one.write_cache(&second);
    let before = world.node.slipway("ports");
    world.node.cmd("nft flush ruleset");
    world.restored();
    assert_eq!(world.node.slipway("ports"), before);
    world.client.expect(Proto::Tcp, at(world.client.node_v4, PORT), "web");
}

#[test]
fn unreadable_cache_files_are_skipped() {
    let world = World::new();
    let network = world.bridge(1);
    let web = Web::published(&world, &network, "web", PORT);
    world.node.write("/var/lib/cni/results/torn", "{");
    world.node.write("/var/lib/cni/results/net1-old-eth0", network.cached(&web.attach).unwrap().to_string());
    world.node.write(
        "/var/lib/cni/results/net1-other-eth0",
        world.node.read(&network.cache_path(&web.attach)).unwrap(),
    );
    world.node.cmd("nft flush ruleset");
    let (report, code) = world.restore("");
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(count(&report, "skipped"), 3, "{report:#}");
    assert!(report.to_string().contains("before 0.8"), "{report:#}");
    world.client.expect(Proto::Tcp, at(world.client.node_v4, PORT), "web");
}

#[test]
fn the_cache_directory_can_be_an_argument() {
    let world = World::new();
    let network = world.bridge(1);
    let web = Web::published(&world, &network, "web", PORT);
    world.node.cmd("mkdir -p /run/other");
    world.node.cmd("mv /var/lib/cni/results /run/other/results");
    world.node.cmd("nft flush ruleset");
    let (report, code) = world.restore("--cache-dir /run/other");
    assert_eq!(code, 0, "{report:#}");
    world.client.expect(Proto::Tcp, at(world.client.node_v4, PORT), "web");
    let output = world.node.try_slipway("restore --cache-dir /run/nowhere");
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stderr.contains("no runtime's cache in /run/nowhere/results"), "{output}");
    drop(web);
}

/// A table with Slipway's name that another program made is left alone.
#[test]
fn a_foreign_table_is_left_alone() {
    let world = World::new();
    let network = world.network(1, "bridge", [json!({}), json!({})]);
    let web = Web::published(&world, &network, "web", PORT);
    world.node.cmd("nft flush ruleset");
    world.node.nft("table inet slipway { chain mine { }; }");
    let before = world.node.ruleset();
    let (report, code) = world.restore("");
    assert_eq!(code, 1, "{report:#}");
    assert!(report.to_string().contains("was not made by slipway"), "{report:#}");
    assert_eq!(world.node.ruleset(), before);
    drop(web);
}
