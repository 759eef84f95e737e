// SPDX-License-Identifier: GPL-2.0-or-later

//! The programs learn only what is certain. Whatever other rules, programs and containers do, a datagram arrives where
//! it would arrive with the nftables backend, which is the control in each test.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use cni_dataplane::ebpf::Follower;
use nix::sys::socket::{setsockopt, sockopt};
use slipway_ebpf_abi::Counter;
use slipway_tests::{Attach, PROGRAMS, Pod, Proto, Space, address_of, has_programs, needs, within};

use crate::{Connection, Engine, FAR, PORT, Stage, xdp};

/// The time after which a change of rules, programs or neighbours must apply to running flows.
const HOLDS_WITHIN: Duration = Duration::from_secs(1);
/// The number of datagrams per second in most tests.
const RATE: u32 = 40;

/// A flow of numbered datagrams in one direction.
pub(crate) struct Datagrams {
    sender: UdpSocket,
    receiver: UdpSocket,
    next: u32,
}

impl Datagrams {
    fn new(from: &Space, to: SocketAddr, server: &Space, at: SocketAddr) -> Self {
        let receiver = server.bind(|| UdpSocket::bind(at)).expect("bind");
        let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let sender = from.bind(|| UdpSocket::bind(any)).expect("bind");
        sender.connect(to).expect("connect");
        receiver.set_nonblocking(true).expect("non-blocking");
        Self { sender, receiver, next: 0 }
    }

    /// A flow from the client to the published port of a pod.
    pub(crate) fn to_pod(stage: &Stage, pod: &Pod, own: [IpAddr; 2], family: usize) -> Self {
        let to = SocketAddr::new(stage.node_ips()[family], PORT);
        Self::new(&stage.client, to, pod, SocketAddr::new(own[family], 80))
    }

    /// A flow from a pod to the client, which the node masquerades.
    fn from_pod(stage: &Stage, pod: &Pod, family: usize) -> Self {
        let to = SocketAddr::new(stage.client_ips()[family], FAR);
        Self::new(pod, to, &stage.client, to)
    }

    /// Sends `count` datagrams at a rate, the length of each determined by its number, and returns the numbers that
    /// arrived.
    fn send_lengths(&mut self, count: u32, rate: u32, length: impl Fn(u32) -> usize) -> Vec<u32> {
        self.send_with(count, rate, |number, _| length(number))
    }

    /// Does the same with a function that returns a datagram's length, and may change the sender's options before that.
    pub(crate) fn send_with(
        &mut self,
        count: u32,
        rate: u32,
        prepare: impl Fn(u32, &UdpSocket) -> usize,
    ) -> Vec<u32> {
        let begin = Instant::now();
        let mut arrived = Vec::new();
        for sent in 0..count {
            let mut bytes = vec![0; prepare(self.next, &self.sender).max(4)];
            bytes[..4].copy_from_slice(&self.next.to_be_bytes());
            // The first attempt may fail with an ICMP error about an earlier datagram.
            let _ = self.sender.send(&bytes).or_else(|_| self.sender.send(&bytes));
            self.next += 1;
            self.read(&mut arrived);
            thread::sleep(
                (begin + Duration::from_secs(1) * (sent + 1) / rate)
                    .saturating_duration_since(Instant::now()),
            );
        }
        thread::sleep(Duration::from_millis(100));
        self.read(&mut arrived);
        arrived
    }

    pub(crate) fn send(&mut self, count: u32) -> Vec<u32> {
        self.send_lengths(count, RATE, |_| 64)
    }

