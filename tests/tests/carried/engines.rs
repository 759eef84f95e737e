// SPDX-License-Identifier: GPL-2.0-or-later

//! Rules of other engines on the node decide about pods' packets as they do with the nftables backend, whether they
//! come before the ADD, after it, or at boot.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use slipway_ebpf_abi::Counter;
use slipway_tests::{Host, PROGRAMS, Proto, Server, has_programs, needs, one_of_each_pair_if_slow, within};

use crate::{Engine, FAR, PORT, Stage, boot};

/// An address that both hosts have.
const ANYCAST: [&str; 2] = ["198.18.0.9", "2001:db8:9::9"];
/// An address that no host has.
const VIRTUAL: [&str; 2] = ["203.0.113.9", "2001:db8:a::9"];
const QUICK: Duration = Duration::from_millis(1500);
/// Long enough for the programs to notice the change, because they carry packets for up to two ticks after one passed
/// netfilter.
const SETTLED: Duration = Duration::from_secs(5);

/// When the other engine changes its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    BeforeAdd,
    AfterAdd,
    /// At boot, before `slipway restore` puts back the entries of a running container.
    BeforeRestore,
}

/// The other engine's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Dnat,
    DnatLegacy,
    DnatNft,
    Netmap,
    Redirect,
    Tproxy,
    Mark,
    DropForward,
    DropRaw,
    /// NOTRACK rules like those of NodeLocal DNSCache.
    NoTrack,
    /// Rules like those of a NetworkPolicy engine, which let established flows continue.
    PolicyForNew,
    /// Rules like those of firewalld with StrictForwardPorts.
    StrictForward,
    Xfrm,
}

/// A node with two hosts, and their servers.
struct Cell {
    stage: Stage,
    other: Host,
    family: usize,
    _servers: Vec<Server>,
}

impl Cell {
    fn new(engine: Engine, family: usize) -> Self {
        let stage = Stage::new(engine);
        let other = stage.node.host("other");
        let mut servers = Vec::new();
        for host in [&stage.client, &other] {
            host.cmd(&format!("ip address add {}/32 dev lo", ANYCAST[0]));
            host.cmd(&format!("ip address add {}/128 dev lo nodad", ANYCAST[1]));
            for proto in [Proto::Tcp, Proto::Udp] {
                let at = SocketAddr::new(ANYCAST[family].parse().expect("an address"), FAR);
                servers.push(host.serve(proto, &at.to_string(), host.name()));
            }
        }
        let any = if family == 0 { "0.0.0.0:9999" } else { "[::]:9999" };
        servers.push(stage.node.serve(Proto::Tcp, any, "proxy"));
        Self { stage, other, family, _servers: servers }
    }

    /// The address to which the pod sends.
    fn destination(&self, change: Change) -> SocketAddr {
        let virtual_too = [Change::Dnat, Change::DnatLegacy, Change::DnatNft, Change::Netmap];
        let address = if virtual_too.contains(&change) { VIRTUAL } else { ANYCAST }[self.family];
        (address.parse::<IpAddr>().expect("an address"), FAR).into()
    }

