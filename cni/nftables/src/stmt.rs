// SPDX-License-Identifier: GPL-2.0-or-later

//! Statements of rules, which follow nft's syntax rather than the kernel's registers.

use std::fmt;
use std::net::IpAddr;

use cni_kernel::AddressFamily;

use crate::value::{DataType, Value, join};

/// A property of a packet that can be compared or looked up.
///
/// In a table of family inet or bridge, a field of one network or transport protocol must follow a match of that
/// protocol, because otherwise bytes of another protocol would be mistaken for the field. Like `nft`, this crate
/// inserts that match itself, once per rule. The exceptions are [`Field::ThSport`] and [`Field::ThDport`], the ports
/// of any protocol: here the rule must match a protocol that has ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// `meta nfproto`.
    NfProto,
    /// `meta l4proto`: the transport protocol, even if IPv6 extension headers precede it.
    L4Proto,
    /// `iifname`.
    Iifname,
    /// `oifname`.
    Oifname,
    /// `meta mark`.
    Mark,
    /// `ct mark`.
    CtMark,
    /// `ct state`.
    CtState,
    /// `ct status`.
    CtStatus,
    /// `ip saddr`.
    IpSaddr,
    /// `ip daddr`.
    IpDaddr,
    /// `ip ttl`.
    IpTtl,
    /// `ip length`.
    IpLength,
    /// `ip6 saddr`.
    Ip6Saddr,
    /// `ip6 daddr`.
    Ip6Daddr,
    /// `ip6 hoplimit`.
    Ip6Hoplimit,
    /// `ip6 length`.
    Ip6Length,
    /// `icmp type`.
    IcmpType,
    /// `icmpv6 type`.
    Icmpv6Type,
    /// `th sport`.
    ThSport,
    /// `th dport`.
    ThDport,
    /// `tcp sport`.
    TcpSport,
    /// `tcp dport`.
    TcpDport,
    /// `tcp flags`.
    TcpFlags,
    /// `udp sport`.
    UdpSport,
    /// `udp dport`.
    UdpDport,
    /// `sctp sport`.
    SctpSport,
    /// `sctp dport`.
    SctpDport,
    /// `ether saddr`.
    EtherSaddr,
    /// `ether daddr`.
    EtherDaddr,
    /// `fib saddr type`.
    FibSaddrType,
    /// `fib daddr type`.
    FibDaddrType,
}

impl Field {
    /// The type of the field's values.
    #[must_use]
    pub const fn data_type(self) -> DataType {
        match self {
            Self::NfProto => DataType::NfProto,
            Self::L4Proto => DataType::InetProto,
            Self::Iifname | Self::Oifname => DataType::Ifname,
            Self::Mark | Self::CtMark => DataType::Mark,
            Self::CtState => DataType::CtState,
            Self::CtStatus => DataType::CtStatus,
            Self::IpSaddr | Self::IpDaddr => DataType::Ipv4Addr,
            Self::IpTtl | Self::Ip6Hoplimit => DataType::Integer8,
            Self::IpLength | Self::Ip6Length => DataType::Integer16,
            Self::Ip6Saddr | Self::Ip6Daddr => DataType::Ipv6Addr,
            Self::IcmpType => DataType::IcmpType,
            Self::Icmpv6Type => DataType::Icmpv6Type,
            Self::ThSport | Self::ThDport | Self::TcpSport | Self::TcpDport => DataType::InetService,
            Self::UdpSport | Self::UdpDport | Self::SctpSport | Self::SctpDport => DataType::InetService,
            Self::TcpFlags => DataType::TcpFlag,
            Self::EtherSaddr | Self::EtherDaddr => DataType::EtherAddr,
            Self::FibSaddrType | Self::FibDaddrType => DataType::FibAddrType,
        }
    }

