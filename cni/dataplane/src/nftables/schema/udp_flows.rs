// SPDX-License-Identifier: GPL-2.0-or-later

//! The set of destination ports to which UDP flows have begun.
//!
//! ```text
//! set   udp-seen      { inet_service ; flags dynamic }
//! chain udp-seen-in   { type nat hook prerouting priority -199 }   and udp-seen-out at output
//!       meta l4proto != udp accept
//!       th dport 1-65535 update @udp-seen { th dport } accept
//!       th dport != 0 counter
//! ```
//! A chain of type nat sees only the first packet of each flow, so the set costs later packets nothing. The kernel
//! runs the nat chains of a hook by priority until one has translated the flow (`nf_nat_inet_fn`). These chains have
//! the lowest priority that the kernel permits, so that they see the flows of other engines, too. The counter counts
//! flows that could not be recorded.
//!
//! Element 0 is the [mark](super::super::udp_flows) of a complete set. No packet adds this element, because no port
//! is 0.
//!
//! The chains and the set are optional and belong to no layout, because nothing but a search through conntrack
//! depends on them.

use cni_nftables::{
    BaseChain, Chain, ChainKind, Cmp, DataType, Element, ElementId, Field, Hook, Operand, Policy, Set, Stmt,
    Transaction, Value, Verdict,
};

use super::FIRST_NAT;
use super::base::{one_of, table};

pub(crate) const SET: &str = "udp-seen";
pub(crate) const CHAINS: [&str; 2] = ["udp-seen-in", "udp-seen-out"];
/// The number of rules in these chains.
pub(crate) const RULES: usize = 2 * RULES_OF_CHAIN;
const RULES_OF_CHAIN: usize = 3;
/// The type of the mark in the userdata of its element.
pub(crate) const TLV_KIND: u8 = 0x5d;
/// All ports, plus the mark.
const SIZE: u32 = 1 << 16;
const UDP: u8 = 17;

/// The element of a port. The element of port 0 has the mark.
pub(crate) fn element(port: u16) -> ElementId {
    ElementId::new(&table(), SET, vec![Value::Port(port)])
}

pub(crate) fn mark(bytes: Vec<u8>) -> Element {
    Element::new(element(0)).comment("no port: the state of this set").tlv(TLV_KIND, bytes)
}

fn rules() -> [Vec<Stmt>; RULES_OF_CHAIN] {
    let accept = || Stmt::Verdict(Verdict::Accept);
    let ports = Operand::Range(Value::Port(1), Value::Port(u16::MAX));
    let not = |field, value| Stmt::Match { fields: vec![field], cmp: Cmp::Ne, to: Operand::Value(value) };
    [
        vec![not(Field::L4Proto, Value::Proto(UDP)), accept()],
        vec![one_of(Field::ThDport, ports), Stmt::update(Field::ThDport, SET), accept()],
        vec![not(Field::ThDport, Value::Port(0)), Stmt::Counter],
    ]
}

/// Empties the set, makes the rules again, and puts a mark with these bytes into the set.
pub(crate) fn begin(bytes: Vec<u8>) -> Transaction {
    let id = table();
    let mut batch = Transaction::new();
    batch.add_set(Set::new(&id, SET, &[DataType::InetService]).updated().size(SIZE));
    batch.flush_set(&id, SET);
    for (name, hook) in CHAINS.into_iter().zip([Hook::Prerouting, Hook::Output]) {
        let base = BaseChain { kind: ChainKind::Nat, hook, priority: FIRST_NAT, policy: Policy::Accept };
        batch.add_chain(Chain::new(&id, name).base(base)).flush_chain(&id, name);
        super::add_rules(&mut batch, name, rules().to_vec());
    }
    batch.add_element(mark(bytes));
    batch
}

/// Adds ports, and replaces the mark.
pub(crate) fn complete(ports: impl IntoIterator<Item = u16>, bytes: Vec<u8>) -> Transaction {
    let mut batch = Transaction::new();
    for port in ports.into_iter().filter(|port| *port != 0) {
        batch.add_element(Element::new(element(port)).or_keep());
    }
    batch.delete_element(element(0)).add_element(mark(bytes));
    batch
}
