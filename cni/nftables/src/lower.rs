// SPDX-License-Identifier: GPL-2.0-or-later

//! Lowers statements to the kernel's expressions, which load bytes into registers.
//!
//! Expressions are plain values here, from which [`crate::expr`] builds libnftnl's objects. All numbers are from
//! `linux/netfilter/nf_tables.h`.

use cni_kernel::AddressFamily;

use crate::intervals::{Content, checked, content, interval, prefix_mask};
use crate::invalid::Invalid;
use crate::object::Family;
use crate::stmt::{Cmp, DnatData, DnatTarget, Field, Operand, PortChoice, Stmt, Verdict};
use crate::value::{DataType, Value};

/// `NFT_RULE_MAXEXPRS`.
const MAX_EXPRS: usize = 128;
/// `NFT_REG32_00`: the first of sixteen 32-bit registers.
const FIRST_REGISTER: u32 = 8;
/// The number of 32-bit registers.
const REGISTERS: u32 = 16;
/// `NFT_REG_VERDICT`.
pub(crate) const VERDICT_REGISTER: u32 = 0;

const META_PROTOCOL: u32 = 1;
const META_MARK: u32 = 3;
const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_IIFTYPE: u32 = 8;
const META_NFTRACE: u32 = 12;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const CT_STATE: u32 = 0;
const CT_STATUS: u32 = 2;
const CT_MARK: u32 = 3;
const LINK_HEADER: u32 = 0;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const FIB_RESULT_ADDRTYPE: u32 = 3;
const FIB_SADDR: u32 = 1;
const FIB_DADDR: u32 = 2;
const CMP_EQ: u32 = 0;
const CMP_NE: u32 = 1;
const CMP_LTE: u32 = 3;
const CMP_GTE: u32 = 5;
const ARPHRD_ETHER: u16 = 1;

/// An expression of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Expr {
    MetaLoad { key: u32, register: u32 },
    MetaSet { key: u32, register: u32 },
    CtLoad { key: u32, register: u32 },
    CtSet { key: u32, register: u32 },
    Payload { base: u32, offset: u32, len: u32, register: u32 },
    Fib { flags: u32, result: u32, register: u32 },
    Cmp { op: u32, register: u32, data: Vec<u8> },
    RangeNotIn { register: u32, from: Vec<u8>, to: Vec<u8> },
    Bitwise { register: u32, mask: Vec<u8>, xor: Vec<u8> },
    Lookup { set: String, id: Option<u32>, source: u32, target: Option<u32>, invert: bool },
    Load { register: u32, data: Vec<u8> },
    Verdict(Verdict),
    Dnat { family: u8, address: u32, port: Option<u32> },
    Masquerade { flags: u32, ports: Option<[u32; 2]> },
    Counter,
    Update { set: String, source: u32 },
    Limit { rate: u32, burst: u32 },
    Offload { flowtable: String },
}

impl Expr {
    /// The kernel's name for the expression.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::MetaLoad { .. } | Self::MetaSet { .. } => "meta",
            Self::CtLoad { .. } | Self::CtSet { .. } => "ct",
            Self::Payload { .. } => "payload",
            Self::Fib { .. } => "fib",
            Self::Cmp { .. } => "cmp",
            Self::RangeNotIn { .. } => "range",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::Load { .. } | Self::Verdict(_) => "immediate",
            Self::Dnat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::Counter => "counter",
            Self::Update { .. } => "dynset",
            Self::Limit { .. } => "limit",
            Self::Offload { .. } => "flow_offload",
        }
    }
}

/// A set that exists as long as its rule does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AnonymousSet {
    pub(crate) key: DataType,
    pub(crate) id: u32,
    pub(crate) content: Content,
}

/// A rule's expressions, and the anonymous sets that they use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Lowered {
    pub(crate) exprs: Vec<Expr>,
    pub(crate) sets: Vec<AnonymousSet>,
}

