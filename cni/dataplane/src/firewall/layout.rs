// SPDX-License-Identifier: GPL-2.0-or-later

//! The layout of the [table](super::table): its sets, chains and rules with their names, and how an attachment's
//! choices are encoded in its entry.

use std::net::IpAddr;

use cni_nftables::{
    BaseChain, Chain, ChainKind, Cmp, DataType, ElementId, Family, Field, Hook, Policy, Rule, Set, Stmt,
    Table, TableId, Transaction, Value, Verdict,
};

use super::{FirewallRecord, IngressPolicy, Isolator, Means};
use crate::owned_table::{Definition, marker};
use crate::owner::AttachmentHash;

pub(super) const DEFINITION: Definition =
    Definition { family: Family::Inet, name: "slipway-firewall", label: TABLE, schema: 1 };
/// Family and name, for messages.
pub(crate) const TABLE: &str = "inet slipway-firewall";
pub(super) const FORWARD: &str = "forward";
pub(super) const ADMIN: &str = "admin";
pub(super) const PODS: [&str; 2] = ["pods4", "pods6"];
pub(super) const ADDRESSES: [&str; 2] = ["addresses4", "addresses6"];
pub(super) const ATTACHMENTS: &str = "attachments";
pub(super) const ISOLATING: &str = "isolating";
pub(super) const SAME: &str = "same";
pub(super) const ISOLATED: &str = "isolated";
pub(super) const STRICT: &str = "strict";
pub(super) const LISTED: &str = "listed";

/// The hook and priority of iptables' FORWARD chain.
pub(super) const BASE: BaseChain =
    BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: 0, policy: Policy::Accept };

pub(crate) fn table() -> TableId {
    DEFINITION.id()
}

pub(super) fn of_family<'a>(address: IpAddr, names: &[&'a str; 2]) -> &'a str {
    names[usize::from(address.is_ipv6())]
}

pub(super) fn hash_value(hash: AttachmentHash) -> Value {
    Value::Ipv6(hash.0.into())
}

pub(super) fn pod_id(address: IpAddr) -> ElementId {
    ElementId::new(&table(), of_family(address, &PODS), vec![Value::address(address)])
}

pub(super) fn slot_id(set: &str, hash: AttachmentHash, slot: u32) -> ElementId {
    ElementId::new(&table(), set, vec![hash_value(hash), Value::Mark(slot)])
}

pub(super) fn attachment_id(hash: AttachmentHash) -> ElementId {
    ElementId::new(&table(), ATTACHMENTS, vec![hash_value(hash)])
}

pub(super) fn bridge_id(set: &str, bridge: &str) -> ElementId {
    ElementId::new(&table(), set, vec![Value::Ifname(bridge.to_owned())])
}

pub(super) fn pair_id(set: &str, bridge: &str) -> ElementId {
    let name = || Value::Ifname(bridge.to_owned());
    ElementId::new(&table(), set, vec![name(), name()])
}

/// Set in an entry if this table's sets isolate the bridge although the rules of its means are elsewhere. Versions
/// that do not know this bit treat the entry as one of a later version.
pub(super) const BY_SETS: u32 = 1 << 16;

/// The choices of an attachment, which are stored in its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) means: Means,
    pub(super) policy: IngressPolicy,
    pub(super) isolator: Isolator,
}

impl Choice {
    pub(super) fn of(record: &FirewallRecord) -> Self {
        Self { means: record.means, policy: record.policy, isolator: record.isolator }
    }

    /// Encodes the choices as one number. The policy is in the lowest byte.
    pub(super) fn encode(self) -> u32 {
        let means = match self.means {
            Means::Nftables => 1,
            Means::Iptables => 2,
            Means::Firewalld => 3,
        };
        let policy = match self.policy {
            IngressPolicy::Open => 0,
            IngressPolicy::SameBridge => 1,
            IngressPolicy::Isolated => 2,
            IngressPolicy::Strict => 3,
            IngressPolicy::Listed => 4,
        };
        let by_sets = self.isolator == Isolator::Nftables && self.means != Means::Nftables;
        let by_sets = if by_sets { BY_SETS } else { 0 };
        by_sets | means << 8 | policy
    }

