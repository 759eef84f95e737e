// SPDX-License-Identifier: GPL-2.0-or-later

//! Measurements of the paths to a container: `cargo xtask vm-test --measure --kernel 6.12 --suite flowtable`, on a
//! kernel with a flowtable.
//!
//! The client is another host. The paths are: routed to the container's address, through a port published with
//! nftables, through such a port on a node with a flowtable, and with the BPF programs that carry what netfilter has
//! checked.

use std::net::IpAddr;

use serde_json::json;
use slipway_tests::measure::{BATCHES, ECHO, Path, SINK, Work, compare, serve};
use slipway_tests::{Attach, BridgeNetfilter, FLOWTABLE, Proto, address_of, has_flowtable, needs};

use crate::world::{World, list};

/// The difference between a host port and the container's port.
const OFFSET: u16 = 9000;

/// A node, an outside host, and a container with published ports.
struct Stage {
    world: World,
    container: IpAddr,
}

impl Stage {
    fn new(flowtable: bool, backend: &str) -> Self {
        let world = World::new(BridgeNetfilter::Off);
        world.node.write("/etc/cni/slipway.json", json!({"flowtable": flowtable}).to_string());
        let mut configuration = list(1, &json!({"backend": backend}));
        configuration["plugins"][0]["ipMasqBackend"] = backend.into();
        let pod = world.node.pod("pod");
        let mut attach = Attach::new(&pod).port(Proto::Udp, OFFSET + BATCHES, BATCHES);
        for port in [SINK, ECHO] {
            attach = attach.port(Proto::Tcp, OFFSET + port, port);
        }
        let result = world.node.network(configuration).add(&attach).expect("ADD");
        let container = address_of(&result, 0);
        serve(&pod, container);
        Self { world, container }
    }

    fn published(&self, name: &'static str) -> Path {
        Path::published(name, &self.world.client, self.world.client.node_v4.into(), OFFSET)
    }
}

#[test]
#[ignore = "a measurement"]
fn ways_to_a_container() {
    needs!(has_flowtable(), FLOWTABLE);
    let (plain, offloading) = (Stage::new(false, "nftables"), Stage::new(true, "nftables"));
    let carrying = Stage::new(false, "ebpf");
    let paths = [
        Path::to("routed", &plain.world.client, plain.container),
        plain.published("nftables"),
        offloading.published("flowtable"),
        carrying.published("ebpf"),
    ];
    let works = [Work::Stream, Work::Requests, Work::Connections, Work::Datagrams];
    for figure in compare(&paths, &works, |_| {}) {
        println!("{figure}");
    }
}
