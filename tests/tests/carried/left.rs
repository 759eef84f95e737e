// SPDX-License-Identifier: GPL-2.0-or-later

//! Flows and packets that the programs leave to netfilter, and marks that end at the pod.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, socket,
};
use slipway_ebpf_abi::Counter;
use slipway_tests::{ESP, PROGRAMS, Proto, has_esp, has_programs, needs, patience, within};

use crate::attacks::sum;
use crate::{Engine, FAR, PORT, Stage};

const UDP: u8 = 17;
const DESTINATION_OPTIONS: u8 = 60;
const NUMBER: usize = 30;

/// A datagram of four bytes, with or without an option that has no effect (RFC 791, section 3.1; RFC 8200, section
/// 4.2).
fn datagram(from: SocketAddr, to: SocketAddr, has_option: bool) -> Vec<u8> {
    let mut udp = [from.port(), to.port(), 12, 0].map(u16::to_be_bytes).concat();
    udp.extend(b"ping");
    let (ends, head) = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ends = [from.octets(), to.octets()].concat();
            let options: &[u8] = if has_option { &[1; 4] } else { &[] };
            let words = 5 + options.len() / 4;
            let mut head = vec![0x40 | u8::try_from(words).expect("a few words"), 0];
            head.extend(u16::try_from(words * 4 + udp.len()).expect("short").to_be_bytes());
            head.extend([0, 1, 0x40, 0, 64, UDP, 0, 0]);
            (ends.clone(), [&head[..], &ends, options].concat())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ends = [from.octets(), to.octets()].concat();
            // A destination options header with six bytes of PadN.
            let options: &[u8] = if has_option { &[UDP, 0, 1, 4, 0, 0, 0, 0] } else { &[] };
            let mut head = vec![0x60, 0, 0, 0];
            head.extend(u16::try_from(options.len() + udp.len()).expect("short").to_be_bytes());
            head.extend([if has_option { DESTINATION_OPTIONS } else { UDP }, 64]);
            (ends.clone(), [&head[..], &ends, options].concat())
        }
        _ => unreachable!("one family"),
    };
    let check = sum(&[&ends[..], &udp].concat(), u32::from(UDP) + 12);
    udp[6..8].copy_from_slice(&check.to_be_bytes());
    [head, udp].concat()
}

/// Options may ask a router to do more than forward the packet.
#[test]
fn packets_with_options_are_not_carried() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (pod, own) = stage.pod("web");
    for (family, own) in own.into_iter().enumerate() {
        let receiver = pod.bind(|| UdpSocket::bind(SocketAddr::new(own, 80))).expect("bind");
        receiver.set_read_timeout(Some(patience())).expect("a limit");
        let to = SocketAddr::new(stage.node_ips()[family], PORT);
        let kind = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let raw = stage.client.run(|| socket(kind, SockType::Raw, SockFlag::empty(), SockProtocol::Raw));
        let raw = raw.expect("a raw socket");
        let send = |port: u16, has_option: bool| {
            let before = stage.count(Counter::Carried);
            let from = SocketAddr::new(stage.client_ips()[family], port);
            for number in 0..NUMBER {
                let one = datagram(from, to, has_option);
                let address = SockaddrStorage::from(SocketAddr::new(to.ip(), 0));
                sendto(raw.as_raw_fd(), &one, &address, MsgFlags::empty()).expect("send");
                let mut bytes = [0; 8];
                let (length, peer) =
                    receiver.recv_from(&mut bytes).unwrap_or_else(|e| panic!("{number}: {e}"));
                assert_eq!((&bytes[..length], peer.port()), (&b"ping"[..], port));
            }
            stage.count(Counter::Carried) - before
        };
        assert_eq!(send(5001, true), 0, "{to}");
        assert!(send(5002, false) > 20, "{to}: {:?}", stage.counts());
        // The flow of the previous datagrams, which is carried.
        assert_eq!(send(5002, true), 0, "{to}");
    }
}

/// Marks and priorities belong to the node, and a veth clears them.
#[test]
fn a_pod_sees_no_mark_of_the_node() {
    needs!(has_programs(), PROGRAMS);
    for engine in [Engine::Nftables, Engine::Carried] {
        let stage = Stage::new(engine);
        let (pod, own) = stage.pod("web");
        stage.node.nft(&format!(
            "table inet marks {{\nchain c {{\ntype filter hook prerouting priority mangle\n\
             udp dport {PORT} meta mark set meta mark or 0x77000000 meta priority set 1:2\n}}\n}}\n"
        ));
        pod.nft(
            "table inet marks {\nchain c {\ntype filter hook prerouting priority raw\n\
             meta mark and 0x77000000 != 0 drop\nmeta priority 1:2 drop\n}\n}\n",
        );
        for (family, own) in own.into_iter().enumerate() {
            let _server = pod.serve(Proto::Udp, &SocketAddr::new(own, 80).to_string(), "web");
            let to = SocketAddr::new(stage.node_ips()[family], PORT);
            let mut flow = stage.client.dial(Proto::Udp, None, to, patience()).expect("a flow");
            for number in 0..NUMBER {
                flow.request().unwrap_or_else(|e| panic!("{engine:?} {to} {number}: {e}"));
            }
        }
        assert!(engine == Engine::Nftables || stage.count(Counter::Carried) > 20, "{:?}", stage.counts());
    }
}

