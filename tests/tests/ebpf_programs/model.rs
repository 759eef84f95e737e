// SPDX-License-Identifier: GPL-2.0-or-later

//! Random flows, run through the BPF programs and through a simple model of NAT. The model keeps whole
//! flows, where the BPF programs keep one map element for each direction, and shares no code with them.

use std::cell::RefCell;
use std::net::IpAddr;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use slipway_ebpf_abi::ticks;

use crate::bed::{Addresses, Made, Rig, SECOND_HOST_PORT, SECOND4, SECOND6, Verdict};
use crate::rig;
use crate::wire::{self, ACK, FIN, Ip, RST, SYN, TCP, UDP};

type End = (IpAddr, u16);

/// One step of a random sequence.
#[derive(Clone, Debug)]
enum Event {
    /// A host outside sends to the node or to a pod.
    In { far: bool, from: u8, to_pod: bool, to: u8, tcp: bool, flags: u8 },
    /// A pod sends to a host outside.
    Out { second: bool, far: bool, from: u8, to: u8, tcp: bool, flags: u8 },
    /// The end that began a timed-out flow begins it again.
    Again { which: usize },
    /// Time passes without packets.
    Wait { long: bool },
    /// One end of an existing flow sends.
    On { which: usize, by_pod: bool, flags: u8 },
}

const FLAGS: [u8; 5] = [SYN, SYN | ACK, ACK, FIN | ACK, RST];
const OUTSIDE: [u16; 3] = [40000, 40001, 53];
const HOST: [u16; 4] = [8080, 8081, SECOND_HOST_PORT, 9999];
const POD: [u16; 3] = [80, 81, 5555];
/// The ports for masquerade: few, so that those of past flows are reused.
const PORTS: (u16, u16) = (61000, 61001);
/// Seconds: no multiple of the first is near a timeout; the second is longer than all timeouts but one.
const WAITS: (u32, u32) = (11, 150);
/// Timeout in seconds of a UDP flow with packets in both directions.
const UDP_ANSWERED: u32 = 30;
/// Age in ticks above which such a flow is a stream, whose timeout is [`UDP_STREAM`] seconds.
const STREAM_AFTER: u32 = 2;
const UDP_STREAM: u32 = 120;

/// A flow of TCP or UDP, alive or past.
#[derive(Clone, Debug)]
struct Connection {
    protocol: u8,
    outside: End,
    /// The destination that the outside sends to.
    host: End,
    /// The outside's address and port as the pod sees them.
    seen: End,
    pod: End,
    begun_by_pod: bool,
    translated: bool,
    /// Left to the kernel, which chooses the address and port that the outside sees.
    one_sided: bool,
    /// Ticks without a packet.
    idle: u32,
    /// Ticks since the first packet.
    age: u32,
    /// UDP: the outside has sent, the pod has sent.
    has_sent: [bool; 2],
    stream: bool,
    /// 1: SYN, 2: SYN-ACK, 3: ACK.
    handshake: u8,
    fins: u8,
    fin_acknowledged: bool,
    over: bool,
    reset: bool,
}

impl Connection {
    /// The timeout in seconds.
    fn timeout(&self) -> u32 {
        match (self.protocol, self.handshake, self.fins) {
            // A flow that the BPF programs see in one direction only may be a stream for conntrack.
            (UDP, ..) if self.stream || self.one_sided => UDP_STREAM,
            (UDP, ..) if self.has_sent == [true; 2] => UDP_ANSWERED,
            (UDP, ..) => 30,
            _ if self.reset => 10,
            _ if self.over => 120,
            (_, 1, _) => 120,
            (_, _, 1) if self.fin_acknowledged => 60,
            (_, _, 1) => 120,
            (_, _, 2) => 30,
            (_, 2, _) => 60,
            _ => 432_000,
        }
    }

    fn record(&mut self, by_pod: bool, flags: u8) {
        self.idle = 0;
        let opener = by_pod == self.begun_by_pod;
        self.stream |= opener && self.has_sent == [true; 2] && self.age > STREAM_AFTER;
        self.has_sent[usize::from(by_pod)] = true;
        if self.protocol != TCP || self.over {
            return;
        }
        if flags & RST != 0 {
            self.over = true;
            self.reset = true;
        } else if flags & SYN != 0 {
            if flags & ACK != 0 && !opener && self.handshake == 1 {
                self.handshake = 2;
            }
        } else if flags & FIN != 0 {
            if self.handshake >= 2 && self.fins < 2 {
                self.fins += 1;
            }
        } else if self.fins == 2 {
            self.over = true;
        } else if self.fins == 1 {
            self.fin_acknowledged = true;
        } else if opener && self.handshake == 2 {
            self.handshake = 3;
        }
    }
}

struct Model {
    at: Addresses,
    connections: Vec<Connection>,
    /// Timed-out flows.
    past: Vec<Connection>,
}

fn opens(protocol: u8, flags: u8) -> bool {
    protocol == UDP || flags == SYN
}

