// SPDX-License-Identifier: GPL-2.0-or-later

//! podman with netavark's own driver.

use std::net::IpAddr;

use serde_json::Value;
use slipway_tests::Proto;
use slipway_tests::image::{self, ARCHIVE, PAUSE};

use super::world::World;
use super::{Chain, Engine, GUEST_PORT, GUEST_PUBLISHED, Guest, cells, equal};

cells! { "trixie-engines", "usr/lib/podman/netavark", "netavark of Debian trixie":
    netavark_with_nftables => |packages: &_| equal(packages, Chain::Plain, || Podman::new("nftables"));
    netavark_with_iptables => |packages: &_| equal(packages, Chain::Plain, || Podman::new("iptables"));
}

struct Podman {
    /// The firewall driver of netavark.
    driver: &'static str,
    guest: Option<Guest>,
}

impl Podman {
    fn new(driver: &'static str) -> Self {
        Self { driver, guest: None }
    }
}

fn podman(world: &World, words: &str) -> String {
    let words: Vec<&str> = ["podman"].into_iter().chain(words.split(' ')).collect();
    world.system.run(&words)
}

impl Engine for Podman {
    fn start(&mut self, world: &World) {
        let system = &world.system;
        system.write(
            "/etc/containers/containers.conf",
            format!(
                "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n\
                 [network]\nfirewall_driver = \"{}\"\n[containers]\nlog_driver = \"k8s-file\"\n",
                self.driver
            ),
        );
        system.write(
            "/etc/containers/storage.conf",
            "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\n\
             graphroot = \"/var/lib/containers/storage\"\n",
        );
        image::make(system);
        podman(world, &format!("load --quiet --input {ARCHIVE}"));
        podman(world, "network create --subnet 10.89.0.0/24 --subnet fd00:89::/64 blue");
        let ports =
            Proto::ALL.map(|proto| format!("--publish {GUEST_PUBLISHED}:{GUEST_PORT}/{}", proto.name()));
        let group = system.cgroup();
        podman(
            world,
            &format!(
                "run --detach --name guest --network blue --cgroup-parent {group} {} {PAUSE}",
                ports.join(" ")
            ),
        );
        let list: Value = serde_json::from_str(&podman(world, "inspect guest")).expect("podman prints JSON");
        let settings = &list[0]["NetworkSettings"];
        let ips: Vec<IpAddr> = ["IPAddress", "GlobalIPv6Address"]
            .into_iter()
            .map(|key| settings["Networks"]["blue"][key].as_str().and_then(|ip| ip.parse().ok()))
            .map(|ip| ip.expect("an address"))
            .collect();
        let path = system.path(settings["SandboxKey"].as_str().expect("a namespace"));
        self.guest = Some(Guest::new(system.space().namespace("guest", &path), ips, Some(GUEST_PUBLISHED)));
    }

    fn reload(&mut self, world: &World) {
        podman(world, "network reload guest");
    }

    fn stop(&mut self, world: &World) {
        podman(world, "rm --force guest");
        self.guest = None;
        podman(world, "network rm blue");
    }

    fn guest(&self) -> Option<&Guest> {
        self.guest.as_ref()
    }
}