    /// The field's name in nft's syntax.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NfProto => "meta nfproto",
            Self::L4Proto => "meta l4proto",
            Self::Iifname => "iifname",
            Self::Oifname => "oifname",
            Self::Mark => "meta mark",
            Self::CtMark => "ct mark",
            Self::CtState => "ct state",
            Self::CtStatus => "ct status",
            Self::IpSaddr => "ip saddr",
            Self::IpDaddr => "ip daddr",
            Self::IpTtl => "ip ttl",
            Self::IpLength => "ip length",
            Self::Ip6Saddr => "ip6 saddr",
            Self::Ip6Daddr => "ip6 daddr",
            Self::Ip6Hoplimit => "ip6 hoplimit",
            Self::Ip6Length => "ip6 length",
            Self::IcmpType => "icmp type",
            Self::Icmpv6Type => "icmpv6 type",
            Self::ThSport => "th sport",
            Self::ThDport => "th dport",
            Self::TcpSport => "tcp sport",
            Self::TcpDport => "tcp dport",
            Self::TcpFlags => "tcp flags",
            Self::UdpSport => "udp sport",
            Self::UdpDport => "udp dport",
            Self::SctpSport => "sctp sport",
            Self::SctpDport => "sctp dport",
            Self::EtherSaddr => "ether saddr",
            Self::EtherDaddr => "ether daddr",
            Self::FibSaddrType => "fib saddr type",
            Self::FibDaddrType => "fib daddr type",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cmp {
    /// The packet's value equals the operand or is contained in it.
    Eq,
    /// The packet's value neither equals the operand nor is contained in it.
    Ne,
}

impl Cmp {
    const fn sign(self) -> &'static str {
        match self {
            Self::Eq => "",
            Self::Ne => "!= ",
        }
    }
}

/// The right-hand side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Operand {
    Value(Value),
    /// All addresses with this prefix. Bits beyond the prefix must be zero.
    Prefix(Value, u8),
    /// All values from the first to the second, inclusive.
    Range(Value, Value),
    /// Any of these elements: values, prefixes and ranges (not sets) of one type. Overlapping elements are merged.
    /// The rule gets an anonymous set with these elements.
    OneOf(Vec<Operand>),
    /// The elements of a named set in the rule's table.
    Set(String),
}

/// The verdict of a rule or map element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Accepts the packet, and ends this base chain.
    Accept,
    /// Drops the packet.
    Drop,
    /// Returns to the calling chain, or to the base chain's policy.
    Return,
    /// Continues with the next rule; useful in maps.
    Continue,
    /// Continues in a chain, which returns at its end.
    Jump(String),
    /// Continues in a chain. At its end, that chain returns to where this chain would return.
    Goto(String),
}

/// Target of `dnat`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DnatTarget {
    /// The address, and the port if there is one.
    To(IpAddr, Option<u16>),
    /// The data of the map element whose key these fields form. If there is no such element, the packet continues
    /// with the next rule.
    Map {
        fields: Vec<Field>,
        map: String,
        /// Data of the map.
        data: DnatData,
    },
}

/// Data of a map for `dnat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DnatData {
    /// An address: the port is kept.
    Address,
    AddressAndPort,
}

/// How `masquerade` chooses the source port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PortChoice {
    /// The packet's own port if it is free.
    #[default]
    Keep,
    /// `random`: `NF_NAT_RANGE_PROTO_RANDOM`.
    Random,
    /// `fully-random`: `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
    FullyRandom,
    /// `to :1024-60999`: the packet's own port if it is in the range and free, or else another port of the range
    /// (`NF_NAT_RANGE_PROTO_SPECIFIED`). For ICMP, this applies to the identifier of an echo. nft requires the rule
    /// to match the transport protocol. The kernel ignores the range for protocols without ports.
    Between(u16, u16),
}

