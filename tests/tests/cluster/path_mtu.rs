// SPDX-License-Identifier: GPL-2.0-or-later

//! A link between the nodes whose MTU is smaller than that of the nodes' own links.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use slipway_tests::{Node, Pod, Space, WIREGUARD, at, has_wireguard, needs, patience, wire, within};
use slipwayd::cluster::desired::TunnelMode;

use crate::Lab;

/// The MTU of the link between the routers. The nodes' links have an MTU of 1500.
const NARROW: usize = 1400;
/// The number of bytes in a transfer.
const AMOUNT: usize = 1 << 20;
/// The time after which a transfer counts as stalled.
const STALLED: Duration = Duration::from_secs(5);

/// Two nodes on one subnet. Between them are two routers, each of which answers ARP requests and neighbour
/// solicitations for the node behind it.
struct Narrow {
    lab: Lab,
    far: Node,
}

impl Narrow {
    fn new(lab: Lab) -> Self {
        let far = Node::new();
        far.forward();
        let near: &Space = &lab.cluster.outside;
        let two: &Space = lab.node(2);
        two.cmd("ip link del eth0");
        wire((near, "mid"), (&*far, "mid"));
        wire((&*far, "leaf"), (two, "eth0"));
        let batch = |space: &Space, lines: &str| drop(space.cmd_input("ip -batch -", lines));
        batch(
            near,
            "link set mid mtu 1400\n\
             address add 198.51.100.1/24 dev mid\n\
             address add 2001:db8:51::1/64 dev mid nodad\n\
             route add 192.168.50.12/32 via 198.51.100.2\n\
             route add fd50::c/128 via 2001:db8:51::2\n\
             route add 10.244.1.0/24 via 192.168.50.11\n\
             route add fd44:0:0:1::/64 via fd50::b\n\
             route add 10.244.2.0/24 via 198.51.100.2\n\
             route add fd44:0:0:2::/64 via 2001:db8:51::2\n",
        );
        batch(
            &far,
            "link set mid mtu 1400\n\
             address add 198.51.100.2/24 dev mid\n\
             address add 2001:db8:51::2/64 dev mid nodad\n\
             route add 192.168.50.12/32 dev leaf\n\
             route add fd50::c/128 dev leaf\n\
             route add 192.168.50.0/24 via 198.51.100.1\n\
             route add fd50::/64 via 2001:db8:51::1\n\
             route add 10.244.1.0/24 via 198.51.100.1\n\
             route add fd44:0:0:1::/64 via 2001:db8:51::1\n\
             route add 10.244.2.0/24 via 192.168.50.12\n\
             route add fd44:0:0:2::/64 via fd50::c dev leaf\n",
        );
        answer_for(near, "eth0", "fd50::c");
        answer_for(&far, "leaf", "fd50::b");
        batch(two, "address add 192.168.50.12/24 dev eth0\naddress add fd50::c/64 dev eth0 nodad\n");
        two.wait_local("fd50::c".parse().expect("an address"));
        Self { lab, far }
    }

    /// Sets the network up, and adds a pod to each node.
    fn pods(&mut self) -> [(Pod, Vec<IpAddr>); 2] {
        self.lab.settle();
        [1, 2].map(|number| self.lab.pod(number, "web"))
    }

    /// Makes the routers send no more ICMP errors, as if a firewall dropped them.
    fn lose_errors(&self) {
        for router in [&*self.lab.cluster.outside as &Space, &self.far] {
            router.nft(
                "table inet lost {
                    chain output {
                        type filter hook output priority 0
                        icmp type destination-unreachable drop
                        icmpv6 type packet-too-big drop
                    }
                }",
            );
        }
    }
}

/// Makes a router answer on a link for the node behind it.
fn answer_for(router: &Space, link: &str, address: &str) {
    router.sysctl(&format!("net/ipv4/conf/{link}/proxy_arp"), "1");
    router.sysctl(&format!("net/ipv4/neigh/{link}/proxy_delay"), "0");
    router.sysctl(&format!("net/ipv6/conf/{link}/proxy_ndp"), "1");
    router.sysctl(&format!("net/ipv6/neigh/{link}/proxy_delay"), "0");
    router.cmd(&format!("ip -6 neigh add proxy {address} dev {link}"));
}

/// Sends a stream from one space to another, and returns the number of bytes that have arrived when it ends or stalls.
fn transfer(from: &Space, to: &Space, address: IpAddr, stalled: Duration) -> usize {
    let listener = to.bind(|| TcpListener::bind(at(address, 9100))).expect("listen");
    let receiver = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(stalled)).expect("a time limit");
        let (mut buffer, mut received) = (vec![0; 64 << 10], 0);
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            received += length;
        }
        received
    });
    let stream = from.run(|| TcpStream::connect_timeout(&at(address, 9100), patience()));
    let mut stream = stream.unwrap_or_else(|error| panic!("connect to {address}: {error}"));
    stream.set_write_timeout(Some(stalled)).expect("a time limit");
    if stream.write_all(&vec![7; AMOUNT]).is_ok() {
        stream.shutdown(Shutdown::Write).expect("the end of the stream");
    }
    receiver.join().expect("no panic")
}

