// SPDX-License-Identifier: GPL-2.0-or-later

//! A pod sends encapsulated frames to the VXLAN devices of its own node and of another one, which would deliver them to
//! any pod with any source address.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;

use cni_dataplane::tunnel_guard::{self, Others, TunnelGuard};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use slipway_tests::{Node, Pod, patience};
use slipwayd::cluster::annotations::vxlan_mac_of;
use slipwayd::cluster::desired::TunnelMode;

use crate::{Lab, all_reach_each_other, name};

/// The port of the nodes' devices.
const VXLAN: u16 = 4789;
/// The port of the pod that must not get a forged packet.
const VICTIM: u16 = 7777;
/// An address of node 3's pods, which the forged packets have as source.
const PRETENDED: Ipv4Addr = Ipv4Addr::new(10, 244, 3, 77);

/// An encapsulated frame that the pod of node 1 sends.
struct Attempt {
    /// The destination of the outer packet.
    to: Ipv4Addr,
    /// Its source, if that is not the pod's own address.
    from: Option<Ipv4Addr>,
    /// The number of the node to whose device the frame is addressed.
    device: u8,
}

/// An IPv4 packet with a UDP datagram.
fn packet(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(28 + payload.len()).expect("a short packet");
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    let words = packet.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = u16::try_from(sum % 0xffff).expect("16 bits");
    packet[10..12].copy_from_slice(&(!folded).to_be_bytes());
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend((length - 20).to_be_bytes());
    // No checksum (RFC 768).
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

impl Attempt {
    fn send(&self, pod: &Pod, victim: Ipv4Addr) {
        let source = SocketAddrV4::new(PRETENDED, 53);
        let inner = packet(source, SocketAddrV4::new(victim, VICTIM), b"forged");
        // The header with the flag of a VNI, and VNI 1 (RFC 7348, section 5); then the Ethernet header.
        let header = [8, 0, 0, 0, 0, 0, 1, 0];
        let device = vxlan_mac_of(&name(self.device)).0;
        let datagram = [&header[..], &device, &[2, 0, 0, 0, 0, 9], &[8, 0], &inner[..]].concat();
        let to = SocketAddrV4::new(self.to, VXLAN);
        pod.run(|| match self.from {
            None => {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
                assert_eq!(socket.send_to(&datagram, to).expect("it is sent"), datagram.len());
            }
            Some(from) => {
                let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Raw);
                let outer = packet(SocketAddrV4::new(from, 40000), to, &datagram);
                let (fd, to) = (raw.expect("a raw socket"), SockaddrIn::from(to));
                sendto(fd.as_raw_fd(), &outer, &to, MsgFlags::empty()).expect("it is sent");
            }
        });
    }
}

/// True if one of the packets that have arrived at the victim up to a proper one of the pod is forged.
fn is_deceived(victim: &UdpSocket, pod: &Pod, address: Ipv4Addr) -> bool {
    let sent = pod.run(|| UdpSocket::bind("0.0.0.0:0")?.send_to(b"proper", (address, VICTIM)));
    assert_eq!(sent.expect("it is sent"), 6);
    let (mut buffer, mut forged) = ([0; 64], false);
    loop {
        let length = victim.recv(&mut buffer).expect("the proper packet arrives");
        match &buffer[..length] {
            b"proper" => return forged,
            other => forged |= other == b"forged",
        }
    }
}

fn ipv4(addresses: &[IpAddr]) -> Ipv4Addr {
    let first = addresses.iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    first.expect("an IPv4 address")
}

