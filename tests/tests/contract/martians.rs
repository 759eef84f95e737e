// SPDX-License-Identifier: GPL-2.0-or-later

//! Packets with a source address that no host can have are dropped on the way to a pod and on the way out of a pod.

use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use slipway_tests::{BridgeNetfilter, Space, patience};

use crate::world::{PORT, Web, World};

use crate::wire::{Ip, SYN};

/// Sources that Linux drops even without `rp_filter`. Linux forwards packets from the rest of 0/8, from broadcast
/// addresses of subnets and from IPv4-mapped IPv6 addresses.
const MARTIANS: [&str; 11] = [
    "0.0.0.0",
    "127.0.0.1",
    "127.9.9.9",
    "224.0.0.1",
    "239.255.255.255",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::9",
    "ff02::1",
    "ff0e::9",
];

/// A packet socket bound to a single link.
struct Frames {
    socket: OwnedFd,
    link: LinkAddr,
}

impl Frames {
    fn open(space: &Space) -> Self {
        space.run(|| {
            let (kind, flags) = (SockType::Raw, SockFlag::SOCK_NONBLOCK);
            let socket = socket(AddressFamily::Packet, kind, flags, SockProtocol::EthAll).expect("a socket");
            let mut links = nix::ifaddrs::getifaddrs().expect("interfaces");
            let link = links.find_map(|link| {
                link.address.filter(|_| link.interface_name == "eth0")?.as_link_addr().copied()
            });
            Self { socket, link: link.expect("the link") }
        })
    }

    fn send(&self, to: &str, packet: &[u8]) {
        let to: Vec<u8> =
            to.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect();
        let kind: [u8; 2] = if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
        let own = self.link.addr().expect("a hardware address");
        let frame = [&to[..], &own, &kind, packet].concat();
        sendto(self.socket.as_raw_fd(), &frame, &self.link, MsgFlags::empty()).expect("send a frame");
    }

    /// Returns the received frames that contain `mark`, up to the one that contains `last`.
    fn until(&self, last: &[u8], mark: &[u8]) -> Vec<Vec<u8>> {
        let has = |frame: &[u8], text: &[u8]| frame.windows(text.len()).any(|window| window == text);
        let (end, mut buffer, mut marked) = (Instant::now() + patience(), [0; 2048], Vec::new());
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) if has(&buffer[..length], last) => return marked,
                Ok(length) if has(&buffer[..length], mark) => marked.push(buffer[..length].to_vec()),
                Ok(_) => {}
                Err(Errno::EAGAIN) => std::thread::sleep(Duration::from_millis(5)),
                Err(errno) => panic!("receive: {errno}"),
            }
            assert!(Instant::now() < end, "the packet with a proper source has not arrived");
        }
    }
}

/// The source port that marks the test's packets. No socket uses it.
const MARK: u16 = 0x7a7a;

fn packets(source: IpAddr, to: IpAddr, port: u16) -> [Vec<u8>; 2] {
    let ip = Ip::new(source, to);
    [ip.udp((MARK, port), b"martian"), ip.tcp((MARK, port), SYN)]
}

/// Sends a packet from each martian source and then one from `proper`, and checks that only the last one arrives.
fn no_martian_passes(
    (from, gateway, proper): (&Space, &str, &[IpAddr]),
    to: Vec<IpAddr>,
    port: u16,
    at: &Space,
) {
    let (sender, receiver) = (Frames::open(from), Frames::open(at));
    for (family, to) in to.into_iter().enumerate() {
        for source in MARTIANS.map(|text| text.parse::<IpAddr>().expect("an address")) {
            if source.is_ipv4() == to.is_ipv4() {
                packets(source, to, port).iter().for_each(|packet| sender.send(gateway, packet));
            }
        }
        sender.send(gateway, &Ip::new(proper[family], to).udp((MARK + 1, port), b"proper"));
        let seen = receiver.until(b"proper", &MARK.to_be_bytes());
        assert!(seen.is_empty(), "to {to}: {seen:02x?}");
    }
}

#[test]
fn martians_pass_in_neither_direction() {
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let web = Web::published(&world, &network, "web");
    let client = &world.client;
    let (own, node) = (world.client_ips(), world.node.mac(&client.node_link));
    // The packets go to a published port, and then to the pod's own address.
    no_martian_passes((client, &node, &own), world.node_ips(), PORT, &web);
    no_martian_passes((client, &node, &own), web.ips(), 80, &web);
    let bridge = world.node.mac("br1");
    no_martian_passes((&web, &bridge, &web.ips()), own, 53, client);
}