    fn apply(&self, change: Change) {
        let (node, family) = (&self.stage.node, self.family);
        let (to, virtual_one) = (ANYCAST[family], VIRTUAL[family]);
        let tables = ["iptables-nft", "ip6tables-nft"][family];
        let legacy = ["iptables-legacy", "ip6tables-legacy"][family];
        let run = |line: &str| node.cmd(&format!("{tables} {line}"));
        let bracket = if family == 0 { to.to_owned() } else { format!("[{to}]") };
        match change {
            Change::Dnat => {
                run(&format!(
                    "-t nat -A PREROUTING -d {virtual_one} -p tcp -j DNAT --to-destination {bracket}:{FAR}"
                ));
                run(&format!(
                    "-t nat -A PREROUTING -d {virtual_one} -p udp -j DNAT --to-destination {bracket}:{FAR}"
                ));
            }
            Change::DnatLegacy => {
                for proto in ["tcp", "udp"] {
                    node.cmd(&format!(
                        "{legacy} -t nat -A PREROUTING -d {virtual_one} -p {proto} -j DNAT --to-destination {bracket}:{FAR}"
                    ));
                }
            }
            Change::DnatNft => {
                let kind = ["ip", "ip6"][family];
                node.nft(&format!(
                    "table {kind} anything {{\nchain c {{\ntype nat hook prerouting priority -100\n\
                     {kind} daddr {virtual_one} dnat to {to}\n}}\n}}\n"
                ));
            }
            Change::Netmap => {
                let (from, bits) = ([virtual_one, virtual_one][family], [32, 128][family]);
                run(&format!("-t nat -A PREROUTING -d {from}/{bits} -j NETMAP --to {to}/{bits}"));
            }
            Change::Redirect => {
                run(&format!(
                    "-t nat -A PREROUTING -i cni0 -p tcp --dport {FAR} -j REDIRECT --to-ports 9999"
                ));
            }
            Change::Tproxy => {
                // No socket on the node is transparent, so the target drops the packets.
                run(&format!(
                    "-t mangle -A PREROUTING -d {to} -p tcp -j TPROXY --on-port 9998 --tproxy-mark 1"
                ));
            }
            Change::Mark => {
                let other: IpAddr = if family == 0 { self.other.v4.into() } else { self.other.v6.into() };
                let ip = ["ip", "ip -6"][family];
                node.cmd(&format!("{ip} route add default via {other} table 77"));
                node.cmd(&format!("{ip} rule add fwmark 0x77 lookup 77"));
                run(&format!("-t mangle -A PREROUTING -d {to} -j MARK --set-mark 0x77"));
            }
            Change::DropForward => {
                run(&format!("-A FORWARD -d {to} -j DROP"));
            }
            Change::DropRaw => {
                run(&format!("-t raw -A PREROUTING -d {to} -j DROP"));
            }
            Change::NoTrack => {
                run(&format!("-t raw -A PREROUTING -d {to} -p udp --dport {FAR} -j CT --notrack"));
            }
            Change::PolicyForNew => {
                run("-N POLICY");
                run("-A POLICY -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
                run("-A POLICY -j REJECT");
                run(&format!("-A FORWARD -d {to} -j POLICY"));
                run(&format!("-A FORWARD -s {to} -j POLICY"));
            }
            Change::StrictForward => {
                let kind = ["ip", "ip6"][family];
                node.nft(&format!(
                    "table inet strict {{\nchain c {{\ntype filter hook forward priority 10\n\
                     ct state established,related accept\nct status dnat reject with icmpx admin-prohibited\n\
                     {kind} daddr {to} reject with icmpx admin-prohibited\n}}\n}}\n"
                ));
            }
            Change::Xfrm => {
                let (any, bits) = ([("0.0.0.0/0", 32), ("::/0", 128)])[family];
                node.cmd(&format!("ip xfrm policy add src {any} dst {to}/{bits} dir out action block"));
            }
        }
    }
}

/// What the pod experiences for each protocol, with a running flow and with a new one.
fn outcome(engine: Engine, order: Order, family: usize, change: Change) -> Vec<String> {
    let cell = Cell::new(engine, family);
    let to = cell.destination(change);
    if order == Order::BeforeAdd {
        cell.apply(change);
    }
    let pod = match order {
        Order::BeforeRestore => boot::restored(&cell.stage, || cell.apply(change)),
        Order::BeforeAdd | Order::AfterAdd => cell.stage.pod("web").0,
    };
    let mut seen = Vec::new();
    let ask = |proto: Proto| match pod.dial(proto, None, to, within(QUICK)) {
        Ok(mut flow) => {
            // Enough requests for the flow to be carried.
            let answers: Vec<_> = (0..12).map_while(|_| flow.request().ok()).collect();
            let said = answers.last().map(|last| format!("{} answers {}", last.who, last.peer.ip()));
            (format!("{} {:?}", answers.len(), said), Some(flow))
        }
        Err(error) => (format!("{:?}", error.kind()), None),
    };
    let mut flows = Vec::new();
    if order == Order::AfterAdd {
        // The first packets may be late, because many nodes start at the same time.
        let first = |proto| (0..10).find_map(|_| ask(proto).1);
        flows = [Proto::Tcp, Proto::Udp].map(first).into_iter().collect();
        cell.apply(change);
        let begin = Instant::now();
        while begin.elapsed() < SETTLED {
            for flow in flows.iter_mut().flatten() {
                let _ = flow.request();
            }
            thread::sleep(Duration::from_millis(200));
        }
    }
    for flow in &mut flows {
        let answer = flow.as_mut().map(|flow| flow.request().map(|answer| answer.who).map_err(drop));
        seen.push(format!("running: {answer:?}"));
    }
    for proto in [Proto::Tcp, Proto::Udp] {
        seen.push(format!("new {}: {}", proto.name(), ask(proto).0));
    }
    let is_blocked = matches!(
        change,
        Change::DropForward | Change::DropRaw | Change::PolicyForNew | Change::StrictForward | Change::Xfrm
    );
    if engine == Engine::Carried && !(is_blocked && order != Order::AfterAdd) {
        assert!(cell.stage.count(Counter::Carried) > 0, "{change:?}: no packet was carried");
    }
    seen
}

fn holds(change: Change) {
    let mut wrong = Vec::new();
    let orders = [Order::BeforeAdd, Order::AfterAdd, Order::BeforeRestore];
    let families = orders.map(|order| [(order, 0), (order, 1)]);
    // With twelve nodes at once, an emulated processor exceeds the time limits.
    let tried = one_of_each_pair_if_slow(&families, change as usize);
    thread::scope(|scope| {
        let runs: Vec<_> = tried
            .into_iter()
            .map(|(order, family)| {
                let run = move |engine| scope.spawn(move || outcome(engine, order, family, change));
                (order, family, run(Engine::Nftables), run(Engine::Carried))
            })
            .collect();
        for (order, family, control, found) in runs {
            let (control, found) = (control.join().expect("a run"), found.join().expect("a run"));
            if control != found {
                wrong.push(format!("{order:?} {family}: {found:?} instead of {control:?}"));
            }
        }
    });
    assert!(wrong.is_empty(), "{change:?}: {wrong:#?}");
}

macro_rules! cells {
    ($($name:ident: $change:ident;)*) => { $(
        #[test]
        fn $name() {
            needs!(has_programs(), PROGRAMS);
            holds(Change::$change);
        }
    )* };
}

cells! {
    dnat_of_iptables_holds: Dnat;
    dnat_of_legacy_iptables_holds: DnatLegacy;
    dnat_of_any_nft_table_holds: DnatNft;
    netmap_holds: Netmap;
    redirect_holds: Redirect;
    tproxy_holds: Tproxy;
    a_mark_with_a_routing_rule_holds: Mark;
    a_drop_at_forward_holds: DropForward;
    a_drop_at_raw_prerouting_holds: DropRaw;
    notrack_holds: NoTrack;
    a_policy_for_new_flows_holds: PolicyForNew;
    a_strict_forward_chain_holds: StrictForward;
    an_xfrm_policy_holds: Xfrm;
}

/// The rules apply to packets for a published port.
#[test]
fn a_drop_at_forward_holds_for_a_published_port() {
    needs!(has_programs(), PROGRAMS);
    for engine in [Engine::Nftables, Engine::Carried] {
        let stage = Stage::new(engine);
        let (pod, own) = stage.pod("web");
        let _server = pod.serve(Proto::Tcp, &SocketAddr::new(own[0], 80).to_string(), "web");
        let to = SocketAddr::new(stage.node_ips()[0], PORT);
        let mut flow = stage.client.dial(Proto::Tcp, None, to, within(QUICK)).expect("a connection");
        (0..20).for_each(|_| drop(flow.request().expect("a reply")));
        stage.node.cmd(&format!("iptables-nft -A FORWARD -d {} -j DROP", own[0]));
        let begin = Instant::now();
        while begin.elapsed() < within(SETTLED + QUICK) && flow.request().is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
        let lasted = begin.elapsed();
        println!("{engine:?}: the connection lasted {lasted:?}");
        assert!(lasted < within(SETTLED + QUICK), "{engine:?}");
        assert!(stage.client.dial(Proto::Tcp, None, to, within(QUICK)).is_err(), "{engine:?}");
    }
}
