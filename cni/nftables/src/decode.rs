// SPDX-License-Identifier: GPL-2.0-or-later

//! Decodes the kernel's expressions into statements, if there are statements for them.
//!
//! Attribute numbers are those of `linux/netfilter/nf_tables.h` (`enum nft_*_attributes`). nft and this crate insert
//! tests of the protocol before statements that need them, and these are decoded as separate statements. Ports of
//! every transport protocol are decoded as ports of `th`.

use std::collections::BTreeMap;

use cni_kernel::AddressFamily;
use cni_netlink::message::{attributes, be32, be64, find, text};

use crate::lower::Expr;
use crate::object::Family;
use crate::stmt::{Cmp, DnatTarget, Field, Operand, PortChoice, Stmt, Verdict};
use crate::uapi;
use crate::value::{DataType, Value};

/// `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`.
const NAME: u16 = 1;
const DATA: u16 = 2;
/// `NFT_CMP_LTE` and `NFT_CMP_GTE`.
const LTE: u32 = 3;
const GTE: u32 = 5;

/// What a register contains.
#[derive(Debug, Clone)]
enum Held {
    /// A field of the packet, or its first `len` bytes.
    Field {
        field: Field,
        len: usize,
    },
    Masked {
        field: Field,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    /// Constant bytes.
    Bytes(Vec<u8>),
}

/// The statements of a rule. None if there is no statement for one of its expressions.
pub(crate) fn statements(family: Option<Family>, expressions: &[u8]) -> Option<Vec<Stmt>> {
    let network = match family {
        Some(Family::Ip) => Some(Value::NFPROTO_IPV4),
        Some(Family::Ip6) => Some(Value::NFPROTO_IPV6),
        _ => None,
    };
    let mut decoder = Decoder { network, ..Decoder::default() };
    for (_, expression) in attributes(expressions) {
        let name = text(find(expression, NAME)?);
        decoder.expression(&name, find(expression, DATA).unwrap_or_default())?;
    }
    (!decoder.has_open_range).then_some(decoder.stmts)
}

#[derive(Default)]
struct Decoder {
    /// The network protocol, once it is known. IPv4 and IPv6 have different fields at the same offsets.
    network: Option<u8>,
    registers: BTreeMap<u32, Held>,
    /// The register that was loaded last.
    last: u32,
    /// True after the first of the two comparisons that make up a range.
    has_open_range: bool,
    stmts: Vec<Stmt>,
}

/// Converts the number of one of the four 128-bit registers, which the kernel reports where possible
/// (`nft_dump_register`), to that of its first 32-bit register.
fn register(number: u32) -> u32 {
    match number {
        1..=4 => 8 + (number - 1) * 4,
        _ => number,
    }
}

fn number(body: &[u8], kind: u16) -> Option<u32> {
    find(body, kind).and_then(be32)
}

fn bytes(body: &[u8], kind: u16) -> Option<Vec<u8>> {
    Some(find(find(body, kind)?, uapi::DATA_VALUE)?.to_vec())
}

impl Decoder {
    fn expression(&mut self, name: &str, body: &[u8]) -> Option<()> {
        if self.has_open_range && name != "cmp" {
            return None; // Such as `th dport >= 1024`.
        }
        match name {
            "meta" => self.meta(body),
            "ct" | "payload" | "fib" => self.load(name, body),
            "bitwise" => self.bitwise(body),
            "cmp" => self.cmp(body),
            "range" => self.range(body),
            "lookup" => self.lookup(body),
            "immediate" => self.immediate(body),
            "nat" => self.nat(body),
            "masq" => {
                let choice = match number(body, 1).unwrap_or_default() {
                    0 => PortChoice::Keep,
                    2 => PortChoice::Between(self.port(number(body, 2)?)?, self.port(number(body, 3)?)?),
                    4 => PortChoice::Random,
                    16 => PortChoice::FullyRandom,
                    _ => return None,
                };
                self.stmts.push(Stmt::Masquerade(choice));
                Some(())
            }
            "dynset" => self.update(body),
            "counter" => {
                self.stmts.push(Stmt::Counter);
                Some(())
            }
            _ => None,
        }
    }

