// SPDX-License-Identifier: GPL-2.0-or-later

//! Traces real packets to one port with the kernel's own tracing of the ruleset.
//!
//! `table inet slipway-trace` marks the packets before any other chain sees them. At the hooks where packets leave
//! netfilter, it also has a last chain, whose events show the packet as it leaves. The kernel deletes the table
//! together with the socket that made it, however the process ends. Before Linux 5.12, the next trace deletes it, and
//! until then it marks nothing, because the element with the port has a time limit.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use cni_nftables::trace::{TraceEvent, TraceHeaders, TraceKind, Traced, Traces};
use cni_nftables::{
    BaseChain, Chain, ChainKind, Create, DataType, Element, ElementId, Error as NftError, Family, Field,
    Hook, RuleInfo, Set, Socket, Stmt, Table, TableId, Transaction, Value,
};
pub use cni_nftables::{Policy, Verdict};

use crate::nftables::schema::{self, address_fields};
use crate::{AddressFamily, Error, Protocol};

/// Family and name of the table.
pub const TABLE: &str = "inet slipway-trace";
const PORTS: &str = "ports";
/// After defragmentation (`NF_IP_PRI_CONNTRACK_DEFRAG`, -400) and before `NF_IP_PRI_RAW`, -300.
const FIRST: i32 = -350;
/// After `NF_IP_PRI_NAT_SRC`, which is 100, and the chains that other programs have there.
const LAST: i32 = 1000;
/// How many packets are traced per second, and in one burst, so that tracing a busy port neither loses reports nor
/// slows the node down.
const RATE: u32 = 20;
const BURST: u32 = 10;
/// `NFT_TABLE_F_OWNER`.
const OWNED: u32 = 2;

/// The chain from which an event was reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Family and name of the table.
    pub table: String,
    pub chain: String,
    /// The hook of a base chain.
    pub hook: Option<&'static str>,
}

impl Place {
    /// True if the table is that of the published ports.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.table == schema::TABLE
    }

    /// True if the table is the one that the trace itself made.
    #[must_use]
    pub fn is_of_trace(&self) -> bool {
        self.table == TABLE
    }
}

/// One event on a packet's way through the ruleset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Identifies the packet. Events with the same number in short succession belong to one packet.
    pub packet: u32,
    pub place: Place,
    pub event: Event,
    /// The packet as it is at this point. Only the first event in a base chain has it.
    pub seen: Option<TracedPacket>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Rule {
        handle: u64,
        /// The rule in nft's syntax, as far as this crate supports it.
        text: Option<String>,
        /// The map that the rule looks up.
        map: Option<String>,
        /// The rule's verdict. None for `queue`.
        verdict: Option<Verdict>,
    },
    /// A chain ended, or a rule returned from it.
    Return,
    /// No rule of a base chain decided, so the policy did.
    Policy(Policy),
}

/// A packet at one point on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedPacket {
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// TCP's flags (RFC 9293, section 3.1).
    pub flags: Option<u8>,
    /// Index of the link on which the packet arrived.
    pub link_in: Option<u32>,
    /// Index of the link on which the packet leaves.
    pub link_out: Option<u32>,
}

/// A report of a [`Tracer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    Step(Box<Step>),
    /// Events were lost, because there were more than fit into the socket's buffer.
    Lost,
}

#[derive(Debug)]
pub struct Tracer {
    /// The owner of the table.
    socket: Socket,
    traces: Traces,
    protocol: Protocol,
    is_owned: bool,
    /// The hooks of chains, which are read when a chain first occurs in an event.
    hooks: BTreeMap<(TableId, String), Option<&'static str>>,
    /// The rules of chains, which are read likewise.
    rules: BTreeMap<(TableId, String), Vec<RuleInfo>>,
}

