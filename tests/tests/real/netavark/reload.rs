// SPDX-License-Identifier: GPL-2.0-or-later

//! `podman network reload` of a container with a fixed address.

use std::path::Path;

use slipway_tests::image::expect;

use super::World;

super::on! {
    trixie: a_fixed_address;
    unstable: a_fixed_address;
    experimental: a_fixed_address;
}

/// podman 6.1 requests a fixed address again before it has freed it. netavark's own driver is the control: a reload
/// must have the same outcome with ours.
fn a_fixed_address(packages: &Path) {
    let Some(world) = World::new(packages) else { return };
    let outcomes = [("bridge", 120), ("slipway", 121)].map(|(driver, number)| {
        let (name, subnet) = (format!("by-{driver}"), format!("10.{number}.0.0/24"));
        world.podman(&format!("network create --driver {driver} --subnet {subnet} {name}"));
        world.run_web(driver, &format!("--network {name} --ip 10.{number}.0.77 --publish 8{number}:80"));
        let reload = || world.system.try_run(&["podman", "network", "reload", driver]);
        let first = reload();
        assert_eq!(reload().code, Some(0), "the second time");
        expect(&world.client, (world.client.node_v4, 8000 + number), driver);
        (first.code, first.stderr.contains("is already allocated to container ID"))
    });
    assert_eq!(outcomes[1], outcomes[0]);
    let fails = packages.ends_with("experimental");
    assert_eq!(outcomes[0], if fails { (Some(125), true) } else { (Some(0), false) });
}
