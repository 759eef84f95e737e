// SPDX-License-Identifier: GPL-2.0-or-later

//! Determines what a rule of any program does to the first packet of a connection, as far as the packet is known.
//!
//! The kernel's expressions are evaluated on registers in which each byte is known or unknown. A rule may or may not
//! apply if it contains an expression that is not supported here, or needs an unknown byte. All numbers are from
//! `linux/netfilter/nf_tables.h` and from the matches and targets of iptables (`linux/netfilter/xt_*.h`).

mod extension;

use std::net::IpAddr;

use cni_kernel::AddressFamily;
use cni_netlink::message::{attributes, be32, be64, find, text};

use crate::decode::decode_verdict;
use crate::error::Error;
use crate::lower::VERDICT_REGISTER;
use crate::object::{ElementData, ElementId, TableId};
use crate::read::SetInfo;
use crate::socket::Socket;
use crate::stmt::Verdict;
use crate::uapi;
use crate::value::{decode_concat, encode_concat, join};
pub use extension::Extension;

/// The size of all registers in bytes (`NFT_REG32_COUNT` registers of four bytes).
const REGISTERS: usize = 80;
/// `RTN_LOCAL` in the machine's byte order.
const LOCAL: [u8; 4] = 2u32.to_ne_bytes();

/// The first packet of a connection to an address of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    pub family: AddressFamily,
    /// The number of its transport protocol.
    pub protocol: u8,
    /// The destination, or none for any address of the node.
    pub to: Option<IpAddr>,
    pub port: u16,
    pub from: Option<IpAddr>,
    /// The name of the link on which the packet arrives.
    pub link: Option<String>,
}

/// What a rule does to a packet, and whether that is certain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// False if the effect depends on something unknown.
    pub is_certain: bool,
    pub action: Action,
}

/// What a rule does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing that ends the chain.
    Continue,
    Verdict(Verdict),
    /// Translates the destination. Address and port are none if they are unknown or stay the same.
    Translate(Option<IpAddr>, Option<u16>),
    /// Translates the destination to an address of the node (`redirect`).
    Redirect(Option<u16>),
}

/// Access to the sets of a ruleset and the addresses of a node, for rules that look them up.
pub trait Surroundings {
    /// The data of an element: empty in a set, or none if the element does not exist. Fails if that is unknown.
    fn element(&self, set: &str, key: &dyn Fn(usize) -> Option<Vec<u8>>) -> Result<Option<Data>, Unknown>;
    /// True for an address of the node.
    fn is_local(&self, address: IpAddr) -> bool;
}

/// The data of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    Bytes(Vec<u8>),
    Verdict(Verdict),
}

/// The answer is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown;

/// The effect of a rule with these expressions. None if the rule does not apply to the packet.
#[must_use]
pub fn effect(expressions: &[u8], probe: &Probe, surroundings: &dyn Surroundings) -> Option<Effect> {
    let mut machine = Machine {
        probe,
        surroundings,
        registers: [None; REGISTERS],
        destination: None,
        is_certain: true,
        action: Action::Continue,
    };
    for (_, expression) in attributes(expressions) {
        let name = find(expression, 1).map(text).unwrap_or_default();
        if machine.step(&name, find(expression, 2).unwrap_or_default()) == Applies::No {
            return None;
        }
        if machine.action != Action::Continue {
            break;
        }
    }
    Some(Effect { is_certain: machine.is_certain, action: machine.action })
}

/// A rule as the kernel encodes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedRule {
    pub handle: u64,
    pub expressions: Vec<u8>,
}

impl Socket {
    /// The rules of one chain, for [`effect`]. Empty if there is no such chain.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Unstable`] if the ruleset keeps changing.
    pub fn encoded_rules(&self, table: &TableId, chain: &str) -> Result<Vec<EncodedRule>, Error> {
        const HANDLE: u16 = 3;
        self.each_rule(table, chain, |body| {
            let is_in_chain = find(body, uapi::RULE_CHAIN).is_some_and(|name| text(name) == chain);
            let expressions = find(body, uapi::RULE_EXPRESSIONS).unwrap_or_default().to_vec();
            let handle = find(body, HANDLE).and_then(be64)?;
            is_in_chain.then_some(EncodedRule { handle, expressions })
        })
    }