    fn load(&mut self, name: &str, body: &[u8]) -> Option<()> {
        let (held, at) = load(name, body, self.network)?;
        self.registers.insert(at, held);
        self.last = at;
        Some(())
    }

    /// The field that alone is a key. None for the first field of a concatenation, whose other fields are in the
    /// following registers.
    fn only_key(&self, source: u32) -> Option<(Field, usize)> {
        let at = register(source);
        match self.registers.get(&at)? {
            Held::Field { field, len } if at == self.last => Some((*field, *len)),
            _ => None,
        }
    }

    fn meta(&mut self, body: &[u8]) -> Option<()> {
        let Some(source) = number(body, 3) else { return self.load("meta", body) };
        let Held::Masked { field: Field::Mark, mask, xor } = self.registers.get(&register(source))? else {
            return None;
        };
        let word = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
        let stmt = Stmt::SetMark { and: word(mask)?, xor: word(xor)? };
        if number(body, 2) != Some(META_MARK) {
            return None;
        }
        self.stmts.push(stmt);
        Some(())
    }

    fn bitwise(&mut self, body: &[u8]) -> Option<()> {
        // Operation 0 is a mask with xor. All other operations are shifts.
        if number(body, 6).unwrap_or_default() != 0 {
            return None;
        }
        let (mask, xor) = (bytes(body, 4)?, bytes(body, 5)?);
        let field = match self.registers.get(&register(number(body, 1)?))? {
            Held::Field { field, len } if *len == field.data_type().size() => *field,
            _ => return None,
        };
        self.registers.insert(register(number(body, 2)?), Held::Masked { field, mask, xor });
        Some(())
    }

    fn cmp(&mut self, body: &[u8]) -> Option<()> {
        let (held, op, data) =
            (self.registers.get(&register(number(body, 1)?))?, number(body, 2)?, bytes(body, 3)?);
        let cmp = match op {
            0 => Some(Cmp::Eq),
            1 => Some(Cmp::Ne),
            _ => None,
        };
        let stmt = match (held, cmp) {
            (Held::Field { field, len }, Some(cmp)) if !self.has_open_range => {
                Stmt::Match { fields: vec![*field], cmp, to: operand(*field, *len, &data)? }
            }
            (Held::Field { field, .. }, None) => return self.bound(*field, op, &data),
            (Held::Masked { field, mask, xor }, Some(cmp))
                if xor.iter().all(|byte| *byte == 0) && !self.has_open_range =>
            {
                masked(*field, cmp, mask, &data)?
            }
            _ => return None,
        };
        if let Stmt::Match { fields, cmp: Cmp::Eq, to: Operand::Value(Value::NfProto(network)) } = &stmt
            && fields == &[Field::NfProto]
        {
            self.network = Some(*network);
        }
        self.stmts.push(stmt);
        Some(())
    }

    /// Joins the two comparisons that make up a range.
    fn bound(&mut self, field: Field, op: u32, data: &[u8]) -> Option<()> {
        let value = Value::decode(field.data_type(), data)?;
        match (op, self.stmts.last_mut()) {
            (GTE, _) if !self.has_open_range => {
                self.has_open_range = true;
                let to = Operand::Range(value.clone(), value);
                self.stmts.push(Stmt::Match { fields: vec![field], cmp: Cmp::Eq, to });
            }
            (LTE, Some(Stmt::Match { fields, cmp: Cmp::Eq, to: Operand::Range(from, to) }))
                if self.has_open_range && *fields == [field] && from == to =>
            {
                self.has_open_range = false;
                *to = value;
            }
            _ => return None,
        }
        Some(())
    }

    fn range(&mut self, body: &[u8]) -> Option<()> {
        let Held::Field { field, len } = self.registers.get(&register(number(body, 1)?))? else {
            return None;
        };
        let cmp = if number(body, 2)? == 0 { Cmp::Eq } else { Cmp::Ne };
        let kind = field.data_type();
        let (from, to) = (Value::decode(kind, &bytes(body, 3)?)?, Value::decode(kind, &bytes(body, 4)?)?);
        if *len != kind.size() {
            return None;
        }
        self.stmts.push(Stmt::Match { fields: vec![*field], cmp, to: Operand::Range(from, to) });
        Some(())
    }

