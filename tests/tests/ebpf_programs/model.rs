//! Random conversations through the programs and through a plain model of NAT, which knows connections where
//! the programs know halves, and shares no code with them.

use std::cell::RefCell;
use std::net::IpAddr;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::bed::{Act, Addresses, Made, Rig};
use crate::rig;
use crate::wire::{self, ACK, FIN, Ip, RST, SYN, TCP, UDP};

type End = (IpAddr, u16);

/// What happens.
#[derive(Clone, Debug)]
enum Event {
    /// Somebody outside sends to the node or to the pod.
    In { far: bool, from: u8, to_pod: bool, to: u8, tcp: bool, flags: u8 },
    /// The pod sends to somebody outside.
    Out { far: bool, from: u8, to: u8, tcp: bool, flags: u8 },
    /// One of the two ends of a connection that exists sends.
    On { which: usize, by_pod: bool, flags: u8 },
}

const FLAGS: [u8; 5] = [SYN, SYN | ACK, ACK, FIN | ACK, RST];
const OUTSIDE: [u16; 3] = [40000, 40001, 53];
const HOST: [u16; 3] = [8080, 8081, 9999];
const POD: [u16; 3] = [80, 81, 5555];

/// A connection, or what has become of it.
#[derive(Clone, Debug)]
struct Connection {
    protocol: u8,
    outside: End,
    /// Whom the outside talks to.
    host: End,
    /// Who the outside is for the pod.
    seen: End,
    pod: End,
    begun_by_pod: bool,
    translated: bool,
    /// 1: a SYN, 2: its answer, 3: the answer to that.
    handshake: u8,
    fins: u8,
    over: bool,
}

impl Connection {
    fn hears(&mut self, by_pod: bool, flags: u8) {
        if self.protocol != TCP || self.over {
            return;
        }
        let opener = by_pod == self.begun_by_pod;
        if flags & RST != 0 {
            self.over = true;
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
        } else if opener && self.handshake == 2 {
            self.handshake = 3;
        }
    }
}

struct Model {
    at: Addresses,
    connections: Vec<Connection>,
}

fn opens(protocol: u8, flags: u8) -> bool {
    protocol == UDP || flags == SYN
}

impl Model {
    /// The connection that a packet belongs to; one that is over and begun anew is forgotten.
    fn find(&mut self, protocol: u8, flags: u8, matches: impl Fn(&Connection) -> bool) -> Option<usize> {
        let place = self.connections.iter().position(|one| one.protocol == protocol && matches(one))?;
        if self.connections[place].over && protocol == TCP && flags == SYN {
            self.connections.remove(place);
            return None;
        }
        Some(place)
    }