impl Tracer {
    /// Starts tracing packets to a destination, in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::TraceRuns`] if another trace is running; [`Error::Kernel`] if the kernel cannot trace.
    pub fn start(protocol: Protocol, to: SocketAddr, time: Duration) -> Result<Self, Error> {
        let failed = |e: NftError| Error::kernel("trace packets", e);
        let socket = Socket::open().map_err(failed)?;
        let traces = Traces::open().map_err(failed)?;
        remove_left(&socket)?;
        let is_owned = match socket.commit(&table(protocol, to, time, Ownership::Socket), None) {
            Ok(()) => true,
            // Linux 5.10 does not know the flag for an owner.
            Err(e) if e.op_index() == Some(0) && !e.is_exists() => {
                socket.commit(&table(protocol, to, time, Ownership::Name), None).map_err(taken)?;
                false
            }
            Err(e) => return Err(taken(e)),
        };
        let (hooks, rules) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { socket, traces, protocol, is_owned, hooks, rules })
    }

    /// Returns the next event, waiting for it until `end`.
    pub fn next(&mut self, end: Instant) -> Result<Option<Report>, Error> {
        let traced = self.traces.next(end).map_err(|e| Error::kernel("read the trace", e))?;
        Ok(traced.map(|traced| match traced {
            Traced::Lost => Report::Lost,
            Traced::Event(event) => Report::Step(Box::new(self.step(event))),
        }))
    }

    fn step(&mut self, event: TraceEvent) -> Step {
        let TraceEvent { packet, table, chain, kind, headers, link_in, link_out } = event;
        let hook = self.hook(&table, &chain);
        let seen = headers.and_then(|headers| seen(&headers, self.protocol, link_in, link_out));
        let event = match kind {
            TraceKind::Return => Event::Return,
            TraceKind::Policy(policy) => Event::Policy(policy),
            TraceKind::Rule { handle, verdict } => {
                let rule = self.rule(&table, &chain, handle);
                let text = rule.as_ref().and_then(text);
                Event::Rule { handle, text, map: rule.and_then(|rule| rule.map), verdict }
            }
        };
        Step { packet, place: Place { table: table.to_string(), chain, hook }, event, seen }
    }

    fn hook(&mut self, table: &TableId, chain: &str) -> Option<&'static str> {
        let key = (table.clone(), chain.to_owned());
        if let Some(known) = self.hooks.get(&key) {
            return *known;
        }
        // A chain that cannot be read is shown without its hook.
        let read = self.socket.chain(table, chain).ok().flatten();
        let hook = read.and_then(|chain| chain.base).map(|base| base.hook.name());
        self.hooks.insert(key, hook);
        hook
    }

    /// Finds a rule by its handle. If the rule is newer than those that were read, its chain is read again.
    fn rule(&mut self, table: &TableId, chain: &str, handle: u64) -> Option<RuleInfo> {
        let key = (table.clone(), chain.to_owned());
        let find = |rules: &[RuleInfo]| rules.iter().find(|rule| rule.handle == handle).cloned();
        if let Some(found) = self.rules.get(&key).and_then(|rules| find(rules)) {
            return Some(found);
        }
        let rules = self.socket.rules(table, chain).unwrap_or_default();
        let found = find(&rules);
        self.rules.insert(key, rules);
        found
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if !self.is_owned {
            let mut batch = Transaction::new();
            batch.delete_table(&id());
            if let Err(error) = self.socket.commit(&batch, None) {
                log::warn!("remove table {TABLE}: {error}");
            }
        }
    }
}

fn taken(error: NftError) -> Error {
    if error.is_exists() { Error::TraceRuns { table: TABLE } } else { Error::kernel("trace packets", error) }
}

fn id() -> TableId {
    TableId::new(Family::Inet, "slipway-trace")
}

/// Removes the table of a trace that was killed, on a kernel that does not do so itself.
fn remove_left(socket: &Socket) -> Result<(), Error> {
    let failed = |e: NftError| Error::kernel(format!("read table {TABLE}"), e);
    let Some(table) = socket.table(&id()).map_err(failed)? else { return Ok(()) };
    let runs = table.flags & OWNED != 0 || !socket.elements(&id(), PORTS).map_err(failed)?.is_empty();
    if runs {
        return Err(Error::TraceRuns { table: TABLE });
    }
    let mut batch = Transaction::new();
    batch.delete_table(&id());
    match socket.commit(&batch, None) {
        Err(e) if !e.is_not_found() => Err(Error::kernel(format!("remove table {TABLE}"), e)),
        _ => Ok(()),
    }
}

/// What happens to the table if the process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ownership {
    Socket,
    Name,
}

fn table(protocol: Protocol, to: SocketAddr, time: Duration, ownership: Ownership) -> Transaction {
    let id = id();
    let family = AddressFamily::of(to.ip());
    let (_, daddr) = address_fields(family);
    let address = match family {
        AddressFamily::V4 => DataType::Ipv4Addr,
        AddressFamily::V6 => DataType::Ipv6Addr,
    };
    let comment = "packets that `slipway trace` shows; ends with it";
    let new = Table { create: Create::Exclusive, ..Table::new(&id).comment(comment) };
    let key = vec![Value::address(to.ip()), Value::Proto(protocol.number()), Value::Port(to.port())];
    let port = Element::new(ElementId::new(&id, PORTS, key)).timeout(time);
    let mut batch = Transaction::new();
    batch
        .add_table(if ownership == Ownership::Socket { new.owned() } else { new })
        .add_set(Set::new(&id, PORTS, &[address, DataType::InetProto, DataType::InetService]).timeouts())
        .add_element(port);
    for (hook, priority) in
        [(Hook::Prerouting, FIRST), (Hook::Output, FIRST), (Hook::Input, LAST), (Hook::Postrouting, LAST)]
    {
        let base = BaseChain { kind: ChainKind::Filter, hook, priority, policy: Policy::Accept };
        batch.add_chain(Chain::new(&id, hook.name()).base(base));
        if priority == FIRST {
            let port = Stmt::in_set(&[daddr, Field::L4Proto, Field::ThDport], PORTS);
            let limit = Stmt::Limit { rate: RATE, burst: BURST };
            batch.add_rule(cni_nftables::Rule::new(&id, hook.name(), vec![port, limit, Stmt::Trace]));
        }
    }
    batch
}

