// SPDX-License-Identifier: GPL-2.0-or-later

//! WireGuard between nodes: which packets pass, what an observer on the link sees, and which packets are refused.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni_kernel::route::{PublicKey, RouteSocket, WireGuardDevice, WireGuardSocket};
use slipway_tests::{
    ClusterNode, Frame, Pod, Proto, QUICK, Sniffer, WIREGUARD, at, has_wireguard, needs, patience,
    pod_ranges, skip,
};
use slipwayd::cluster::annotations::Annotations;
use slipwayd::cluster::desired::TunnelMode;
use slipwayd::cluster::nodes::Node;
use slipwayd::cluster::wireguard::DEVICE;

use crate::repairs::{until, with_agent};
use crate::routes::{a_node_reaches_the_pods_of_others, pods_of_all_nodes_reach_each_other};
use crate::{Lab, WIREGUARD_PORT, all_reach_each_other, name};

/// A text that each reply contains, so that replies in clear text can be recognised.
const MARK: &str = "in-clear-text";
const KEY_FILE: &str = "/run/slipway/wireguard.key";

type Pods = BTreeMap<u8, (Pod, Vec<IpAddr>)>;

fn pods(lab: &Lab) -> Pods {
    (1..=u8::try_from(lab.nodes.len()).expect("few nodes"))
        .map(|number| (number, lab.pod(number, "web")))
        .collect()
}

/// A node's WireGuard link as the kernel describes it.
pub(crate) fn device(node: &ClusterNode) -> WireGuardDevice {
    node.run(|| {
        let link = RouteSocket::open().and_then(|route| route.link(DEVICE));
        link.and_then(|link| WireGuardSocket::open()?.device(&link))
    })
    .unwrap_or_else(|error| panic!("node {}: {error}", node.number))
}

/// Fails unless one pod reaches another at all addresses and with all protocols. Each reply contains [`MARK`].
fn reach(pods: &Pods, from: u8, to: u8) {
    with_servers(pods, from, to, |client, proto, to| drop(client.expect(proto, to, MARK)));
}

/// Fails if one pod reaches another.
fn reach_none(pods: &Pods, from: u8, to: u8) {
    with_servers(pods, from, to, |client, proto, to| client.expect_none(proto, to));
}

fn with_servers(pods: &Pods, from: u8, to: u8, each: impl Fn(&Pod, Proto, SocketAddr)) {
    let (server, addresses) = &pods[&to];
    for address in addresses {
        let listen = at(*address, 8080);
        for proto in Proto::ALL {
            let _server = server.serve(proto, &listen.to_string(), MARK);
            each(&pods[&from].0, proto, listen);
        }
    }
}

/// The number of frames that contain [`MARK`] or come from a pod of these nodes.
pub(crate) fn in_clear_text(frames: &[Frame], senders: &[u8]) -> usize {
    let of_sender = |[source, _]: [IpAddr; 2]| match source {
        IpAddr::V4(source) => {
            let [a, b, node, _] = source.octets();
            (a, b) == (10, 244) && senders.contains(&node)
        }
        IpAddr::V6(source) => {
            let [a, _, _, node, ..] = source.segments();
            a == 0xfd44 && senders.iter().any(|sender| u16::from(*sender) == node)
        }
    };
    let is_clear =
        |frame: &&Frame| frame.contains(MARK.as_bytes()) || frame.addresses().is_some_and(of_sender);
    frames.iter().filter(is_clear).count()
}

#[test]
fn pods_of_all_nodes_reach_each_other_by_wireguard() {
    needs!(has_wireguard(), WIREGUARD);
    pods_of_all_nodes_reach_each_other(Lab::encrypted(3), "1440");
}

#[test]
fn a_node_reaches_the_pods_of_others_by_wireguard() {
    needs!(has_wireguard(), WIREGUARD);
    a_node_reaches_the_pods_of_others(Lab::encrypted(2));
}

#[test]
fn an_observer_on_the_link_sees_wireguard_only() {
    needs!(has_wireguard(), WIREGUARD);
    let mut lab = Lab::encrypted(2);
    lab.settle();
    let pods = pods(&lab);
    let sniffer = Sniffer::new(lab.cluster.lan());
    reach(&pods, 1, 2);
    reach(&pods, 2, 1);
    let frames = sniffer.frames();
    let encrypted = frames.iter().filter(|frame| frame.is_udp_to(WIREGUARD_PORT)).count();
    assert!(encrypted >= 16, "{encrypted} of {} frames", frames.len());
    assert_eq!(in_clear_text(&frames, &[1, 2]), 0);
    // As the control, an observer sees everything without encryption.
    lab.encrypts = false;
    lab.settle();
    assert!(!lab.node(1).has_link(DEVICE) && lab.node(1).read(KEY_FILE).is_none(), "withdrawn");
    let sniffer = Sniffer::new(lab.cluster.lan());
    reach(&pods, 1, 2);
    let seen = in_clear_text(&sniffer.frames(), &[1]);
    assert!(seen >= 16, "{seen}");
}