impl Model {
    /// The connection that a packet belongs to. Removes one that is over if a SYN begins it again.
    fn find(&mut self, protocol: u8, flags: u8, matches: impl Fn(&Connection) -> bool) -> Option<usize> {
        let index = self.connections.iter().position(|one| one.protocol == protocol && matches(one))?;
        if self.connections[index].over && protocol == TCP && flags == SYN {
            self.connections.remove(index);
            return None;
        }
        Some(index)
    }

    fn arrives(&mut self, protocol: u8, from: End, to: End, flags: u8, made: &Made, packet: &[u8]) {
        if let Some(index) =
            self.find(protocol, flags, |one| !one.one_sided && (one.outside, one.host) == (from, to))
        {
            let one = &mut self.connections[index];
            one.record(false, flags);
            expect(one.translated.then_some((one.seen, one.pod)), made, packet);
            return;
        }
        let published = HOST[..3].iter().position(|port| (self.at.node, *port) == to);
        let pod = match published {
            Some(2) => (second(self.at), POD[0]),
            Some(which) => (self.at.pod, POD[which]),
            None if to.0 == self.at.pod || to.0 == second(self.at) => to,
            None => return expect(None, made, packet),
        };
        if !opens(protocol, flags) {
            return expect(None, made, packet);
        }
        let taken = |end: End| {
            self.connections.iter().any(|one| (one.protocol, one.pod, one.seen) == (protocol, pod, end))
        };
        let clash = taken(from);
        let mut seen = from;
        if clash {
            seen.1 = made.translated().ports.0;
            assert!(seen.1 >= 1024 && !taken(seen), "{seen:?} is taken");
        }
        let translated = published.is_some() || clash;
        expect(translated.then_some((seen, pod)), made, packet);
        self.begin(Connection { translated, ..Connection::new(protocol, from, to, seen, pod) });
    }

    fn sends(&mut self, protocol: u8, from: End, to: End, flags: u8, made: &Made, packet: &[u8]) {
        if let Some(index) = self.find(protocol, flags, |one| (one.pod, one.seen) == (from, to)) {
            let one = &mut self.connections[index];
            one.record(true, flags);
            expect(one.translated.then_some((one.host, one.outside)), made, packet);
            return;
        }
        if !opens(protocol, flags) {
            return expect(None, made, packet);
        }
        let taken = |port: u16| {
            let ends = (protocol, to, (self.at.node, port));
            self.connections.iter().any(|one| (one.protocol, one.outside, one.host) == ends)
        };
        let new = Connection { begun_by_pod: true, ..Connection::new(protocol, to, to, to, from) };
        if made.verdict == Verdict::Pass {
            // The BPF programs try random ports and may miss a free one.
            assert!((PORTS.0..=PORTS.1).any(taken), "the flow was left to the kernel, and a port is free");
            expect(None, made, packet);
            return self.begin(Connection { one_sided: true, translated: false, ..new });
        }
        let host = (self.at.node, made.translated().ports.0);
        assert!((PORTS.0..=PORTS.1).contains(&host.1), "{host:?} is outside of the ports for masquerade");
        assert!(!taken(host.1), "{host:?} is taken");
        expect(Some((host, to)), made, packet);
        self.begin(Connection { host, ..new });
    }

    fn begin(&mut self, mut new: Connection) {
        new.has_sent[usize::from(new.begun_by_pod)] = true;
        self.connections.push(new);
    }

    /// Makes each connection older; moves those that have timed out to [`Self::past`].
    fn wait(&mut self, seconds: u32) {
        for one in &mut self.connections {
            one.idle += ticks(seconds) + 1;
            one.age += ticks(seconds) + 1;
        }
        let (living, past) =
            self.connections.drain(..).partition::<Vec<_>, _>(|one| one.idle <= ticks(one.timeout()));
        self.connections = living;
        self.past.extend(past);
    }
}

impl Connection {
    /// A connection that the outside begins.
    fn new(protocol: u8, outside: End, host: End, seen: End, pod: End) -> Self {
        Self {
            protocol,
            outside,
            host,
            seen,
            pod,
            begun_by_pod: false,
            translated: true,
            one_sided: false,
            idle: 0,
            age: 0,
            stream: false,
            has_sent: [false; 2],
            handshake: 1,
            fins: 0,
            fin_acknowledged: false,
            over: false,
            reset: false,
        }
    }
}

fn second(at: Addresses) -> IpAddr {
    if at.pod.is_ipv6() { SECOND6.into() } else { SECOND4.into() }
}

/// Asserts that the packet now has these ends and is otherwise unchanged, or that it was left alone if
/// `None`.
fn expect(ends: Option<(End, End)>, made: &Made, packet: &[u8]) {
    let Some((from, to)) = ends else {
        assert_eq!((made.verdict, &made.packet[..]), (Verdict::Pass, packet));
        return;
    };
    let (now, before) = (made.translated(), wire::see(packet));
    assert_eq!(now.ends(), (from.0, from.1, to.0, to.1));
    assert_eq!((now.ttl, now.protocol), (before.ttl - 1, before.protocol));
    assert_eq!(now.payload, before.payload);
    let skip = if from.0.is_ipv6() { 40 } else { 20 };
    // Everything between the ports and the checksum: sequence numbers, flags, lengths.
    let fields = if now.protocol == TCP { 4..16 } else { 4..6 };
    assert_eq!(made.packet[skip..][fields.clone()], packet[skip..][fields]);
}