    /// Reads the element whose key has these bytes in registers. Returns the key in nft's syntax, and the data.
    ///
    /// # Errors
    /// [`Unknown`] if the set has types that this crate does not support, or cannot be read.
    pub fn element_by_bytes(
        &self,
        table: &TableId,
        set: &SetInfo,
        key: &[u8],
    ) -> Result<Option<(String, Data)>, Unknown> {
        let types = set.key.as_ref().ok_or(Unknown)?;
        let key = decode_concat(types, key).ok_or(Unknown)?;
        let words = join(&key);
        let found = self.element(&ElementId::new(table, &set.name, key)).map_err(|_| Unknown)?;
        Ok(found.map(|element| {
            let data = match element.data {
                ElementData::None => Data::Bytes(Vec::new()),
                ElementData::Verdict(verdict) => Data::Verdict(verdict),
                ElementData::Values(values) => Data::Bytes(encode_concat(&values)),
            };
            (words, data)
        }))
    }
}

/// Whether a rule, or one of its conditions, applies to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applies {
    Yes,
    No,
    /// The answer depends on a part of the packet that is unknown.
    Maybe,
}

impl Applies {
    /// Yes or no.
    #[must_use]
    pub const fn of(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

struct Machine<'a> {
    probe: &'a Probe,
    surroundings: &'a dyn Surroundings,
    registers: [Option<u8>; REGISTERS],
    /// Where in the registers an unknown destination address is, as a whole.
    destination: Option<usize>,
    is_certain: bool,
    action: Action,
}

fn number(body: &[u8], kind: u16) -> Option<u32> {
    find(body, kind).and_then(be32)
}

fn bytes(body: &[u8], kind: u16) -> Option<&[u8]> {
    find(find(body, kind)?, uapi::DATA_VALUE)
}

/// The offset of a register's first byte. There are four registers of 16 bytes, which overlap with those of 4 bytes.
fn place(register: u32) -> usize {
    let word = match register {
        1..=4 => (register - 1) * 4,
        8.. => register - 8,
        0 | 5..=7 => 0,
    };
    usize::try_from(word).unwrap_or_default() * 4
}

impl Machine<'_> {
    fn step(&mut self, name: &str, body: &[u8]) -> Applies {
        let applies = match name {
            "counter" | "log" | "notrack" => Applies::Yes,
            "meta" | "payload" | "fib" | "ct" => self.load(name, body),
            "bitwise" => self.bitwise(body),
            "cmp" => self.compare(body),
            "range" => self.range(body),
            "lookup" => self.lookup(body),
            "immediate" => self.immediate(body),
            "nat" => self.nat(body),
            "redir" => {
                self.action = Action::Redirect(self.port(number(body, 1)));
                Applies::Yes
            }
            "masq" => {
                self.action = Action::Verdict(Verdict::Accept);
                Applies::Yes
            }
            "match" => self.xt_match(body),
            "target" => self.xt_target(body),
            _ => {
                self.forget();
                Applies::Maybe
            }
        };
        self.is_certain &= applies == Applies::Yes;
        applies
    }

    /// After an expression that is not supported, the content of all registers is unknown.
    fn forget(&mut self) {
        self.registers = [None; REGISTERS];
        self.destination = None;
    }

    fn put(&mut self, at: usize, values: &[Option<u8>]) {
        if self.destination.is_some_and(|held| held < at + values.len() && at < held + 16) {
            self.destination = None;
        }
        // The kernel pads the last four bytes with zeros.
        let padding = std::iter::repeat_n(&Some(0), values.len().next_multiple_of(4) - values.len());
        for (register, value) in self.registers.iter_mut().skip(at).zip(values.iter().chain(padding)) {
            *register = *value;
        }
    }

    fn put_known(&mut self, at: usize, values: &[u8]) {
        let values: Vec<Option<u8>> = values.iter().copied().map(Some).collect();
        self.put(at, &values);
    }

    fn held(&self, at: usize, len: usize) -> Option<Vec<u8>> {
        self.registers.get(at..at + len)?.iter().copied().collect()
    }

    fn load(&mut self, name: &str, body: &[u8]) -> Applies {
        // In each of these expressions, the destination register is the first attribute. Without it, `meta` sets a
        // value.
        let Some(register) = number(body, 1) else { return Applies::Yes };
        let at = place(register);
        match name {
            "payload" => self.load_payload(at, body),
            "meta" => self.load_meta(at, number(body, 2)),
            "fib" if number(body, 2) == Some(3) && number(body, 3).is_some_and(|flags| flags & 2 != 0) => {
                self.put_known(at, &LOCAL);
            }
            // `NFT_CT_STATE`: new; `NFT_CT_DIRECTION`: original.
            "ct" if number(body, 2) == Some(0) => self.put_known(at, &8u32.to_ne_bytes()),
            "ct" if number(body, 2) == Some(1) => self.put_known(at, &[0]),
            _ => self.put(at, &[None; 16]),
        }
        Applies::Yes
    }

