// SPDX-License-Identifier: GPL-2.0-or-later

//! Tests `cni_kernel` on the running kernel. Each test runs on a thread in a new network namespace, which ends with the
//! thread.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod default_route;
mod notifications;
mod own_routes;
mod vxlan;
mod wireguard;

use std::path::Path;
use std::time::Duration;

use cni_kernel::AddressFamily;
use cni_kernel::lock::FileLock;
use cni_kernel::mac::Mac;
use cni_kernel::netns::Netns;
use cni_kernel::route::{
    DuplicateDetection, Existing, LOCAL_TABLE, Link, LinkChange, LinkKind, NewBridge, NewVeth, OperState,
    PortSettings, PortVlan, Route, RouteKind, RouteSocket, Switch, VlanFiltering,
};
use cni_kernel::sysctl;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use slipway_tests::{Node, within};

/// A network namespace that is independent of the thread that made it.
fn new_netns() -> Netns {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("unshare needs root");
        sender.send(Netns::current().unwrap()).unwrap();
    });
    receiver.recv().unwrap()
}

struct World {
    host: RouteSocket,
    host_netns: Netns,
    pod: RouteSocket,
    pod_netns: Netns,
}

impl World {
    fn new() -> Self {
        let (host_netns, pod_netns) = (new_netns(), new_netns());
        let (host, pod) =
            (RouteSocket::open_in(&host_netns).unwrap(), RouteSocket::open_in(&pod_netns).unwrap());
        Self { host, host_netns, pod, pod_netns }
    }

    /// Finds the default route with a new socket.
    fn default_route(&self, family: AddressFamily) -> Option<Route> {
        RouteSocket::open_in(&self.host_netns).unwrap().default_route(family).unwrap()
    }

    fn bridge(&self, name: &str) -> Link {
        let new = NewBridge { name, mac: None, mtu: None, vlan_filtering: VlanFiltering::Off };
        self.host.create_bridge(&new).unwrap();
        let bridge = self.host.link(name).unwrap();
        assert!(!bridge.up && bridge.alias.is_empty(), "{bridge:?}");
        self.host.change_link(&bridge, &LinkChange::new().up()).unwrap();
        self.host.link(name).unwrap()
    }

    fn veth(&self, name: &str, peer_name: &str) -> (Link, Link) {
        let mac = Some(Mac([2, 0, 0, 0, 0, 9]));
        let new =
            NewVeth { name, mac, peer_name, peer_mac: None, peer_netns: &self.host_netns, mtu: Some(1400) };
        self.pod.create_veth(&new).unwrap();
        (self.pod.link(name).unwrap(), self.host.link(peer_name).unwrap())
    }
}

fn on() -> PortSettings {
    PortSettings { hairpin: Switch::On, isolated: Switch::On }
}

#[test]
fn a_namespace_is_entered_on_another_thread_only() {
    let netns = new_netns();
    let before = Netns::current().unwrap().id();
    assert_ne!(before, netns.id());
    let inside = netns.run(|| Netns::current().unwrap().id()).unwrap();
    assert_eq!(inside, netns.id());
    assert_eq!(Netns::current().unwrap().id(), before);
}

#[test]
fn sysctls_follow_the_namespace() {
    let netns = new_netns();
    assert!(sysctl::ensure_in(&netns, "net/ipv4/ip_forward", "1").unwrap());
    assert!(!sysctl::ensure_in(&netns, "net/ipv4/ip_forward", "1").unwrap());
    let other = new_netns();
    sysctl::set_in(&other, "net/ipv4/ip_forward", "0").unwrap();
    assert_eq!(sysctl::get_in(&netns, "net/ipv4/ip_forward").unwrap(), "1");
    let error = sysctl::set_in(&netns, "net/ipv4/ip_forward", "yes").unwrap_err();
    assert!(
        error.to_string().starts_with("set sysctl net/ipv4/ip_forward to yes: Invalid argument"),
        "{error}"
    );
}