fn event() -> impl Strategy<Value = Event> {
    let flags = (0..FLAGS.len()).prop_map(|which| FLAGS[which]);
    prop_oneof![
        3 => (any::<bool>(), 0..3u8, prop::bool::weighted(0.3), 0..4u8, any::<bool>(), flags.clone()).prop_map(
            |(far, from, to_pod, to, tcp, flags)| Event::In { far, from, to_pod, to, tcp, flags }
        ),
        4 => (any::<bool>(), any::<bool>(), 0..3u8, 0..3u8, any::<bool>(), flags.clone())
            .prop_map(|(second, far, from, to, tcp, flags)| Event::Out { second, far, from, to, tcp, flags }),
        4 => (any::<usize>(), any::<bool>(), flags)
            .prop_map(|(which, by_pod, flags)| Event::On { which, by_pod, flags }),
        4 => any::<usize>().prop_map(|which| Event::Again { which }),
        2 => prop::bool::weighted(0.3).prop_map(|long| Event::Wait { long }),
    ]
}

fn step(rig: &mut Rig, model: &mut Model, event: &Event) {
    if let Event::Wait { long } = event {
        let seconds = if *long { WAITS.1 } else { WAITS.0 };
        rig.age(seconds);
        return model.wait(seconds);
    }
    let at = model.at;
    let outside = |far: bool, port: u8| (if far { at.far } else { at.client }, OUTSIDE[usize::from(port)]);
    let protocol = |tcp: bool| if tcp { TCP } else { UDP };
    let (by_pod, protocol, from, to, flags) = match *event {
        Event::In { far, from, to_pod, to, tcp, flags } => {
            let to = usize::from(to);
            let to = match to {
                _ if !to_pod => (at.node, HOST[to]),
                3 => (second(at), POD[0]),
                to => (at.pod, POD[to]),
            };
            (false, protocol(tcp), outside(far, from), to, flags)
        }
        Event::Out { second: is_second, far, from, to, tcp, flags } => {
            let pod = if is_second { second(at) } else { at.pod };
            (true, protocol(tcp), (pod, POD[usize::from(from)]), outside(far, to), flags)
        }
        Event::On { which, by_pod, flags } => {
            if model.connections.is_empty() {
                return;
            }
            let one = &model.connections[which % model.connections.len()];
            if one.one_sided && !by_pod {
                return;
            }
            let (from, to) = if by_pod { (one.pod, one.seen) } else { (one.outside, one.host) };
            (by_pod, one.protocol, from, to, flags)
        }
        Event::Again { which } => {
            if model.past.is_empty() {
                return;
            }
            let one = &model.past[which % model.past.len()];
            let (from, to) = if one.begun_by_pod { (one.pod, one.seen) } else { (one.outside, one.host) };
            (one.begun_by_pod, one.protocol, from, to, SYN)
        }
        Event::Wait { .. } => return,
    };
    let ip = Ip::new(from.0, to.0);
    let ports = (from.1, to.1);
    let packet = if protocol == TCP { ip.tcp(ports, flags) } else { ip.udp(ports, b"property") };
    if by_pod {
        let made = if from.0 == at.pod { rig.sends(&packet) } else { rig.second_sends(&packet) };
        model.sends(protocol, from, to, flags, &made, &packet);
    } else {
        model.arrives(protocol, from, to, flags, &rig.arrives(&packet), &packet);
    }
}

#[test]
fn random_flows_are_translated_as_a_simple_model_predicts() {
    let mut rig = rig!();
    for protocol in [TCP, UDP] {
        rig.publish(protocol, HOST[1], POD[1], crate::bed::GENERATION);
    }
    rig.add_second_pod();
    rig.config(|config| (config.masquerade_first, config.masquerade_last) = PORTS);
    let rig = RefCell::new(rig);
    let config = Config { cases: 48, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let sequences = (any::<bool>(), prop::collection::vec(event(), 1..100));
    TestRunner::new(config)
        .run(&sequences, |(v6, events)| {
            let at = rig.borrow().addresses(v6);
            rig.borrow_mut().forget_flows();
            let mut model = Model { at, connections: Vec::new(), past: Vec::new() };
            for event in &events {
                step(&mut rig.borrow_mut(), &mut model, event);
            }
            // Both ends can still send on each connection.
            for which in 0..model.connections.len() {
                for by_pod in [false, true] {
                    step(&mut rig.borrow_mut(), &mut model, &Event::On { which, by_pod, flags: ACK });
                }
            }
            // Each connection has an element for each of its directions, and there is no other live element.
            let elements = model.connections.iter().map(|one| if one.one_sided { 1 } else { 2 });
            assert_eq!(rig.borrow_mut().live_elements(v6), elements.sum::<usize>());
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}