    /// Decodes a lookup. An anonymous set has the name that the kernel assigned.
    fn lookup(&mut self, body: &[u8]) -> Option<()> {
        let (field, _) = self.only_key(number(body, 2)?)?;
        if find(body, 3).is_some() {
            return None; // A map.
        }
        let cmp = if number(body, 5).unwrap_or_default() & 1 == 0 { Cmp::Eq } else { Cmp::Ne };
        let to = Operand::Set(text(find(body, 1)?));
        self.stmts.push(Stmt::Match { fields: vec![field], cmp, to });
        Some(())
    }

    /// Decodes the update of a set whose key is one field. Updates with a timeout or other statements are not
    /// decoded.
    fn update(&mut self, body: &[u8]) -> Option<()> {
        let (field, len) = self.only_key(number(body, 4)?)?;
        let timeout = find(body, 6).and_then(be64).unwrap_or_default();
        let (is_update, more) =
            (number(body, 3) == Some(1), [5, 7, 10].into_iter().any(|kind| find(body, kind).is_some()));
        if len != field.data_type().size() || !is_update || timeout != 0 || more {
            return None;
        }
        self.stmts.push(Stmt::update(field, &text(find(body, 1)?)));
        Some(())
    }

    fn immediate(&mut self, body: &[u8]) -> Option<()> {
        let at = number(body, 1)?;
        if at == crate::lower::VERDICT_REGISTER {
            let verdict: Verdict = decode_verdict(find(find(body, 2)?, uapi::DATA_VERDICT)?)?;
            self.stmts.push(Stmt::Verdict(verdict));
        } else {
            self.registers.insert(register(at), Held::Bytes(bytes(body, 2)?));
        }
        Some(())
    }

    /// The port in a register.
    fn port(&self, number: u32) -> Option<u16> {
        let Held::Bytes(bytes) = self.registers.get(&register(number))? else { return None };
        match Value::decode(DataType::InetService, bytes)? {
            Value::Port(port) => Some(port),
            _ => None,
        }
    }