/// Lowers the statements of one rule. `next_set_id` is the last set ID that was used in the batch.
pub(crate) fn lower(family: Family, stmts: &[Stmt], next_set_id: &mut u32) -> Result<Lowered, Invalid> {
    let mut lowering = Lowering {
        family,
        network: match family {
            Family::Ip => Some(Value::NFPROTO_IPV4),
            Family::Ip6 => Some(Value::NFPROTO_IPV6),
            _ => None,
        },
        transport: None,
        ethernet: family == Family::Bridge,
        next_set_id,
        out: Lowered::default(),
    };
    for stmt in stmts {
        lowering.stmt(stmt)?;
    }
    if lowering.out.exprs.len() > MAX_EXPRS {
        return Err(Invalid::RuleTooLong);
    }
    Ok(lowering.out)
}

struct Lowering<'a> {
    family: Family,
    /// The network protocol that the rule has matched so far (`NFPROTO_*`).
    network: Option<u8>,
    /// The transport protocol that the rule has matched so far (`IPPROTO_*`).
    transport: Option<u8>,
    /// True if the frame is known to have an Ethernet header.
    ethernet: bool,
    next_set_id: &'a mut u32,
    out: Lowered,
}

impl Lowering<'_> {
    fn push(&mut self, expr: Expr) {
        self.out.exprs.push(expr);
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<(), Invalid> {
        match stmt {
            Stmt::Match { fields, cmp, to } => self.comparison(fields, *cmp, to),
            Stmt::Masked { field, mask, cmp, value } => self.masked(*field, mask, *cmp, value),
            Stmt::AnyBit { field, bits } => self.any_bit(*field, bits),
            Stmt::SetMark { and, xor } => {
                let register = register(0)?;
                self.push(Expr::MetaLoad { key: META_MARK, register });
                let (mask, xor) = (and.to_ne_bytes().to_vec(), xor.to_ne_bytes().to_vec());
                self.push(Expr::Bitwise { register, mask, xor });
                self.push(Expr::MetaSet { key: META_MARK, register });
                Ok(())
            }
            Stmt::SetCtMark { and, xor } => {
                let register = register(0)?;
                self.push(Expr::CtLoad { key: CT_MARK, register });
                let (mask, xor) = (and.to_ne_bytes().to_vec(), xor.to_ne_bytes().to_vec());
                self.push(Expr::Bitwise { register, mask, xor });
                self.push(Expr::CtSet { key: CT_MARK, register });
                Ok(())
            }
            Stmt::Vmap { fields, map } => {
                self.load_all(fields)?;
                self.lookup(map, Some(VERDICT_REGISTER), Cmp::Eq)
            }
            Stmt::Dnat { version, target } => self.dnat(*version, target),
            Stmt::Masquerade(choice) => {
                // NF_NAT_RANGE_PROTO_SPECIFIED, _RANDOM and _RANDOM_FULLY in linux/netfilter/nf_nat.h
                let (flags, ports) = match choice {
                    PortChoice::Keep => (0, None),
                    PortChoice::Random => (1 << 2, None),
                    PortChoice::FullyRandom => (1 << 4, None),
                    PortChoice::Between(first, last) => (1 << 1, Some(self.load_ports(*first, *last)?)),
                };
                self.push(Expr::Masquerade { flags, ports });
                Ok(())
            }
            Stmt::Counter => {
                self.push(Expr::Counter);
                Ok(())
            }
            Stmt::Update { fields, set } => {
                self.load_all(fields)?;
                self.push(Expr::Update { set: set.clone(), source: register(0)? });
                Ok(())
            }
            Stmt::Limit { rate, burst } => {
                self.push(Expr::Limit { rate: *rate, burst: *burst });
                Ok(())
            }
            Stmt::Trace => {
                let register = register(0)?;
                self.push(Expr::Load { register, data: vec![1] });
                self.push(Expr::MetaSet { key: META_NFTRACE, register });
                Ok(())
            }
            Stmt::Offload(flowtable) => {
                self.push(Expr::Offload { flowtable: flowtable.clone() });
                Ok(())
            }
            Stmt::Verdict(verdict) => {
                self.push(Expr::Verdict(verdict.clone()));
                Ok(())
            }
        }
    }

    fn comparison(&mut self, fields: &[Field], cmp: Cmp, to: &Operand) -> Result<(), Invalid> {
        if let Operand::Set(name) = to {
            self.load_all(fields)?;
            return self.lookup(name, None, cmp);
        }
        let [field] = fields else {
            return Err(Invalid::UnnamedConcatenation);
        };
        let data_type = field.data_type();
        if matches!(data_type, DataType::CtState | DataType::CtStatus | DataType::TcpFlag) {
            return Err(Invalid::MaskCompared);
        }
        self.load(*field, 0)?;
        let register = register(0)?;
        match to {
            Operand::Value(value) => {
                let data = checked(value, data_type)?;
                self.push(Expr::Cmp { op: cmp_op(cmp), register, data });
                self.learn(*field, cmp, value);
            }
            Operand::Prefix(value, bits) => {
                let data = checked(value, data_type)?;
                let mask = prefix_mask(data.len(), *bits)?;
                if data.iter().zip(&mask).any(|(byte, mask)| byte & !mask != 0) {
                    return Err(Invalid::BitsBeyondPrefix);
                }
                self.push(Expr::Bitwise { register, xor: vec![0; data.len()], mask });
                self.push(Expr::Cmp { op: cmp_op(cmp), register, data });
            }
            Operand::Range(from, to) => {
                let (from, to) = interval(data_type, from, to)?;
                if cmp == Cmp::Ne {
                    self.push(Expr::RangeNotIn { register, from, to });
                } else {
                    self.push(Expr::Cmp { op: CMP_GTE, register, data: from });
                    self.push(Expr::Cmp { op: CMP_LTE, register, data: to });
                }
            }
            Operand::OneOf(elements) => self.one_of(data_type, cmp, elements)?,
            Operand::Set(_) => {}
        }
        Ok(())
    }

    fn one_of(&mut self, key: DataType, cmp: Cmp, elements: &[Operand]) -> Result<(), Invalid> {
        if elements.is_empty() {
            return Err(Invalid::EmptySet);
        }
        *self.next_set_id += 1;
        let id = *self.next_set_id;
        let content = content(key, elements)?;
        self.out.sets.push(AnonymousSet { key, id, content });
        let set = ANONYMOUS_NAME.to_owned();
        let (source, invert) = (register(0)?, cmp == Cmp::Ne);
        self.push(Expr::Lookup { set, id: Some(id), source, target: None, invert });
        Ok(())
    }

    fn masked(&mut self, field: Field, mask: &Value, cmp: Cmp, value: &Value) -> Result<(), Invalid> {
        let mask = checked(mask, field.data_type())?;
        let data = checked(value, field.data_type())?;
        self.load(field, 0)?;
        let register = register(0)?;
        self.push(Expr::Bitwise { register, xor: vec![0; mask.len()], mask });
        self.push(Expr::Cmp { op: cmp_op(cmp), register, data });
        Ok(())
    }

    fn any_bit(&mut self, field: Field, bits: &Value) -> Result<(), Invalid> {
        let mask = checked(bits, field.data_type())?;
        self.load(field, 0)?;
        let register = register(0)?;
        let zeros = vec![0; mask.len()];
        self.push(Expr::Bitwise { register, xor: zeros.clone(), mask });
        self.push(Expr::Cmp { op: CMP_NE, register, data: zeros });
        Ok(())
    }

    fn dnat(&mut self, version: AddressFamily, target: &DnatTarget) -> Result<(), Invalid> {
        let (family, slots) = match version {
            AddressFamily::V4 => (Value::NFPROTO_IPV4, 1),
            AddressFamily::V6 => (Value::NFPROTO_IPV6, 4),
        };
        self.require_network(family)?;
        let address = register(0)?;
        let with_port = match target {
            DnatTarget::To(to, port) => {
                if AddressFamily::of(*to) != version {
                    return Err(Invalid::OtherFamily);
                }
                self.push(Expr::Load { register: address, data: Value::address(*to).encode() });
                if let Some(port) = port {
                    let data = Value::Port(*port).encode();
                    self.push(Expr::Load { register: register(slots)?, data });
                }
                port.is_some()
            }
            DnatTarget::Map { fields, map, data } => {
                self.load_all(fields)?;
                self.lookup(map, Some(address), Cmp::Eq)?;
                *data == DnatData::AddressAndPort
            }
        };
        let port = if with_port { Some(register(slots)?) } else { None };
        self.push(Expr::Dnat { family, address, port });
        Ok(())
    }

    /// Loads both ends of a range of ports. The registers are 16 bytes apart, like those of nft, because older
    /// kernels require that (`nft_masq_init`).
    fn load_ports(&mut self, first: u16, last: u16) -> Result<[u32; 2], Invalid> {
        if first > last {
            return Err(Invalid::PortsBackwards);
        }
        let registers = [register(0)?, register(4)?];
        for (register, port) in registers.into_iter().zip([first, last]) {
            self.push(Expr::Load { register, data: Value::Port(port).encode() });
        }
        Ok(registers)
    }

    fn lookup(&mut self, set: &str, target: Option<u32>, cmp: Cmp) -> Result<(), Invalid> {
        let (source, invert) = (register(0)?, cmp == Cmp::Ne);
        self.push(Expr::Lookup { set: set.to_owned(), id: None, source, target, invert });
        Ok(())
    }

    /// Loads fields as a concatenation. The protocols that the fields need are matched first, because that also uses
    /// a register.
    fn load_all(&mut self, fields: &[Field]) -> Result<(), Invalid> {
        if fields.is_empty() {
            return Err(Invalid::NoField);
        }
        for field in fields {
            self.require(*field)?;
        }
        let mut slot = 0;
        for field in fields {
            self.load(*field, slot)?;
            slot += slots(field.data_type());
        }
        if slot > REGISTERS { Err(Invalid::KeyTooLong) } else { Ok(()) }
    }

    fn load(&mut self, field: Field, slot: u32) -> Result<(), Invalid> {
        self.require(field)?;
        self.push(field.load(register(slot)?));
        Ok(())
    }

    /// Matches the protocols that a field requires, unless the rule has already done so.
    fn require(&mut self, field: Field) -> Result<(), Invalid> {
        match field {
            Field::IpSaddr | Field::IpDaddr | Field::IpTtl | Field::IpLength => {
                self.require_network(Value::NFPROTO_IPV4)
            }
            Field::Ip6Saddr | Field::Ip6Daddr | Field::Ip6Hoplimit | Field::Ip6Length => {
                self.require_network(Value::NFPROTO_IPV6)
            }
            Field::IcmpType => {
                self.require_network(Value::NFPROTO_IPV4)?;
                self.require_transport(1)
            }
            Field::Icmpv6Type => {
                self.require_network(Value::NFPROTO_IPV6)?;
                self.require_transport(58)
            }
            Field::TcpSport | Field::TcpDport | Field::TcpFlags => self.require_transport(6),
            Field::UdpSport | Field::UdpDport => self.require_transport(17),
            Field::SctpSport | Field::SctpDport => self.require_transport(132),
            Field::EtherSaddr | Field::EtherDaddr => self.require_ethernet(),
            _ => Ok(()),
        }
    }

    fn require_network(&mut self, family: u8) -> Result<(), Invalid> {
        if let Some(known) = self.network {
            return if known == family { Ok(()) } else { Err(Invalid::MixedNetworks) };
        }
        let register = register(0)?;
        if self.family == Family::Bridge {
            let ethertype: u16 = if family == Value::NFPROTO_IPV4 { 0x0800 } else { 0x86dd };
            self.push(Expr::MetaLoad { key: META_PROTOCOL, register });
            self.push(Expr::Cmp { op: CMP_EQ, register, data: ethertype.to_be_bytes().to_vec() });
        } else {
            self.push(Expr::MetaLoad { key: META_NFPROTO, register });
            self.push(Expr::Cmp { op: CMP_EQ, register, data: vec![family] });
        }
        self.network = Some(family);
        Ok(())
    }

    fn require_transport(&mut self, protocol: u8) -> Result<(), Invalid> {
        if let Some(known) = self.transport {
            return if known == protocol { Ok(()) } else { Err(Invalid::MixedTransports) };
        }
        let register = register(0)?;
        self.push(Expr::MetaLoad { key: META_L4PROTO, register });
        self.push(Expr::Cmp { op: CMP_EQ, register, data: vec![protocol] });
        self.transport = Some(protocol);
        Ok(())
    }

    fn require_ethernet(&mut self) -> Result<(), Invalid> {
        if !self.ethernet {
            let register = register(0)?;
            self.push(Expr::MetaLoad { key: META_IIFTYPE, register });
            self.push(Expr::Cmp { op: CMP_EQ, register, data: ARPHRD_ETHER.to_ne_bytes().to_vec() });
            self.ethernet = true;
        }
        Ok(())
    }

    /// Remembers a protocol that the rule itself matches.
    fn learn(&mut self, field: Field, cmp: Cmp, value: &Value) {
        match (field, cmp, value) {
            (Field::NfProto, Cmp::Eq, Value::NfProto(family)) => self.network = Some(*family),
            (Field::L4Proto, Cmp::Eq, Value::Proto(protocol)) => self.transport = Some(*protocol),
            _ => {}
        }
    }
}