    fn load_meta(&mut self, at: usize, key: Option<u32>) {
        let is_v4 = self.probe.family == AddressFamily::V4;
        match key {
            Some(1) => self.put_known(at, if is_v4 { &[0x08, 0x00] } else { &[0x86, 0xdd] }),
            Some(15) => self.put_known(at, if is_v4 { &[2] } else { &[10] }),
            Some(16) => self.put_known(at, &[self.probe.protocol]),
            Some(6) if self.probe.link.is_some() => {
                let mut name = self.probe.link.clone().unwrap_or_default().into_bytes();
                name.resize(16, 0);
                self.put_known(at, &name);
            }
            _ => self.put(at, &[None; 16]),
        }
    }

    fn load_payload(&mut self, at: usize, body: &[u8]) {
        let wanted = |kind| number(body, kind).and_then(|number| usize::try_from(number).ok());
        let (Some(base), Some(offset), Some(len)) = (number(body, 2), wanted(3), wanted(4)) else {
            return self.put(at, &[None; 16]);
        };
        let mut header = [None; 64];
        let mut write = |at: usize, bytes: &[u8]| {
            for (place, byte) in header.iter_mut().skip(at).zip(bytes) {
                *place = Some(*byte);
            }
        };
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let (protocol_at, source_at, destination_at, size) = match self.probe.family {
            AddressFamily::V4 => (9, 12, 16, 4),
            AddressFamily::V6 => (6, 8, 24, 16),
        };
        match base {
            1 => {
                write(protocol_at, &[self.probe.protocol]);
                if let Some(from) = self.probe.from {
                    write(source_at, &octets(from));
                }
                if let Some(to) = self.probe.to {
                    write(destination_at, &octets(to));
                }
            }
            2 => write(2, &self.probe.port.to_be_bytes()),
            _ => {}
        }
        let values: Vec<Option<u8>> =
            header.iter().copied().chain([None; 64]).skip(offset).take(len).collect();
        self.put(at, &values);
        if base == 1 && offset == destination_at && len == size && self.probe.to.is_none() {
            self.destination = Some(at);
        }
    }

    fn bitwise(&mut self, body: &[u8]) -> Applies {
        let (Some(source), Some(target)) = (number(body, 1), number(body, 2)) else { return Applies::Maybe };
        let (from, to) = (place(source), place(target));
        let (Some(mask), Some(xor), 0) =
            (bytes(body, 4), bytes(body, 5), number(body, 6).unwrap_or_default())
        else {
            self.put(to, &[None; 16]);
            return Applies::Yes;
        };
        let held: Vec<Option<u8>> = self.registers.iter().skip(from).take(mask.len()).copied().collect();
        let changed = held.iter().zip(mask.iter().zip(xor)).map(|(held, (mask, xor))| match (held, mask) {
            (_, 0) => Some(*xor),
            (held, mask) => held.map(|held| (held & mask) ^ xor),
        });
        let changed: Vec<Option<u8>> = changed.collect();
        self.destination = None;
        self.put(to, &changed);
        Applies::Yes
    }

    fn compare(&mut self, body: &[u8]) -> Applies {
        let (Some(source), Some(op), Some(data)) = (number(body, 1), number(body, 2), bytes(body, 3)) else {
            return Applies::Maybe;
        };
        let at = place(source);
        let Some(held) = self.held(at, data.len()) else { return self.compare_unknown(at, op, data) };
        Applies::of(match op {
            0 => held == data,
            1 => held != data,
            2 => held.as_slice() < data,
            3 => held.as_slice() <= data,
            4 => held.as_slice() > data,
            _ => held.as_slice() >= data,
        })
    }

    /// The known bytes may decide even if others are unknown.
    fn compare_unknown(&self, at: usize, op: u32, data: &[u8]) -> Applies {
        let held = self.registers.iter().skip(at).zip(data);
        let differs = held.clone().any(|(held, data)| held.is_some_and(|held| held != *data));
        if self.destination == Some(at) && op == 0 && !self.is_of_node(data) {
            return Applies::No;
        }
        match (op, differs) {
            (0, true) => Applies::No,
            (1, true) => Applies::Yes,
            _ => Applies::Maybe,
        }
    }