    fn nat(&mut self, body: &[u8]) -> Option<()> {
        let held = |kind| match number(body, kind).map(register) {
            Some(at) => match self.registers.get(&at) {
                Some(Held::Bytes(bytes)) => Some(Some(bytes.clone())),
                _ => None,
            },
            None => Some(None),
        };
        let (address, port) = (held(3)??, held(5)?);
        // Type 1 is destination NAT. For a single value, nft uses the same register for both ends of the range.
        let ranges = (number(body, 4).is_some_and(|end| number(body, 3) != Some(end)))
            || number(body, 6).is_some_and(|end| number(body, 5) != Some(end));
        // `random`, `fully-random`, `persistent` or `netmap`: any flag except NF_NAT_RANGE_MAP_IPS and
        // _PROTO_SPECIFIED.
        let has_flags = number(body, 7).unwrap_or_default() & !3 != 0;
        if number(body, 1)? != 1 || ranges || has_flags {
            return None;
        }
        let (version, kind) = match number(body, 2)? {
            2 => (AddressFamily::V4, DataType::Ipv4Addr),
            10 => (AddressFamily::V6, DataType::Ipv6Addr),
            _ => return None,
        };
        let to = match Value::decode(kind, &address)? {
            Value::Ipv4(address) => address.into(),
            Value::Ipv6(address) => address.into(),
            _ => return None,
        };
        let port = match port.map(|bytes| Value::decode(DataType::InetService, &bytes)) {
            Some(Some(Value::Port(port))) => Some(port),
            Some(_) => return None,
            None => None,
        };
        self.stmts.push(Stmt::Dnat { version, target: DnatTarget::To(to, port) });
        Some(())
    }
}

/// `NFT_META_MARK`.
const META_MARK: u32 = 3;

/// The field that an expression loads, and the register. Only loads that start at the beginning of a field count.
fn load(name: &str, body: &[u8], network: Option<u8>) -> Option<(Held, u32)> {
    let at = register(number(body, 1)?);
    let is_of_other_protocol = |field: &Field| match field {
        Field::IpSaddr | Field::IpDaddr | Field::IpTtl | Field::IpLength => {
            network != Some(Value::NFPROTO_IPV4)
        }
        Field::Ip6Saddr | Field::Ip6Daddr | Field::Ip6Hoplimit | Field::Ip6Length => {
            network != Some(Value::NFPROTO_IPV6)
        }
        _ => false,
    };
    let loads = |field: &Field| match (name, field.load(at)) {
        ("meta", Expr::MetaLoad { key, .. }) | ("ct", Expr::CtLoad { key, .. }) => {
            (number(body, 2) == Some(key)).then(|| field.data_type().size())
        }
        ("fib", Expr::Fib { flags, result, .. }) => {
            let same = number(body, 2) == Some(result) && number(body, 3) == Some(flags);
            same.then(|| field.data_type().size())
        }
        ("payload", Expr::Payload { base, offset, len, .. }) => {
            let read = number(body, 4)?;
            let same = number(body, 2) == Some(base) && number(body, 3) == Some(offset);
            (same && read <= len).then(|| usize::try_from(read).ok()).flatten()
        }
        _ => None,
    };
    let mut fields = Field::READABLE.iter().filter(|field| !is_of_other_protocol(field));
    let found = fields.find_map(|field| Some((*field, loads(field)?)));
    found.map(|(field, len)| (Held::Field { field, len }, at))
}

/// The operand of a comparison. If a prefix ends at a byte boundary, nft loads only these bytes of the address.
fn operand(field: Field, len: usize, data: &[u8]) -> Option<Operand> {
    let kind = field.data_type();
    if kind == DataType::Ifname && data.len() < kind.size() {
        return Some(Operand::Value(Value::IfnamePrefix(String::from_utf8(data.to_vec()).ok()?)));
    }
    if len == kind.size() {
        return Some(Operand::Value(Value::decode(kind, data)?));
    }
    let mut whole = data.get(..len)?.to_vec();
    whole.resize(kind.size(), 0);
    let bits = u8::try_from(len * 8).ok()?;
    matches!(kind, DataType::Ipv4Addr | DataType::Ipv6Addr)
        .then(|| Value::decode(kind, &whole).map(|value| Operand::Prefix(value, bits)))
        .flatten()
}

fn masked(field: Field, cmp: Cmp, mask: &[u8], data: &[u8]) -> Option<Stmt> {
    let kind = field.data_type();
    let value = Value::decode(kind, data)?;
    if matches!(kind, DataType::Ipv4Addr | DataType::Ipv6Addr) {
        let bits: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
        let bits = u8::try_from(bits).ok()?;
        let same = crate::intervals::prefix_mask(mask.len(), bits).is_ok_and(|prefix| prefix == mask);
        let to = Operand::Prefix(value, bits);
        return same.then_some(Stmt::Match { fields: vec![field], cmp, to });
    }
    let mask = Value::decode(kind, mask)?;
    if cmp == Cmp::Ne && data.iter().all(|byte| *byte == 0) && kind != DataType::Mark {
        return Some(Stmt::AnyBit { field, bits: mask });
    }
    Some(Stmt::Masked { field, mask, cmp, value })
}

/// Decodes a verdict (`enum nft_verdict_attributes`).
pub(crate) fn decode_verdict(body: &[u8]) -> Option<Verdict> {
    const CODE: u16 = 1;
    const CHAIN: u16 = 2;
    let chain = || find(body, CHAIN).map(text);
    Some(match find(body, CODE).and_then(be32)?.cast_signed() {
        0 => Verdict::Drop,
        1 => Verdict::Accept,
        -1 => Verdict::Continue,
        -3 => Verdict::Jump(chain()?),
        -4 => Verdict::Goto(chain()?),
        -5 => Verdict::Return,
        _ => return None,
    })
}
