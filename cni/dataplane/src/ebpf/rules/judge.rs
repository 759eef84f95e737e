// SPDX-License-Identifier: GPL-2.0-or-later

//! Decides whether a rule of nf_tables can give different results for the packets of one flow. The encoded
//! expressions are read as the kernel sends them, because [`cni_nftables`] cannot represent all of them.
//!
//! Expressions that are known to give one result for a whole flow are listed here. A rule with any other expression
//! keeps the flows to which it can apply with netfilter.
//!
//! The programs carry TCP segments with ACK and without SYN, FIN and RST, and UDP datagrams, but no fragments and no
//! packets with IP options or extension headers. All numbers are from `linux/netfilter/nf_tables.h`.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use cni_kernel::AddressFamily;
use cni_netlink::message::{attributes, be32, find, text};
use slipway_ebpf_abi::IPPROTO_TCP;

use super::hold::{Flows, Hold};

/// The result of reading a rule: where it leads, and whether flows have to stay with netfilter because of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) chains: BTreeSet<String>,
    /// The verdict maps that the rule looks up.
    pub(super) maps: BTreeSet<String>,
    pub(super) hold: Option<Hold>,
}

/// True for expressions that limit or count packets, in a rule or in the elements of a set.
pub(super) fn is_per_packet(expression: &str) -> bool {
    matches!(expression, "limit" | "quota" | "connlimit" | "numgen")
}

/// The part of a packet that the last load put into a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Other,
    /// A field that tells families or protocols apart.
    Family,
    EtherType,
    Protocol,
    Port,
    /// The TCP flags that remain after this mask.
    Flags(u8),
    /// The bits of conntrack's state that remain after this mask.
    State(u32),
    /// The type of service: its byte within the register, and what has become of the bits that report congestion.
    Service(usize, Congestion),
}

/// Whether a register still has the bits that report congestion (RFC 3168), which differ between the packets of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Congestion {
    /// All are as in the packet.
    Kept,
    /// A mask has removed them.
    Masked,
    /// Only some of them are left, or others were set.
    Changed,
}

/// A rule while its expressions are read.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) flows: Flows,
    pub(super) port: Option<u16>,
    /// A match that can differ from packet to packet, such as `limit`. The rest of the rule applies only to packets
    /// that match.
    pub(super) condition: Option<String>,
    /// A statement that acts on each packet, such as `dup`.
    pub(super) action: Option<String>,
    /// True if the rule does more than count or log.
    pub(super) has_effect: bool,
    loaded: Loaded,
    limited_sets: &'a BTreeSet<String>,
    extensions: Extensions,
    found: Judgement,
}