/// Otherwise the cache of `/proc` would have an entry for each container, and everyone's look-ups there would get slower.
#[test]
fn settings_of_many_namespaces_are_not_looked_up_in_proc() {
    /// The number of an inode from which `cni_kernel` avoids `/proc`: the kernel gives out the lowest free one.
    const MANY: u64 = 0xf000_0000 + 10_000;
    let node = Node::new();
    let mut all = vec![new_netns()];
    while all.last().is_some_and(|last| last.id().ino < MANY) {
        assert!(all.len() < 1000, "{:x} after {} namespaces", all[all.len() - 1].id().ino, all.len());
        all.push(new_netns());
    }
    let netns = &all[all.len() - 1];
    node.cmd("mount -t tmpfs none /proc/sys/net");
    node.run(|| {
        assert!(sysctl::get("net/ipv4/ip_forward").unwrap_err().is_not_found());
        assert!(!sysctl::get_in(netns, "net/ipv4/ip_forward").unwrap().is_empty());
    });
}

/// Also for the node's own addresses, and for routes by nexthop objects, whose reply may name no link.
#[test]
fn the_link_to_an_address_is_that_of_the_route() {
    let node = Node::new();
    for command in [
        "ip link add near type veth peer name far",
        "ip link set far up",
        "ip link set near up",
        "ip addr add 10.9.0.1/24 dev near",
        "ip addr add fd00:9::1/64 dev near nodad",
        "sysctl -w net.ipv4.nexthop_compat_mode=0",
        "ip nexthop add id 1 via 10.9.0.2 dev near",
        "ip route add 10.8.0.0/16 nhid 1",
        "ip nexthop add id 2 via fd00:9::2 dev near",
        "ip -6 route add fd00:8::/64 nhid 2",
    ] {
        node.cmd(command);
    }
    let socket = node.run(RouteSocket::open).unwrap();
    for address in ["10.9.0.1", "10.9.0.7", "10.8.0.1", "fd00:9::1", "fd00:9::7", "fd00:8::1"] {
        let address = address.parse().unwrap();
        let link = socket.route_to(address).unwrap().link;
        assert!(link.is_some(), "{address}");
        assert_eq!(socket.link_to(address).unwrap(), link, "{address}");
    }
    assert!(socket.link_to("192.0.2.1".parse().unwrap()).is_err());
}

#[test]
fn a_pair_joins_two_namespaces_and_a_bridge() {
    let world = World::new();
    let bridge = world.bridge("br0");
    assert_eq!(bridge.kind, LinkKind::Bridge);
    assert!(bridge.up);
    assert_eq!(bridge.vlan_filtering, Some(VlanFiltering::Off));

    let (inner, outer) = world.veth("eth0", "veth0a");
    assert_eq!((inner.mac, inner.mtu, outer.mtu), (Some(Mac([2, 0, 0, 0, 0, 9])), 1400, 1400));
    assert_eq!(
        (&inner.kind, inner.peer, outer.peer),
        (&LinkKind::Veth, Some(outer.index), Some(inner.index))
    );
    assert!(!inner.up && !outer.up);

    world.host.change_link(&outer, &LinkChange::new().alias("owner").master(&bridge).up()).unwrap();
    world.pod.change_link(&inner, &LinkChange::new().up()).unwrap();
    let outer = world
        .host
        .wait_for_link(&outer, within(Duration::from_secs(5)), |link| link.state == OperState::Up)
        .unwrap();
    assert_eq!(
        (outer.state, outer.master, outer.alias.as_str()),
        (OperState::Up, Some(bridge.index), "owner")
    );
    let off = outer.port.unwrap();
    assert_eq!(off, PortSettings { hairpin: Switch::Off, isolated: Switch::Off });
    world.host.set_port(&outer, off, on()).unwrap();
    assert_eq!(world.host.link("veth0a").unwrap().port, Some(on()));

    world.pod.delete_link(&inner).unwrap();
    assert_eq!(world.host.find_link("veth0a").unwrap(), None);
    let error = world.pod.delete_link(&inner).unwrap_err();
    assert!(error.is_not_found(), "{error}");
    let place = world.pod_netns.path().display().to_string();
    assert!(error.to_string().starts_with(&format!("delete link eth0 in {place}: ENODEV")), "{error}");
}

