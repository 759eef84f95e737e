// SPDX-License-Identifier: GPL-2.0-or-later

//! Large transfers in both directions at once, through a published port and through masquerade. Each end compares every
//! byte. No kernel may count a checksum error, no matter whether devices, the node or the senders segment packets and
//! complete checksums.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use slipway_tests::{Host, PROGRAMS, Pod, Proto, Space, has_programs, needs, patience};

use crate::{FAR, PORT, Stage, address_of, attach};

/// Returns the number of bytes that each end sends: 64 MiB, or less in an emulated VM.
fn amount() -> usize {
    if patience() > Duration::from_secs(12) { 8 << 20 } else { 64 << 20 }
}

const BLOCK: usize = 64 << 10;
/// The number of distinct blocks. Block `n` begins at byte `n % SHIFT` of the noise.
const SHIFT: usize = 509;

/// Returns bytes without repetition, from xorshift64* with this seed.
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

fn block(noise: &[u8], number: usize) -> &[u8] {
    let from = number % SHIFT;
    &noise[from..from + BLOCK]
}

/// Sends its own blocks and compares the received ones until both directions are closed.
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
            assert!(bytes == block(&noise, number), "block {number} is not the one that was sent");
        }
        assert_eq!(stream.read(&mut bytes).expect("the end"), 0, "received more than was sent");
    });
}

/// Opens a connection over which both ends send `amount` bytes.
pub(crate) fn transfer(from: &Space, to: SocketAddr, server: &Space, at: SocketAddr, amount: usize) {
    const SEEDS: (u64, u64) = (0x5eed, 0xfeed);
    let listener = server.bind(|| TcpListener::bind(at)).expect("listen");
    thread::scope(|scope| {
        scope.spawn(move || exchange(listener.accept().expect("a connection").0, SEEDS, amount));
        let stream = from.run(|| TcpStream::connect_timeout(&to, patience()));
        exchange(stream.unwrap_or_else(|e| panic!("connect to {to}: {e}")), (SEEDS.1, SEEDS.0), amount);
    });
}

/// Returns the number of segments and datagrams that a namespace dropped because of wrong checksums. Linux has these
/// counters, but RFC 4022 and RFC 4113 do not define them.
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
    /// The node's end of the pod's veth pair.
    link: String,
}

impl Bed {
    fn new() -> Self {
        let stage = Stage::new();
        let pod = stage.node.pod("web");
        let result = stage.network().add(&attach(&pod)).expect("ADD");
        let Host { v4, v6, .. } = &stage.client;
        stage.node.cmd(&format!("ip route add default via {v4}"));
        stage.node.cmd(&format!("ip -6 route add default via {v6}"));
        let addresses = [0, 1].map(|index| address_of(&result, index));
        let link = result["interfaces"][1]["name"].as_str().expect("the node's end").to_owned();
        Self { stage, pod, addresses, link }
    }

    /// Transfers in both directions through the port and through masquerade, over IPv4 and IPv6.
    fn transfer(&self) {
        let (client, node) = (&self.stage.client, &self.stage.node);
        let before = ["carried_packets", "write_failed"].map(|name| node.counted(name));
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
        let after = ["carried_packets", "write_failed"].map(|name| node.counted(name));
        // The four transfers send this amount in each direction, in segments of less than 1,500 bytes.
        let segments = u64::try_from(8 * amount() / 1500).expect("64 bits");
        assert!(after[0] - before[0] > segments, "{segments}: {before:?} {after:?}");
        assert_eq!(after[1], before[1]);
        for space in [&**client, &*self.pod, &**node] {
            assert_eq!(wrong_sums(space), 0, "{}", space.name());
        }
    }
}

/// The kernels exchange large packets (GSO). On a machine whose links all support that, their checksums are never
/// computed.
#[test]
fn large_packets() {
    needs!(has_programs(), PROGRAMS);
    Bed::new().transfer();
}

/// The node's uplink segments packets and completes checksums, which the far end verifies.
#[test]
fn packets_that_the_node_segments() {
    needs!(has_programs(), PROGRAMS);
    let bed = Bed::new();
    bed.stage.node.without_offloads(&bed.stage.client.node_link);
    bed.stage.client.without_offloads("eth0");
    bed.transfer();
}

/// The senders segment packets and complete checksums, and every receiver verifies them.
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
