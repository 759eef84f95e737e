// SPDX-License-Identifier: GPL-2.0-or-later

//! The table's name, and statements that several of its parts use.

use cni_nftables::{BaseChain, Chain, Cmp, Family, Field, Operand, Stmt, TableId, Value};
use ipnet::IpNet;

use crate::AddressFamily;
use crate::owned_table::Definition;

/// Family and name, for messages.
pub(crate) const TABLE: &str = "inet slipway";
/// The schema that this version makes. The number is never reused, because a node may still have the table of an
/// earlier build.
pub(crate) const SCHEMA: u32 = 3;
pub(crate) const DEFINITION: Definition =
    Definition { family: Family::Inet, name: "slipway", label: TABLE, schema: SCHEMA };
/// The bit of the mark for containers whose configuration names none, which is also the reference plugin's.
pub(crate) const DEFAULT_MARK_BIT: u8 = 13;
/// Family and name of the table.
pub(crate) fn table() -> TableId {
    DEFINITION.id()
}

/// The mark with only this bit.
pub(crate) fn mark_bits(bit: u8) -> u32 {
    1u32.checked_shl(u32::from(bit)).unwrap_or(0)
}

pub(crate) fn family_of(network: &IpNet) -> AddressFamily {
    AddressFamily::of(network.addr())
}

pub(crate) fn address_fields(family: AddressFamily) -> (Field, Field) {
    match family {
        AddressFamily::V4 => (Field::IpSaddr, Field::IpDaddr),
        AddressFamily::V6 => (Field::Ip6Saddr, Field::Ip6Daddr),
    }
}

pub(crate) fn one_of(field: Field, to: Operand) -> Stmt {
    Stmt::Match { fields: vec![field], cmp: Cmp::Eq, to }
}

pub(super) fn prefix(network: &IpNet) -> Operand {
    Operand::Prefix(Value::address(network.network()), network.prefix_len())
}

/// RFC 5771 and RFC 4291, section 2.7.
pub(crate) fn multicast(family: AddressFamily) -> Operand {
    match family {
        AddressFamily::V4 => Operand::Prefix(Value::Ipv4([224, 0, 0, 0].into()), 4),
        AddressFamily::V6 => Operand::Prefix(Value::Ipv6([0xff00, 0, 0, 0, 0, 0, 0, 0].into()), 8),
    }
}

/// RFC 1122, section 3.2.1.3 (g), and RFC 4291, section 2.5.3.
pub(crate) fn loopback(family: AddressFamily) -> Operand {
    match family {
        AddressFamily::V4 => Operand::Prefix(Value::Ipv4([127, 0, 0, 0].into()), 8),
        AddressFamily::V6 => Operand::Value(Value::Ipv6(std::net::Ipv6Addr::LOCALHOST)),
    }
}

pub(crate) type Rules = Vec<Vec<Stmt>>;

/// A chain with its rules that every table of a layout contains.
#[derive(Debug, Clone)]
pub(crate) struct Fixed {
    pub(crate) chain: Chain,
    pub(crate) rules: Vec<Vec<Stmt>>,
}

impl Fixed {
    pub(super) fn regular(name: &str, rules: Vec<Vec<Stmt>>) -> Self {
        Self { chain: Chain::new(&table(), name), rules }
    }

    pub(super) fn base(name: &str, base: BaseChain, rules: Vec<Vec<Stmt>>) -> Self {
        Self { chain: Chain::new(&table(), name).base(base), rules }
    }
}

/// The chain that translates the destination, without looking at the mark.
pub(crate) const fn translate_chain(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "translate4",
        AddressFamily::V6 => "translate6",
    }
}

/// The chain that looks up published ports.
pub(crate) const fn hostports_chain(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "hostports4",
        AddressFamily::V6 => "hostports6",
    }
}

/// The chain for packets to containers with published ports. The set of their addresses has the same name.
pub(crate) const fn published_chain(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "published4",
        AddressFamily::V6 => "published6",
    }
}

/// The chain for packets from containers that are masqueraded. The set of their addresses has the same name.
pub(crate) const fn masqueraded_chain(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "masqueraded4",
        AddressFamily::V6 => "masqueraded6",
    }
}