/// For such a link, the route of each packet names the tunnel's remote address.
#[test]
fn a_tunnel_whose_destination_comes_from_routes_is_no_uplink() {
    needs!(has_programs(), PROGRAMS);
    for engine in [Engine::Nftables, Engine::Carried] {
        let stage = Stage::new(engine);
        let (node, far) = (&stage.node, &stage.client);
        node.cmd("ip link add vx0 address 02:00:00:00:60:01 type vxlan external dstport 4789");
        far.cmd(&format!(
            "ip link add vx0 address 02:00:00:00:60:02 type vxlan id 100 remote {} dstport 4789",
            far.node_v4
        ));
        let inside = SocketAddr::new(Ipv4Addr::new(198, 18, 60, 2).into(), FAR);
        node.cmd("ip address add 198.18.60.1/32 dev vx0");
        far.cmd("ip address add 198.18.60.2/24 dev vx0");
        node.cmd("ip link set vx0 up");
        far.cmd("ip link set vx0 up");
        node.cmd("ip neigh add 198.18.60.2 lladdr 02:00:00:00:60:02 dev vx0");
        far.cmd("ip neigh add 198.18.60.1 lladdr 02:00:00:00:60:01 dev vx0");
        node.cmd(&format!("ip route add 198.18.60.2/32 encap ip id 100 dst {} dev vx0", far.v4));
        let (pod, _) = stage.pod("web");
        let _server = far.serve(Proto::Udp, &inside.to_string(), "far");
        let mut flow = pod.dial(Proto::Udp, None, inside, patience()).expect("a flow");
        for number in 0..NUMBER {
            let answer = flow.request().unwrap_or_else(|e| panic!("{engine:?} {number}: {e}"));
            assert_eq!(answer.peer.ip(), IpAddr::from([198, 18, 60, 1]));
        }
    }
}

/// A policy requires IPsec for packets from an address. Packets that came through the tunnel must not make the programs
/// carry one that did not.
#[test]
fn a_packet_that_lacks_the_encryption_of_its_flow_is_not_carried() {
    needs!(has_programs(), PROGRAMS);
    needs!(has_esp(), ESP);
    for engine in [Engine::Nftables, Engine::Carried] {
        for family in [0, 1] {
            let stage = Stage::new(engine);
            let (node, far) = (&stage.node, &stage.client);
            let (outer, node_outer) = (stage.client_ips()[family], stage.node_ips()[family]);
            let source: IpAddr = match outer {
                IpAddr::V4(_) => Ipv4Addr::new(198, 18, 70, 1).into(),
                IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0x70, 0, 0, 0, 0, 1).into(),
            };
            let any = ["0.0.0.0/0", "::/0"][family];
            let ip = ["ip", "ip -6"][family];
            far.cmd(&format!("ip address add {source} dev lo"));
            node.cmd(&format!("{ip} route add {source} via {outer}"));
            let tunnel = format!("src {outer} dst {node_outer} proto esp");
            for space in [&**node as &slipway_tests::Space, far] {
                space.cmd(&format!(
                    "ip xfrm state add {tunnel} spi 0x1000 reqid 1 mode tunnel aead rfc4106(gcm(aes)) \
                     0x0102030405060708090a0b0c0d0e0f1011121314 128"
                ));
            }
            let template = format!("tmpl {tunnel} reqid 1 mode tunnel");
            for direction in ["in", "fwd"] {
                node.cmd(&format!("ip xfrm policy add src {source} dst {any} dir {direction} {template}"));
            }
            far.cmd(&format!("ip xfrm policy add src {source} dst {any} dir out {template}"));
            let (pod, own) = stage.pod("web");
            let at = SocketAddr::new(own[family], 80);
            let receiver = pod.bind(|| UdpSocket::bind(at)).expect("bind");
            let sender = far.bind(|| UdpSocket::bind(SocketAddr::new(source, 0))).expect("bind");
            let to = SocketAddr::new(node_outer, PORT);
            let mut bytes = [0; 8];
            receiver.set_read_timeout(Some(patience())).expect("a limit");
            for number in 0..NUMBER {
                sender.send_to(b"ping", to).expect("send");
                receiver.recv_from(&mut bytes).unwrap_or_else(|e| panic!("{engine:?} {to} {number}: {e}"));
            }
            far.cmd("ip xfrm policy flush");
            receiver.set_read_timeout(Some(within(Duration::from_millis(500)))).expect("a limit");
            for _ in 0..NUMBER {
                sender.send_to(b"fake", to).expect("send");
            }
            let got = receiver.recv_from(&mut bytes);
            assert!(got.is_err(), "{engine:?} {to}: {:?} came in clear text", &bytes[..4]);
        }
    }
}
