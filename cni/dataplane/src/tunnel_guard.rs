// SPDX-License-Identifier: GPL-2.0-or-later

//! Guards the VXLAN devices of a cluster's nodes, because such a device accepts a frame from any sender.
//!
//! A pod could send a frame in a UDP packet to the port of its own node's device, or of another node's, and the device
//! would deliver it to any pod as a packet with any source address. The receiving node cannot tell such a packet from
//! one of the other node, because its source is masqueraded or forged. Therefore each node also refuses to forward
//! packets of its pods to the devices of other nodes.
//!
//! With encryption, packets of other nodes' pods arrive on the WireGuard device, which checks their sources. A packet
//! with such a source on another link is forged. Without encryption, a node cannot tell, so the rules about pods' sources
//! only exist with it.
//!
//! ```text
//! table inet slipway-tunnel {
//!     set links { ifname }                   links that may lead to other nodes; those of pods are not among them
//!     set ports { inet_service }             ports at which this node's device receives
//!     set own4 { ipv4_addr }                 addresses of this node, and of other nodes; and the same with 6
//!     set nodes4 { ipv4_addr }
//!     set ends4 { ipv4_addr . inet_service } where the devices of other nodes receive; and ends6
//!     set pods4 { ipv4_addr }                with encryption, the addresses of all pods; and pods6
//!     chain input   { type filter hook input … }
//!     chain forward { type filter hook forward … }
//! }
//! ```
//!
//! Calico drops the same packets. The chains are of type filter, because a forged packet can belong to a flow that
//! conntrack knows, of which chains of type nat see only the first packet.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use cni_nftables::{
    BaseChain, Chain, ChainKind, DataType, Element, ElementId, ElementInfo, Family, Field, Hook, Policy,
    Rule, Set, Stmt, Table, TableId, Transaction, Value, Verdict,
};
use ipnet::IpNet;

use crate::Error;
use crate::nftables::schema::exempt::follows;
use crate::owned_table::{Definition, OwnedTable, marker, unless_no_nf_tables};

/// Family and name, for messages.
pub(crate) const TABLE: &str = "inet slipway-tunnel";
const DEFINITION: Definition =
    Definition { family: Family::Inet, name: "slipway-tunnel", label: TABLE, schema: 1 };
const INPUT: &str = "input";
const FORWARD: &str = "forward";
const LINKS: &str = "links";
const PORTS: &str = "ports";
const OWN: [&str; 2] = ["own4", "own6"];
const NODES: [&str; 2] = ["nodes4", "nodes6"];
const ENDS: [&str; 2] = ["ends4", "ends6"];
const PODS: [&str; 2] = ["pods4", "pods6"];

/// The chains come before those of other programs, whose verdicts must not depend on forged packets.
const BASES: [(&str, BaseChain); 2] = [(INPUT, base(Hook::Input)), (FORWARD, base(Hook::Forward))];

const fn base(hook: Hook) -> BaseChain {
    BaseChain { kind: ChainKind::Filter, hook, priority: -300, policy: Policy::Accept }
}

/// The devices and the packets that they may get.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TunnelGuard {
    /// The links that may lead to other nodes.
    pub links: BTreeSet<String>,
    /// The ports at which this node's device receives.
    pub ports: BTreeSet<u16>,
    /// The addresses at which it receives.
    pub own: BTreeSet<IpAddr>,
    /// The addresses of the nodes that may send to it.
    pub nodes: BTreeSet<IpAddr>,
    /// The addresses and ports at which the devices of other nodes receive.
    pub ends: BTreeSet<(IpAddr, u16)>,
    /// The prefixes of pods whose packets arrive encrypted only, and of this node's pods. Empty without encryption.
    pub pods: BTreeSet<IpNet>,
}

/// Decides about elements of the table that are not in the [`TunnelGuard`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    Keep,
    Remove,
}

/// The way in which packets of pods reach other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pods {
    Clear,
    Encrypted,
}

/// True for the guard's table.
#[must_use]
pub fn is_table(id: &TableId) -> bool {
    *id == table()
}

pub(crate) fn table() -> TableId {
    DEFINITION.id()
}

