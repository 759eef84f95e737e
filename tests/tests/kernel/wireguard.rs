// SPDX-License-Identifier: GPL-2.0-or-later

//! WireGuard links with keys, a port and peers.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use cni_kernel::netns::Netns;
use cni_kernel::route::{
    Link, LinkKind, NewKind, NewLink, Peer, PeerChange, PrivateKey, PublicKey, RouteSocket, WireGuardSocket,
};
use ipnet::IpNet;
use nix::errno::Errno;
use slipway_tests::{WIREGUARD, has_wireguard, needs};

use super::new_netns;

/// A WireGuard link in a separate namespace.
struct World {
    _netns: Netns,
    route: RouteSocket,
    socket: WireGuardSocket,
    link: Link,
}

impl World {
    fn new() -> Self {
        let netns = new_netns();
        let route = RouteSocket::open_in(&netns).unwrap();
        let new = NewLink {
            name: "wg0",
            kind: NewKind::WireGuard,
            below: None,
            netns: None,
            mac: None,
            mtu: Some(1400),
        };
        route.create_link(&new).unwrap();
        let link = route.link("wg0").unwrap();
        assert_eq!((&link.kind, link.mtu, link.mac), (&LinkKind::WireGuard, 1400, None));
        let socket = netns.run(|| WireGuardSocket::open().unwrap()).unwrap();
        Self { _netns: netns, route, socket, link }
    }

    /// The peers, sorted by key.
    fn peers(&self) -> Vec<Peer> {
        let mut peers = self.socket.device(&self.link).unwrap().peers;
        peers.sort_by_key(|peer| peer.key);
        peers
    }
}

fn key(number: u16) -> PublicKey {
    let mut bytes = [9; 32];
    bytes[..2].copy_from_slice(&number.to_be_bytes());
    PublicKey(bytes)
}

/// The endpoint and the prefixes of the peer with this number.
fn of(number: u16) -> (SocketAddr, Vec<IpNet>) {
    let [high, low] = number.to_be_bytes();
    let address: IpAddr = match number % 2 {
        0 => format!("192.0.{high}.{low}").parse().unwrap(),
        _ => format!("2001:db8::{number:x}").parse().unwrap(),
    };
    let prefixes = [format!("10.{high}.{low}.0/24"), format!("fd44:0:0:{number:x}::/64")];
    (SocketAddr::new(address, 1000 + number), prefixes.map(|net| net.parse().unwrap()).to_vec())
}

fn set(number: u16) -> PeerChange {
    let (endpoint, allowed) = of(number);
    PeerChange::Set { key: key(number), endpoint: Some(endpoint), allowed: Some(allowed) }
}

/// The endpoint and the sorted prefixes that the kernel reports.
fn shown(peer: &Peer) -> (SocketAddr, Vec<IpNet>) {
    let mut allowed = peer.allowed.clone();
    allowed.sort();
    (peer.endpoint.unwrap(), allowed)
}

#[test]
fn keys_and_port_are_set_and_read() {
    needs!(has_wireguard(), WIREGUARD);
    let World { route, socket, link, .. } = &World::new();
    let device = socket.device(link).unwrap();
    assert_eq!((device.private_key, device.public_key, device.peers), (None, None, vec![]));
    let private = PrivateKey::new(hex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"));
    socket.set_private_key(link, &private).unwrap();
    socket.set_port(link, 51821).unwrap();
    let device = socket.device(link).unwrap();
    let public = hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
    assert_eq!(
        (device.private_key, device.public_key, device.port),
        (Some(private), Some(PublicKey(public)), 51821)
    );
    // The kernel ignores a peer whose key is the link's own.
    let own = PeerChange::Set { key: PublicKey(public), endpoint: None, allowed: Some(of(1).1) };
    socket.change_peers(link, &[own, set(2)]).unwrap();
    assert_eq!(socket.device(link).unwrap().peers.len(), 1);
    route.delete_link(link).unwrap();
    let gone = socket.device(link).unwrap_err();
    assert!(gone.is_not_found(), "{gone}");
    let other = route.link("lo").unwrap();
    let error = socket.device(&other).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EOPNOTSUPP), "{error}");
}

/// The bytes of a key that is given in hexadecimal digits.
fn hex(text: &str) -> [u8; 32] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

#[test]
fn peers_are_set_changed_and_removed() {
    needs!(has_wireguard(), WIREGUARD);
    let world = World::new();
    let change = |changes: &[PeerChange]| world.socket.change_peers(&world.link, changes).unwrap();
    change(&[set(1), set(2), set(3)]);
    let peers = world.peers();
    assert_eq!(peers.iter().map(|peer| peer.key).collect::<Vec<_>>(), [1, 2, 3].map(key));
    assert!((1..).zip(&peers).all(|(number, peer)| shown(peer) == of(number)), "{peers:?}");
    // The first change sets only the endpoint, the second only the prefixes, one of which another peer loses.
    let endpoint: SocketAddr = "192.0.2.99:7".parse().unwrap();
    let stolen = vec![of(1).1[0], of(2).1[1]];
    change(&[
        PeerChange::Set { key: key(1), endpoint: Some(endpoint), allowed: None },
        PeerChange::Set { key: key(2), endpoint: None, allowed: Some(stolen.clone()) },
        PeerChange::Remove(key(3)),
        PeerChange::Remove(key(4)),
    ]);
    let peers: Vec<_> = world.peers().iter().map(shown).collect();
    assert_eq!(peers, [(endpoint, vec![of(1).1[1]]), (of(2).0, stolen)]);
}

#[test]
fn five_thousand_peers_are_set_and_read() {
    const COUNT: u16 = 5000;
    needs!(has_wireguard(), WIREGUARD);
    let world = World::new();
    let all: Vec<PeerChange> = (0..COUNT).map(set).collect();
    let begin = Instant::now();
    world.socket.change_peers(&world.link, &all).unwrap();
    let set = begin.elapsed();
    let peers = world.peers();
    println!("{COUNT} peers: set in {set:?}, read in {:?}", begin.elapsed() - set);
    assert_eq!(peers.len(), usize::from(COUNT));
    assert!((0..).zip(&peers).all(|(number, peer)| peer.key == key(number) && shown(peer) == of(number)));
    world.socket.change_peers(&world.link, &[PeerChange::Remove(key(4000))]).unwrap();
    assert_eq!(world.peers().len(), usize::from(COUNT) - 1);
}