#[test]
fn no_pod_sends_frames_to_the_devices_of_nodes() {
    let mut lab = Lab::new(3, TunnelMode::Always);
    for node in &lab.cluster.nodes {
        // A strict check of sources would drop some of the frames without the guard.
        for setting in ["all", "default", "eth0"] {
            node.sysctl(&format!("net/ipv4/conf/{setting}/rp_filter"), "0");
        }
    }
    lab.settle();
    let pods = (1..=3).map(|number| (number, lab.pod(number, "web"))).collect();
    all_reach_each_other(&pods);
    let (attacker, _) = &pods[&1];
    let (pod, addresses) = &pods[&2];
    let victim = ipv4(addresses);
    let socket = pod.bind(|| UdpSocket::bind((victim, VICTIM))).expect("a socket");
    socket.set_read_timeout(Some(patience())).expect("a time limit");
    let [one, two, three] = [1, 2, 3].map(|number| ipv4(&lab.node(number).addresses));
    let gateway = |number| Ipv4Addr::new(10, 244, number, 1);
    let attempts = [
        // To the pod's own node.
        Attempt { to: one, from: None, device: 1 },
        Attempt { to: gateway(1), from: None, device: 1 },
        Attempt { to: one, from: Some(three), device: 1 },
        // To another node: masqueraded, with another node's address, and at an address that its Node does not list.
        Attempt { to: two, from: None, device: 2 },
        Attempt { to: two, from: Some(three), device: 2 },
        Attempt { to: gateway(2), from: Some(three), device: 2 },
    ];
    let assert_safe = || {
        for attempt in &attempts {
            attempt.send(attacker, victim);
            let Attempt { to, from, .. } = attempt;
            assert!(!is_deceived(&socket, attacker, victim), "a frame to {to} from {from:?} arrived");
        }
    };
    assert_safe();

    // As the control, the frames arrive without the guard, which the next comparison restores.
    for number in [1, 2] {
        lab.node(number).cmd("nft delete table inet slipway-tunnel");
    }
    for attempt in &attempts {
        attempt.send(attacker, victim);
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).expect("the forged packet arrives");
        assert_eq!(&buffer[..length], b"forged", "to {} from {:?}", attempt.to, attempt.from);
    }
    for number in [1, 2] {
        assert!(lab.compare(number, true).errors.is_empty());
    }
    assert_safe();
    all_reach_each_other(&pods);
}

/// The table and its sets follow the Nodes, and are gone with the last VXLAN device.
#[test]
fn the_guard_of_the_tunnel_follows_the_nodes() {
    let mut lab = Lab::new(3, TunnelMode::Always);
    lab.settle();
    let text = |lab: &Lab| lab.node(1).cmd("nft list table inet slipway-tunnel");
    // The kernel lists the elements of a set in any order.
    let shown = |lab: &Lab| {
        let text = text(lab);
        let mut words: Vec<String> = text.split([' ', ',', '\t', '\n']).map(str::to_owned).collect();
        words.sort();
        words
    };
    let (table, before) = (text(&lab), shown(&lab));
    let has = |link: &str| table.contains(&format!("\"{link}"));
    assert!(has("eth0") && !["slipway-", "slipway0", "veth", "lo"].into_iter().any(has), "{table}");
    for node in [2, 3] {
        for address in lab.node(node).addresses {
            assert_eq!(table.matches(&address.to_string()).count(), 2, "{address}: {table}");
        }
    }
    // A link of another pod, and rules that somebody has removed.
    lab.node(1).cmd("ip link add veth7 type veth peer name veth8");
    lab.node(1).cmd("nft flush chain inet slipway-tunnel forward");
    lab.node(1).cmd("nft flush set inet slipway-tunnel nodes4");
    lab.compare(1, true);
    assert_eq!(shown(&lab), before);

    let removed = lab.nodes.remove(&name(3)).expect("a Node");
    lab.compare(1, false);
    assert_eq!(shown(&lab), before, "the list of Nodes is not complete");
    lab.compare(1, true);
    let [gone, _] = lab.node(3).addresses;
    assert!(!text(&lab).contains(&gone.to_string()), "{}", text(&lab));

    lab.nodes.insert(name(3), removed);
    lab.tunnel = TunnelMode::Never;
    lab.settle();
    assert_ne!(lab.node(1).try_cmd("nft list table inet slipway-tunnel").code, Some(0));
}

/// slipwayd is stopped before, and leaves it.
#[test]
fn an_uninstall_removes_the_guard_of_the_tunnel() {
    let node = Node::new();
    node.slipway("install --to /run/cni-bin");
    let prefixes = ["10.244.1.0/24", "10.244.2.0/24", "fd44:0:0:1::/64"];
    let guard = TunnelGuard {
        links: ["eth0".to_owned()].into(),
        ports: [4789].into(),
        pods: prefixes.map(|prefix| prefix.parse().expect("a prefix")).into(),
        ..TunnelGuard::default()
    };
    let set = |guard: &TunnelGuard, others| node.run(|| tunnel_guard::set(guard, others)).expect("the guard");
    set(&guard, Others::Remove);
    let before = node.ruleset();
    assert!(before.contains("10.244.1.0-10.244.2.255"), "{before}");
    set(&guard, Others::Remove);
    set(&TunnelGuard::default(), Others::Keep);
    assert_eq!(node.ruleset(), before);
    set(&TunnelGuard::default(), Others::Remove);
    assert!(!node.ruleset().contains("elements"), "{}", node.ruleset());
    let printed = node.slipway("uninstall --to /run/cni-bin");
    assert!(printed.lines().any(|line| line == "remove  table inet slipway-tunnel"), "{printed}");
    assert!(!node.ruleset().contains("slipway"), "{}", node.ruleset());
}
