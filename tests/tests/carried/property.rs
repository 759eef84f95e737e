// SPDX-License-Identifier: GPL-2.0-or-later

//! The invariant of the backend: a carried packet arrives at the namespace, with the content, at which netfilter would have
//! delivered it. Random rules, events and traffic meet a node with each backend, and what each space receives is compared.
//!
//! `SLIPWAY_SEED` repeats a run, `SLIPWAY_PROPERTY_SECONDS` makes it longer: a case takes about a second and a half.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use cni_dataplane::ebpf::Follower;
use slipway_tests::{Host, PROGRAMS, Pod, Random, has_programs, needs};

use crate::{Engine, FAR, PORT, Stage};

const SECONDS: &str = "SLIPWAY_PROPERTY_SECONDS";
const USUAL: Duration = Duration::from_secs(40);
/// Datagrams of a case, and their rate.
const COUNT: u32 = 160;
const RATE: u32 = 100;
/// The first one after an event for which the event must hold: a second and a bit later.
const EVENT_AT: u32 = 30;
const HOLDS_FROM: u32 = EVENT_AT + RATE + 10;
/// The difference between two runs of a rule that asks the clock or chance.
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

    /// The rule in nft's words, where it can be.
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
            Self::Helper => "udp dport { 8080, 7000 } ct helper set \"tftp\"".to_owned(),
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
    /// The rules exist before.
    None,
    /// The rules come.
    Rules,
    /// The bridge forgets where containers are, and floods.
    Flood,
    /// The uplink's MTU shrinks.
    Mtu,
}

/// A case.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Case {
    rules: Vec<(Rule, &'static str)>,
    event: Event,
    from_pod: bool,
    /// One datagram in so many is long.
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
            event: [Event::None, Event::Rules, Event::Flood, Event::Mtu][pick(random, 4)],
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
            text.push_str("ct helper tftp { type \"tftp\" protocol udp; }\n");
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

    /// The cases with a part less.
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
        if self.long_every != 1000 {
            all.push(Self { long_every: 1000, ..self.clone() });
        }
        all
    }
}

/// What the spaces received: the place, the number of the datagram, its bytes.
type Received = BTreeMap<(&'static str, u32), Vec<Vec<u8>>>;

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

    fn run(&self, case: &Case) -> Received {
        let (stage, far) = (&self.stage, SocketAddr::new(self.stage.client_ips()[0], FAR));
        let at = |space: &slipway_tests::Space, address: SocketAddr| {
            let socket = space.bind(|| UdpSocket::bind(address)).expect("bind");
            socket.set_nonblocking(true).expect("non-blocking");
            socket
        };
        let copied = SocketAddr::new(self.collector.v4.into(), FAR);
        let places = [
            ("web", at(&self.web, (self.own, 80).into())),
            ("other", at(&self.other, (self.others, 80).into())),
            ("client", at(&stage.client, far)),
            ("collector", at(&self.collector, copied)),
        ];
        let (space, to): (&slipway_tests::Space, _) = if case.from_pod {
            (&self.web, far)
        } else {
            (&stage.client, (stage.node_ips()[0], PORT).into())
        };
        let sender = space.bind(|| UdpSocket::bind("0.0.0.0:0")).expect("bind");
        sender.connect(to).expect("connect");
        if case.event != Event::Rules {
            self.apply(case);
        }
        let mut received = Received::new();
        let begin = Instant::now();
        for number in 0..COUNT {
            if number == EVENT_AT {
                self.happen(case);
            }
            let length = if number % case.long_every == 1 { 1200 } else { 40 };
            let mut bytes = vec![(number % 251) as u8; length];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            let _ = sender.send(&bytes).or_else(|_| sender.send(&bytes));
            gather(&places, &mut received);
            let next = begin + Duration::from_secs(1) * (number + 1) / RATE;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        thread::sleep(Duration::from_millis(50));
        gather(&places, &mut received);
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
                node.cmd("bridge fdb flush dev cni0");
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
            Event::None | Event::Rules => {}
        }
        self.follow();
    }
}

fn gather(places: &[(&'static str, UdpSocket)], received: &mut Received) {
    let mut bytes = [0; 2000];
    for (place, socket) in places {
        while let Ok(length) = socket.recv(&mut bytes) {
            let number = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            received.entry((place, number)).or_default().push(bytes[..length].to_vec());
        }
    }
}

/// The datagrams that count: those before an event, and those from a second after it.
fn counting(case: &Case, received: &Received) -> Received {
    let is_between = |number: u32| case.event != Event::None && (EVENT_AT..HOLDS_FROM).contains(&number);
    received
        .iter()
        .filter(|((_, number), _)| !is_between(*number))
        .map(|(key, all)| (*key, all.clone()))
        .collect()
}

/// The difference between what two backends delivered, if there is one.
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
        let runs = [&beds[0], &beds[1]].map(|bed| scope.spawn(move || bed.run(case)));
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
        // A machine that is busy may delay datagrams: what is no accident comes again.
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
    println!("{cases} cases");
    assert!(cases > 3, "{cases} cases");
}
