// SPDX-License-Identifier: GPL-2.0-or-later

//! The invariant of the backend: a carried packet arrives in the namespace and with the content that netfilter would
//! have given it. Random rules, events and traffic are applied to a node with each backend, and the packets that each
//! space receives are compared.
//!
//! `SLIPWAY_SEED` repeats a run, and `SLIPWAY_PROPERTY_SECONDS` makes it longer. A case takes about a second and a
//! half.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cni_dataplane::ebpf::Follower;
use slipway_ebpf_abi::Counter;
use slipway_tests::{Host, PROGRAMS, Pod, Random, Space, has_programs, needs, patience, tally};

use crate::{Engine, FAR, PORT, Stage, xdp};

const SECONDS: &str = "SLIPWAY_PROPERTY_SECONDS";
const USUAL: Duration = Duration::from_secs(40);
/// The number of datagrams in a case, and their rate.
const COUNT: u32 = 160;
const RATE: u32 = 100;
/// The number of the datagram before which an event happens, and that of the first one for which the event must have
/// taken effect, a little over a second later.
const EVENT_AT: u32 = 30;
const HOLDS_FROM: u32 = EVENT_AT + RATE + 10;
/// The data port that the first command of FTP names.
const FIRST_DATA_PORT: u16 = 40_000;
/// The port of the next sender. Both nodes' senders use the same port, because messages contain it.
static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);
/// The tolerated difference between two runs of a rule that depends on the clock or on chance.
const CHANCE: usize = 8;

/// A rule of another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Accept,
    DropPort,
    DropSet,
    Mark,
    NoTrack,
    Limit,
    Quota,
    EverySecond,
    Length,
    Payload,
    Meter,
    Dup,
    Helper,
    TimeToLive,
    DnatToOther,
}

impl Rule {
    const ALL: [Self; 15] = [
        Self::Accept,
        Self::DropPort,
        Self::DropSet,
        Self::Mark,
        Self::NoTrack,
        Self::Limit,
        Self::Quota,
        Self::EverySecond,
        Self::Length,
        Self::Payload,
        Self::Meter,
        Self::Dup,
        Self::Helper,
        Self::TimeToLive,
        Self::DnatToOther,
    ];

    /// The rule as nft expects it.
    fn text(self, collector: &Host, other: IpAddr) -> String {
        match self {
            Self::Accept => "meta l4proto udp accept".to_owned(),
            Self::DropPort => "udp dport 4 drop".to_owned(),
            Self::DropSet => "ip saddr @never drop".to_owned(),
            Self::Mark => "meta mark set meta mark or 0x100".to_owned(),
            Self::NoTrack => "udp dport 5 notrack".to_owned(),
            Self::Limit => "meta l4proto udp limit rate over 20/second burst 5 packets drop".to_owned(),
            Self::Quota => "meta l4proto udp quota over 3000 bytes drop".to_owned(),
            Self::EverySecond => "meta l4proto udp numgen inc mod 2 0 drop".to_owned(),
            Self::Length => "meta l4proto udp meta length > 200 drop".to_owned(),
            Self::Payload => "meta l4proto udp @th,64,32 & 3 == 3 drop".to_owned(),
            Self::Meter => {
                "meta l4proto udp update @m { ip saddr limit rate over 20/second burst 5 packets } drop"
                    .to_owned()
            }
            Self::Dup => format!("meta l4proto udp dup to {} device {}", collector.v4, collector.node_link),
            Self::Helper => {
                "udp dport { 8080, 7000 } ct helper set \"sip\"\ntcp dport { 8080, 7000 } ct helper set \"ftp\""
                    .to_owned()
            }
            Self::TimeToLive => "meta l4proto udp ip ttl set 9".to_owned(),
            Self::DnatToOther => format!("udp dport {} dnat to {other}:80", PORT + 1),
        }
    }

    /// True if the result depends on the clock.
    const fn is_by_chance(self) -> bool {
        matches!(self, Self::Limit | Self::Meter | Self::EverySecond | Self::Quota)
    }
}