/// Judges the matches and targets of iptables by their name and data. Rules of `iptables-nft` contain them, too.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extensions {
    pub(super) of_match: fn(&mut Reader<'_>, &str, &[u8]),
    pub(super) of_target: fn(&mut Reader<'_>, &str, &[u8]),
}

/// Judges the expressions of a rule in a table that these flows pass. `limited_sets` are the sets whose elements
/// [limit packets](is_per_packet).
pub(super) fn judge(
    expressions: &[u8],
    flows: Flows,
    limited_sets: &BTreeSet<String>,
    extensions: Extensions,
) -> Judgement {
    let mut reader = Reader::new(flows, limited_sets, extensions);
    for (_, expression) in attributes(expressions) {
        let name = find(expression, 1).map(text).unwrap_or_default();
        reader.step(&name, find(expression, 2).unwrap_or_default());
    }
    let hold = reader.hold();
    Judgement { hold, ..reader.found }
}

fn number(body: &[u8], kind: u16) -> Option<u32> {
    find(body, kind).and_then(be32)
}

fn data(body: &[u8], kind: u16) -> Option<&[u8]> {
    find(find(body, kind)?, 1)
}

// The flags byte of the TCP header.
const FIN_SYN_RST: u8 = 0x07;
const ACK: u8 = 0x10;

impl<'a> Reader<'a> {
    pub(super) fn new(flows: Flows, limited_sets: &'a BTreeSet<String>, extensions: Extensions) -> Self {
        Self {
            flows,
            port: None,
            condition: None,
            action: None,
            has_effect: false,
            loaded: Loaded::Other,
            limited_sets,
            extensions,
            found: Judgement::default(),
        }
    }

    /// The flows that the rule keeps with netfilter. None if its result is the same for all packets of a flow, or if
    /// it applies to no packet that is carried.
    pub(super) fn hold(&mut self) -> Option<Hold> {
        let what = self.action.take().or_else(|| self.condition.take().filter(|_| self.has_effect))?;
        (!self.flows.is_empty()).then_some(Hold { what, flows: self.flows, port: self.port })
    }

    fn condition(&mut self, what: impl Into<String>) {
        self.condition.get_or_insert(what.into());
    }

    fn action(&mut self, what: impl Into<String>) {
        self.has_effect = true;
        self.action.get_or_insert(what.into());
    }

    fn step(&mut self, name: &str, body: &[u8]) {
        let loaded = std::mem::replace(&mut self.loaded, Loaded::Other);
        let is_write = name == "payload" && find(body, 5).is_some();
        if let Loaded::Service(_, Congestion::Kept | Congestion::Changed) = loaded
            && !is_write
            && name != "bitwise"
        {
            self.condition("ecn");
        }
        match name {
            "counter" | "last" | "log" | "byteorder" | "fib" | "rt" | "socket" | "xfrm" | "tunnel"
            | "hash" => {}
            "nat" | "masq" | "redir" | "reject" | "notrack" | "tproxy" | "flow_offload" | "fwd"
            | "synproxy" => {
                self.has_effect = true;
            }
            _ if is_per_packet(name) => self.condition(name),
            // Only SYNs have an OS fingerprint.
            "osf" => self.flows = Flows::NONE,
            "dup" | "queue" => self.action(name),
            "immediate" => self.immediate(body),
            "payload" => self.payload(loaded, body),
            "meta" => self.meta(body),
            "ct" => self.ct(body),
            "exthdr" => self.exthdr(body),
            "bitwise" => self.loaded = mask(loaded, self.congestion_bits(), body),
            "cmp" => self.compare(loaded, body),
            "range" => {}
            "lookup" => self.lookup(body),
            "objref" => self.object(body),
            "dynset" => self.dynset(body),
            "match" | "target" => {
                let extension = find(body, 1).map(text).unwrap_or_default();
                let info = find(body, 3).unwrap_or_default();
                let Extensions { of_match, of_target } = self.extensions;
                let judge = if name == "match" { of_match } else { of_target };
                judge(self, &extension, info);
            }
            _ => self.action(name),
        }
    }

    fn immediate(&mut self, body: &[u8]) {
        // Register 0 holds the verdict.
        if number(body, 1) != Some(0) {
            return;
        }
        let verdict = find(body, 2).and_then(|data| find(data, 2)).unwrap_or_default();
        self.found.chains.extend(find(verdict, 2).map(text));
        // `NFT_CONTINUE`.
        self.has_effect |= number(verdict, 1) != Some(u32::MAX);
    }

    /// Handles a load or a change of a header field, given by base, offset and length.
    fn payload(&mut self, loaded: Loaded, body: &[u8]) {
        let [base, offset, len] = [2, 3, 4].map(|kind| number(body, kind).unwrap_or_default());
        let is_written = find(body, 5).is_some();
        self.has_effect |= is_written;
        let end = offset.saturating_add(len);
        match base {
            0 => {}
            1 => {
                // In IPv4, these are the type of service, the fragment fields (no fragment is carried), the protocol
                // and the addresses; in IPv6, the corresponding fields.
                let v4: &[(u32, u32)] = &[(0, 2), (6, 8), (9, 10), (12, 20)];
                let v6: &[(u32, u32)] = &[(0, 2), (6, 7), (8, 40)];
                let is_in = |ranges: &[(u32, u32)]| ranges.iter().any(|one| one.0 <= offset && end <= one.1);
                let is_plain = |family, ranges| !self.flows.has_family(family) || is_in(ranges);
                if !is_plain(AddressFamily::V4, v4) || !is_plain(AddressFamily::V6, v6) {
                    self.field("network header", is_written, offset, len);
                }
                if offset <= 1 && end == 2 {
                    let at = 1 - offset as usize;
                    if !is_written {
                        self.loaded = Loaded::Service(at, Congestion::Kept);
                    } else if loaded != Loaded::Service(at, Congestion::Kept) {
                        self.action("a change of ecn");
                    }
                }
                let protocol_at = if self.flows.has_family(AddressFamily::V4) { 9 } else { 6 };
                if (offset, len) == (protocol_at, 1) {
                    self.loaded = Loaded::Protocol;
                }
            }
            2 if end <= 4 => {
                if len == 2 {
                    self.loaded = Loaded::Port;
                }
            }
            2 if (offset, len) == (13, 1) && !is_written => {
                self.flows = self.flows.and(Flows::of_protocol(IPPROTO_TCP));
                self.loaded = Loaded::Flags(u8::MAX);
            }
            2 => self.field("transport header", is_written, offset, len),
            _ => self.field("payload", is_written, offset, len),
        }
    }

    /// The bits that report congestion, in the second byte of the header.
    fn congestion_bits(&self) -> u8 {
        let of = |family, bits| if self.flows.has_family(family) { bits } else { 0 };
        of(AddressFamily::V4, 0x03) | of(AddressFamily::V6, 0x30)
    }

    fn field(&mut self, header: &str, is_written: bool, offset: u32, len: u32) {
        let what =
            format!("bytes {offset} to {} of the {header}", offset.saturating_add(len).saturating_sub(1));
        if is_written { self.action(format!("a change of {what}")) } else { self.condition(what) }
    }

    fn meta(&mut self, body: &[u8]) {
        // If the source is a register, the rule sets the value.
        if find(body, 3).is_some() {
            self.has_effect = true;
            return;
        }
        match number(body, 2).unwrap_or_default() {
            0 => self.condition("meta length"),
            1 => self.loaded = Loaded::EtherType,
            15 => self.loaded = Loaded::Family,
            16 => self.loaded = Loaded::Protocol,
            20 => self.condition("meta cpu"),
            24 => self.condition("meta random"),
            2..=35 => {}
            other => self.condition(format!("meta key {other}")),
        }
    }

    fn ct(&mut self, body: &[u8]) {
        if find(body, 4).is_some() {
            self.has_effect = true;
            return;
        }
        match number(body, 2).unwrap_or_default() {
            0 => self.loaded = Loaded::State(u32::MAX),
            // conntrack does not count the packets that are carried.
            5 => self.condition("ct expiration"),
            14 => self.condition("ct packets"),
            15 => self.condition("ct bytes"),
            16 => self.condition("ct avgpkt"),
            1..=26 => {}
            other => self.condition(format!("ct key {other}")),
        }
    }

    /// Handles TCP options. Packets with IP options or extension headers are not carried.
    fn exthdr(&mut self, body: &[u8]) {
        const TCP: u32 = 1;
        /// A TCP option that only SYNs have.
        const MAXIMUM_SEGMENT: u8 = 2;
        if number(body, 6) != Some(TCP) {
            return;
        }
        self.flows = self.flows.and(Flows::of_protocol(IPPROTO_TCP));
        let option = find(body, 2).and_then(|option| option.first().copied());
        let is_read = find(body, 1).is_some();
        self.has_effect |= !is_read;
        if option != Some(MAXIMUM_SEGMENT) {
            let what = format!("tcp option {}", option.unwrap_or_default());
            if is_read { self.condition(what) } else { self.action(format!("a change of {what}")) }
        }
    }

    fn compare(&mut self, loaded: Loaded, body: &[u8]) {
        let (Some(operator), Some(value)) = (number(body, 2), data(body, 3)) else { return };
        let is_equal = match operator {
            0 => true,
            1 => false,
            // Any other comparison orders the values, like `<`.
            _ => return self.order(loaded),
        };
        let of_family = |number: u8| match number {
            2 => Flows::of_family(AddressFamily::V4),
            10 => Flows::of_family(AddressFamily::V6),
            _ => Flows::NONE,
        };
        let among = match (loaded, value) {
            (Loaded::Family, [number, ..]) => of_family(*number),
            (Loaded::EtherType, [0x08, 0x00]) => of_family(2),
            (Loaded::EtherType, [0x86, 0xdd]) => of_family(10),
            (Loaded::EtherType, _) => Flows::NONE,
            (Loaded::Protocol, [protocol, ..]) => Flows::of_protocol(*protocol),
            (Loaded::Port, [high, low]) => {
                if is_equal {
                    self.port = Some(u16::from_be_bytes([*high, *low]));
                }
                return;
            }
            (Loaded::Flags(mask), [flags, ..]) => return self.tcp_flags(mask, *flags, is_equal),
            (Loaded::State(mask), [a, b, c, d]) => {
                return self.state(mask, u32::from_ne_bytes([*a, *b, *c, *d]), is_equal);
            }
            _ => return,
        };
        self.flows = if is_equal { self.flows.and(among) } else { self.flows.without(among) };
    }

    fn order(&mut self, loaded: Loaded) {
        if let Loaded::Flags(_) = loaded {
            self.condition("tcp flags");
        }
    }

    /// Handles a comparison of the TCP flags that a mask leaves.
    pub(super) fn tcp_flags(&mut self, mask: u8, flags: u8, is_equal: bool) {
        let known = mask & (FIN_SYN_RST | ACK);
        let can_be_equal = flags & !mask == 0 && flags & known == ACK & known;
        if can_be_equal && mask != known {
            self.condition("tcp flags");
        } else if can_be_equal != is_equal {
            self.flows = self.flows.without(Flows::of_protocol(IPPROTO_TCP));
        }
    }

    /// Handles a comparison of conntrack's state. A connection with carried packets is no longer new.
    pub(super) fn state(&mut self, mask: u32, value: u32, is_equal: bool) {
        /// `NF_CT_STATE_BIT(IP_CT_NEW)`.
        const NEW: u32 = 8;
        let asks_for_new = match (mask, is_equal) {
            (NEW, true) => value == NEW,
            (NEW, false) => value == 0,
            (_, is_equal) => is_equal && value == NEW,
        };
        if asks_for_new {
            self.flows = self.flows.without(Flows::of_protocol(IPPROTO_TCP));
        }
    }

    fn lookup(&mut self, body: &[u8]) {
        let set = find(body, 1).map(text).unwrap_or_default();
        if number(body, 3) == Some(0) {
            self.has_effect = true;
            self.found.maps.insert(set.clone());
        }
        if self.limited_sets.contains(&set) {
            self.condition(format!("elements of set {set} that limit packets"));
        }
    }

    fn object(&mut self, body: &[u8]) {
        match number(body, 1) {
            // A counter, a timeout or a security mark.
            Some(1 | 7 | 8) => {}
            Some(2) => self.condition("quota"),
            Some(3) => self.action("ct helper"),
            Some(4) => self.condition("limit"),
            Some(5) => self.condition("ct count"),
            // A tunnel or a SYN proxy.
            Some(6 | 10) => self.has_effect = true,
            Some(9) => self.action("ct expectation"),
            _ => self.action("an object out of a map"),
        }
    }

    /// Handles an element that a packet adds to a set, or refreshes there.
    fn dynset(&mut self, body: &[u8]) {
        self.has_effect = true;
        let single = find(body, 7).into_iter();
        let list = attributes(find(body, 10).unwrap_or_default()).map(|(_, one)| one);
        let names: Vec<String> = single.chain(list).filter_map(|one| find(one, 1)).map(text).collect();
        if let Some(name) = names.iter().find(|name| is_per_packet(name)) {
            self.condition(format!("a meter with {name}"));
        }
    }

    // Used by the judgement of iptables' matches and targets.

    pub(super) fn only_protocol(&mut self, protocol: u8) {
        self.flows = self.flows.and(Flows::of_protocol(protocol));
    }

    pub(super) fn only_port(&mut self, first: u16, last: u16) {
        if first == last {
            self.port = Some(first);
        }
    }

    pub(super) fn looks_at_each(&mut self, what: impl Into<String>) {
        self.condition(what);
    }

    pub(super) fn acts_on_each(&mut self, what: impl Into<String>) {
        self.action(what);
    }

    pub(super) const fn applies_to_none(&mut self) {
        self.flows = Flows::NONE;
    }
}

/// The content of a register after a mask was applied to it.
fn mask(loaded: Loaded, congestion_bits: u8, body: &[u8]) -> Loaded {
    let xor = data(body, 5).unwrap_or_default();
    let has_xor = xor.iter().any(|byte| *byte != 0);
    match (loaded, data(body, 4)) {
        (Loaded::Flags(_), Some([mask, ..])) if !has_xor => Loaded::Flags(*mask),
        (Loaded::State(_), Some([a, b, c, d])) if !has_xor => {
            Loaded::State(u32::from_ne_bytes([*a, *b, *c, *d]))
        }
        (Loaded::Service(at, Congestion::Kept), mask) => {
            // A shift has no mask, and moves the bits elsewhere.
            let bits = |bytes: &[u8], missing| bytes.get(at).copied().unwrap_or(missing) & congestion_bits;
            let left = match (mask.map(|mask| bits(mask, 0)), bits(xor, 0)) {
                (Some(0), 0) => Congestion::Masked,
                (Some(left), 0) if left == congestion_bits => Congestion::Kept,
                _ => Congestion::Changed,
            };
            Loaded::Service(at, left)
        }
        (Loaded::Service(at, left), _) => Loaded::Service(at, left),
        _ => Loaded::Other,
    }
}
