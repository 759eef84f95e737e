// SPDX-License-Identifier: GPL-2.0-or-later

//! The flows to which a rule can apply, and what in the rule decides about each packet separately.

use std::collections::BTreeSet;

use cni_kernel::AddressFamily;
use slipway_ebpf_abi::maps::{held_bit, held_port};
use slipway_ebpf_abi::{IPPROTO_TCP, IPPROTO_UDP, Port};

const PROTOCOLS: [u8; 2] = [IPPROTO_TCP, IPPROTO_UDP];

/// The kinds of flows, each a family and a protocol, that may match a rule as far as it has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flows(u32);

impl Flows {
    pub(super) const NONE: Self = Self(0);

    pub(super) fn all() -> Self {
        let families = AddressFamily::BOTH.into_iter();
        families.fold(Self::NONE, |all, family| Self(all.0 | Self::of_family(family).0))
    }

    pub(super) fn of_family(family: AddressFamily) -> Self {
        let bit = |protocol: u8| held_bit(family == AddressFamily::V6, protocol.into());
        Self(PROTOCOLS.into_iter().fold(0, |bits, protocol| bits | bit(protocol)))
    }

    pub(super) fn of_protocol(protocol: u8) -> Self {
        if !PROTOCOLS.contains(&protocol) {
            return Self::NONE;
        }
        Self(held_bit(false, protocol.into()) | held_bit(true, protocol.into()))
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    pub(super) fn has(self, protocol: u8) -> bool {
        !self.and(Self::of_protocol(protocol)).is_empty()
    }

    pub(super) fn has_family(self, family: AddressFamily) -> bool {
        !self.and(Self::of_family(family)).is_empty()
    }
}

/// A rule that keeps flows with netfilter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hold {
    /// The expression that can differ from packet to packet, as nft or iptables writes it.
    pub(super) what: String,
    pub(super) flows: Flows,
    /// The only port to which it applies, if there is one.
    pub(super) port: Option<u16>,
}

/// A rule that keeps flows with netfilter, described for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldingRule {
    /// Where the rule is, in the words of the tool that lists it.
    pub rule: String,
    /// The expression that can differ from packet to packet.
    pub what: String,
    /// The flows that are not carried because of this rule.
    pub flows: String,
}

/// The flows that stay with netfilter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) bits: u32,
    pub(super) ports: BTreeSet<u32>,
    pub(super) rules: Vec<HoldingRule>,
}

/// How many rules are listed at most.
const MOST_RULES: usize = 50;

impl Held {
    pub(super) fn add(&mut self, rule: impl FnOnce() -> String, hold: Hold) {
        match hold.port {
            Some(port) => {
                let protocols = PROTOCOLS.into_iter().filter(|protocol| hold.flows.has(*protocol));
                let keys = protocols.map(|protocol| held_port(protocol.into(), Port::new(port)));
                self.ports.extend(keys);
            }
            None => self.bits |= hold.flows.bits(),
        }
        if self.rules.len() < MOST_RULES {
            self.rules.push(HoldingRule {
                rule: rule(),
                flows: words(hold.flows, hold.port),
                what: hold.what,
            });
        }
    }
}

/// Describes flows in words: `UDP over IPv4 with port 53`.
fn words(flows: Flows, port: Option<u16>) -> String {
    let protocols = match PROTOCOLS.map(|protocol| flows.has(protocol)) {
        [true, true] => "all flows",
        [true, false] => "TCP",
        _ => "UDP",
    };
    let family = match AddressFamily::BOTH.map(|family| flows.has_family(family)) {
        [true, false] => " over IPv4",
        [false, true] => " over IPv6",
        _ => "",
    };
    let port = port.map_or_else(String::new, |port| format!(" with port {port}"));
    format!("{protocols}{family}{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_named() {
        let udp4 = Flows::of_protocol(17).and(Flows::of_family(AddressFamily::V4));
        assert_eq!(words(Flows::all(), None), "all flows");
        assert_eq!(words(udp4, Some(53)), "UDP over IPv4 with port 53");
        assert_eq!(words(Flows::of_protocol(6), None), "TCP");
        assert!(Flows::of_protocol(1).is_empty());
    }

    #[test]
    fn a_rule_with_a_port_holds_that_port_only() {
        let mut held = Held::default();
        let hold = |port| Hold { what: "limit".to_owned(), flows: Flows::of_protocol(17), port };
        held.add(|| "a rule".to_owned(), hold(Some(53)));
        assert_eq!((held.bits, held.ports.len()), (0, 1));
        held.add(|| "another".to_owned(), hold(None));
        assert_eq!(held.bits, Flows::of_protocol(17).bits());
    }
}
