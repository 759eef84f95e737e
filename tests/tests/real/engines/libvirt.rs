// SPDX-License-Identifier: GPL-2.0-or-later

//! The rules of libvirt's network with NAT, and a guest on its bridge.

use slipway_tests::system::{Daemon, SHELL};

use super::world::World;
use super::{Chain, Engine, Guest, cells, equal};

cells! { "bookworm-engines", "usr/sbin/libvirtd", "libvirt of Debian bookworm":
    libvirt_9 => |packages: &_| equal(packages, Chain::Plain, || Libvirt::new(None));
}
cells! { "trixie-engines", "usr/sbin/libvirtd", "libvirt of Debian trixie":
    libvirt_11_with_nftables => |packages: &_| equal(packages, Chain::Plain, || Libvirt::new(Some("nftables")));
    libvirt_11_with_iptables => |packages: &_| equal(packages, Chain::Plain, || Libvirt::new(Some("iptables")));
}

const NETWORK: &str = "<network><name>default</name><forward mode='nat'><nat ipv6='yes'/></forward>\
    <bridge name='virbr0' stp='off' delay='0'/>\
    <ip address='192.168.122.1' netmask='255.255.255.0'/>\
    <ip family='ipv6' address='fd00:122::1' prefix='64'/></network>";

/// A wrapper for tc in which repairing the checksums of DHCP may fail, because some kernels lack the action csum.
const TC: &str = "#!/bin/busybox sh\n\
    tc-of-iproute2 \"$@\" && exit\ncase \"$*\" in *csum*) exit 0;; *) exit 1;; esac\n";

struct Libvirt {
    /// The firewall backend, in versions that let users choose one (libvirt 10.4 and later).
    firewall: Option<&'static str>,
    daemon: Option<Daemon>,
    guest: Option<Guest>,
}

impl Libvirt {
    fn new(firewall: Option<&'static str>) -> Self {
        Self { firewall, daemon: None, guest: None }
    }

    /// Joins a namespace to the bridge, as the guest.
    fn link_guest(&mut self, world: &World) {
        let guest = world.node.pod("guest");
        world.node.cmd("ip link add vnet0 type veth peer name eth0 netns guest");
        world.node.cmd("ip link set vnet0 up master virbr0");
        for line in [
            "link set lo up",
            "address add 192.168.122.2/24 dev eth0",
            "address add fd00:122::2/64 dev eth0 nodad",
            "link set eth0 up",
            "route add default via 192.168.122.1",
            "route add default via fd00:122::1",
        ] {
            guest.cmd(&format!("ip {line}"));
        }
        world.node.wait_up("vnet0");
        let ips = ["192.168.122.2", "fd00:122::2"].map(|ip| ip.parse().expect("an address"));
        self.guest = Some(Guest::new((*guest).clone(), ips.to_vec(), None));
    }
}

fn virsh(world: &World, words: &[&str]) {
    world.system.run(&[&["virsh", "--connect", "network:///system"], words].concat());
}

impl Engine for Libvirt {
    fn start(&mut self, world: &World) {
        let system = &world.system;
        // Drivers for virtual machines are removed, because the test does not need them.
        let script = "cd /usr/lib/*/libvirt/connection-driver && for driver in *; do \
                      [ $driver = libvirt_driver_network.so ] || rm $driver; done";
        system.run(&[SHELL[0], SHELL[1], "-c", script]);
        if system.exists("/usr/sbin/tc") {
            system.run(&[SHELL[0], "mv", "/usr/sbin/tc", "/usr/sbin/tc-of-iproute2"]);
            system.write("/usr/sbin/tc", TC);
            system.run(&[SHELL[0], "chmod", "755", "/usr/sbin/tc"]);
        }
        // dnsmasq changes to one of these users.
        for file in ["/etc/passwd", "/etc/group"] {
            system.write(file, std::fs::read(file).expect("the machine's users"));
        }
        system.write("/etc/libvirt/libvirtd.conf", "unix_sock_group = \"root\"\nauth_unix_rw = \"none\"\n");
        if let Some(firewall) = self.firewall {
            system.write("/etc/libvirt/network.conf", format!("firewall_backend = \"{firewall}\"\n"));
        }
        self.daemon = Some(system.daemon("libvirtd", &["libvirtd"]));
        system.wait_for("libvirtd", || system.exists("/run/libvirt/libvirt-sock"));
        system.write("/tmp/network.xml", NETWORK);
        virsh(world, &["net-create", "/tmp/network.xml"]);
        self.link_guest(world);
    }

    /// Sends SIGHUP, after which libvirtd writes its rules again.
    fn reload(&mut self, world: &World) {
        let pid = world.system.read("/tmp/libvirtd.pid");
        world.system.run(&["/bin/busybox", "kill", "-s", "HUP", pid.trim()]);
    }

    fn stop(&mut self, world: &World) {
        virsh(world, &["net-destroy", "default"]);
        if let Some(daemon) = self.daemon.take() {
            world.system.end(daemon, "TERM");
        }
    }

    fn guest(&self) -> Option<&Guest> {
        self.guest.as_ref()
    }
}