/// One statement of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Stmt {
    /// Matches fields. Several fields form a concatenation, which needs [`Operand::Set`].
    Match {
        /// The left-hand side of the comparison.
        fields: Vec<Field>,
        cmp: Cmp,
        to: Operand,
    },
    /// Matches a field after masking it: `meta mark & 0x2000 == 0x2000`.
    Masked {
        /// The left-hand side of the comparison.
        field: Field,
        mask: Value,
        cmp: Cmp,
        value: Value,
    },
    /// Matches a field in which at least one of these bits is set: `ct state established,related`.
    AnyBit {
        /// A field that is a mask.
        field: Field,
        bits: Value,
    },
    /// `meta mark set (meta mark & and) ^ xor`.
    SetMark {
        /// The bits that are kept.
        and: u32,
        /// The bits that are flipped afterwards.
        xor: u32,
    },
    /// `ct mark set (ct mark & and) ^ xor`.
    SetCtMark {
        /// The bits that are kept.
        and: u32,
        /// The bits that are flipped afterwards.
        xor: u32,
    },
    /// Applies the verdict of the map element whose key these fields form. If there is no such element, the packet
    /// continues with the next rule.
    Vmap {
        /// The fields that form the key.
        fields: Vec<Field>,
        map: String,
    },
    /// Translates the destination.
    Dnat {
        /// The network protocol.
        version: AddressFamily,
        target: DnatTarget,
    },
    /// Translates the source to the address of the outgoing interface.
    Masquerade(PortChoice),
    /// Counts packets and bytes.
    Counter,
    /// `update @set { field }`: adds the field's value to a set with [`Set::updated`](crate::Set::updated), unless
    /// the set contains it. If that fails, for instance because the set is full, the rule ends there.
    Update {
        /// The fields that form the key.
        fields: Vec<Field>,
        set: String,
    },
    /// `limit rate RATE/second burst BURST packets`: matches no packets beyond the rate.
    Limit {
        /// Packets per second.
        rate: u32,
        /// How many packets beyond the rate may match in one burst.
        burst: u32,
    },
    /// `meta nftrace set 1`: the kernel reports the packet's way from here on ([`crate::trace`]).
    Trace,
    /// `flow add @flowtable`: from the next packet on, the flow is handled by this flowtable and bypasses all chains.
    /// The packet itself continues. Valid only in chains of the forward hook, and without effect if the kernel cannot
    /// offload the flow.
    Offload(String),
    Verdict(Verdict),
}

impl Stmt {
    /// `field value`.
    #[must_use]
    pub fn eq(field: Field, value: Value) -> Self {
        Self::Match { fields: vec![field], cmp: Cmp::Eq, to: Operand::Value(value) }
    }

    /// `field != value`.
    #[must_use]
    pub fn ne(field: Field, value: Value) -> Self {
        Self::Match { fields: vec![field], cmp: Cmp::Ne, to: Operand::Value(value) }
    }

    /// `field address/bits`; the address is masked.
    #[must_use]
    pub fn in_net(field: Field, net: ipnet::IpNet) -> Self {
        Self::Match {
            fields: vec![field],
            cmp: Cmp::Eq,
            to: Operand::Prefix(Value::address(net.network()), net.prefix_len()),
        }
    }

    /// `field . field @set`.
    #[must_use]
    pub fn in_set(fields: &[Field], set: &str) -> Self {
        Self::Match { fields: fields.to_vec(), cmp: Cmp::Eq, to: Operand::Set(set.to_owned()) }
    }

    /// `field . field != @set`.
    #[must_use]
    pub fn not_in_set(fields: &[Field], set: &str) -> Self {
        Self::Match { fields: fields.to_vec(), cmp: Cmp::Ne, to: Operand::Set(set.to_owned()) }
    }

    /// `fib daddr type local`.
    #[must_use]
    pub fn fib_daddr_local() -> Self {
        Self::eq(Field::FibDaddrType, Value::AddrType(Value::RTN_LOCAL))
    }

    /// `meta mark set meta mark | bits`.
    #[must_use]
    pub const fn set_mark_bits(bits: u32) -> Self {
        Self::SetMark { and: !bits, xor: bits }
    }

    /// `meta mark set meta mark & ~bits`.
    #[must_use]
    pub const fn clear_mark_bits(bits: u32) -> Self {
        Self::SetMark { and: !bits, xor: 0 }
    }

    /// `ct mark set ct mark | bits`.
    #[must_use]
    pub const fn set_ct_mark_bits(bits: u32) -> Self {
        Self::SetCtMark { and: !bits, xor: bits }
    }

    /// `meta mark & bits == bits`.
    #[must_use]
    pub const fn mark_has(bits: u32) -> Self {
        Self::Masked { field: Field::Mark, mask: Value::Mark(bits), cmp: Cmp::Eq, value: Value::Mark(bits) }
    }

    /// `fields vmap @map`.
    #[must_use]
    pub fn vmap(fields: &[Field], map: &str) -> Self {
        Self::Vmap { fields: fields.to_vec(), map: map.to_owned() }
    }

    /// `dnat ip to fields map @map`, for a map with addresses and ports.
    #[must_use]
    pub fn dnat_map(version: AddressFamily, fields: &[Field], map: &str) -> Self {
        let target =
            DnatTarget::Map { fields: fields.to_vec(), map: map.to_owned(), data: DnatData::AddressAndPort };
        Self::Dnat { version, target }
    }