fn rules(chain: &str, pods: Pods) -> Vec<Vec<Stmt>> {
    let from_pod = || Stmt::not_in_set(&[Field::Iifname], LINKS);
    let refuse = || Stmt::Verdict(Verdict::Drop);
    match chain {
        INPUT => {
            // Each rule names the port. A rule that let all other packets pass first would not match fragments of IPv6,
            // which have no port and are put together only after this hook, unless conntrack does it before.
            let refuse_if =
                |condition: Stmt| vec![Stmt::in_set(&[Field::UdpDport], PORTS), condition, refuse()];
            vec![
                refuse_if(from_pod()),
                refuse_if(Stmt::not_in_set(&[Field::IpSaddr], NODES[0])),
                refuse_if(Stmt::not_in_set(&[Field::Ip6Saddr], NODES[1])),
                refuse_if(Stmt::not_in_set(&[Field::IpDaddr], OWN[0])),
                refuse_if(Stmt::not_in_set(&[Field::Ip6Daddr], OWN[1])),
            ]
        }
        _ => {
            let to = |address: Field, ends: &str| {
                vec![Stmt::in_set(&[address, Field::UdpDport], ends), from_pod(), refuse()]
            };
            let clear = |source: Field, pods: &str| {
                vec![Stmt::in_set(&[Field::Iifname], LINKS), Stmt::in_set(&[source], pods), refuse()]
            };
            let mut rules = vec![to(Field::IpDaddr, ENDS[0]), to(Field::Ip6Daddr, ENDS[1])];
            if pods == Pods::Encrypted {
                rules.extend([clear(Field::IpSaddr, PODS[0]), clear(Field::Ip6Saddr, PODS[1])]);
            }
            rules
        }
    }
}