/// Fails unless streams complete in both directions and with both families.
fn streams_complete([one, two]: &[(Pod, Vec<IpAddr>); 2]) {
    for ((from, _), (to, addresses)) in [(one, two), (two, one)] {
        for address in addresses {
            assert_eq!(transfer(from, to, *address, patience()), AMOUNT, "to {address}");
        }
    }
}

/// Sends datagrams of this length until one arrives, and returns how many were lost before. By default, the sender's
/// kernel sets DF and, once it knows the path's MTU, fragments (IP_PMTUDISC_WANT in ip(7)).
fn lost_datagrams(from: &Space, to: &Space, address: IpAddr, length: usize) -> usize {
    let receiver = to.bind(|| UdpSocket::bind(at(address, 9101))).expect("a socket");
    receiver.set_read_timeout(Some(within(Duration::from_millis(500)))).expect("a time limit");
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let sender = from.bind(|| UdpSocket::bind(any)).expect("a socket");
    let mut buffer = vec![0; 2 * length];
    (0..10)
        .take_while(|_| {
            // Sending may fail with an ICMP error about the previous datagram.
            let _ = sender.send_to(&vec![7; length], at(address, 9101));
            receiver.recv(&mut buffer).ok() != Some(length)
        })
        .count()
}

#[test]
fn pods_learn_the_mtu_of_a_routed_path() {
    let mut narrow = Narrow::new(Lab::new(2, TunnelMode::Auto));
    let pods = narrow.pods();
    assert_eq!(pods[0].0.link("eth0")["mtu"], 1500);
    streams_complete(&pods);
    let lost = lost_datagrams(&pods[0].0, &pods[1].0, pods[1].1[0], NARROW);
    assert!(lost <= 3, "{lost}");
}

/// The outer packets do not have DF set, so a router fragments them and the other node reassembles them.
#[test]
fn vxlan_over_ipv4_passes_a_narrow_path_without_icmp() {
    let mut narrow = Narrow::new(Lab::new(2, TunnelMode::Always));
    let pods = narrow.pods();
    assert_eq!(pods[0].0.link("eth0")["mtu"], 1450);
    narrow.lose_errors();
    streams_complete(&pods);
    for (address, headers) in pods[1].1.iter().zip([28, 48]) {
        assert_eq!(lost_datagrams(&pods[0].0, &pods[1].0, *address, 1450 - headers), 0, "{address}");
    }
}

#[test]
fn wireguard_over_ipv4_passes_a_narrow_path_without_icmp() {
    needs!(has_wireguard(), WIREGUARD);
    let mut narrow = Narrow::new(Lab::encrypted(2));
    let pods = narrow.pods();
    assert_eq!(pods[0].0.link("eth0")["mtu"], 1440);
    narrow.lose_errors();
    streams_complete(&pods);
}

/// Documents a limitation and its remedy: where ICMP errors are lost, a stream stalls unless `--path-mtu` is set.
#[test]
fn without_icmp_a_routed_path_needs_its_mtu_as_an_option() {
    let mut narrow = Narrow::new(Lab::new(2, TunnelMode::Auto));
    narrow.lose_errors();
    let [(from, _), (to, addresses)] = narrow.pods();
    for address in &addresses {
        let received = transfer(&from, &to, *address, STALLED);
        assert!(received < AMOUNT, "{address}: {received}");
    }
    for tunnel in [TunnelMode::Auto, TunnelMode::Always] {
        let lab = Lab { path_mtu: Some(1400), ..Lab::new(2, tunnel) };
        let mut narrow = Narrow::new(lab);
        narrow.lose_errors();
        let pods = narrow.pods();
        let mtu = if tunnel == TunnelMode::Auto { 1400 } else { 1350 };
        assert_eq!(pods[0].0.link("eth0")["mtu"], mtu);
        streams_complete(&pods);
    }
}

/// Makes the nodes' first addresses IPv6 ones, over which their tunnels then run.
fn over_six(mut lab: Lab) -> Lab {
    for number in [1, 2] {
        lab.change(number, |node| node.addresses.reverse());
    }
    lab
}

/// Routers do not fragment IPv6, and a node does not fragment VXLAN packets. A node forwards IPv4 packets according to
/// the MTU of the link, not of the path (`ip_forward_use_pmtu` in the kernel's ip-sysctl.rst), so pods do not learn the
/// path's MTU.
#[test]
fn vxlan_over_ipv6_needs_the_mtu_of_a_narrow_path_as_an_option() {
    let mut narrow = Narrow::new(over_six(Lab::new(2, TunnelMode::Always)));
    let [(from, _), (to, addresses)] = narrow.pods();
    let received = transfer(&from, &to, addresses[0], STALLED);
    assert!(received < AMOUNT, "{received}");
    let lab = Lab { path_mtu: Some(1400), ..over_six(Lab::new(2, TunnelMode::Always)) };
    let mut narrow = Narrow::new(lab);
    narrow.lose_errors();
    let pods = narrow.pods();
    assert_eq!(pods[0].0.link("eth0")["mtu"], 1330);
    streams_complete(&pods);
}

/// The node itself fragments the outer packets.
#[test]
fn wireguard_over_ipv6_learns_the_mtu_of_a_narrow_path() {
    needs!(has_wireguard(), WIREGUARD);
    let mut narrow = Narrow::new(over_six(Lab::encrypted(2)));
    let pods = narrow.pods();
    assert_eq!(pods[0].0.link("eth0")["mtu"], 1420);
    streams_complete(&pods);
}
