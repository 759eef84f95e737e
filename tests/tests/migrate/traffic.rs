// SPDX-License-Identifier: GPL-2.0-or-later

//! Connections, datagrams and downloads from everywhere continue during migrations without a gap.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use slipway_tests::{Network, Proto, Space, at, dropped_by_processors, is_slow, patience};

use crate::{LEGACY, Maker, NFT, PORT, TABLE, Web, World, shown};

/// The port for downloads.
const LONG: u16 = PORT + 1;

/// A port outside for the container to connect to.
const OUTSIDE: u16 = 7000;

/// The pause between two connections of a thread. Many threads together notice a gap of this length, and the pause
/// leaves the migration a processor.
const PAUSE: Duration = Duration::from_millis(1);

/// Half the time after which the kernel resends a SYN. If a thread slept longer than this, the host is too busy to
/// distinguish a lost packet from a late one.
const STARVED: Duration = Duration::from_millis(500);

/// Traffic during a migration, and the failures that it saw.
struct Traffic {
    stop: AtomicBool,
    failures: Mutex<Vec<String>>,
    requests: AtomicUsize,
    bytes: AtomicUsize,
    /// The longest delay with which a thread woke up.
    late: Mutex<Duration>,
}

impl Traffic {
    fn failed(&self, what: String) {
        self.failures.lock().expect("not poisoned").push(what);
    }

    fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Opens new connections one after the other.
    fn connect(&self, from: &Space, to: SocketAddr, sees: Option<std::net::IpAddr>) {
        while self.is_running() {
            let answer = from.dial(Proto::Tcp, None, to, patience()).and_then(|mut flow| flow.request());
            self.requests.fetch_add(1, Ordering::Relaxed);
            match answer {
                Ok(answer) if sees.is_some_and(|ip| answer.peer.ip() != ip) => {
                    self.failed(format!("tcp {to} from {}: seen as {}", from.name(), answer.peer));
                }
                Ok(_) => {}
                Err(error) => self.failed(format!("tcp {to} from {}: {error}", from.name())),
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Sends single datagrams, each from a new port, without retransmission.
    fn datagrams(&self, from: &Space, to: SocketAddr) {
        while self.is_running() {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = from.bind(|| UdpSocket::bind(any)).expect("a socket");
            let answer = (|| {
                socket.connect(to)?;
                socket.set_read_timeout(Some(patience()))?;
                socket.send(b"hello")?;
                socket.recv(&mut [0; 512])
            })();
            self.requests.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = answer {
                let port = socket.local_addr().map_or(0, |own| own.port());
                self.failed(format!("udp {to} from {} port {port}: {error}", from.name()));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Keeps using a single flow.
    fn keep_flow(&self, from: &Space, proto: Proto, to: SocketAddr) {
        let mut flow = from.dial(proto, None, to, patience()).expect("a connection");
        let mut seen = None;
        while self.is_running() {
            let name = proto.name();
            match flow.request() {
                // The server must see the same source address throughout.
                Ok(answer) if *seen.get_or_insert(answer.peer) != answer.peer => {
                    return self.failed(format!("{name} flow with {to}: seen as {}", answer.peer));
                }
                Ok(_) => {}
                Err(error) => return self.failed(format!("{name} flow with {to}: {error}")),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Measures the delay with which a thread wakes up.
    fn watch_processor(&self) {
        while self.is_running() {
            let begun = Instant::now();
            std::thread::sleep(PAUSE);
            let late = begun.elapsed().saturating_sub(PAUSE);
            let mut longest = self.late.lock().expect("not poisoned");
            *longest = late.max(*longest);
        }
    }

    fn download(&self, from: &Space, to: SocketAddr) {
        let mut stream = match from.run(|| TcpStream::connect_timeout(&to, patience())) {
            Ok(stream) => stream,
            // On a fast machine, the gap may come before the connection.
            Err(error) => return self.failed(format!("download from {to}: {error}")),
        };
        stream.set_read_timeout(Some(patience())).expect("a time-out");
        let mut buffer = vec![0; 64 << 10];
        while self.is_running() {
            match stream.read(&mut buffer) {
                Ok(0) if self.is_running() => return self.failed(format!("download from {to}: ended early")),
                Ok(0) => return,
                Ok(length) => drop(self.bytes.fetch_add(length, Ordering::Relaxed)),
                Err(error) => return self.failed(format!("download from {to}: {error}")),
            }
            // The pause limits the load on the machine.
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Sends to each client until the traffic stops.
fn serve_long(listener: &TcpListener, traffic: &Traffic) {
    listener.set_nonblocking(true).expect("not to wait");
    std::thread::scope(|scope| {
        while traffic.is_running() {
            let Ok((mut stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            scope.spawn(move || {
                let _ = stream.set_nonblocking(false);
                let _ = stream.set_write_timeout(Some(Duration::from_millis(200)));
                let chunk = vec![7; 16 << 10];
                while traffic.is_running() {
                    match stream.write(&chunk) {
                        Ok(_) => {}
                        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                        Err(_) => return,
                    }
                }
            });
        }
    });
}

/// The number of retransmitted SYNs, which would hide a lost packet. A port without a server does not cause
/// retransmissions, because it refuses the connection.
fn sent_again(space: &Space) -> u64 {
    space.counter("TcpExt", "TCPSynRetrans")
}

/// Performs `work` under load, and returns the failures of the connections.
fn while_used(world: &World, web: &Web, work: impl FnOnce()) -> Vec<String> {
    let traffic = Traffic {
        stop: AtomicBool::new(false),
        failures: Mutex::default(),
        requests: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        late: Mutex::default(),
    };
    let [v4, v6] = world.node_ips();
    let _outside = Proto::ALL.map(|proto| world.client.serve(proto, &format!("[::]:{OUTSIDE}"), "outside"));
    let listener = web.pod.bind(|| TcpListener::bind("[::]:81")).expect("listen");
    let client: &Space = &world.client;
    let (pod, node): (&Space, &Space) = (&web.pod, &world.node);
    let spaces = [client, pod, node];
    let before: Vec<u64> = spaces.iter().map(|space| sent_again(space)).collect();
    let dropped = dropped_by_processors();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let traffic = &traffic;
        scope.spawn(move || serve_long(&listener, traffic));
        scope.spawn(|| traffic.watch_processor());
        let own = [world.client.v4.into(), world.client.v6.into()];
        for (ip, own) in [v4, v6].into_iter().zip(own) {
            scope.spawn(move || traffic.connect(client, at(ip, PORT), Some(own)));
            scope.spawn(move || traffic.datagrams(client, at(ip, PORT)));
            scope.spawn(move || traffic.connect(pod, at(ip, PORT), None));
            scope.spawn(move || traffic.download(client, at(ip, LONG)));
            scope.spawn(move || traffic.keep_flow(client, Proto::Udp, at(ip, PORT)));
        }
        scope.spawn(move || traffic.connect(node, at(v4, PORT), None));
        scope.spawn(move || traffic.connect(node, at(std::net::Ipv4Addr::LOCALHOST, PORT), None));
        scope.spawn(move || traffic.keep_flow(client, Proto::Tcp, at(v4, PORT)));
        // These flows go to a server outside, through masquerade.
        for ip in own {
            scope.spawn(move || traffic.keep_flow(pod, Proto::Udp, at(ip, OUTSIDE)));
        }
        scope.spawn(move || traffic.keep_flow(pod, Proto::Tcp, at(own[0], OUTSIDE)));
        scope.spawn(move || traffic.connect(pod, at(own[0], OUTSIDE), Some(v4)));
        scope.spawn(move || traffic.datagrams(pod, at(own[1], OUTSIDE)));
        std::thread::sleep(Duration::from_millis(300));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        std::thread::sleep(Duration::from_millis(300));
        traffic.stop.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
    let requests = traffic.requests.load(Ordering::Relaxed);
    let bytes = traffic.bytes.load(Ordering::Relaxed);
    eprintln!("{requests} connections and datagrams, {bytes} bytes of downloads in {:?}", began.elapsed());
    assert!(requests > 50 && bytes > 0, "too little to mean anything: {requests} requests, {bytes} bytes");
    let late = traffic.late.into_inner().expect("not poisoned");
    let proves_nothing = is_slow() || late > STARVED || dropped_by_processors() > dropped;
    let mut failures = traffic.failures.into_inner().expect("not poisoned");
    for (space, before) in spaces.iter().zip(before) {
        let again = sent_again(space) - before;
        if again > 0 && proves_nothing {
            eprintln!(
                "{again} first packets of {} were sent again, or answered late ({late:?})",
                space.name()
            );
        } else if again > 0 {
            failures.push(format!("{again} first packets of {} were sent again", space.name()));
        }
    }
    failures
}

fn web(world: &World, network: &Network<'_>, maker: &Maker) -> Web {
    let pod = world.node.pod("web");
    let attach = slipway_tests::Attach::new(&pod).port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80).port(
        Proto::Tcp,
        LONG,
        81,
    );
    crate::add(maker, network, &attach);
    let servers = Proto::ALL.map(|proto| pod.serve(proto, "[::]:80", "web"));
    Web { pod, attach, _servers: servers.into() }
}

/// Migrates to the other backend and back, without failures.
fn there_and_back(maker: &Maker) {
    let of_reference = maker.directory.is_some() && maker.backend == "nftables";
    let ways = if maker.backend == "iptables" || of_reference {
        ["nftables", "iptables", "nftables"]
    } else {
        ["iptables", "nftables", "iptables"]
    };
    assert_no_connection_fails(maker, &ways);
}

/// Migrates from backend to backend, without failures.
pub(super) fn assert_no_connection_fails(maker: &Maker, ways: &[&str]) {
    eprintln!("{}: {ways:?}", shown(maker));
    let world = World::new(maker.variant);
    let network = world.network(1, "bridge", maker.backend, &json!({}));
    let web = web(&world, &network, maker);
    if ways.contains(&"ebpf") {
        attach_quietly(&world);
    }
    let failures = while_used(&world, &web, || {
        for to in ways {
            world.migrated(to, 2);
        }
    });
    assert!(
        failures.is_empty(),
        "{}: {} failures: {:#?}",
        shown(maker),
        failures.len(),
        &failures[..failures.len().min(8)]
    );
    world.assert_is_in(ways.last().expect("a way"));
}

/// Adds clsact to the links in advance, because a link loses packets at the moment when it gets its first clsact.
fn attach_quietly(world: &World) {
    world.node.slipway("node setup");
    for line in world.node.cmd("ip -o link show type veth").lines() {
        let name = line.split(": ").nth(1).and_then(|name| name.split('@').next()).expect("a link");
        let _ = world.node.try_cmd(&format!("tc qdisc add dev {name} clsact"));
    }
}

#[test]
fn no_connection_fails_with_iptables_nft() {
    there_and_back(&NFT);
    there_and_back(&TABLE);
}

#[test]
fn no_connection_fails_with_iptables_legacy() {
    there_and_back(&LEGACY);
}

#[test]
fn no_connection_fails_with_rules_of_the_reference() {
    let all = Maker::references();
    if all.is_empty() {
        slipway_tests::skip!(slipway_tests::REFERENCE);
    }
    all.iter().for_each(there_and_back);
}

/// Checks that the tests above would detect a migration that empties the old backend before it fills the new one.
#[test]
fn a_gap_is_detected() {
    let world = World::new("nft");
    let network = world.network(1, "bridge", "iptables", &json!({}));
    let web = web(&world, &network, &NFT);
    let configs = network.configs(Some(&web.attach));
    let failures = while_used(&world, &web, || {
        let mut portmap = configs[1].clone();
        network.call("DEL", &portmap, Some(&web.attach)).ok();
        portmap["backend"] = json!("nftables");
        portmap["prevResult"] = json!({
            "cniVersion": portmap["cniVersion"],
            "interfaces": [{"name": "eth0", "sandbox": web.pod.path()}],
            "ips": [
                {"address": "10.88.1.2/24", "interface": 0},
                {"address": "fd00:88:1::2/64", "interface": 0},
            ],
        });
        network.call("ADD", &portmap, Some(&web.attach)).ok();
    });
    assert!(failures.iter().any(|what| what.contains("refused")), "{failures:#?}");
}