/// Every kernel lists the VLANs of a port. With VLAN filtering, a new port has VLAN 1.
#[test]
fn vlans_of_a_port_are_listed() {
    let world = World::new();
    let bridge = world.bridge("br0");
    let (_, outer) = world.veth("eth0", "veth0a");
    world.host.change_link(&outer, &LinkChange::new().master(&bridge)).unwrap();
    match world.host.set_vlan_filtering(&bridge, VlanFiltering::On) {
        Err(error) => {
            assert_eq!(error.errno(), Some(Errno::EOPNOTSUPP), "{error}");
            assert_eq!(world.host.port_vlans(&outer).unwrap(), []);
            let error = world.host.add_port_vlan(&outer, PortVlan::native(5)).unwrap_err();
            assert!(error.to_string().contains("add vlan 5 to bridge port veth0a"), "{error}");
        }
        Ok(()) => {
            assert_eq!(world.host.port_vlans(&outer).unwrap(), [PortVlan::native(1)]);
            world.host.add_port_vlan(&outer, PortVlan::tagged(10, 20)).unwrap();
            world.host.delete_port_vlan(&outer, PortVlan::tagged(12, 12)).unwrap();
            let expected = [PortVlan::native(1), PortVlan::tagged(10, 11), PortVlan::tagged(13, 20)];
            assert_eq!(world.host.port_vlans(&outer).unwrap(), expected);
            // Deleting a VLAN that does not exist is not an error.
            world.host.delete_port_vlan(&outer, PortVlan::tagged(12, 12)).unwrap();
            assert_eq!(world.host.port_vlans(&outer).unwrap(), expected);
        }
    }
}

#[test]
fn creation_is_exclusive() {
    let world = World::new();
    world.bridge("br0");
    let again = NewBridge { name: "br0", mac: None, mtu: None, vlan_filtering: VlanFiltering::Off };
    assert!(world.host.create_bridge(&again).unwrap_err().already_exists());
    world.veth("eth0", "veth0a");
    let peer_netns = &world.host_netns;
    for (name, peer_name) in [("eth0", "veth0b"), ("eth1", "veth0a"), ("eth1", "br0")] {
        let new = NewVeth { name, mac: None, peer_name, peer_mac: None, peer_netns, mtu: None };
        let error = world.pod.create_veth(&new).unwrap_err();
        assert!(error.already_exists(), "{name} {peer_name}: {error}");
    }
    assert_eq!(world.host.find_link("veth0b").unwrap(), None);
    assert_eq!(world.pod.find_link("eth1").unwrap(), None);
}

#[test]
fn flags_and_attributes_change() {
    let world = World::new();
    let bridge = world.bridge("br0");
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    world.host.change_link(&bridge, &LinkChange::new().promiscuous().mtu(1300).mac(mac)).unwrap();
    let seen = world.host.link("br0").unwrap();
    assert!(seen.promiscuous && seen.up);
    assert_eq!((seen.mtu, seen.mac), (1300, Some(mac)));
    world.host.change_link(&bridge, &LinkChange::new().not_promiscuous().down()).unwrap();
    let seen = world.host.link("br0").unwrap();
    assert!(!seen.promiscuous && !seen.up);
    world.host.change_link(&bridge, &LinkChange::new().rename("br1")).unwrap();
    assert_eq!(world.host.link_by_index(bridge.index).unwrap().name, "br1");
    assert!(world.host.links().unwrap().iter().any(|link| link.name == "lo" && link.kind == LinkKind::Plain));
    for name in ["none", "", "a-name-that-is-too-long"] {
        assert!(world.host.link(name).unwrap_err().is_not_found(), "{name:?}");
    }
}