    fn arrives(&mut self, protocol: u8, from: End, to: End, flags: u8, made: &Made, packet: &[u8]) {
        if let Some(place) = self.find(protocol, flags, |one| (one.outside, one.host) == (from, to)) {
            let one = &mut self.connections[place];
            one.hears(false, flags);
            expect(one.translated.then_some((one.seen, one.pod)), made, packet);
            return;
        }
        let published = HOST[..2].iter().position(|port| (self.at.node, *port) == to);
        let pod = match published {
            Some(which) => (self.at.pod, POD[which]),
            None if to.0 == self.at.pod => to,
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
        self.begin(protocol, from, to, seen, pod, false, translated);
    }

    fn sends(&mut self, protocol: u8, from: End, to: End, flags: u8, made: &Made, packet: &[u8]) {
        if let Some(place) = self.find(protocol, flags, |one| (one.pod, one.seen) == (from, to)) {
            let one = &mut self.connections[place];
            one.hears(true, flags);
            expect(one.translated.then_some((one.host, one.outside)), made, packet);
            return;
        }
        if !opens(protocol, flags) {
            return expect(None, made, packet);
        }
        let host = (self.at.node, made.translated().ports.0);
        assert!((61000..=65535).contains(&host.1), "{host:?} is not reserved");
        let taken =
            self.connections.iter().any(|one| (one.protocol, one.outside, one.host) == (protocol, to, host));
        assert!(!taken, "{host:?} is taken");
        expect(Some((host, to)), made, packet);
        self.begin(protocol, to, host, to, from, true, true);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a connection")]
    fn begin(
        &mut self,
        protocol: u8,
        outside: End,
        host: End,
        seen: End,
        pod: End,
        begun_by_pod: bool,
        translated: bool,
    ) {
        self.connections.push(Connection {
            protocol,
            outside,
            host,
            seen,
            pod,
            begun_by_pod,
            translated,
            handshake: 1,
            fins: 0,
            over: false,
        });
    }
}

/// The packet has these ends now, and nothing else has changed; or it was left alone.
fn expect(ends: Option<(End, End)>, made: &Made, packet: &[u8]) {
    let Some((from, to)) = ends else {
        assert_eq!((made.act, &made.packet[..]), (Act::Stack, packet));
        return;
    };
    let (now, before) = (made.translated(), wire::see(packet));
    assert_eq!(now.ends(), (from.0, from.1, to.0, to.1));
    assert_eq!((now.ttl, now.protocol), (before.ttl - 1, before.protocol));
    assert_eq!(now.payload, before.payload);
    let skip = if from.0.is_ipv6() { 40 } else { 20 };
    // Sequence numbers, flags, lengths: all between the ports and the checksum.
    let fields = if now.protocol == TCP { 4..16 } else { 4..6 };
    assert_eq!(made.packet[skip..][fields.clone()], packet[skip..][fields]);
}

fn event() -> impl Strategy<Value = Event> {
    let flags = (0..FLAGS.len()).prop_map(|which| FLAGS[which]);
    prop_oneof![
        3 => (any::<bool>(), 0..3u8, prop::bool::weighted(0.3), 0..3u8, any::<bool>(), flags.clone()).prop_map(
            |(far, from, to_pod, to, tcp, flags)| Event::In { far, from, to_pod, to, tcp, flags }
        ),
        2 => (any::<bool>(), 0..3u8, 0..3u8, any::<bool>(), flags.clone())
            .prop_map(|(far, from, to, tcp, flags)| Event::Out { far, from, to, tcp, flags }),
        4 => (any::<usize>(), any::<bool>(), flags)
            .prop_map(|(which, by_pod, flags)| Event::On { which, by_pod, flags }),
    ]
}

fn step(rig: &Rig, model: &mut Model, event: &Event) {
    let at = model.at;
    let outside = |far: bool, port: u8| (if far { at.far } else { at.client }, OUTSIDE[usize::from(port)]);
    let protocol = |tcp: bool| if tcp { TCP } else { UDP };
    let (by_pod, protocol, from, to, flags) = match *event {
        Event::In { far, from, to_pod, to, tcp, flags } => {
            let to = usize::from(to);
            let to = if to_pod { (at.pod, POD[to]) } else { (at.node, HOST[to]) };
            (false, protocol(tcp), outside(far, from), to, flags)
        }
        Event::Out { far, from, to, tcp, flags } => {
            (true, protocol(tcp), (at.pod, POD[usize::from(from)]), outside(far, to), flags)
        }
        Event::On { which, by_pod, flags } => {
            if model.connections.is_empty() {
                return;
            }
            let one = &model.connections[which % model.connections.len()];
            let (from, to) = if by_pod { (one.pod, one.seen) } else { (one.outside, one.host) };
            (by_pod, one.protocol, from, to, flags)
        }
    };
    let ip = Ip::new(from.0, to.0);
    let ports = (from.1, to.1);
    let packet = if protocol == TCP { ip.tcp(ports, flags) } else { ip.udp(ports, b"property") };
    if by_pod {
        model.sends(protocol, from, to, flags, &rig.sends(&packet), &packet);
    } else {
        model.arrives(protocol, from, to, flags, &rig.arrives(&packet), &packet);
    }
}

#[test]
fn random_conversations_are_what_a_plain_model_says() {
    let mut rig = rig!();
    for protocol in [TCP, UDP] {
        rig.publish(protocol, HOST[1], POD[1], crate::bed::GENERATION);
    }
    let rig = RefCell::new(rig);
    let config = Config { cases: 32, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let sequences = (any::<bool>(), prop::collection::vec(event(), 1..80));
    TestRunner::new(config)
        .run(&sequences, |(v6, events)| {
            let at = rig.borrow().addresses(v6);
            rig.borrow_mut().forget_flows();
            let mut model = Model { at, connections: Vec::new() };
            for event in &events {
                step(&rig.borrow(), &mut model, event);
            }
            // Two halves for each connection, and nothing else.
            let (flows, embryos) = rig.borrow_mut().halves(v6);
            assert_eq!(flows + embryos, 2 * model.connections.len());
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}