/// What happens to the node while a flow runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// Nothing happens; the rules exist before the flow begins.
    None,
    /// The rules are added.
    Rules,
    /// The bridge forgets where containers are, and floods frames.
    Flood,
    /// The uplink's MTU shrinks.
    Mtu,
    /// The container loads a native XDP program that drops all frames.
    Xdp,
}

impl Event {
    const ALL: [Self; 5] = [Self::None, Self::Rules, Self::Flood, Self::Mtu, Self::Xdp];
}

/// The content of a flow's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Datagrams that contain only a number.
    Plain,
    /// SIP requests (RFC 3261), whose addresses conntrack's helper translates if a rule assigns it.
    Sip,
    /// FTP commands (RFC 959) over TCP, which conntrack has a helper for as well.
    Ftp,
}

impl Content {
    const ALL: [Self; 3] = [Self::Plain, Self::Sip, Self::Ftp];

    /// A message with this number, padded to `length` bytes if it is shorter.
    fn message(self, number: u32, length: usize, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
        match self {
            Self::Plain => {
                let mut bytes = vec![(number % 251) as u8; length];
                bytes[..4].copy_from_slice(&number.to_be_bytes());
                bytes
            }
            Self::Sip => {
                let host = from.ip();
                let head = format!(
                    "OPTIONS sip:{to} SIP/2.0\r\nVia: SIP/2.0/UDP {from};branch=z9hG4bK{number}\r\n\
                     From: <sip:one@{host}>;tag=1\r\nTo: <sip:two@{}>\r\nCall-ID: {number}\r\n\
                     CSeq: {number} OPTIONS\r\nContact: <sip:one@{from}>\r\nContent-Length: 0\r\nSubject: ",
                    to.ip()
                );
                let subject = "x".repeat(length.saturating_sub(head.len() + 4));
                format!("{head}{subject}\r\n\r\n").into_bytes()
            }
            Self::Ftp => {
                let host = from.ip().to_string().replace('.', ",");
                let [high, low] = (FIRST_DATA_PORT + number as u16).to_be_bytes();
                format!("PORT {host},{high},{low}\r\n").into_bytes()
            }
        }
    }

