// SPDX-License-Identifier: GPL-2.0-or-later

//! firewalld with a separate bus.

use slipway_tests::system::Daemon;
use slipway_tests::{CommandOutput, SYSTEM_BUS};

use super::world::World;
use super::{Chain, Engine, Guest, cells, equal};

cells! { "bookworm-engines", "usr/sbin/firewalld", "firewalld of Debian bookworm":
    firewalld_1 => |packages: &_| equal(packages, Chain::Plain, || Firewalld::new(Strict::No));
    firewalld_1_with_the_plugin_firewall => |packages: &_| {
        equal(packages, Chain::Firewall, || Firewalld::new(Strict::No));
    };
}
cells! { "trixie-engines", "usr/sbin/firewalld", "firewalld of Debian trixie":
    firewalld_2 => |packages: &_| equal(packages, Chain::Plain, || Firewalld::new(Strict::No));
    firewalld_2_with_strict_forward_ports => |packages: &_| {
        equal(packages, Chain::Plain, || Firewalld::new(Strict::Yes));
    };
}

/// The setting StrictForwardPorts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strict {
    Yes,
    No,
}

struct Firewalld {
    strict: Strict,
    daemons: Vec<Daemon>,
}

impl Firewalld {
    fn new(strict: Strict) -> Self {
        Self { strict, daemons: Vec::new() }
    }
}

fn firewall_cmd(world: &World, words: &str) -> CommandOutput {
    let words: Vec<&str> = ["firewall-cmd"].into_iter().chain(words.split(' ')).collect();
    world.system.try_run(&words)
}

fn done(world: &World, words: &str) {
    let output = firewall_cmd(world, words);
    assert_eq!(output.code, Some(0), "firewall-cmd {words}: {output}");
}

impl Engine for Firewalld {
    fn start(&mut self, world: &World) {
        let system = &world.system;
        if self.strict == Strict::Yes {
            let file = "/etc/firewalld/firewalld.conf";
            let text = system.read(file).replace("StrictForwardPorts=no", "StrictForwardPorts=yes");
            assert!(text.contains("StrictForwardPorts=yes"), "{text}");
            system.write(file, text);
        }
        if !system.exists("/run/dbus/system_bus_socket") {
            system.write("/etc/bus.conf", SYSTEM_BUS);
            system.run(&["/bin/busybox", "mkdir", "-p", "/run/dbus"]);
            let bus = ["dbus-daemon", "--config-file=/etc/bus.conf", "--nofork", "--nopidfile"];
            self.daemons.push(system.daemon("bus", &bus));
            system.wait_for("the bus", || system.exists("/run/dbus/system_bus_socket"));
        }
        self.daemons.push(system.daemon("firewalld", &["firewalld", "--nofork", "--nopid"]));
        system.wait_for("firewalld", || firewall_cmd(world, "--state").code == Some(0));
        // The port of the server outside is different from the node's own.
        done(world, "--zone=internal --change-interface=cni0");
    }

    /// Reloads firewalld with another target for the pods' zone.
    fn reload(&mut self, world: &World) {
        done(world, "--permanent --zone=internal --add-interface=cni0");
        done(world, "--permanent --zone=internal --set-target=DROP");
        done(world, "--reload");
    }

    fn stop(&mut self, world: &World) {
        let firewalld = self.daemons.pop().expect("it runs");
        world.system.end(firewalld, "TERM");
    }

    fn guest(&self) -> Option<&Guest> {
        None
    }
}