    pub(super) fn decode(number: u32) -> Option<Self> {
        let means = match (number & !BY_SETS) >> 8 {
            1 => Means::Nftables,
            2 => Means::Iptables,
            3 => Means::Firewalld,
            _ => return None,
        };
        let policy = match number & 0xff {
            0 => IngressPolicy::Open,
            1 => IngressPolicy::SameBridge,
            2 => IngressPolicy::Isolated,
            3 => IngressPolicy::Strict,
            4 => IngressPolicy::Listed,
            _ => return None,
        };
        let by_sets = means == Means::Nftables || number & BY_SETS != 0;
        let isolator = if by_sets { Isolator::Nftables } else { Isolator::Iptables };
        Some(Self { means, policy, isolator })
    }

    /// True if the rules of this table decide about the attachment's packets.
    pub(super) fn needs_rules(self) -> bool {
        self.means == Means::Nftables
            || (self.isolator == Isolator::Nftables && self.policy != IngressPolicy::Open)
    }

    /// The elements that a bridge needs for these choices. Even a bridge that chains of iptables isolate needs some,
    /// because the bridges that this table isolates must be kept apart from it as well.
    pub(super) fn isolation(self, bridge: &str) -> Vec<ElementId> {
        let own = |set: &str| bridge_id(set, bridge);
        match self.policy {
            IngressPolicy::Open => Vec::new(),
            IngressPolicy::SameBridge => vec![own(ISOLATING), pair_id(SAME, bridge)],
            IngressPolicy::Isolated => vec![own(ISOLATING), pair_id(SAME, bridge), pair_id(ISOLATED, bridge)],
            IngressPolicy::Strict => vec![own(ISOLATING), pair_id(SAME, bridge), own(STRICT)],
            IngressPolicy::Listed => vec![own(LISTED)],
        }
    }
}

/// The table without its rules.
pub(super) fn bootstrap() -> Transaction {
    let t = table();
    let two = [DataType::Ifname, DataType::Ifname];
    let slot = [DataType::Ipv6Addr, DataType::Mark];
    let mut batch = Transaction::new();
    batch
        .add_table(Table::new(&t).comment("slipway: containers that the firewall plugin knows"))
        .add_chain(Chain::new(&t, &marker(DEFINITION.schema)))
        .add_set(Set::new(&t, PODS[0], &[DataType::Ipv4Addr]))
        .add_set(Set::new(&t, PODS[1], &[DataType::Ipv6Addr]))
        .add_set(Set::new(&t, ADDRESSES[0], &slot).data(&[DataType::Ipv4Addr]))
        .add_set(Set::new(&t, ADDRESSES[1], &slot).data(&[DataType::Ipv6Addr]))
        .add_set(Set::new(&t, ATTACHMENTS, &[DataType::Ipv6Addr]).data(&[DataType::Ifname, DataType::Mark]))
        .add_set(Set::new(&t, ISOLATING, &[DataType::Ifname]))
        .add_set(Set::new(&t, SAME, &two))
        .add_set(Set::new(&t, ISOLATED, &two))
        .add_chain(Chain::new(&t, ADMIN));
    batch.append(newer_sets());
    batch
}

/// The sets that tables of earlier versions lack. Adding a set that exists changes nothing.
pub(super) fn newer_sets() -> Transaction {
    let mut batch = Transaction::new();
    for set in [STRICT, LISTED] {
        batch.add_set(Set::new(&table(), set, &[DataType::Ifname]));
    }
    batch
}