    /// The number that a message contains.
    fn number(self, bytes: &[u8]) -> Option<u32> {
        let text = || std::str::from_utf8(bytes).ok();
        match self {
            Self::Plain => Some(u32::from_be_bytes(*bytes.first_chunk()?)),
            Self::Sip => text()?.split_once("CSeq: ")?.1.split_once(' ')?.0.parse().ok(),
            Self::Ftp => {
                let mut last = text()?.trim_end().rsplit(',').map(|part| part.parse::<u8>().ok());
                let (low, high) = (last.next()??, last.next()??);
                Some(u16::from_be_bytes([high, low]).wrapping_sub(FIRST_DATA_PORT).into())
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Case {
    rules: Vec<(Rule, &'static str)>,
    event: Event,
    content: Content,
    from_pod: bool,
    /// One in this many datagrams is long.
    long_every: u32,
}

impl Case {
    fn random(random: &mut Random) -> Self {
        let pick = |random: &mut Random, limit: usize| {
            usize::try_from(random.below(limit as u64)).expect("an index")
        };
        let rules = (0..pick(random, 3)).map(|_| {
            let rule = Rule::ALL[pick(random, Rule::ALL.len())];
            let hook = match rule {
                Rule::NoTrack | Rule::Helper | Rule::DnatToOther => "prerouting",
                _ => ["prerouting", "forward", "postrouting"][pick(random, 3)],
            };
            (rule, hook)
        });
        Self {
            rules: rules.collect(),
            event: Event::ALL[pick(random, Event::ALL.len())],
            content: Content::ALL[pick(random, Content::ALL.len())],
            from_pod: random.below(2) == 0,
            long_every: [2, 3, 6, 1000][pick(random, 4)],
        }
    }

    fn script(&self, collector: &Host, other: IpAddr) -> String {
        let mut text = "table ip drawn\ndelete table ip drawn\ntable ip drawn {\n\
                        set never { type ipv4_addr; elements = { 192.0.2.77 }; }\n\
                        set m { type ipv4_addr; size 100; flags dynamic; }\n"
            .to_owned();
        if self.rules.iter().any(|(rule, _)| *rule == Rule::Helper) {
            text.push_str("ct helper sip { type \"sip\" protocol udp; }\nct helper ftp { type \"ftp\" protocol tcp; }\n");
        }
        for (number, (rule, hook)) in self.rules.iter().enumerate() {
            let (kind, priority) = match rule {
                Rule::NoTrack => ("filter", -300),
                Rule::DnatToOther => ("nat", -150),
                _ => ("filter", -10),
            };
            let rule = rule.text(collector, other);
            let _ =
                write!(text, "chain c{number} {{\ntype {kind} hook {hook} priority {priority}\n{rule}\n}}\n");
        }
        text.push_str("}\n");
        text
    }

    fn is_by_chance(&self) -> bool {
        self.rules.iter().any(|(rule, _)| rule.is_by_chance())
    }

    /// The cases that lack one part of this case.
    fn smaller(&self) -> Vec<Self> {
        let mut all: Vec<Self> = (0..self.rules.len())
            .map(|left_out| {
                let mut smaller = self.clone();
                smaller.rules.remove(left_out);
                smaller
            })
            .collect();
        if self.event != Event::None {
            all.push(Self { event: Event::None, ..self.clone() });
        }
        if self.content != Content::Plain {
            all.push(Self { content: Content::Plain, ..self.clone() });
        }
        if self.long_every != 1000 {
            all.push(Self { long_every: 1000, ..self.clone() });
        }
        all
    }
}

/// The path at which the XDP program is pinned.
const DROPS_FRAMES: &str = "/sys/fs/bpf/drops-frames";

/// What the spaces received: for each place and datagram number, the datagrams' bytes.
type Received = BTreeMap<(&'static str, u32), Vec<Vec<u8>>>;

/// A place where messages arrive, as datagrams or as lines.
enum Place {
    Datagrams(UdpSocket),
    /// A connection, and the bytes read from it after the last whole line.
    Lines(TcpStream, Vec<u8>),
}

impl Place {
    fn bind(space: &Space, address: SocketAddr) -> Self {
        let socket = space.bind(|| UdpSocket::bind(address)).expect("bind");
        socket.set_nonblocking(true).expect("non-blocking");
        Self::Datagrams(socket)
    }

    /// Calls `take` with each message that has arrived.
    fn read(&mut self, mut take: impl FnMut(&[u8])) {
        let mut bytes = [0; 2000];
        match self {
            Self::Datagrams(socket) => {
                while let Ok(length) = socket.recv(&mut bytes) {
                    take(&bytes[..length]);
                }
            }
            Self::Lines(stream, rest) => {
                while let Ok(length @ 1..) = stream.read(&mut bytes) {
                    rest.extend_from_slice(&bytes[..length]);
                }
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    take(&rest.drain(..=end).collect::<Vec<u8>>());
                }
            }
        }
    }
}

/// The sender of a flow.
enum Sender {
    Datagrams(UdpSocket),
    Lines(TcpStream),
}

impl Sender {
    fn address(&self) -> SocketAddr {
        match self {
            Self::Datagrams(socket) => socket.local_addr(),
            Self::Lines(stream) => stream.local_addr(),
        }
        .expect("the sender's address")
    }

    fn send(&mut self, bytes: &[u8]) {
        match self {
            // The first call may report an ICMP error about an earlier datagram.
            Self::Datagrams(socket) => drop(socket.send(bytes).or_else(|_| socket.send(bytes))),
            Self::Lines(stream) => match stream.write_all(bytes) {
                Err(e) if e.kind() != ErrorKind::WouldBlock => panic!("write: {e}"),
                _ => {}
            },
        }
    }
}

/// A node with one of the backends.
struct Bed {
    stage: Stage,
    web: Pod,
    own: IpAddr,
    other: Pod,
    others: IpAddr,
    collector: Host,
}

impl Bed {
    fn new(engine: Engine) -> Self {
        let stage = Stage::new(engine);
        let collector = stage.node.host("collector");
        let (web, own) = stage.pod("web");
        let (other, others) = stage.pod_at("other", PORT + 1);
        if engine == Engine::Nftables {
            stage.node.cmd("mount -t bpf bpf /sys/fs/bpf");
        }
        stage.node.run(|| xdp::pin_one_that_drops(DROPS_FRAMES)).expect("load a program of XDP");
        Self { stage, web, own: own[0], other, others: others[0], collector }
    }

    fn follow(&self) {
        if self.stage.engine == Engine::Carried {
            self.stage.node.run(|| Follower::default().look(true)).expect("follow the rules");
        }
    }

    fn apply(&self, case: &Case) {
        let script = case.script(&self.collector, self.others);
        let loaded = self.stage.node.try_cmd_input("nft -f -", &script);
        assert_eq!(loaded.code, Some(0), "{script}\n{}", loaded.stderr);
        self.follow();
    }

    fn run(&self, case: &Case, from: u16) -> Received {
        let (stage, far) = (&self.stage, SocketAddr::new(self.stage.client_ips()[0], FAR));
        let copied = SocketAddr::new(self.collector.v4.into(), FAR);
        let (web, client) = ((self.own, 80).into(), far);
        let (space, to): (&Space, SocketAddr) = if case.from_pod {
            (&self.web, far)
        } else {
            (&stage.client, (stage.node_ips()[0], PORT).into())
        };
        if case.event != Event::Rules {
            self.apply(case);
        }
        let (mut sender, mut places) = if case.content == Content::Ftp {
            let (at, place, address): (&Space, _, _) =
                if case.from_pod { (&stage.client, "client", client) } else { (&self.web, "web", web) };
            let listener = at.bind(|| TcpListener::bind(address)).expect("listen");
            let stream = space.run(|| TcpStream::connect_timeout(&to, patience())).expect("connect");
            let (accepted, _) = listener.accept().expect("accept");
            for one in [&stream, &accepted] {
                one.set_nodelay(true).expect("no delay");
                one.set_nonblocking(true).expect("non-blocking");
            }
            (Sender::Lines(stream), vec![(place, Place::Lines(accepted, Vec::new()))])
        } else {
            let source = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), from);
            let sender = space.bind(|| UdpSocket::bind(source)).expect("bind");
            sender.connect(to).expect("connect");
            let places = vec![
                ("web", Place::bind(&self.web, web)),
                ("other", Place::bind(&self.other, (self.others, 80).into())),
                ("client", Place::bind(&stage.client, client)),
                ("collector", Place::bind(&self.collector, copied)),
            ];
            (Sender::Datagrams(sender), places)
        };
        let source = sender.address();
        let mut received = Received::new();
        let begin = Instant::now();
        for number in 0..COUNT {
            if number == EVENT_AT {
                self.happen(case);
            }
            let length = if number % case.long_every == 1 { 1200 } else { 40 };
            sender.send(&case.content.message(number, length, source, to));
            gather(case.content, &mut places, &mut received);
            let next = begin + Duration::from_secs(1) * (number + 1) / RATE;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        thread::sleep(Duration::from_millis(50));
        gather(case.content, &mut places, &mut received);
        self.restore(case);
        received
    }

    fn happen(&self, case: &Case) {
        let node = &self.stage.node;
        match case.event {
            Event::None => {}
            Event::Rules => self.apply(case),
            Event::Flood => {
                let mac = self.web.mac("eth0");
                node.cmd("ip link set cni0 type bridge ageing_time 0");
                node.cmd(&format!("ip neigh replace {} lladdr {mac} dev cni0 nud permanent", self.own));
                // Permanent entries are kept, because the bridge would not know its own address without them.
                node.cmd("bridge fdb flush dev cni0 nopermanent");
            }
            Event::Xdp => {
                self.web.cmd(&format!("ip link set dev eth0 xdpdrv pinned {DROPS_FRAMES}"));
                self.follow();
            }
            Event::Mtu => {
                self.stage.client.cmd("ip link set eth0 mtu 1000");
                node.cmd(&format!("ip link set {} mtu 1000", self.stage.client.node_link));
            }
        }
    }

    fn restore(&self, case: &Case) {
        let node = &self.stage.node;
        let _ = node.try_cmd("nft delete table ip drawn");
        match case.event {
            Event::Flood => {
                node.cmd("ip link set cni0 type bridge ageing_time 30000");
                node.cmd(&format!("ip neigh del {} dev cni0", self.own));
            }
            Event::Mtu => {
                self.stage.client.cmd("ip link set eth0 mtu 1500");
                node.cmd(&format!("ip link set {} mtu 1500", self.stage.client.node_link));
                let _ = self.web.try_cmd("ip route flush cache");
            }
            Event::Xdp => drop(self.web.cmd("ip link set dev eth0 xdpdrv off")),
            Event::None | Event::Rules => {}
        }
        self.follow();
    }
}

fn gather(content: Content, places: &mut [(&'static str, Place)], received: &mut Received) {
    for (place, one) in places {
        one.read(|bytes| {
            let number = content.number(bytes).unwrap_or(u32::MAX);
            received.entry((place, number)).or_default().push(bytes.to_vec());
        });
    }
}

/// The datagrams that count: those before an event, and those more than a second after it.
fn counting(case: &Case, received: &Received) -> Received {
    let is_between = |number: u32| case.event != Event::None && (EVENT_AT..HOLDS_FROM).contains(&number);
    received
        .iter()
        .filter(|((_, number), _)| !is_between(*number))
        .map(|(key, all)| (*key, all.clone()))
        .collect()
}

/// Describes how the datagrams delivered by the two backends differ, if they do.
fn difference(case: &Case, [nftables, carried]: &[Received; 2]) -> Option<String> {
    let [nftables, carried] = [nftables, carried].map(|all| counting(case, all));
    if case.is_by_chance() {
        let at = |all: &Received, place: &str| all.keys().filter(|(of, _)| *of == place).count();
        let places = ["web", "other", "client", "collector"];
        let mut differing =
            places.iter().filter(|place| at(&nftables, place).abs_diff(at(&carried, place)) > CHANCE);
        return differing
            .next()
            .map(|place| format!("{} and {} at {place}", at(&nftables, place), at(&carried, place)));
    }
    let keys: std::collections::BTreeSet<_> = nftables.keys().chain(carried.keys()).collect();
    let differing: Vec<String> = keys
        .into_iter()
        .filter(|key| nftables.get(*key) != carried.get(*key))
        .map(|(place, number)| format!("{number} at {place}"))
        .collect();
    (!differing.is_empty())
        .then(|| format!("{} datagrams: {}", differing.len(), differing[..differing.len().min(5)].join(", ")))
}

fn compare(beds: &[Bed; 2], case: &Case) -> Option<String> {
    let received = thread::scope(|scope| {
        let from = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let runs = [&beds[0], &beds[1]].map(|bed| scope.spawn(move || bed.run(case, from)));
        runs.map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    difference(case, &received)
}

#[test]
fn whatever_the_rules_both_backends_deliver_the_same() {
    needs!(has_programs(), PROGRAMS);
    let wanted = std::env::var(SECONDS).ok().map(|text| text.parse().expect("a number of seconds"));
    let end = Instant::now() + wanted.map_or(USUAL, Duration::from_secs);
    let mut random = Random::seeded();
    let beds = [Engine::Nftables, Engine::Carried].map(Bed::new);
    let mut cases = 0;
    while Instant::now() < end {
        let mut case = Case::random(&mut random);
        cases += 1;
        let Some(first) = compare(&beds, &case) else { continue };
        // A busy machine may delay datagrams, so only a difference that appears again counts.
        let Some(mut found) = compare(&beds, &case) else {
            println!("once only: {case:?}: {first}");
            continue;
        };
        while let Some((smaller, difference)) = case
            .smaller()
            .into_iter()
            .find_map(|one| compare(&beds, &one).map(|difference| (one, difference)))
        {
            (case, found) = (smaller, difference);
        }
        panic!("case {cases}: {case:?}\n{}{found}", case.script(&beds[1].collector, beds[1].others));
    }
    tally("cases of rules", cases);
    let carried = beds[1].stage.count(Counter::Carried);
    println!("{cases} cases, {carried} packets carried");
    assert!(cases > 3, "{cases} cases");
    assert!(carried > cases * 20, "{cases} cases, but only {carried} packets carried");
}
