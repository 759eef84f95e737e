// SPDX-License-Identifier: GPL-2.0-or-later

//! Docker: dockerd sets the policy of FORWARD to DROP.

use std::net::IpAddr;

use serde_json::Value;
use slipway_tests::image::{self, ARCHIVE, PAUSE};
use slipway_tests::system::Daemon;
use slipway_tests::{CommandOutput, Proto};

use super::world::World;
use super::{Chain, Engine, GUEST_PORT, GUEST_PUBLISHED, Guest, cells, equal};

cells! { "bookworm-engines", "usr/sbin/dockerd", "docker of Debian bookworm":
    docker_20 => |packages: &_| equal(packages, Chain::Plain, || Docker::new("nft"));
    docker_20_with_the_plugin_firewall => |packages: &_| {
        equal(packages, Chain::Firewall, || Docker::new("nft"));
    };
}
cells! { "trixie-engines", "usr/sbin/dockerd", "docker of Debian trixie":
    docker_26 => |packages: &_| equal(packages, Chain::Plain, || Docker::new("nft"));
    docker_26_with_legacy_iptables => |packages: &_| {
        equal(packages, Chain::Plain, || Docker::new("legacy"));
    };
    docker_26_with_the_plugin_firewall => |packages: &_| {
        equal(packages, Chain::Firewall, || Docker::new("nft"));
    };
}

struct Docker {
    /// The variant of iptables.
    variant: &'static str,
    daemon: Option<Daemon>,
    guest: Option<Guest>,
}

impl Docker {
    fn new(variant: &'static str) -> Self {
        Self { variant, daemon: None, guest: None }
    }

    fn choose_iptables(&self, world: &World) {
        let tools = ["iptables", "ip6tables"].into_iter();
        for (name, end) in tools.flat_map(|name| ["", "-restore", "-save"].map(|end| (name, end))) {
            let (to, link) = (format!("{name}-{}{end}", self.variant), format!("/usr/sbin/{name}{end}"));
            world.system.run(&["/bin/busybox", "ln", "-sf", &to, &link]);
        }
    }

    fn run_daemon(&mut self, world: &World) {
        let group = format!("--cgroup-parent={}", world.system.cgroup());
        let words = [
            "dockerd",
            "--live-restore",
            "--storage-driver=vfs",
            "--exec-opt=native.cgroupdriver=cgroupfs",
            &group,
            "--ipv6",
            "--fixed-cidr-v6=fd00:d0::/64",
            "--experimental",
            "--ip6tables",
        ];
        self.daemon = Some(world.system.daemon("dockerd", &words));
        world.system.wait_for("dockerd", || docker(world, "version").code == Some(0));
    }

    fn run_guest(&mut self, world: &World) {
        let ports =
            Proto::ALL.map(|proto| format!("--publish {GUEST_PUBLISHED}:{GUEST_PORT}/{}", proto.name()));
        docker_done(world, &format!("run --detach --name guest {} {PAUSE}", ports.join(" ")));
        let text = docker_done(world, "inspect guest");
        let list: Value = serde_json::from_str(&text).expect("docker inspect prints JSON");
        let settings = &list[0]["NetworkSettings"];
        let ips: Vec<IpAddr> = ["IPAddress", "GlobalIPv6Address"]
            .into_iter()
            .map(|key| settings[key].as_str().and_then(|ip| ip.parse().ok()).expect("an address"))
            .collect();
        // On the node, the link /var/run would be followed in the node's own root.
        let path = settings["SandboxKey"].as_str().expect("a namespace").trim_start_matches("/var");
        let path = world.system.path(path);
        let space = world.system.space().namespace("guest", &path);
        self.guest = Some(Guest::new(space, ips, Some(GUEST_PUBLISHED)));
    }

    fn end(&mut self, world: &World) {
        if let Some(daemon) = self.daemon.take() {
            world.system.end(daemon, "TERM");
        }
    }
}

fn docker(world: &World, words: &str) -> CommandOutput {
    let words: Vec<&str> = ["docker"].into_iter().chain(words.split(' ')).collect();
    world.system.try_run(&words)
}

fn docker_done(world: &World, words: &str) -> String {
    let output = docker(world, words);
    assert_eq!(output.code, Some(0), "docker {words}: {output}");
    output.stdout
}

impl Engine for Docker {
    fn start(&mut self, world: &World) {
        self.choose_iptables(world);
        self.run_daemon(world);
        image::make(&world.system);
        docker_done(world, &format!("load --quiet --input {ARCHIVE}"));
        self.run_guest(world);
    }

    /// Docker cannot reload its rules, so the daemon is restarted while the container keeps running.
    fn reload(&mut self, world: &World) {
        self.end(world);
        self.run_daemon(world);
    }

    fn stop(&mut self, world: &World) {
        docker_done(world, "rm --force guest");
        self.guest = None;
        self.end(world);
    }

    fn guest(&self) -> Option<&Guest> {
        self.guest.as_ref()
    }
}