/// A host on the link has addresses of node 1's pods.
#[test]
fn no_packet_of_a_pod_is_accepted_in_clear_text() {
    needs!(has_wireguard(), WIREGUARD);
    let mut lab = Lab::encrypted(2);
    for setting in ["all", "default", "eth0"] {
        // A strict check of sources would drop IPv4 packets without our rules.
        lab.node(2).sysctl(&format!("net/ipv4/conf/{setting}/rp_filter"), "0");
    }
    lab.settle();
    let pods = pods(&lab);
    reach(&pods, 1, 2);
    let outside = &lab.cluster.outside;
    let pretended: [IpAddr; 2] =
        ["10.244.1.77", "fd44:0:0:1::77"].map(|text| text.parse().expect("an address"));
    for ((range, via), pretended) in pod_ranges(2).iter().zip(lab.node(2).addresses).zip(pretended) {
        outside.cmd(&format!("ip route add {range} via {via}"));
        outside.cmd(&format!("ip address add {pretended} dev lo"));
    }
    let (pod, addresses) = &pods[&2];
    let arrives = |to: IpAddr, from: IpAddr, own: IpAddr| {
        let victim = pod.bind(|| UdpSocket::bind(at(to, 7777))).expect("a socket");
        victim.set_read_timeout(Some(patience())).expect("a time limit");
        for (source, payload) in [(from, b"forged"), (own, b"proper")] {
            let sent = outside.run(|| UdpSocket::bind(at(source, 0))?.send_to(payload, at(to, 7777)));
            assert_eq!(sent.expect("it is sent"), payload.len());
        }
        let mut buffer = [0; 16];
        let length = victim.recv(&mut buffer).expect("a packet arrives");
        buffer[..length] == *b"forged"
    };
    let all = || -> Vec<bool> {
        let sources = pretended.into_iter().zip(outside.addresses);
        addresses.iter().zip(sources).map(|(to, (from, own))| arrives(*to, from, own)).collect()
    };
    assert_eq!(all(), [false, false]);
    lab.node(2).cmd("nft delete table inet slipway-tunnel");
    assert_eq!(all(), [true, true], "the control");
    assert!(lab.compare(2, true).errors.is_empty());
    assert_eq!(all(), [false, false]);
    reach(&pods, 1, 2);
}

#[test]
fn a_node_with_another_key_gets_nothing() {
    needs!(has_wireguard(), WIREGUARD);
    let mut lab = Lab::encrypted(3);
    lab.settle();
    let pods = pods(&lab);
    all_reach_each_other(&pods);
    let before = device(lab.node(1));
    lab.change(3, |node| node.annotations.wireguard_key = Some(PublicKey([0x42; 32])));
    let report = lab.compare(1, true);
    assert_eq!(report.changes, ["slipway-wg: set 1 peers, removed 1"]);
    let sniffer = Sniffer::new(lab.cluster.lan());
    reach_none(&pods, 1, 3);
    reach_none(&pods, 3, 1);
    assert_eq!(in_clear_text(&sniffer.frames(), &[1, 2, 3]), 0);
    // The session with the other node remains, and does not even renew its handshake.
    let handshake = |device: &WireGuardDevice, number: u8| {
        let key = lab.nodes[&name(number)].annotations.wireguard_key;
        device.peers.iter().find(|peer| Some(peer.key) == key).map(|peer| peer.last_handshake)
    };
    let after = device(lab.node(1));
    assert!(handshake(&before, 2).is_some_and(|time| time > Duration::ZERO));
    assert_eq!(handshake(&after, 2), handshake(&before, 2));
    reach(&pods, 1, 2);
    reach(&pods, 2, 1);
}