    fn is_of_node(&self, data: &[u8]) -> bool {
        address(data).is_none_or(|address| self.surroundings.is_local(address))
    }

    fn range(&mut self, body: &[u8]) -> Applies {
        let (Some(source), Some(from), Some(to)) = (number(body, 1), bytes(body, 3), bytes(body, 4)) else {
            return Applies::Maybe;
        };
        match self.held(place(source), from.len()) {
            Some(held) => {
                let inside = from <= held.as_slice() && held.as_slice() <= to;
                Applies::of(inside == (number(body, 2) == Some(0)))
            }
            None => Applies::Maybe,
        }
    }

    fn lookup(&mut self, body: &[u8]) -> Applies {
        let (Some(set), Some(source)) = (find(body, 1).map(text), number(body, 2)) else {
            return Applies::Maybe;
        };
        let target = number(body, 3);
        let inverted = number(body, 5).unwrap_or_default() & 1 != 0;
        let at = place(source);
        let found = self.surroundings.element(&set, &|len| self.held(at, len));
        match (found, target) {
            (Err(Unknown), Some(target)) => {
                self.put(place(target), &[None; 16]);
                Applies::Maybe
            }
            (Err(Unknown), None) => Applies::Maybe,
            (Ok(None), _) => Applies::of(inverted),
            (Ok(Some(_)), None) => Applies::of(!inverted),
            (Ok(Some(Data::Verdict(verdict))), Some(VERDICT_REGISTER)) => {
                self.action = Action::Verdict(verdict);
                Applies::Yes
            }
            (Ok(Some(Data::Bytes(data))), Some(target)) => {
                self.put_known(place(target), &data);
                Applies::Yes
            }
            (Ok(Some(Data::Verdict(_))), Some(_)) => Applies::Maybe,
        }
    }

    fn immediate(&mut self, body: &[u8]) -> Applies {
        let Some(target) = number(body, 1) else { return Applies::Maybe };
        if target != VERDICT_REGISTER {
            let data = bytes(body, 2).unwrap_or_default().to_vec();
            self.put_known(place(target), &data);
            return Applies::Yes;
        }
        let verdict = find(body, 2).and_then(|data| find(data, uapi::DATA_VERDICT)).and_then(decode_verdict);
        match verdict {
            Some(Verdict::Continue) => Applies::Yes,
            Some(verdict) => {
                self.action = Action::Verdict(verdict);
                Applies::Yes
            }
            None => Applies::Maybe,
        }
    }

    fn port(&self, register: Option<u32>) -> Option<u16> {
        let held = self.held(place(register?), 2)?;
        Some(u16::from_be_bytes(*held.first_chunk()?))
    }

    fn nat(&mut self, body: &[u8]) -> Applies {
        // Type 1 is destination NAT. Any other type ends the chain as well.
        if number(body, 1) != Some(1) {
            self.action = Action::Verdict(Verdict::Accept);
            return Applies::Yes;
        }
        // The kernel does not apply the rule to packets of the other family.
        let is_of_family = match number(body, 2) {
            Some(2) => self.probe.family == AddressFamily::V4,
            Some(10) => self.probe.family == AddressFamily::V6,
            _ => true,
        };
        if !is_of_family {
            return Applies::Yes;
        }
        let len = if self.probe.family == AddressFamily::V6 { 16 } else { 4 };
        let to =
            number(body, 3).and_then(|register| self.held(place(register), len)).and_then(|at| address(&at));
        self.action = Action::Translate(to, self.port(number(body, 5)));
        Applies::Yes
    }

    fn xt_match(&self, body: &[u8]) -> Applies {
        let name = find(body, 1).map(text).unwrap_or_default();
        Extension { name: &name, revision: 0, data: find(body, 3).unwrap_or_default() }.applies(self.probe)
    }

    /// Evaluates targets of iptables that translate. Other targets do nothing that ends the chain.
    fn xt_target(&mut self, body: &[u8]) -> Applies {
        let name = find(body, 1).map(text).unwrap_or_default();
        let revision = number(body, 2).unwrap_or_default();
        let target = Extension { name: &name, revision, data: find(body, 3).unwrap_or_default() };
        if let Some(action) = target.action(self.probe.family) {
            self.action = action;
        }
        Applies::Yes
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    }
}