    /// `dnat ip to fields map @map`, for a map with addresses only.
    #[must_use]
    pub fn dnat_map_address(version: AddressFamily, fields: &[Field], map: &str) -> Self {
        let target =
            DnatTarget::Map { fields: fields.to_vec(), map: map.to_owned(), data: DnatData::Address };
        Self::Dnat { version, target }
    }

    /// `update @set { field }`.
    #[must_use]
    pub fn update(field: Field, set: &str) -> Self {
        Self::Update { fields: vec![field], set: set.to_owned() }
    }

    /// `goto chain`.
    #[must_use]
    pub fn goto(chain: &str) -> Self {
        Self::Verdict(Verdict::Goto(chain.to_owned()))
    }

    /// `jump chain`.
    #[must_use]
    pub fn jump(chain: &str) -> Self {
        Self::Verdict(Verdict::Jump(chain.to_owned()))
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Prefix(value, bits) => write!(f, "{value}/{bits}"),
            Self::Range(from, to) => write!(f, "{from}-{to}"),
            Self::OneOf(elements) => {
                let words: Vec<String> = elements.iter().map(ToString::to_string).collect();
                write!(f, "{{ {} }}", words.join(", "))
            }
            Self::Set(name) => write!(f, "@{name}"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Return => f.write_str("return"),
            Self::Continue => f.write_str("continue"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

fn join_fields(fields: &[Field]) -> String {
    fields.iter().map(|field| field.name()).collect::<Vec<_>>().join(" . ")
}

fn fmt_dnat(f: &mut fmt::Formatter<'_>, version: AddressFamily, target: &DnatTarget) -> fmt::Result {
    let family = match version {
        AddressFamily::V4 => "ip",
        AddressFamily::V6 => "ip6",
    };
    match target {
        DnatTarget::To(IpAddr::V6(address), Some(port)) => write!(f, "dnat {family} to [{address}]:{port}"),
        DnatTarget::To(address, Some(port)) => write!(f, "dnat {family} to {address}:{port}"),
        DnatTarget::To(address, None) => write!(f, "dnat {family} to {address}"),
        DnatTarget::Map { fields, map, .. } => {
            write!(f, "dnat {family} to {} map @{map}", join_fields(fields))
        }
    }
}

impl fmt::Display for Stmt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Match { fields, cmp, to } => write!(f, "{} {}{to}", join_fields(fields), cmp.sign()),
            Self::Masked { field, mask, cmp, value } => {
                let sign = if *cmp == Cmp::Eq { "==" } else { "!=" };
                write!(f, "{field} & {mask} {sign} {value}")
            }
            Self::AnyBit { field, bits } => write!(f, "{field} {}", join(std::slice::from_ref(bits))),
            Self::SetCtMark { and, xor } if *xor == 0 => write!(f, "ct mark set ct mark & {and:#010x}"),
            Self::SetCtMark { and, xor } if *and == !*xor => write!(f, "ct mark set ct mark | {xor:#010x}"),
            Self::SetCtMark { and, xor } => write!(f, "ct mark set ct mark & {and:#010x} ^ {xor:#010x}"),
            Self::SetMark { and, xor } if *xor == 0 => write!(f, "meta mark set meta mark & {and:#010x}"),
            Self::SetMark { and, xor } if *and == !*xor => {
                write!(f, "meta mark set meta mark | {xor:#010x}")
            }
            Self::SetMark { and, xor } => {
                write!(f, "meta mark set meta mark & {and:#010x} ^ {xor:#010x}")
            }
            Self::Vmap { fields, map } => write!(f, "{} vmap @{map}", join_fields(fields)),
            Self::Dnat { version, target } => fmt_dnat(f, *version, target),
            Self::Masquerade(PortChoice::Keep) => f.write_str("masquerade"),
            Self::Masquerade(PortChoice::Random) => f.write_str("masquerade random"),
            Self::Masquerade(PortChoice::FullyRandom) => f.write_str("masquerade fully-random"),
            Self::Masquerade(PortChoice::Between(first, last)) => write!(f, "masquerade to :{first}-{last}"),
            Self::Counter => f.write_str("counter"),
            Self::Update { fields, set } => write!(f, "update @{set} {{ {} }}", join_fields(fields)),
            Self::Limit { rate, burst } => write!(f, "limit rate {rate}/second burst {burst} packets"),
            Self::Trace => f.write_str("meta nftrace set 1"),
            Self::Offload(flowtable) => write!(f, "flow add @{flowtable}"),
            Self::Verdict(verdict) => verdict.fmt(f),
        }
    }
}
