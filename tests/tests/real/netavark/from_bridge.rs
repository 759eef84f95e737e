// SPDX-License-Identifier: GPL-2.0-or-later

//! Moves containers from a network of netavark's own driver to one of ours.

use std::path::Path;

use slipway_tests::image::{ask_once, expect};
use slipway_tests::{at, patience};

use super::World;

super::on! {
    trixie: running_and_restarted;
    unstable: running_and_restarted;
    experimental: running_and_restarted;
}

/// A running container moves to another network. A stopped one finds that the driver of its network has changed when it
/// starts again.
fn running_and_restarted(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    let World { node, client, system } = &world;
    if system.try_run(&["nft", "list", "ruleset"]).code != Some(0) {
        panic!("netavark's own driver needs nft");
    }
    world.podman("network create --subnet 10.91.0.0/24 --subnet fd00:91::/64 old");
    world.run_web("web", "--network old --publish 8080:80");
    expect(client, (client.node_v4, 8080), "web");
    let pid = world.podman("inspect --format {{.State.Pid}} web");
    // The first container moves while it is running.
    world.podman("network connect blue web");
    assert!(ask_once(client, at(client.node_v4, 8080), patience()).is_ok());
    world.podman("network disconnect old web");
    world.open(8080, "web");
    assert_eq!(world.podman("inspect --format {{.State.Pid}} web"), pid, "it has run all the time");
    world.podman("restart web");
    world.open(8080, "web");
    assert!(node.slipway("ports").contains("blue"));
    world.podman("rm --force web");
    world.closed(8080);
    // The second one keeps its network, name and addresses, and is restarted.
    world.run_web("web", "--network old --ip 10.91.0.7 --publish 8080:80");
    world.podman("stop web");
    let path = "/etc/containers/networks/old.json";
    let text = system.read(path).replace("\"driver\": \"bridge\"", "\"driver\": \"slipway\"");
    system.write(path, text);
    world.podman("start web");
    world.open(8080, "web");
    assert_eq!(world.inspect("web")["Networks"]["old"]["IPAddress"], "10.91.0.7");
    assert!(node.slipway("ports").contains("old"));
    world.podman("rm --force web");
    world.podman("network rm old");
}