/// rtnetlink and the files of /proc/sys show the same settings, before and after a change through either.
#[test]
fn settings_are_those_below_proc_sys() {
    let world = World::new();
    let bridge = world.bridge("br0");
    let get = |name: &str| sysctl::get_in(&world.host_netns, name).unwrap();
    let set = |name: &str, value: &str| sysctl::set_in(&world.host_netns, name, value).unwrap();
    assert_eq!((bridge.route_localnet, bridge.accept_ra), (false, 1));
    set("net/ipv6/conf/br0/accept_ra", "2");
    world.host.change_link(&bridge, &LinkChange::new().arp_notify().route_localnet()).unwrap();
    for setting in ["arp_notify", "route_localnet"] {
        assert_eq!(get(&format!("net/ipv4/conf/br0/{setting}")), "1", "{setting}");
    }
    let bridge = world.host.link("br0").unwrap();
    assert_eq!((bridge.route_localnet, bridge.accept_ra), (true, 2));
    for (family, name) in
        [(AddressFamily::V4, "net/ipv4/ip_forward"), (AddressFamily::V6, "net/ipv6/conf/all/forwarding")]
    {
        for (value, expected) in [("1", true), ("0", false), ("1", true)] {
            set(name, value);
            assert_eq!(world.host.forwards(family).unwrap(), expected, "{name} is {value}");
        }
    }
}

#[test]
fn addresses_are_added_and_deleted() {
    let world = World::new();
    let bridge = world.bridge("br0");
    let nets = ["10.1.2.3/24".parse().unwrap(), "fd00::3/64".parse().unwrap()];
    for net in nets {
        world.host.add_address(&bridge, net, DuplicateDetection::Skip).unwrap();
        assert!(world.host.add_address(&bridge, net, DuplicateDetection::Skip).unwrap_err().already_exists());
    }
    let seen = world.host.addresses(&bridge).unwrap();
    for net in nets {
        let address = seen.iter().find(|address| address.net == net).unwrap();
        assert!(address.global && !address.tentative && !address.duplicate, "{address:?}");
        world.host.delete_address(&bridge, net).unwrap();
        assert!(world.host.delete_address(&bridge, net).unwrap_err().is_not_found());
    }
    assert!(!world.host.all_addresses().unwrap().iter().any(|address| nets.contains(&address.net)));
}

#[test]
fn waits_for_duplicate_address_detection() {
    let world = World::new();
    world.bridge("br0");
    let (inner, outer) = world.veth("eth0", "veth0a");
    world.pod.change_link(&inner, &LinkChange::new().up()).unwrap();
    world.host.change_link(&outer, &LinkChange::new().up()).unwrap();
    let net = "fd00::3/64".parse().unwrap();
    world.pod.add_address(&inner, net, DuplicateDetection::AsLink).unwrap();
    let settled = world.pod.wait_for_detection(&inner, within(Duration::from_secs(10))).unwrap();
    assert!(settled.iter().any(|address| address.net == net && !address.tentative), "{settled:?}");
}

#[test]
fn routes_keep_all_attributes() {
    let world = World::new();
    let bridge = world.bridge("br0");
    let net = "10.1.2.3/24".parse().unwrap();
    world.host.add_address(&bridge, net, DuplicateDetection::AsLink).unwrap();
    assert_eq!(world.default_route(AddressFamily::V4), None);
    let mut route = Route::default_of(AddressFamily::V4);
    route.gateway = Some("10.1.2.1".parse().unwrap());
    route.link = Some(bridge.index);
    (route.mtu, route.advmss, route.metric) = (1400, 1300, 7);
    world.host.add_route(&route, Existing::Refuse).unwrap();
    assert!(world.host.add_route(&route, Existing::Refuse).unwrap_err().already_exists());
    let seen = world.default_route(AddressFamily::V4).unwrap();
    assert_eq!((seen.mtu, seen.advmss, seen.metric, seen.gateway), (1400, 1300, 7, route.gateway));
    assert_eq!(world.host.route_to("192.0.2.1".parse().unwrap()).unwrap().link, Some(bridge.index));
    world.host.delete_route(&route).unwrap();
    assert!(world.host.delete_route(&route).unwrap_err().is_not_found());

    let mut in_table = Route::to("10.9.0.0/16".parse().unwrap());
    (in_table.link, in_table.table) = (Some(bridge.index), 1000);
    assert_eq!(world.host.routes(AddressFamily::V4, 1000).unwrap(), []);
    world.host.add_route(&in_table, Existing::Refuse).unwrap();
    assert_eq!(world.host.routes(AddressFamily::V4, 1000).unwrap().len(), 1);
}