fn sets() -> [(&'static str, Vec<DataType>); 8] {
    use DataType::{Ifname, InetService, Ipv4Addr, Ipv6Addr};
    [
        (LINKS, vec![Ifname]),
        (PORTS, vec![InetService]),
        (OWN[0], vec![Ipv4Addr]),
        (OWN[1], vec![Ipv6Addr]),
        (NODES[0], vec![Ipv4Addr]),
        (NODES[1], vec![Ipv6Addr]),
        (ENDS[0], vec![Ipv4Addr, InetService]),
        (ENDS[1], vec![Ipv6Addr, InetService]),
    ]
}

/// Makes the whole table. Adding an existing object changes nothing, except for rules, so the chains are flushed first.
fn bootstrap(pods: Pods) -> Transaction {
    let t = table();
    let mut batch = Transaction::new();
    batch
        .add_table(Table::new(&t).comment("slipway: who may send to VXLAN devices of nodes"))
        .add_chain(Chain::new(&t, &marker(DEFINITION.schema)));
    for (name, key) in sets() {
        batch.add_set(Set::new(&t, name, &key));
    }
    for (name, key) in PODS.into_iter().zip([DataType::Ipv4Addr, DataType::Ipv6Addr]) {
        batch.add_set(Set::new(&t, name, &[key]).intervals());
    }
    for (chain, base) in BASES {
        batch.add_chain(Chain::new(&t, chain).base(base)).flush_chain(&t, chain);
        for stmts in rules(chain, pods) {
            batch.add_rule(Rule::new(&t, chain, stmts));
        }
    }
    batch
}

/// The keys of a set.
fn wanted(guard: &TunnelGuard, set: &str) -> HashSet<Vec<Value>> {
    let of_family = |addresses: &BTreeSet<IpAddr>, names: &[&str; 2]| {
        let is_v6 = set == names[1];
        let fitting = addresses.iter().filter(|address| address.is_ipv6() == is_v6);
        fitting.map(|address| vec![Value::address(*address)]).collect()
    };
    match set {
        LINKS => guard.links.iter().map(|name| vec![Value::Ifname(name.clone())]).collect(),
        PORTS => guard.ports.iter().map(|port| vec![Value::Port(*port)]).collect(),
        set if OWN.contains(&set) => of_family(&guard.own, &OWN),
        set if NODES.contains(&set) => of_family(&guard.nodes, &NODES),
        set => {
            let fitting = guard.ends.iter().filter(|(address, _)| address.is_ipv6() == (set == ENDS[1]));
            fitting.map(|(address, port)| vec![Value::address(*address), Value::Port(*port)]).collect()
        }
    }
}

/// The keys that a set of the table has; none if the set is missing.
fn shown(table: &OwnedTable, set: &str) -> Result<HashSet<Vec<Value>>, Error> {
    let keep = |keys: &mut HashSet<Vec<Value>>, element: ElementInfo| {
        keys.insert(element.key);
    };
    match table.socket.fold_elements(&table.table, set, HashSet::new, keep) {
        Err(error) if error.is_not_found() => Ok(HashSet::new()),
        read => read.map_err(|error| Error::kernel(format!("list set {set} of table {TABLE}"), error)),
    }
}

/// The first and the last address of each range.
type Ranges = Vec<(IpAddr, IpAddr)>;

/// The ranges that a set of the table has; none if the set is missing.
fn shown_ranges(table: &OwnedTable, set: &str) -> Result<Ranges, Error> {
    let address = |value: Value| match value {
        Value::Ipv4(address) => Some(IpAddr::V4(address)),
        Value::Ipv6(address) => Some(IpAddr::V6(address)),
        _ => None,
    };
    match table.socket.ranges(&table.table, set) {
        Err(error) if error.is_not_found() => Ok(Ranges::new()),
        Err(error) => Err(Error::kernel(format!("list set {set} of table {TABLE}"), error)),
        Ok(shown) => Ok(shown.into_iter().filter_map(|(a, b)| Some((address(a)?, address(b)?))).collect()),
    }
}

/// Joins ranges that overlap or touch, because not every kernel allows a set in which the end of one range is the
/// beginning of another.
fn joined(mut ranges: Ranges) -> Ranges {
    ranges.sort_unstable();
    let mut joined = Ranges::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if first <= *end || follows(*end, first) => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// A set of pods' addresses.
struct PodSet {
    name: &'static str,
    shown: Ranges,
    wanted: Ranges,
}

impl PodSet {
    fn read(
        table: &OwnedTable,
        name: &'static str,
        pods: &BTreeSet<IpNet>,
        others: Others,
    ) -> Result<Self, Error> {
        let shown = shown_ranges(table, name)?;
        let fitting = pods.iter().filter(|net| net.addr().is_ipv6() == (name == PODS[1]));
        let mut wanted: Ranges = fitting.map(|net| (net.network(), net.broadcast())).collect();
        if others == Others::Keep {
            wanted.extend(&shown);
        }
        Ok(Self { name, shown, wanted: joined(wanted) })
    }

    fn change(&self, batch: &mut Transaction, table: &OwnedTable) {
        if self.wanted == self.shown {
            return;
        }
        batch.flush_set(&table.table, self.name);
        for (first, last) in &self.wanted {
            let id = ElementId::new(&table.table, self.name, vec![Value::address(*first)]);
            batch.add_element(Element::new(id.to(vec![Value::address(*last)])));
        }
    }
}

/// True if the table exists with both chains and exactly their rules. The sets of pods exist with the rest of the table.
fn is_complete(table: &OwnedTable, pods: Pods) -> Result<bool, Error> {
    if table.schema()?.is_none() {
        return Ok(false);
    }
    for (name, base) in BASES {
        let count = u32::try_from(rules(name, pods).len()).unwrap_or_default();
        if table.chain(name)?.is_none_or(|chain| chain.base != Some(base) || chain.uses != count) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts the guard in place. Changes nothing if it already is.
///
/// # Errors
/// [`Error::NoNfTables`] on a kernel without nf_tables; [`Error::ForeignTable`] or [`Error::NewerSchema`] if another
/// program or a later version made the table; [`Error::Busy`] if other processes change the ruleset at every attempt.
pub fn set(guard: &TunnelGuard, others: Others) -> Result<(), Error> {
    let table = OwnedTable::open(DEFINITION)?;
    table.transact("guard the tunnel", |_| {
        let of_pods = [
            PodSet::read(&table, PODS[0], &guard.pods, others)?,
            PodSet::read(&table, PODS[1], &guard.pods, others)?,
        ];
        let has_pods = of_pods.iter().any(|set| !set.wanted.is_empty());
        let pods = if has_pods { Pods::Encrypted } else { Pods::Clear };
        let mut batch = if is_complete(&table, pods)? { Transaction::new() } else { bootstrap(pods) };
        for (name, _) in sets() {
            let (wanted, shown) = (wanted(guard, name), shown(&table, name)?);
            if others == Others::Remove {
                for key in shown.difference(&wanted) {
                    batch.delete_element(ElementId::new(&table.table, name, key.clone()));
                }
            }
            for key in wanted.difference(&shown) {
                batch.add_element(Element::new(ElementId::new(&table.table, name, key.clone())));
            }
        }
        for set in of_pods {
            set.change(&mut batch, &table);
        }
        Ok((batch, ()))
    })
}

/// Removes the guard.
///
/// # Errors
/// As for [`set`], but a kernel without nf_tables is none.
pub fn release() -> Result<(), Error> {
    unless_no_nf_tables(OwnedTable::open(DEFINITION).and_then(|table| {
        table.transact("remove the guard of the tunnel", |_| {
            let mut batch = Transaction::new();
            if table.schema()?.is_some() {
                batch.delete_table(&table.table);
            }
            Ok((batch, ()))
        })
    }))
}

/// True if the guard is in place.
pub(crate) fn is_present() -> Result<bool, Error> {
    unless_no_nf_tables(OwnedTable::open(DEFINITION).and_then(|table| Ok(table.schema()?.is_some())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table() {
        expect_test::expect![[r#"
            add table inet slipway-tunnel { comment "slipway: who may send to VXLAN devices of nodes" ; }
            add chain inet slipway-tunnel schema-1
            add set inet slipway-tunnel links { type ifname ; }
            add set inet slipway-tunnel ports { type inet_service ; }
            add set inet slipway-tunnel own4 { type ipv4_addr ; }
            add set inet slipway-tunnel own6 { type ipv6_addr ; }
            add set inet slipway-tunnel nodes4 { type ipv4_addr ; }
            add set inet slipway-tunnel nodes6 { type ipv6_addr ; }
            add set inet slipway-tunnel ends4 { type ipv4_addr . inet_service ; }
            add set inet slipway-tunnel ends6 { type ipv6_addr . inet_service ; }
            add set inet slipway-tunnel pods4 { type ipv4_addr ; flags interval ; }
            add set inet slipway-tunnel pods6 { type ipv6_addr ; flags interval ; }
            add chain inet slipway-tunnel input { type filter hook input priority -300 ; policy accept ; }
            flush chain inet slipway-tunnel input
            add rule inet slipway-tunnel input udp dport @ports iifname != @links drop
            add rule inet slipway-tunnel input udp dport @ports ip saddr != @nodes4 drop
            add rule inet slipway-tunnel input udp dport @ports ip6 saddr != @nodes6 drop
            add rule inet slipway-tunnel input udp dport @ports ip daddr != @own4 drop
            add rule inet slipway-tunnel input udp dport @ports ip6 daddr != @own6 drop
            add chain inet slipway-tunnel forward { type filter hook forward priority -300 ; policy accept ; }
            flush chain inet slipway-tunnel forward
            add rule inet slipway-tunnel forward ip daddr . udp dport @ends4 iifname != @links drop
            add rule inet slipway-tunnel forward ip6 daddr . udp dport @ends6 iifname != @links drop
            add rule inet slipway-tunnel forward iifname @links ip saddr @pods4 drop
            add rule inet slipway-tunnel forward iifname @links ip6 saddr @pods6 drop
        "#]]
        .assert_eq(&bootstrap(Pods::Encrypted).to_string());
        let clear = bootstrap(Pods::Clear).to_string();
        assert!(clear.contains("daddr . udp dport @ends6") && !clear.contains("saddr @pods"), "{clear}");
    }

    #[test]
    fn the_keys_of_each_set_are_of_its_family() {
        let addresses: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let guard = TunnelGuard {
            links: ["eth0".to_owned()].into(),
            ports: [4789].into(),
            own: addresses.into(),
            nodes: addresses.into(),
            ends: addresses.map(|address| (address, 4789)).into(),
            pods: BTreeSet::new(),
        };
        for (name, key) in sets() {
            let keys = wanted(&guard, name);
            let types: Vec<Vec<DataType>> =
                keys.iter().map(|key| key.iter().map(Value::data_type).collect()).collect();
            assert_eq!(types, [key], "{name}");
        }
    }

    #[test]
    fn ranges_that_touch_are_joined() {
        let ranges = |texts: &[[&str; 2]]| -> Ranges {
            texts.iter().map(|[a, b]| (a.parse().unwrap(), b.parse().unwrap())).collect()
        };
        let all = [["10.0.2.0", "10.0.2.255"], ["10.0.1.0", "10.0.1.255"], ["10.0.1.7", "10.0.1.8"]];
        assert_eq!(joined(ranges(&all)), ranges(&[["10.0.1.0", "10.0.2.255"]]));
        let apart = [["fd00::", "fd00::ff"], ["fd00::200", "fd00::2ff"]];
        assert_eq!(joined(ranges(&apart)), ranges(&apart));
    }
}