/// As in a cluster that has nodes with and without encryption, or while encryption is switched on node by node.
#[test]
fn packets_to_a_node_without_a_key_are_refused_and_not_sent_in_clear_text() {
    needs!(has_wireguard(), WIREGUARD);
    let mut lab = Lab::new(3, TunnelMode::Auto);
    lab.settle();
    let pods = pods(&lab);
    all_reach_each_other(&pods);
    // From now on, two of the three nodes encrypt.
    lab.encrypts = true;
    for _ in 0..2 {
        for number in [1, 2] {
            let announce = lab.compare(number, true).announce;
            lab.change(number, |node| node.annotations = announce);
        }
    }
    let report = lab.compare(1, true);
    let problem = "node node-3: does not announce a WireGuard key: packets to its pods are refused, not sent in clear text";
    assert_eq!(report.troubles().collect::<Vec<_>>(), [problem]);
    assert!(report.is_ready, "the other nodes are reached");
    let sniffer = Sniffer::new(lab.cluster.lan());
    reach_none(&pods, 1, 3);
    reach(&pods, 1, 2);
    reach(&pods, 2, 1);
    // Packets to pod addresses that no Node has do not leave by the default route either.
    for address in ["10.244.77.7", "fd44:0:0:77::7"] {
        let to = at(address.parse::<IpAddr>().expect("an address"), 80);
        assert!(pods[&1].0.request_from(Proto::Udp, None, to, QUICK).is_err());
    }
    assert_eq!(in_clear_text(&sniffer.frames(), &[1, 2]), 0);
    // As long as the list of Nodes is not complete, they do not either.
    lab.nodes.clear();
    let report = lab.compare(1, false);
    assert!(!report.changes.iter().any(|change| change.contains("10.244.3.0/24 via")), "{report:?}");
    let routes = lab.node(1).cmd("ip route show");
    assert!(
        routes.contains("unreachable 10.244.0.0/16") && !routes.contains("10.244.3.0/24 via"),
        "{routes}"
    );
}

/// Existing routes that send packets in clear text are deleted without waiting for a complete list of Nodes.
#[test]
fn routes_in_clear_text_are_deleted_when_encryption_is_asked_for() {
    let mut lab = Lab::new(2, TunnelMode::Auto);
    lab.settle();
    let pods = pods(&lab);
    all_reach_each_other(&pods);
    lab.encrypts = true;
    lab.nodes.clear();
    lab.compare(1, false);
    let routes = lab.node(1).cmd("ip route show") + &lab.node(1).cmd("ip -6 route show");
    assert!(!routes.contains(" via 192.168.50.12") && !routes.contains(" via fd50::c"), "{routes}");
    assert!(
        routes.contains("unreachable 10.244.0.0/16") && routes.contains("unreachable fd44::/32"),
        "{routes}"
    );
    let sniffer = Sniffer::new(lab.cluster.lan());
    reach_none(&pods, 1, 2);
    assert_eq!(in_clear_text(&sniffer.frames(), &[1]), 0);
}

#[test]
fn a_node_without_wireguard_in_its_kernel_says_so_and_sends_nothing() {
    if has_wireguard() {
        skip!("a kernel without WireGuard");
    }
    let mut lab = Lab::new(2, TunnelMode::Auto);
    lab.settle();
    let pods = pods(&lab);
    lab.encrypts = true;
    let report = lab.compare(1, true);
    let reason = report.reason().expect("it is not ready");
    assert!(reason.starts_with("WireGuard: this kernel has no WireGuard"), "{reason}");
    assert_eq!(report.announce, Annotations::default());
    let sniffer = Sniffer::new(lab.cluster.lan());
    reach_none(&pods, 1, 2);
    assert_eq!(in_clear_text(&sniffer.frames(), &[1]), 0);
    // Without the option, everything is as before.
    lab.encrypts = false;
    lab.settle();
    reach(&pods, 1, 2);
}

#[test]
fn the_key_is_for_root_only_and_a_lost_one_is_replaced() {
    needs!(has_wireguard(), WIREGUARD);
    let mut lab = Lab::encrypted(2);
    lab.settle();
    let pods = pods(&lab);
    let mode = lab.node(1).run(|| std::fs::metadata(KEY_FILE)).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let before = lab.nodes[&name(1)].annotations.wireguard_key;
    assert_eq!(before, device(lab.node(1)).public_key);
    assert_eq!(lab.compare(1, true).announce.wireguard_key, before, "as after a restart");
    lab.node(1).cmd(&format!("rm {KEY_FILE}"));
    let renewed = lab.compare(1, true).announce.wireguard_key;
    assert!(renewed.is_some() && renewed != before);
    lab.settle();
    reach(&pods, 1, 2);
    reach(&pods, 2, 1);
}

/// A folder is in the place of the key's file, so the key can be neither read nor replaced. The other nodes know the
/// key that the device has, and would remove the node as a peer if it announced none.
#[test]
fn a_key_that_cannot_be_read_stays_in_the_device_and_announced() {
    needs!(has_wireguard(), WIREGUARD);
    let mut lab = Lab::encrypted(2);
    lab.settle();
    let pods = pods(&lab);
    let before = lab.nodes[&name(1)].annotations.wireguard_key;
    assert!(before.is_some());
    lab.node(1).cmd(&format!("mv {KEY_FILE} {KEY_FILE}.kept"));
    lab.node(1).cmd(&format!("mkdir {KEY_FILE}"));
    let report = lab.compare(1, true);
    assert_eq!(report.announce.wireguard_key, before);
    assert_eq!(report.changes, [""; 0]);
    assert_eq!(device(lab.node(1)).public_key, before);
    reach(&pods, 1, 2);
    reach(&pods, 2, 1);
    // The key in the file is still the device's.
    lab.node(1).cmd(&format!("rmdir {KEY_FILE}"));
    lab.node(1).cmd(&format!("mv {KEY_FILE}.kept {KEY_FILE}"));
    assert_eq!(lab.compare(1, true).announce.wireguard_key, before);
    // A device that has no key needs one.
    lab.node(1).cmd("ip link del slipway-wg");
    lab.node(1).cmd(&format!("rm {KEY_FILE}"));
    lab.node(1).cmd(&format!("mkdir {KEY_FILE}"));
    let report = lab.compare(1, true);
    assert_eq!(report.announce.wireguard_key, None);
    assert!(report.troubles().any(|trouble| trouble.contains(KEY_FILE)), "{report:?}");
}

