// SPDX-License-Identifier: GPL-2.0-or-later

//! The chain by which netfilter's masquerade avoids the BPF programs' source ports.
//!
//! ```text
//! chain spare-ports   meta l4proto udp masquerade to :32768-60999
//!                     meta l4proto { tcp, udp } th sport 1024-65535 masquerade to :1024-60999
//!                     meta l4proto { icmp, ipv6-icmp } masquerade to :0-60999
//!                     masquerade
//! ```
//!
//! A reply to one of these ports belongs to a flow of the programs. By default netfilter keeps the port that
//! the container chose, and takes any from 1024 on if that one is taken. So the chains `masquerade-…` go here
//! in place of masquerading while there are programs on the node: with as many rules as before, so that an
//! earlier version of Slipway sees no damage. The comment of this chain names the reserved ports; it survives
//! a flush of the rules.
//!
//! UDP gets only ports from the node's ephemeral range on, as ports below it are published. A program would
//! take a reply to a published port for the first datagram of a new client: it does not know the flows of
//! netfilter, and a datagram does not show which it belongs to.

use cni_nftables::{Chain, ChainInfo, Cmp, Field, Operand, PortChoice, Stmt, Value};

use super::base::{self, Fixed};
use super::layout::Layout;
use crate::PortRange;

/// The chain's name. Ports are reserved if it exists.
pub(crate) const CHAIN: &str = "spare-ports";
/// Prefix of its comment; the ports follow.
const COMMENT: &str = "masquerades with other ports than the programs': ";
/// The first port that the kernel chooses for a flow whose own port is not below it
/// (`nf_nat_l4proto_unique_tuple`).
const FIRST: u16 = 1024;
/// The first port that is not meant for services: the default begin of `net.ipv4.ip_local_port_range`.
/// `slipway check-node` warns of published ports from here on.
const EPHEMERAL: u16 = 32768;

/// The statement that masquerades, at the end of a chain.
pub(crate) fn masquerade(layout: Layout) -> Stmt {
    match layout.spared {
        None => Stmt::Masquerade(PortChoice::Keep),
        Some(_) => Stmt::goto(CHAIN),
    }
}

/// The chain that avoids these ports.
pub(crate) fn chain(spared: PortRange) -> Fixed {
    let chain = Chain::new(&base::table(), CHAIN).comment(&format!("{COMMENT}{spared}"));
    Fixed { chain, rules: rules(spared) }
}

/// The reserved ports in a chain's comment.
pub(crate) fn range_of(chain: &ChainInfo) -> Option<PortRange> {
    chain.comment.as_deref()?.strip_prefix(COMMENT)?.parse().ok()
}

fn rules(spared: PortRange) -> Vec<Vec<Stmt>> {
    let protocols = |numbers: [u8; 2]| {
        let numbers = numbers.map(|number| Operand::Value(Value::Proto(number)));
        Stmt::Match { fields: vec![Field::L4Proto], cmp: Cmp::Eq, to: Operand::OneOf(numbers.to_vec()) }
    };
    let between = |(first, last)| Stmt::Masquerade(PortChoice::Between(first, last));
    let mut rules = Vec::new();
    // Only protocols of the BPF programs: TCP, UDP and ICMP echo.
    if let Some(others) = others(spared, EPHEMERAL) {
        rules.push(vec![Stmt::eq(Field::L4Proto, Value::Proto(17)), between(others)]);
    }
    if let Some(others) = others(spared, FIRST) {
        let high = Operand::Range(Value::Port(FIRST), Value::Port(u16::MAX));
        let high = Stmt::Match { fields: vec![Field::ThSport], cmp: Cmp::Eq, to: high };
        rules.push(vec![protocols([6, 17]), high, between(others)]);
    }
    if let Some(others) = others(spared, 0) {
        rules.push(vec![protocols([1, 58]), between(others)]);
    }
    rules.push(vec![Stmt::Masquerade(PortChoice::Keep)]);
    rules
}

/// The ports from `first` on that are not reserved: the larger part, as the kernel takes one range. None if
/// all are reserved.
fn others(spared: PortRange, first: u16) -> Option<(u16, u16)> {
    let below = (first, spared.first.saturating_sub(1));
    let above = (spared.last.saturating_add(1).max(first), u16::MAX);
    let size = |(first, last): (u16, u16)| last.checked_sub(first);
    let below = size(below).filter(|_| spared.first > first).map(|size| (size, below));
    let above = size(above).filter(|_| spared.last < u16::MAX).map(|size| (size, above));
    below.into_iter().chain(above).max().map(|(_, range)| range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u16, last: u16) -> PortRange {
        PortRange { first, last }
    }

    #[test]
    fn the_larger_part_of_the_others_is_chosen() {
        assert_eq!(others(range(61000, 65535), FIRST), Some((1024, 60999)));
        assert_eq!(others(range(61000, 65535), 0), Some((0, 60999)));
        assert_eq!(others(range(40000, 40099), FIRST), Some((1024, 39999)));
        assert_eq!(others(range(20000, 20099), FIRST), Some((20100, 65535)));
        assert_eq!(others(range(1024, 65534), FIRST), Some((65535, 65535)));
        assert_eq!(others(range(1025, 65535), FIRST), Some((1024, 1024)));
        assert_eq!(others(range(1024, 65535), FIRST), None);
        assert_eq!(others(range(1024, 65535), 0), Some((0, 1023)));
        assert_eq!(others(range(61000, 65535), EPHEMERAL), Some((32768, 60999)));
        assert_eq!(others(range(20000, 20099), EPHEMERAL), Some((32768, 65535)));
        assert_eq!(others(range(30000, 40000), EPHEMERAL), Some((40001, 65535)));
        assert_eq!(others(range(30000, 65535), EPHEMERAL), None);
    }

    #[test]
    fn none_of_the_chosen_is_reserved() {
        for (first, last) in [(1024, 1024), (1024, 65535), (65535, 65535), (30000, 40000), (61000, 65535)] {
            for from in [0, FIRST, EPHEMERAL] {
                if let Some((low, high)) = others(range(first, last), from) {
                    assert!(from <= low && low <= high && (high < first || low > last), "{first}-{last}");
                }
            }
        }
    }
}
