//! Much data, both ways at once, through a published port and through masquerade. Each end compares each byte with
//! what the other one must have sent, and the kernels at both ends say that no checksum was wrong: of packets that
//! are cut and summed by devices, by the node on the way out, or by their senders.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use slipway_tests::{
    Attach, BridgeNetfilter, Host, Node, PROGRAMS, Pod, Proto, Space, has_programs, needs, patience,
};

use crate::{PORT, Stage, address_of};

/// How much each end sends: 64 MiB, less where the machine is emulated.
fn amount() -> usize {
    if patience() > Duration::from_secs(12) { 8 << 20 } else { 64 << 20 }
}

/// The far end's port.
pub(crate) const FAR: u16 = 7000;
const BLOCK: usize = 64 << 10;
/// What blocks differ by.
const SHIFT: usize = 509;

/// Bytes that repeat nowhere near: xorshift64*, from this seed.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_ne_bytes()
    };
    (0..(BLOCK + SHIFT) / 8 + 1).flat_map(|_| next()).collect()
}

/// The block with this number of what is sent with this noise.
fn block(noise: &[u8], number: usize) -> &[u8] {
    let from = number % SHIFT;
    &noise[from..from + BLOCK]
}

/// Sends its own and compares what comes, until both are through.
fn exchange(mut stream: TcpStream, (own, other): (u64, u64), amount: usize) {
    stream.set_read_timeout(Some(patience() * 5)).expect("a limit");
    let blocks = amount / BLOCK;
    let mut sender = stream.try_clone().expect("a second handle");
    thread::scope(|scope| {
        scope.spawn(move || {
            let noise = noise(own);
            (0..blocks).for_each(|number| sender.write_all(block(&noise, number)).expect("write"));
            sender.shutdown(Shutdown::Write).expect("shut down");
        });
        let (noise, mut bytes) = (noise(other), vec![0; BLOCK]);
        for number in 0..blocks {
            stream.read_exact(&mut bytes).unwrap_or_else(|e| panic!("block {number}: {e}"));
            assert!(bytes == block(&noise, number), "block {number} came as another");
        }
        assert_eq!(stream.read(&mut bytes).expect("the end"), 0, "more than was sent");
    });
}

/// One connection from here to there, over which both send so many bytes.
pub(crate) fn transfer(from: &Space, to: SocketAddr, server: &Space, at: SocketAddr, amount: usize) {
    const SEEDS: (u64, u64) = (0x5eed, 0xfeed);
    let listener = server.run(|| TcpListener::bind(at)).expect("listen");
    thread::scope(|scope| {
        scope.spawn(move || exchange(listener.accept().expect("a connection").0, SEEDS, amount));
        let stream = from.run(|| TcpStream::connect_timeout(&to, patience()));
        exchange(stream.unwrap_or_else(|e| panic!("connect to {to}: {e}")), (SEEDS.1, SEEDS.0), amount);
    });
}

/// How many segments or datagrams a namespace has refused for their checksums: RFC 4022 and RFC 4113 have no such
/// counters, Linux has.
fn wrong_sums(space: &Space) -> u64 {
    let read = |path: &str| space.run(|| std::fs::read_to_string(path)).unwrap_or_default();
    let snmp = read("/proc/thread-self/net/snmp");
    let lines: Vec<&str> = snmp.lines().collect();
    let mut sum = 0;
    for pair in lines.windows(2).filter(|pair| pair[0].split(':').next() == pair[1].split(':').next()) {
        let columns = pair[0].split_whitespace().zip(pair[1].split_whitespace());
        sum += columns
            .filter(|(name, _)| *name == "InCsumErrors")
            .map(|(_, value)| value.parse::<u64>().expect("a number"))
            .sum::<u64>();
    }
    let snmp6 = read("/proc/thread-self/net/snmp6");
    let six = snmp6.lines().filter(|line| line.contains("InCsumErrors"));
    sum + six.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>()
}

struct Bed {
    stage: Stage,
    pod: Pod,
    addresses: [IpAddr; 2],
    /// The node's end of the pod's links.
    link: String,
}

impl Bed {
    fn new() -> Self {
        let stage = Stage::on(Node::new(), BridgeNetfilter::Off);
        let pod = stage.node.pod("web");
        let attach = Attach::new(&pod).port(Proto::Tcp, PORT, 80).port(Proto::Udp, PORT, 80);
        let result = stage.network().add(&attach).expect("ADD");
        let Host { v4, v6, .. } = &stage.client;
        stage.node.cmd(&format!("ip route add default via {v4}"));
        stage.node.cmd(&format!("ip -6 route add default via {v6}"));
        let addresses = [0, 1].map(|index| address_of(&result, index));
        let link = result["interfaces"][1]["name"].as_str().expect("the node's end").to_owned();
        Self { stage, pod, addresses, link }
    }

    /// Everything there is to transfer, over IPv4 and IPv6.
    fn transfer(&self) {
        let (client, node) = (&self.stage.client, &self.stage.node);
        let before = ["to_container_bytes", "from_container_bytes", "write_failed", "too_big"]
            .map(|name| node.counted(name));
        let ways: [(SocketAddr, SocketAddr); 2] = [
            ((client.node_v4, PORT).into(), (client.v4, FAR).into()),
            ((client.node_v6, PORT).into(), (client.v6, FAR).into()),
        ];
        for ((port, far), own) in ways.into_iter().zip(&self.addresses) {
            let own = SocketAddr::new(*own, 80);
            transfer(client, port, &self.pod, own, amount());
            transfer(&self.pod, far, client, far, amount());
            let _servers = (
                self.pod.serve(Proto::Udp, &own.to_string(), "web"),
                client.serve(Proto::Udp, &far.to_string(), "far"),
            );
            client.expect(Proto::Udp, port, "web");
            self.pod.expect(Proto::Udp, far, "far");
        }
        let after = ["to_container_bytes", "from_container_bytes", "write_failed", "too_big"]
            .map(|name| node.counted(name));
        // All of it went by the programs.
        let sent = u64::try_from(4 * amount()).expect("64 bits");
        assert!(after[0] - before[0] > sent && after[1] - before[1] > sent, "{before:?} {after:?}");
        assert_eq!(after[2..], before[2..]);
        for space in [&**client, &*self.pod, &**node] {
            assert_eq!(wrong_sums(space), 0, "{}", space.name());
        }
    }
}

/// Large packets, whose checksums nobody computes on a machine with links of this kind.
#[test]
fn large_packets() {
    needs!(has_programs(), PROGRAMS);
    Bed::new().transfer();
}

/// The node's uplink cuts them, and completes their checksums; the far end verifies.
#[test]
fn packets_that_the_node_cuts() {
    needs!(has_programs(), PROGRAMS);
    let bed = Bed::new();
    bed.stage.node.without_offloads(&bed.stage.client.node_link);
    bed.stage.client.without_offloads("eth0");
    bed.transfer();
}

/// Every packet is as its sender made it, and whoever receives it verifies.
#[test]
fn small_packets() {
    needs!(has_programs(), PROGRAMS);
    let bed = Bed::new();
    bed.stage.node.without_offloads(&bed.stage.client.node_link);
    bed.stage.node.without_offloads(&bed.link);
    bed.stage.client.without_offloads("eth0");
    bed.pod.without_offloads("eth0");
    bed.transfer();
}