/// The rules, whose number does not depend on the number of containers. An accept verdict ends only this chain; the
/// chains of other tables still see the packet.
pub(super) fn rules() -> Vec<Vec<Stmt>> {
    let pair = [Field::Iifname, Field::Oifname];
    let known = Stmt::AnyBit {
        field: Field::CtState,
        bits: Value::CtState(Value::CT_ESTABLISHED | Value::CT_RELATED),
    };
    let accept = || Stmt::Verdict(Verdict::Accept);
    // Matches the packets of both directions of a translated connection. Packets whose destination was translated
    // belong to a published port.
    let translated = || Stmt::AnyBit { field: Field::CtStatus, bits: Value::CtStatus(Value::CT_DNAT) };
    let untranslated = || Stmt::Masked {
        field: Field::CtStatus,
        mask: Value::CtStatus(Value::CT_DNAT),
        cmp: Cmp::Eq,
        value: Value::CtStatus(0),
    };
    let between = |from: &str, to: &str| {
        let (from, to) = (Stmt::in_set(&[Field::Iifname], from), Stmt::in_set(&[Field::Oifname], to));
        vec![from, to, untranslated(), Stmt::Verdict(Verdict::Drop)]
    };
    vec![
        vec![Stmt::in_set(&pair, ISOLATED), untranslated(), Stmt::Verdict(Verdict::Drop)],
        vec![
            Stmt::in_set(&[Field::Iifname], ISOLATING),
            Stmt::in_set(&[Field::Oifname], ISOLATING),
            Stmt::not_in_set(&pair, SAME),
            untranslated(),
            Stmt::Verdict(Verdict::Drop),
        ],
        between(STRICT, LISTED),
        between(LISTED, STRICT),
        vec![Stmt::Verdict(Verdict::Jump(ADMIN.to_owned()))],
        vec![translated(), Stmt::in_set(&[Field::IpDaddr], PODS[0]), accept()],
        vec![translated(), Stmt::in_set(&[Field::Ip6Daddr], PODS[1]), accept()],
        vec![known.clone(), Stmt::in_set(&[Field::IpDaddr], PODS[0]), accept()],
        vec![known, Stmt::in_set(&[Field::Ip6Daddr], PODS[1]), accept()],
        vec![Stmt::in_set(&[Field::IpSaddr], PODS[0]), accept()],
        vec![Stmt::in_set(&[Field::Ip6Saddr], PODS[1]), accept()],
    ]
}

/// Makes the chain with its rules, and replaces the rules that are there.
pub(super) fn hook() -> Transaction {
    let t = table();
    let mut batch = Transaction::new();
    batch.add_chain(Chain::new(&t, FORWARD).base(BASE)).flush_chain(&t, FORWARD);
    for stmts in rules() {
        batch.add_rule(Rule::new(&t, FORWARD, stmts));
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_as_text() {
        let mut batch = bootstrap();
        batch.append(hook());
        let text = batch.to_string();
        assert_eq!(text.matches("add rule ").count(), 11, "{text}");
        for line in [
            "add rule inet slipway-firewall forward iifname . oifname @isolated ct status & dnat == 0x0 drop",
            "add rule inet slipway-firewall forward iifname @isolating oifname @isolating iifname . oifname != @same ct status & dnat == 0x0 drop",
            "add rule inet slipway-firewall forward iifname @strict oifname @listed ct status & dnat == 0x0 drop",
            "add rule inet slipway-firewall forward iifname @listed oifname @strict ct status & dnat == 0x0 drop",
            "add rule inet slipway-firewall forward jump admin",
            "add set inet slipway-firewall pods4 { type ipv4_addr ; }",
            "add map inet slipway-firewall attachments { type ipv6_addr : ifname . mark ; }",
        ] {
            assert!(text.lines().any(|is| is == line), "{line}: {text}");
        }
    }

    const POLICIES: [IngressPolicy; 5] = [
        IngressPolicy::Open,
        IngressPolicy::SameBridge,
        IngressPolicy::Isolated,
        IngressPolicy::Strict,
        IngressPolicy::Listed,
    ];

    #[test]
    fn choices_read_back() {
        for policy in POLICIES {
            for (means, isolator) in [
                (Means::Nftables, Isolator::Nftables),
                (Means::Iptables, Isolator::Nftables),
                (Means::Iptables, Isolator::Iptables),
                (Means::Firewalld, Isolator::Nftables),
                (Means::Firewalld, Isolator::Iptables),
            ] {
                let choice = Choice { means, policy, isolator };
                assert_eq!(Choice::decode(choice.encode()), Some(choice));
            }
        }
        // Entries as written by versions that did not have the bit `BY_SETS`.
        let same = |means, isolator| Some(Choice { means, policy: IngressPolicy::SameBridge, isolator });
        assert_eq!(Choice::decode(1 << 8 | 1), same(Means::Nftables, Isolator::Nftables));
        assert_eq!(Choice::decode(3 << 8 | 1), same(Means::Firewalld, Isolator::Iptables));
        assert_eq!(Choice::decode(0), None);
        assert_eq!(Choice::decode(1 << 8 | 9), None);
        assert_eq!(Choice::decode(1 << 17 | 1 << 8), None);
    }

    #[test]
    fn a_bridge_has_the_elements_of_its_policies() {
        let sets = POLICIES.map(|policy| {
            let choice = Choice { means: Means::Nftables, policy, isolator: Isolator::Nftables };
            choice.isolation("br0").into_iter().map(|id| id.set).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(
            sets,
            ["", "isolating same", "isolating same isolated", "isolating same strict", "listed"]
        );
    }
}