    fn read(&self, arrived: &mut Vec<u32>) {
        let mut bytes = [0; 2000];
        while let Ok(length) = self.receiver.recv(&mut bytes) {
            assert!(length >= 4, "{length} bytes");
            arrived.push(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        }
    }
}

/// Calls `test` with each engine, first with the control.
fn each_engine(mut test: impl FnMut(&Stage)) {
    needs!(has_programs(), PROGRAMS);
    for engine in [Engine::Nftables, Engine::Carried] {
        test(&Stage::new(engine));
    }
}

/// Does what slipwayd does once a second.
pub(crate) fn follow(stage: &Stage) {
    if stage.engine == Engine::Carried {
        stage.node.run(|| Follower::default().look(true)).expect("follow the rules");
    }
}

/// A second uplink, to which rules send copies.
pub(crate) fn collector(stage: &Stage) -> slipway_tests::Host {
    let collector = stage.node.host("collector");
    let (mac, link) = (collector.mac("eth0"), &collector.node_link);
    stage.node.cmd(&format!("ip neigh replace {} lladdr {mac} dev {link} nud permanent", collector.v4));
    collector
}

/// Fails unless all of `expected` have arrived, each exactly once.
#[track_caller]
pub(crate) fn assert_all(arrived: &[u32], expected: std::ops::Range<u32>, what: &str) {
    let missing: BTreeSet<u32> = expected.clone().filter(|number| !arrived.contains(number)).collect();
    assert!(missing.is_empty(), "{what}: {} of {} are missing: {missing:?}", missing.len(), expected.len());
}

/// The number of copies that a space receives while `act` runs.
pub(crate) fn copies<T>(at: &Space, act: impl FnOnce() -> T) -> (T, u64) {
    let received = || -> u64 {
        let text = at.cmd("ip -s -json link show dev eth0");
        let links: serde_json::Value = serde_json::from_str(&text).expect("ip prints JSON");
        links[0]["stats64"]["rx"]["packets"].as_u64().expect("a number")
    };
    let before = received();
    let result = act();
    (result, received() - before)
}

/// Rules that send a copy of each datagram to the collector.
const MIRRORS: [&str; 2] = [
    "table ip mirror {\nchain c {\ntype filter hook prerouting priority mangle\nmeta l4proto udp dup to COLLECTOR device LINK\n}\n}\n",
    "table ip mirror {\nchain c {\ntype filter hook forward priority mangle\nmeta l4proto udp dup to COLLECTOR device LINK\n}\n}\n",
];

/// Covers a rule that is added while the flow is carried, a flow that begins after the rule, and a rule that slipwayd
/// has already seen.
#[test]
fn copies_that_a_rule_makes_divert_no_flow() {
    each_engine(|stage| {
        let collector = collector(stage);
        let (pod, own) = stage.pod("web");
        for (number, mirror) in MIRRORS.iter().enumerate() {
            let mirror =
                mirror.replace("COLLECTOR", &collector.v4.to_string()).replace("LINK", &collector.node_link);
            for from_pod in [false, true] {
                let new = || match from_pod {
                    true => Datagrams::from_pod(stage, &pod, 0),
                    false => Datagrams::to_pod(stage, &pod, own, 0),
                };
                let what = format!("{:?}, rule {number}, from the pod: {from_pod}", stage.engine);
                let mut running = new();
                assert_all(&running.send(20), 0..20, &what);
                stage.node.nft(&mirror);
                let (arrived, copied) = copies(&collector, || running.send(120));
                assert_all(&arrived, 20..140, &what);
                println!("{what}: {copied} copies");
                assert!(copied >= 120 - u64::from(RATE), "{what}: {copied} copies of 120");
                drop(running);
                let mut new = new();
                let (arrived, copied) = copies(&collector, || new.send(60));
                assert_all(&arrived, 0..60, &format!("{what}, new"));
                assert!(copied >= 60, "{what}, new: {copied} copies of 60");
                follow(stage);
                assert_all(&new.send(20), 60..80, &format!("{what}, followed"));
                stage.node.cmd("nft delete table ip mirror");
                follow(stage);
            }
        }
    });
}

/// A tc filter mirrors the datagrams that go to the pod.
#[test]
fn copies_that_a_filter_makes_divert_no_flow() {
    each_engine(|stage| {
        let collector = collector(stage);
        let pod = stage.node.pod("web");
        let attach = Attach::new(&pod).port(Proto::Udp, PORT, 80);
        let result = stage.network().add(&attach).expect("ADD");
        let own = [0, 1].map(|index| address_of(&result, index));
        let link = result["interfaces"][1]["name"].as_str().expect("a link");
        let mut running = Datagrams::to_pod(stage, &pod, own, 0);
        assert_all(&running.send(20), 0..20, "before the filter");
        stage.node.cmd(&format!("tc qdisc replace dev {link} clsact"));
        stage.node.cmd(&format!(
            "tc filter add dev {link} egress protocol all pref 5 u32 match u32 0 0 action mirred egress mirror dev {} continue",
            collector.node_link
        ));
        follow(stage);
        let (arrived, copied) = copies(&collector, || running.send(120));
        assert_all(&arrived, 20..140, "with the filter");
        assert!(copied >= 120 - u64::from(RATE), "{copied} copies of 120");
    });
}

/// Sends datagrams to a pod whose frames the bridge floods, and checks that all arrive there.
fn all_flooded_arrive(stage: &Stage, pod: &Pod, own: [IpAddr; 2]) {
    let mac = pod.mac("eth0");
    stage.node.cmd("ip link set cni0 type bridge ageing_time 0");
    stage.node.cmd(&format!("ip neigh replace {} lladdr {mac} dev cni0 nud permanent", own[0]));
    stage.node.cmd("bridge fdb flush dev cni0 nopermanent");
    let mut flow = Datagrams::to_pod(stage, pod, own, 0);
    assert_all(&flow.send(80), 0..80, &format!("{:?}", stage.engine));
}

/// The bridge has no forwarding entry for a silent pod, so it floods frames for that pod, and another pod's port may
/// send them out first.
#[test]
fn flooded_frames_give_no_flow_to_another_pod() {
    each_engine(|stage| {
        let (web, own) = stage.pod("web");
        let (_other, _) = stage.pod_at("other", PORT + 1);
        let (_third, _) = stage.pod_at("third", PORT + 2);
        all_flooded_arrive(stage, &web, own);
        if stage.engine == Engine::Carried {
            assert!(stage.count(Counter::Carried) > 40, "the right container has them: {:?}", stage.counts());
        }
    });
}

/// The same if the silent pod's link has lost its programs, which would notice the copies, and the map has lost the address
/// of the other pod, which has a rate limit.
#[test]
fn flooded_frames_give_no_flow_to_a_limited_pod_whose_address_is_unknown() {
    each_engine(|stage| {
        let web = stage.node.pod("web");
        let result = stage.network().add(&Attach::new(&web).port(Proto::Udp, PORT, 80)).expect("ADD");
        let own = [0, 1].map(|index| address_of(&result, index));
        let _limited = stage.limited_pod(PORT + 1);
        if stage.engine == Engine::Carried {
            stage.forget_containers();
            let link = result["interfaces"][1]["name"].as_str().expect("a link");
            stage.node.cmd(&format!("tc qdisc del dev {link} clsact"));
        }
        all_flooded_arrive(stage, &web, own);
        assert_eq!(stage.count(Counter::Carried), 0, "{:?}", stage.counts());
    });
}

/// Simulates a failover inside the container: its IP address moves to another MAC address, which the bridge does not
/// know.
#[test]
fn a_neighbour_with_another_ethernet_address_gets_its_datagrams() {
    each_engine(|stage| {
        let (web, own) = stage.pod("web");
        let (_other, _) = stage.pod_at("other", PORT + 1);
        let (_third, _) = stage.pod_at("third", PORT + 2);
        stage.node.cmd("ip link set cni0 type bridge ageing_time 0");
        let neighbour = |mac: &str| {
            stage.node.cmd(&format!("ip neigh replace {} lladdr {mac} dev cni0 nud permanent", own[0]));
        };
        neighbour(&web.mac("eth0"));
        let mut flow = Datagrams::to_pod(stage, &web, own, 0);
        assert_all(&flow.send(40), 0..40, "before");
        web.cmd("ip link set eth0 address 02:00:00:00:00:99");
        neighbour("02:00:00:00:00:99");
        flow.send(RATE);
        let first = flow.next;
        assert_all(&flow.send(80), first..first + 80, &format!("{:?}", stage.engine));
    });
}

/// Covers every kind of rule in the kernel that decides about single packets, at 300 datagrams per second. The numbers
/// that pass must be those that pass with the nftables backend.
#[test]
fn rules_about_single_packets_decide_about_each() {
    const COUNT: u32 = 900;
    const RULES: [(&str, &str); 6] = [
        ("limit", "limit rate over 50/second burst 5 packets drop"),
        ("quota", "quota over 20000 bytes drop"),
        ("random", "numgen inc mod 2 0 drop"),
        ("length", "meta length > 100 drop"),
        ("payload", "@th,64,32 & 1 == 1 drop"),
        ("meter", "update @m { ip saddr limit rate over 50/second burst 5 packets } drop"),
    ];
    needs!(has_programs(), PROGRAMS);
    for (name, rule) in RULES {
        let script = format!(
            "table ip single {{\nset m {{ type ipv4_addr; size 100; flags dynamic; }}\n\
             chain c {{\ntype filter hook forward priority filter\nmeta l4proto udp {rule}\n}}\n}}\n"
        );
        let mut passed = Vec::new();
        for engine in [Engine::Nftables, Engine::Carried] {
            let stage = Stage::new(engine);
            stage.node.nft(&script);
            let (pod, own) = stage.pod("web");
            let mut flow = Datagrams::to_pod(&stage, &pod, own, 0);
            let length = |number: u32| if number.is_multiple_of(2) { 20 } else { 200 };
            let arrived = flow.send_lengths(COUNT, 300, length);
            println!("{name}: {engine:?}: {} of {COUNT}", arrived.len());
            passed.push(arrived.len() as i64);
            if engine == Engine::Carried {
                let rules = stage.node.programs()["holding_rules"].clone();
                assert_eq!(rules.as_array().map(Vec::len), Some(1), "{name}: {rules}");
                assert_eq!(rules[0]["flows"], "UDP over IPv4", "{name}: {rules}");
            }
        }
        assert!((passed[0] - passed[1]).abs() <= 30, "{name}: {passed:?} passed");
    }
}

/// If such a rule is added while a flow is carried, it takes effect within a second on a node with slipwayd, and flows
/// of other protocols are still carried.
#[test]
fn a_limit_that_comes_later_holds_for_a_flow_that_runs() {
    each_engine(|stage| {
        let (pod, own) = stage.pod("web");
        let mut flow = Datagrams::to_pod(stage, &pod, own, 0);
        assert_eq!(flow.send_lengths(300, 300, |_| 64).len(), 300);
        stage.node.nft(
            "table ip single {\nchain c {\ntype filter hook forward priority filter\n\
             meta l4proto udp limit rate over 50/second burst 5 packets drop\n}\n}\n",
        );
        follow(stage);
        let passed = flow.send_lengths(600, 300, |_| 64).len();
        assert!((90..130).contains(&passed), "{:?}: {passed} of 600", stage.engine);
        let mut connection = stage.connect(&pod, own);
        let before = stage.count(Counter::Carried);
        connection.requests(100).expect("replies");
        let carried = stage.count(Counter::Carried) - before;
        assert!(stage.engine == Engine::Nftables || carried > 150, "{carried} of TCP");
        stage.node.cmd("nft delete table ip single");
        follow(stage);
        let before = stage.count(Counter::Carried);
        assert_eq!(flow.send_lengths(300, 300, |_| 64).len(), 300);
        let carried = stage.count(Counter::Carried) - before;
        assert!(stage.engine == Engine::Nftables || carried > 250, "{carried} without the rule");
    });
}

/// The uplink's MTU shrinks while a flow repeatedly sends one short datagram and then five long ones.
#[test]
fn a_smaller_mtu_holds_for_the_long_datagrams_of_a_flow_that_runs() {
    each_engine(|stage| {
        let (pod, _) = stage.pod("web");
        let mut flow = Datagrams::from_pod(stage, &pod, 0);
        let length = |number: u32| if number.is_multiple_of(6) { 50 } else { 1300 };
        assert_all(&flow.send_lengths(60, RATE, length), 0..60, "before");
        stage.client.cmd("ip link set eth0 mtu 1000");
        stage.node.cmd(&format!("ip link set {} mtu 1000", stage.client.node_link));
        flow.send_lengths(RATE * 3 / 2, RATE, length);
        let first = flow.next;
        let arrived = flow.send_lengths(60, RATE, length);
        assert_all(&arrived, first..first + 60, &format!("{:?}, after {HOLDS_WITHIN:?}", stage.engine));
    });
}

/// In active FTP, conntrack's helper translates the address in a PORT command, which here is the twentieth command.
#[test]
fn a_flow_with_a_helper_of_conntrack_is_not_carried() {
    const COMMANDS: usize = 20;
    needs!(has_programs(), PROGRAMS);
    for engine in [Engine::Nftables, Engine::Carried] {
        let stage = Stage::new(engine);
        let loaded = stage.node.try_cmd_input(
            "nft -f -",
            "table ip helpers {\nct helper ftp { type \"ftp\" protocol tcp; }\n\
             chain c {\ntype filter hook prerouting priority filter\ntcp dport 21 ct helper set \"ftp\"\n}\n}\n",
        );
        if loaded.code != Some(0) {
            slipway_tests::skip!("conntrack's helper for FTP");
        }
        let (pod, own) = stage.pod("web");
        let far = SocketAddr::new(stage.client_ips()[0], 21);
        let mut connection = Connection::new(&pod, far, &stage.client, far).expect("a connection");
        let mut line = [0; 100];
        let mut exchange = |command: &str| {
            connection.client.write_all(command.as_bytes()).expect("write");
            let length = connection.server.read(&mut line).expect("read");
            connection.server.write_all(b"200 OK\r\n").expect("write");
            let received = String::from_utf8_lossy(&line[..length]).into_owned();
            let _ = connection.client.read(&mut line).expect("read");
            received
        };
        for _ in 0..COMMANDS {
            assert_eq!(exchange("NOOP\r\n"), "NOOP\r\n");
        }
        let port = |address: IpAddr| format!("PORT {},40,1\r\n", address.to_string().replace('.', ","));
        let received = exchange(&port(own[0]));
        println!("{engine:?}: {received:?}");
        if engine == Engine::Nftables && received == port(own[0]) {
            slipway_tests::skip!("conntrack's helper for FTP");
        }
        assert!(
            received.starts_with(port(stage.node_ips()[0]).trim_end().trim_end_matches("40,1")),
            "{received:?}"
        );
    }
}

/// Segmentation offload hides the length of datagrams, because the programs see trains where the wire has single
/// datagrams.
#[test]
fn long_trains_do_not_raise_the_length_that_fits() {
    each_engine(|stage| {
        let (pod, _) = stage.pod("web");
        let flow = Datagrams::from_pod(stage, &pod, 0);
        setsockopt(&flow.sender, sockopt::UdpGsoSegment, &600).expect("UDP_SEGMENT");
        let mut arrived = Vec::new();
        for _ in 0..20 {
            let _ = flow.sender.send(&[0; 3000]);
            thread::sleep(within(Duration::from_millis(20)));
            flow.read(&mut arrived);
        }
        assert_eq!(arrived.len(), 100, "{:?}", stage.engine);
    });
}

/// A native XDP program in the container sees each packet that the container receives. The first program drops all
/// packets, after which there is no program again.
#[test]
fn a_native_xdp_program_in_the_container_sees_each_packet() {
    each_engine(|stage| {
        let (pod, own) = stage.pod("web");
        let mut flow = Datagrams::to_pod(stage, &pod, own, 0);
        assert_all(&flow.send(40), 0..40, "before");
        if stage.engine == Engine::Nftables {
            stage.node.cmd("mount -t bpf bpf /sys/fs/bpf");
        }
        let program = "/sys/fs/bpf/drop";
        stage.node.run(|| xdp::pin_one_that_drops(program)).expect("load a program of XDP");
        pod.cmd(&format!("ip link set dev eth0 xdpdrv pinned {program}"));
        follow(stage);
        assert_eq!(flow.send(40), [0; 0], "{:?}: dropped", stage.engine);
        let queued = stage.engine == Engine::Carried;
        let listed = || stage.node.programs()["containers_with_queue"].as_array().map_or(0, Vec::len);
        assert_eq!(listed(), usize::from(queued), "{:?}", stage.engine);
        pod.cmd("ip link set dev eth0 xdpdrv off");
        follow(stage);
        let first = flow.next;
        assert_all(&flow.send(40), first..first + 40, "after");
        assert_eq!(listed(), 0);
    });
}