#[test]
fn what_others_change_of_wireguard_comes_back() {
    needs!(has_wireguard(), WIREGUARD);
    let mut lab = Lab::encrypted(2);
    lab.settle();
    let pods = pods(&lab);
    let node = lab.node(1);
    with_agent(&lab, 1, || {
        for (delete, show, text) in [
            ("ip link del slipway-wg", "ip route show", "10.244.2.0/24 dev slipway-wg"),
            ("ip link set slipway-wg down", "ip -6 route show", "fd44:0:0:2::/64 dev slipway-wg"),
            ("ip route del 10.244.2.0/24", "ip route show", "10.244.2.0/24 dev slipway-wg"),
            ("ip route del unreachable 10.244.0.0/16", "ip route show", "unreachable 10.244.0.0/16"),
            ("ip address flush dev slipway-wg", "ip address show dev slipway-wg", "10.244.1.0/32"),
            ("ip link set slipway-wg mtu 1300", "ip link show slipway-wg", "mtu 1440"),
        ] {
            node.cmd(delete);
            let took = until(delete, || node.try_cmd(show).stdout.contains(text));
            println!("{delete}: {took:?}");
        }
        reach(&pods, 1, 2);
    });
}

#[test]
fn a_link_of_another_program_is_left_alone() {
    let mut lab = Lab::new(2, TunnelMode::Auto);
    lab.settle();
    let node = lab.node(1);
    node.cmd("ip link add slipway-wg type bridge");
    lab.encrypts = true;
    let report = lab.compare(1, true);
    let reason = report.reason().expect("it is not ready");
    assert_eq!(reason, "WireGuard: a link \"slipway-wg\" exists that Slipway did not make");
    lab.encrypts = false;
    lab.compare(1, true);
    assert!(lab.node(1).has_link(DEVICE));
}

#[test]
fn a_thousand_nodes_are_peers_and_only_differences_are_sent() {
    const COUNT: u16 = 1000;
    needs!(has_wireguard(), WIREGUARD);
    let mut lab = Lab::encrypted(1);
    lab.settle();
    for number in 0..COUNT {
        let [high, low] = number.to_be_bytes();
        let mut key = [7; 32];
        key[..2].copy_from_slice(&[high, low]);
        let node = Node {
            name: format!("fake-{number}").parse().expect("a name"),
            uid: "".into(),
            created: Some(1000),
            // The prefixes lie within the cluster's and begin at 10.244.2.0, because 10.244.1.0/24 belongs to the first
            // node.
            pod_cidrs: vec![
                format!("10.244.{}.{}/26", (number + 8) / 4, number % 4 * 64).parse().expect("a prefix"),
                format!("fd44:0:1:{number:x}::/64").parse().expect("a prefix"),
            ],
            addresses: vec![format!("172.20.{high}.{low}").parse().expect("an address")],
            annotations: Annotations { wireguard_key: Some(PublicKey(key)), ..Annotations::default() },
            unusable: Vec::new(),
        };
        lab.nodes.insert(node.name.clone(), Arc::new(node));
    }
    let begin = Instant::now();
    let report = lab.compare(1, true);
    println!("{COUNT} nodes: {:?}, {:?} in all", report.took, begin.elapsed());
    assert_eq!(report.errors.len(), 0, "{:?}", report.errors.first());
    let first = report.changes.first().map(String::as_str);
    assert_eq!(
        first,
        Some("slipway-wg: set 1000 peers, removed 0"),
        "{:?}",
        report.troubles().collect::<Vec<_>>()
    );
    assert_eq!(device(lab.node(1)).peers.len(), usize::from(COUNT));
    let report = lab.compare(1, true);
    println!("without changes: {:?}", report.took);
    assert_eq!(report.changes, [""; 0]);
    lab.nodes.remove(&"fake-7".parse().expect("a name"));
    let changes = lab.compare(1, true).changes;
    assert_eq!(changes[0], "slipway-wg: set 0 peers, removed 1");
    assert_eq!(changes.len(), 3, "two routes: {changes:?}");
}