/// The kernel lists unreachable routes with the loopback link.
#[test]
fn an_unreachable_route_is_no_default_route() {
    // RTN_UNREACHABLE and RTN_BLACKHOLE of linux/rtnetlink.h
    for kind in [7, 6] {
        let world = World::new();
        for family in AddressFamily::BOTH {
            let nowhere = Route { kind: RouteKind::Other(kind), metric: 5000, ..Route::default_of(family) };
            world.host.add_route(&nowhere, Existing::Refuse).unwrap();
            assert_eq!(world.default_route(family), None);
        }
    }
}

#[test]
fn a_local_route_leads_to_a_link() {
    let world = World::new();
    let bridge = world.bridge("br0");
    let mut route = Route::to("::1/128".parse().unwrap());
    (route.kind, route.link, route.metric, route.table) =
        (RouteKind::Local, Some(bridge.index), 512, LOCAL_TABLE);
    world.host.add_route(&route, Existing::Refuse).unwrap();
    let all = world.host.routes(AddressFamily::V6, LOCAL_TABLE).unwrap();
    let seen = all.iter().find(|seen| seen.dst == route.dst && seen.link == route.link).unwrap();
    assert_eq!((seen.kind, seen.metric), (RouteKind::Local, 512));
    assert!(world.host.add_route(&route, Existing::Refuse).unwrap_err().already_exists());
}

#[test]
fn a_deleted_namespace_is_distinguished_from_a_path_that_never_was_one() {
    let error = Netns::open(Path::new("/run/netns/never-was")).unwrap_err();
    assert!(error.is_gone());
    assert_eq!(error.to_string(), "failed to Statfs \"/run/netns/never-was\": no such file or directory");
}

/// The kernel makes a writer of `ip_forward` wait for the lock of all network configuration, which takes seconds on a
/// busy node.
#[test]
fn a_setting_is_not_written_next_to_a_slow_writer() {
    const SLOW: Duration = Duration::from_secs(2);
    let node = Node::new();
    let path = Path::new("/proc/sys/net/ipv4/ip_forward");
    let (held, is_held) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (space, name) = (&node, "net/ipv4/ip_forward");
        scope.spawn(move || {
            space.run(|| {
                let file = std::fs::File::open(path).unwrap();
                let _lock = FileLock::on(&file, path, Duration::ZERO).unwrap();
                held.send(()).unwrap();
                std::thread::sleep(SLOW);
                assert_eq!(sysctl::get(name).unwrap(), "0");
            });
        });
        is_held.recv().unwrap();
        node.run(|| assert!(sysctl::ensure(name, "1").unwrap()));
    });
    assert_eq!(node.sysctl_get("net/ipv4/conf/default/forwarding").as_deref(), Some("1"));
}

/// The first containers of a node start at the same time, and all switch forwarding on while links appear.
#[test]
fn forwarding_is_on_for_all_when_many_switch_it_on() {
    for round in 0..60 {
        let node = Node::new();
        std::thread::scope(|scope| {
            for number in 0..12 {
                let node = &node;
                scope.spawn(move || {
                    if number < 2 {
                        for link in 0..4 {
                            let (one, other) = (format!("a{number}{link}"), format!("b{number}{link}"));
                            node.cmd(&format!("ip link add {one} type veth peer name {other}"));
                        }
                    } else {
                        node.run(|| sysctl::ensure("net/ipv4/ip_forward", "1")).expect("switch it on");
                    }
                });
            }
        });
        for scope in ["all", "default", "lo"] {
            let setting = node.sysctl_get(&format!("net/ipv4/conf/{scope}/forwarding"));
            assert_eq!(setting.as_deref(), Some("1"), "{scope}, round {round}");
        }
    }
}
