// SPDX-License-Identifier: GPL-2.0-or-later

//! Frames for another MAC address or with a tag, and packets whose source address the kernel chooses.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, sendto, socket};
use slipway_tests::{Attach, PROGRAMS, Proto, at, has_programs, needs, patience};

use crate::{FAR, PORT, Stage, address, attach};

/// An address that another host has as well as a pod that acts as a router.
const BEHIND: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

#[test]
fn a_pod_can_use_another_pod_as_its_router() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    let network = stage.network();
    let (pod, gateway) = (stage.node.pod("pod"), stage.node.pod("gateway"));
    network.add(&Attach::new(&pod)).expect("ADD");
    let router = address(&network.add(&Attach::new(&gateway)).expect("ADD"));
    pod.cmd(&format!("ip route add {BEHIND}/32 via {router}"));
    for space in [&*gateway, &*stage.client] {
        space.cmd(&format!("ip address add {BEHIND}/32 dev lo"));
    }
    let mut servers = Vec::new();
    for proto in Proto::ALL {
        servers.push(gateway.serve(proto, &at(BEHIND, FAR).to_string(), "gateway"));
        servers.push(stage.client.serve(proto, &at(BEHIND, FAR).to_string(), "outside"));
        servers.push(stage.client.serve(proto, &at(stage.client.v4, FAR).to_string(), "far"));
        pod.expect(proto, (BEHIND, FAR), "gateway");
    }
    // Packets that the pod sends through the node are carried.
    assert_eq!(
        stage.expect_carried(true, Proto::Tcp, &pod, (stage.client.v4, FAR)).peer.ip(),
        stage.client.node_v4
    );
    // The pod that acts as a router forwards nothing to the node, but opens a flow itself.
    assert_eq!(gateway.expect(Proto::Tcp, (stage.client.v4, FAR), "far").peer.ip(), stage.client.node_v4);
}

/// A tag with VLAN ID 0 carries only a priority (IEEE 802.1Q).
#[test]
fn a_frame_with_a_priority_tag_is_translated() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let pod = stage.node.pod("web");
    let ip = address(&stage.network().add(&attach(&pod)).expect("ADD"));
    let _server = pod.serve(Proto::Udp, &format!("{ip}:80"), "web");
    let (client, node) = (&stage.client, stage.client.node_v4);
    let mac = |text: String| -> Vec<u8> {
        text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect()
    };
    let ends = [mac(stage.node.mac(&client.node_link)), mac(client.mac("eth0"))].concat();
    let tag = [0x81, 0x00, 5 << 5, 0x00, 0x08, 0x00];
    let frame = [&ends[..], &tag, &datagram((client.v4, 40000), (node, PORT))].concat();
    let sender_of_reply = client.run(|| {
        let own = UdpSocket::bind((client.v4, 40000)).expect("a socket");
        own.set_read_timeout(Some(patience())).expect("a timeout");
        let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), None).expect("a socket");
        let mut links = nix::ifaddrs::getifaddrs().expect("interfaces");
        let link = links.find_map(|link| {
            let address = link.address.filter(|_| link.interface_name == "eth0")?;
            address.as_link_addr().copied()
        });
        sendto(fd.as_raw_fd(), &frame, &link.expect("the link"), MsgFlags::empty()).expect("send the frame");
        own.recv_from(&mut [0; 512]).expect("an answer").1
    });
    assert_eq!(sender_of_reply, at(node, PORT));
}

/// Returns an IPv4 UDP datagram without a UDP checksum (RFC 768).
fn datagram((source, from): (Ipv4Addr, u16), (destination, to): (Ipv4Addr, u16)) -> Vec<u8> {
    const CONTENT: &[u8] = b"?\n";
    let length = |header: usize| u16::try_from(header + CONTENT.len()).expect("it is short").to_be_bytes();
    let mut header = [&[0x45, 0][..], &length(28), &[0, 1, 0x40, 0, 64, 17, 0, 0]].concat();
    header.extend(source.octets());
    header.extend(destination.octets());
    let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = u16::try_from((folded & 0xffff) + (folded >> 16)).expect("it was folded");
    header[10..12].copy_from_slice(&(!folded).to_be_bytes());
    [&header[..], &from.to_be_bytes(), &to.to_be_bytes(), &length(8), &[0, 0], CONTENT].concat()
}

/// If an uplink has several addresses, netfilter chooses the source address, and the programs then use the same one.
#[test]
fn an_uplink_may_have_two_addresses() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let (own, far) = (Ipv4Addr::new(198, 51, 100, 2), Ipv4Addr::new(198, 51, 100, 9));
    stage.node.cmd(&format!("ip address add {own}/24 dev {}", stage.client.node_link));
    stage.client.cmd(&format!("ip address add {far}/24 dev eth0"));
    let pod = stage.node.pod("pod");
    stage.network().add(&Attach::new(&pod)).expect("ADD");
    for proto in Proto::ALL {
        let _servers =
            [far, stage.client.v4].map(|ip| stage.client.serve(proto, &at(ip, FAR).to_string(), "far"));
        assert_eq!(stage.expect_carried(true, proto, &pod, (far, FAR)).peer.ip(), own);
        let seen = stage.expect_carried(true, proto, &pod, (stage.client.v4, FAR)).peer.ip();
        assert_eq!(seen, stage.client.node_v4);
    }
}
