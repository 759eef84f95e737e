// SPDX-License-Identifier: GPL-2.0-or-later

//! VXLAN links, neighbours and FDB entries.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use cni_kernel::AddressFamily;
use cni_kernel::mac::Mac;
use cni_kernel::netns::Netns;
use cni_kernel::route::{
    DuplicateDetection, Existing, FdbEntry, Link, LinkChange, LinkKind, Neighbour, NewKind, NewLink, Route,
    RouteSocket, Vxlan,
};
use slipway_tests::{needs, within};

use super::{World, new_netns};

const PORT: u16 = 7000;

fn has_vxlan() -> bool {
    RouteSocket::open_in(&new_netns()).unwrap().knows_kind("vxlan").unwrap()
}

/// One end of the tunnel.
struct End<'a> {
    route: &'a RouteSocket,
    netns: &'a Netns,
    underlay: Link,
    outer: IpAddr,
    /// The addresses in the overlay, one of each family.
    inner: [IpAddr; 2],
    mac: Mac,
    tunnel: Link,
}

fn parse(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl<'a> End<'a> {
    fn new(route: &'a RouteSocket, netns: &'a Netns, underlay: Link, family: AddressFamily, id: u8) -> Self {
        let outer = match family {
            AddressFamily::V4 => parse(&format!("192.0.2.{id}")),
            AddressFamily::V6 => parse(&format!("2001:db8::{id}")),
        };
        let inner = [parse(&format!("10.{id}.0.1")), parse(&format!("fd0{id}::1"))];
        let mac = Mac([2, 0, 0, 0, 1, id]);
        let up = LinkChange::new().up();
        route.change_link(&underlay, &up).unwrap();
        let lo = route.link("lo").unwrap();
        route.change_link(&lo, &up).unwrap();
        let net = format!("{outer}/{}", if outer.is_ipv4() { 24 } else { 64 });
        route.add_address(&underlay, net.parse().unwrap(), DuplicateDetection::Skip).unwrap();
        for address in inner {
            route.add_address(&lo, address.into(), DuplicateDetection::Skip).unwrap();
        }
        let vxlan = Vxlan {
            vni: 0x00ab_cdef,
            port: 4790,
            underlay: Some(underlay.index),
            local: Some(outer),
            learning: false,
        };
        let new = NewLink {
            name: "vxlan0",
            kind: NewKind::Vxlan(vxlan),
            below: None,
            netns: None,
            mac: Some(mac),
            mtu: None,
        };
        route.create_link(&new).unwrap();
        assert!(route.create_link(&NewLink { name: "vxlan1", ..new }).unwrap_err().already_exists());
        let tunnel = route.link("vxlan0").unwrap();
        assert_eq!((&tunnel.kind, tunnel.mac), (&LinkKind::Vxlan(vxlan), Some(mac)));
        route.change_link(&tunnel, &up).unwrap();
        Self { route, netns, underlay, outer, inner, mac, tunnel }
    }

    /// Adds routes to the other end's overlay addresses, and the neighbours to which they lead, but no FDB entry yet.
    fn lead_to(&self, other: &End<'_>) {
        for (own, there) in self.inner.iter().zip(other.inner) {
            self.route.set_neighbour(&self.tunnel, Neighbour { address: there, mac: other.mac }).unwrap();
            let route = Route {
                gateway: Some(there),
                link: Some(self.tunnel.index),
                source: Some(*own),
                onlink: true,
                ..Route::to(there.into())
            };
            // An IPv6 gateway would need its own route, so the IPv6 route has no gateway.
            let route = if there.is_ipv6() { Route { gateway: None, onlink: false, ..route } } else { route };
            self.route.add_route(&route, Existing::Refuse).unwrap();
        }
    }

    fn socket(&self, family: usize) -> UdpSocket {
        let address = SocketAddr::new(self.inner[family], PORT);
        self.netns.run(|| UdpSocket::bind(address).unwrap()).unwrap()
    }
}

/// Returns true if a datagram and its reply arrive.
fn talk(client: &UdpSocket, server: &UdpSocket, patience: Duration) -> bool {
    let mut buffer = [0; 16];
    for socket in [client, server] {
        socket.set_read_timeout(Some(patience)).unwrap();
    }
    client.send_to(b"ping", server.local_addr().unwrap()).unwrap();
    let Ok((4, from)) = server.recv_from(&mut buffer) else { return false };
    assert_eq!(from, client.local_addr().unwrap(), "the source is not translated");
    server.send_to(b"pong", from).unwrap();
    matches!(client.recv_from(&mut buffer), Ok((4, from)) if from == server.local_addr().unwrap())
}

#[test]
fn a_tunnel_carries_packets_by_route_neighbour_and_fdb_entry() {
    needs!(has_vxlan(), "vxlan links");
    for family in AddressFamily::BOTH {
        let world = World::new();
        let (inner, outer) = world.veth("eth0", "veth0a");
        let a = End::new(&world.pod, &world.pod_netns, inner, family, 1);
        let b = End::new(&world.host, &world.host_netns, outer, family, 2);
        a.lead_to(&b);
        b.lead_to(&a);
        let pairs = [0, 1].map(|family| (a.socket(family), b.socket(family)));
        for (client, server) in &pairs {
            assert!(!talk(client, server, Duration::from_millis(200)), "no FDB entry");
        }
        a.route.set_fdb_entry(&a.tunnel, FdbEntry::new(b.mac, b.outer)).unwrap();
        b.route.set_fdb_entry(&b.tunnel, FdbEntry::new(a.mac, a.outer)).unwrap();
        for (client, server) in &pairs {
            assert!(talk(client, server, within(Duration::from_secs(5))), "{family}: {client:?}");
        }
        a.route.delete_fdb_entry(&a.tunnel, b.mac).unwrap();
        for (client, server) in &pairs {
            assert!(!talk(client, server, Duration::from_millis(200)), "the FDB entry is deleted");
        }
    }
}

#[test]
fn neighbours_are_set_listed_and_deleted() {
    let world = World::new();
    let (link, _) = world.veth("eth0", "veth0a");
    let other = world.pod.link("lo").unwrap();
    for socket_link in [&link, &other] {
        world.pod.change_link(socket_link, &LinkChange::new().up()).unwrap();
    }
    let mac = |last| Mac([2, 0, 0, 0, 0, last]);
    let [v4, v6] = ["10.1.2.3", "fd00::3"].map(parse);
    for address in [v4, v6] {
        world.pod.set_neighbour(&link, Neighbour { address, mac: mac(1) }).unwrap();
        world.pod.set_neighbour(&link, Neighbour { address, mac: mac(2) }).unwrap();
    }
    let mut seen = world.pod.neighbours(&link).unwrap();
    seen.sort_by_key(|neighbour| neighbour.address);
    let expected = [v4, v6].map(|address| Neighbour { address, mac: mac(2) });
    assert_eq!(seen, expected, "replaced");
    assert_eq!(world.pod.neighbours(&other).unwrap(), []);
    for address in [v4, v6] {
        world.pod.delete_neighbour(&link, address).unwrap();
        let error = world.pod.delete_neighbour(&link, address).unwrap_err();
        assert!(error.is_not_found(), "{error}");
        assert!(
            error.to_string().starts_with(&format!("delete neighbour {address} from eth0 in ")),
            "{error}"
        );
    }
    assert_eq!(world.pod.neighbours(&link).unwrap(), []);
}

#[test]
fn fdb_entries_are_set_listed_and_deleted() {
    needs!(has_vxlan(), "vxlan links");
    for family in AddressFamily::BOTH {
        let world = World::new();
        let (inner, _) = world.veth("eth0", "veth0a");
        let end = End::new(&world.pod, &world.pod_netns, inner, family, 1);
        let (socket, link) = (&world.pod, &end.tunnel);
        let remotes = match family {
            AddressFamily::V4 => ["192.0.2.2", "192.0.2.3", "2001:db8::2"],
            AddressFamily::V6 => ["2001:db8::2", "2001:db8::3", "192.0.2.2"],
        };
        let [first, second, foreign] = remotes.map(parse);
        let [one, two] = [1, 2].map(|last| Mac([2, 0, 0, 0, 2, last]));
        socket.set_fdb_entry(link, FdbEntry::new(one, first)).unwrap();
        socket.set_fdb_entry(link, FdbEntry::new(one, second)).unwrap();
        socket.set_fdb_entry(link, FdbEntry::new(two, second)).unwrap();
        let mut seen = socket.fdb_entries(link).unwrap();
        seen.sort_by_key(|entry| entry.mac);
        assert_eq!(seen, [FdbEntry::new(one, second), FdbEntry::new(two, second)], "replaced");
        let error = socket.set_fdb_entry(link, FdbEntry::new(two, foreign)).unwrap_err();
        assert_eq!(error.errno(), Some(nix::errno::Errno::EAFNOSUPPORT), "{error}");
        socket.delete_fdb_entry(link, one).unwrap();
        assert!(socket.delete_fdb_entry(link, one).unwrap_err().is_not_found());
        assert_eq!(socket.fdb_entries(link).unwrap(), [FdbEntry::new(two, second)]);
        assert_eq!(socket.fdb_entries(&end.underlay).unwrap(), []);
    }
}

/// Entries made by bridge(8), one with a separate port and one with two remotes.
#[test]
fn foreign_fdb_entries_are_listed_replaced_and_deleted() {
    needs!(has_vxlan(), "vxlan links");
    let world = World::new();
    let (inner, _) = world.veth("eth0", "veth0a");
    let end = End::new(&world.pod, &world.pod_netns, inner, AddressFamily::V4, 1);
    let bridge = |words: &str| {
        let status = world
            .pod_netns
            .run(|| std::process::Command::new("bridge").args(words.split_whitespace()).status().unwrap());
        assert!(status.unwrap().success(), "bridge {words}");
    };
    bridge("fdb add 02:00:00:00:02:01 dev vxlan0 dst 192.0.2.2 port 9999");
    bridge("fdb append 00:00:00:00:00:00 dev vxlan0 dst 192.0.2.2");
    bridge("fdb append 00:00:00:00:00:00 dev vxlan0 dst 192.0.2.3");
    let [one, all] = [Mac([2, 0, 0, 0, 2, 1]), Mac([0; 6])];
    let [first, second] = ["192.0.2.2", "192.0.2.3"].map(parse);
    let list = || {
        let mut seen = world.pod.fdb_entries(&end.tunnel).unwrap();
        seen.sort_by_key(|entry| (entry.mac, entry.remote));
        seen
    };
    let flooded = [first, second].map(|remote| FdbEntry::new(all, remote));
    let at_port = |port| FdbEntry { port: Some(port), ..FdbEntry::new(one, first) };
    assert_eq!(list(), [flooded[0], flooded[1], at_port(9999)]);
    world.pod.set_fdb_entry(&end.tunnel, at_port(9998)).unwrap();
    assert_eq!(list(), [flooded[0], flooded[1], at_port(9998)]);
    world.pod.set_fdb_entry(&end.tunnel, FdbEntry::new(one, first)).unwrap();
    assert_eq!(list(), [flooded[0], flooded[1], FdbEntry::new(one, first)]);
    world.pod.delete_fdb_entry(&end.tunnel, all).unwrap();
    assert_eq!(list(), [FdbEntry::new(one, first)]);
}

#[test]
fn the_settings_of_foreign_vxlan_links_are_read() {
    needs!(has_vxlan(), "vxlan links");
    let netns = new_netns();
    let socket = RouteSocket::open_in(&netns).unwrap();
    let status = netns.run(|| {
        let words = "link add vxlan7 type vxlan id 7 dstport 8472";
        std::process::Command::new("ip").args(words.split_whitespace()).status().unwrap()
    });
    assert!(status.unwrap().success());
    let expected = Vxlan { vni: 7, port: 8472, underlay: None, local: None, learning: true };
    assert_eq!(socket.link("vxlan7").unwrap().kind, LinkKind::Vxlan(expected));
}