impl Field {
    /// The fields to which rules can be decoded, one for each location. The ports of every transport protocol are at
    /// the location of those of `th`.
    pub(crate) const READABLE: [Self; 21] = [
        Self::NfProto,
        Self::L4Proto,
        Self::Iifname,
        Self::Oifname,
        Self::Mark,
        Self::CtMark,
        Self::CtState,
        Self::CtStatus,
        Self::IpSaddr,
        Self::IpDaddr,
        Self::IpTtl,
        Self::IpLength,
        Self::Ip6Saddr,
        Self::Ip6Daddr,
        Self::Ip6Hoplimit,
        Self::Ip6Length,
        Self::ThSport,
        Self::ThDport,
        Self::TcpFlags,
        Self::FibSaddrType,
        Self::FibDaddrType,
    ];

    /// The expression that loads the field.
    pub(crate) fn load(self, register: u32) -> Expr {
        let payload = |base, offset, len| Expr::Payload { base, offset, len, register };
        match self {
            Self::NfProto => Expr::MetaLoad { key: META_NFPROTO, register },
            Self::L4Proto => Expr::MetaLoad { key: META_L4PROTO, register },
            Self::Iifname => Expr::MetaLoad { key: META_IIFNAME, register },
            Self::Oifname => Expr::MetaLoad { key: META_OIFNAME, register },
            Self::Mark => Expr::MetaLoad { key: META_MARK, register },
            Self::CtMark => Expr::CtLoad { key: CT_MARK, register },
            Self::CtState => Expr::CtLoad { key: CT_STATE, register },
            Self::CtStatus => Expr::CtLoad { key: CT_STATUS, register },
            // RFC 791 section 3.1
            Self::IpLength => payload(NETWORK_HEADER, 2, 2),
            Self::IpTtl => payload(NETWORK_HEADER, 8, 1),
            Self::IpSaddr => payload(NETWORK_HEADER, 12, 4),
            Self::IpDaddr => payload(NETWORK_HEADER, 16, 4),
            // RFC 8200 section 3
            Self::Ip6Length => payload(NETWORK_HEADER, 4, 2),
            Self::Ip6Hoplimit => payload(NETWORK_HEADER, 7, 1),
            Self::Ip6Saddr => payload(NETWORK_HEADER, 8, 16),
            Self::Ip6Daddr => payload(NETWORK_HEADER, 24, 16),
            Self::IcmpType | Self::Icmpv6Type => payload(TRANSPORT_HEADER, 0, 1),
            // TCP, UDP and SCTP headers begin with the ports.
            Self::ThSport | Self::TcpSport | Self::UdpSport | Self::SctpSport => {
                payload(TRANSPORT_HEADER, 0, 2)
            }
            Self::ThDport | Self::TcpDport | Self::UdpDport | Self::SctpDport => {
                payload(TRANSPORT_HEADER, 2, 2)
            }
            Self::TcpFlags => payload(TRANSPORT_HEADER, 13, 1),
            Self::EtherDaddr => payload(LINK_HEADER, 0, 6),
            Self::EtherSaddr => payload(LINK_HEADER, 6, 6),
            Self::FibSaddrType => Expr::Fib { flags: FIB_SADDR, result: FIB_RESULT_ADDRTYPE, register },
            Self::FibDaddrType => Expr::Fib { flags: FIB_DADDR, result: FIB_RESULT_ADDRTYPE, register },
        }
    }
}