/// A rule in nft's words.
fn text(rule: &RuleInfo) -> Option<String> {
    let stmts = rule.stmts.as_ref()?;
    let words: Vec<String> = stmts.iter().map(ToString::to_string).collect();
    let comment = rule.comment.as_ref().map(|comment| format!(" comment {comment:?}")).unwrap_or_default();
    Some(format!("{}{comment}", words.join(" ")))
}

/// Reads addresses (RFC 791, section 3.1; RFC 8200, section 3) and ports.
fn seen(
    headers: &TraceHeaders,
    protocol: Protocol,
    link_in: Option<u32>,
    link_out: Option<u32>,
) -> Option<TracedPacket> {
    let TraceHeaders { network, transport } = headers;
    let v4 = |at: usize| Some(IpAddr::from(Ipv4Addr::from(*network.get(at..)?.first_chunk::<4>()?)));
    let v6 = |at: usize| Some(IpAddr::from(Ipv6Addr::from(*network.get(at..)?.first_chunk::<16>()?)));
    let (from, to) = match network.first()? >> 4 {
        4 => (v4(12)?, v4(16)?),
        6 => (v6(8)?, v6(24)?),
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes(*transport.get(at..)?.first_chunk::<2>()?));
    let flags = if protocol == Protocol::Tcp { transport.get(13).copied() } else { None };
    Some(TracedPacket {
        from: SocketAddr::new(from, port(0)?),
        to: SocketAddr::new(to, port(2)?),
        flags,
        link_in,
        link_out,
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_table_marks_packets_first_and_shows_them_last() {
        let time = Duration::from_secs(10);
        let of = |to: &str, ownership| table(Protocol::Tcp, to.parse().unwrap(), time, ownership).to_string();
        expect![[r#"
            create table inet slipway-trace { flags owner ; comment "packets that `slipway trace` shows; ends with it" ; }
            add set inet slipway-trace ports { type ipv4_addr . inet_proto . inet_service ; flags timeout ; }
            create element inet slipway-trace ports { 192.0.2.2 . tcp . 8080 timeout 10000ms }
            add chain inet slipway-trace prerouting { type filter hook prerouting priority -350 ; policy accept ; }
            add rule inet slipway-trace prerouting ip daddr . meta l4proto . th dport @ports limit rate 20/second burst 10 packets meta nftrace set 1
            add chain inet slipway-trace output { type filter hook output priority -350 ; policy accept ; }
            add rule inet slipway-trace output ip daddr . meta l4proto . th dport @ports limit rate 20/second burst 10 packets meta nftrace set 1
            add chain inet slipway-trace input { type filter hook input priority 1000 ; policy accept ; }
            add chain inet slipway-trace postrouting { type filter hook postrouting priority 1000 ; policy accept ; }
        "#]].assert_eq(&of("192.0.2.2:8080", Ownership::Socket));
        let v6 = of("[2001:db8::2]:53", Ownership::Name);
        assert!(v6.contains("ip6 daddr . ") && !v6.contains("owner"), "{v6}");
    }

    #[test]
    fn headers_are_read() {
        let mut network = vec![0x45; 12];
        network.extend([192, 0, 2, 9, 192, 0, 2, 2]);
        let mut transport = vec![0x9c, 0x40, 0x1f, 0x90];
        transport.resize(20, 0);
        transport[13] = 2;
        let headers = TraceHeaders { network, transport };
        let seen = seen(&headers, Protocol::Tcp, Some(3), None).unwrap();
        assert_eq!(
            (seen.from, seen.to),
            ("192.0.2.9:40000".parse().unwrap(), "192.0.2.2:8080".parse().unwrap())
        );
        assert_eq!((seen.flags, seen.link_in), (Some(2), Some(3)));
        let cut = TraceHeaders { network: vec![0x45; 8], transport: Vec::new() };
        assert_eq!(super::seen(&cut, Protocol::Udp, None, None), None);
    }
}