/// The pattern from which the kernel makes the name of an anonymous set, by inserting a number.
pub(crate) const ANONYMOUS_NAME: &str = "__set%d";

const fn cmp_op(cmp: Cmp) -> u32 {
    match cmp {
        Cmp::Eq => CMP_EQ,
        Cmp::Ne => CMP_NE,
    }
}

/// The register at a 32-bit slot.
const fn register(slot: u32) -> Result<u32, Invalid> {
    if slot < REGISTERS { Ok(FIRST_REGISTER + slot) } else { Err(Invalid::KeyTooLong) }
}

fn slots(data_type: DataType) -> u32 {
    u32::try_from(data_type.padded_len() / crate::value::REGISTER_SIZE).unwrap_or(REGISTERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lowered(family: Family, stmts: &[Stmt]) -> Lowered {
        lower(family, stmts, &mut 0).unwrap()
    }

    #[test]
    fn protocols_are_tested_once_and_only_where_needed() {
        let stmts = [
            Stmt::eq(Field::IpSaddr, Value::Ipv4([10, 0, 0, 1].into())),
            Stmt::eq(Field::IpDaddr, Value::Ipv4([10, 0, 0, 2].into())),
        ];
        let names = |family| -> Vec<&str> { lowered(family, &stmts).exprs.iter().map(Expr::name).collect() };
        assert_eq!(names(Family::Inet), ["meta", "cmp", "payload", "cmp", "payload", "cmp"]);
        assert_eq!(names(Family::Ip), ["payload", "cmp", "payload", "cmp"]);
        assert!(lower(Family::Ip6, &stmts, &mut 0).is_err());
    }

    #[test]
    fn an_ipv6_key_leaves_room_for_its_sixteen_bytes() {
        let stmt = Stmt::dnat_map(AddressFamily::V6, &[Field::Ip6Daddr, Field::L4Proto, Field::ThDport], "m");
        let exprs = lowered(Family::Inet, &[stmt]).exprs;
        let registers: Vec<u32> = exprs[2..]
            .iter()
            .filter_map(|expr| match expr {
                Expr::Payload { register, .. } | Expr::MetaLoad { register, .. } => Some(*register),
                _ => None,
            })
            .collect();
        assert_eq!(registers, [8, 12, 13]);
        assert_eq!(exprs.last(), Some(&Expr::Dnat { family: 10, address: 8, port: Some(12) }));
    }

    #[test]
    fn invalid_statements_are_refused() {
        let refused = [
            Stmt::eq(Field::ThDport, Value::Proto(1)),
            Stmt::eq(Field::CtState, Value::CtState(2)),
            Stmt::Match {
                fields: vec![Field::IpSaddr],
                cmp: Cmp::Eq,
                to: Operand::Prefix(Value::Ipv4([10, 0, 0, 1].into()), 8),
            },
            Stmt::Match {
                fields: vec![Field::Mark],
                cmp: Cmp::Eq,
                to: Operand::Range(Value::Mark(1), Value::Mark(2)),
            },
            Stmt::Match { fields: vec![Field::ThDport], cmp: Cmp::Eq, to: Operand::OneOf(vec![]) },
            Stmt::Dnat {
                version: AddressFamily::V4,
                target: DnatTarget::To("fd00::1".parse().unwrap(), None),
            },
        ];
        for stmt in refused {
            assert!(lower(Family::Inet, std::slice::from_ref(&stmt), &mut 0).is_err(), "{stmt}");
        }
    }
}
