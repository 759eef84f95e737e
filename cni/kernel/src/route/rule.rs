// SPDX-License-Identifier: MIT OR Apache-2.0

//! Routing rules (ip-rule(8)), which decide in which table a packet is looked up.

use std::net::IpAddr;

use cni_netlink::message;
use ipnet::IpNet;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use super::error::{ReplyError, RouteError};
use super::transport::Verb;
use super::{RouteSocket, wire};
use crate::AddressFamily;

/// A rule that selects a table by the packet's source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The family of packets to which the rule applies.
    pub family: AddressFamily,
    /// Prefix of the source. None for any source.
    pub source: Option<IpNet>,
    /// The table in which packets are looked up, or 0 for a rule without one.
    pub table: u32,
    /// The priority. The kernel starts with the rule that has the lowest one. A new rule without a priority comes
    /// before all existing rules except for the first.
    pub priority: Option<u32>,
    /// True if the rule has no condition other than the source, and looks up a table. Rules for which this is false
    /// can be read but not written.
    pub only_source: bool,
}

impl Rule {
    /// The rule `from ADDRESS lookup TABLE`.
    #[must_use]
    pub fn from_address(source: IpAddr, table: u32) -> Self {
        Self {
            family: AddressFamily::of(source),
            source: Some(source.into()),
            table,
            priority: None,
            only_source: true,
        }
    }

    fn message(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = wire::family(self.family);
        message.header.action = RuleAction::ToTable;
        // A number that does not fit into the header is sent only as an attribute, with RT_TABLE_UNSPEC in the
        // header.
        message.header.table = u8::try_from(self.table).unwrap_or(0);
        message.attributes.push(RuleAttribute::Table(self.table));
        if let Some(source) = self.source {
            message.header.src_len = source.prefix_len();
            message.attributes.push(RuleAttribute::Source(source.addr()));
        }
        message.attributes.extend(self.priority.map(RuleAttribute::Priority));
        message
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.source {
            Some(source) if source.prefix_len() == source.max_prefix_len() => {
                write!(f, "from {}", source.addr())?;
            }
            Some(source) => write!(f, "from {source}")?,
            None => f.write_str("from all")?,
        }
        write!(f, " lookup {}", self.table)
    }
}

impl RouteSocket {
    /// The rules of one family.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list them.
    pub fn rules(&self, family: AddressFamily) -> Result<Vec<Rule>, RouteError> {
        let mut message = RuleMessage::default();
        message.header.family = wire::family(family);
        let decode = |payload: &[u8]| decode(payload).map(|rule| rule.filter(|rule| rule.family == family));
        self.transport.list(RouteNetlinkMessage::GetRule(message), format_args!("list rules"), decode)
    }

    /// Adds a rule.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] if there is an equal one.
    pub fn add_rule(&self, rule: &Rule) -> Result<(), RouteError> {
        let message = RouteNetlinkMessage::NewRule(rule.message());
        self.transport.run(Verb::Create, message, format_args!("add rule {rule}"))
    }

    /// Deletes a rule.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if there is no such rule.
    pub fn delete_rule(&self, rule: &Rule) -> Result<(), RouteError> {
        let message = RouteNetlinkMessage::DelRule(rule.message());
        self.transport.run(Verb::Change, message, format_args!("delete rule {rule}"))
    }
}

/// Length of `struct fib_rule_hdr` (`linux/fib_rules.h`).
const HEADER: usize = 12;
// linux/fib_rules.h
const FR_ACT_TO_TBL: u8 = 1;
const FIB_RULE_INVERT: u32 = 2;
const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;

pub(super) fn decode(payload: &[u8]) -> Result<Option<Rule>, ReplyError> {
    let (header, rest) = payload.split_at_checked(HEADER).ok_or(ReplyError::NoHeader("a rule"))?;
    let Some(family) = wire::family_of(header[0]) else { return Ok(None) };
    let (source_len, flags) = (header[2], message::u32_of(&header[8..]));
    let mut rule = Rule {
        family,
        source: None,
        table: u32::from(header[4]),
        priority: None,
        // There is no destination, no type of service, and no inversion.
        only_source: header[1] == 0
            && header[3] == 0
            && header[7] == FR_ACT_TO_TBL
            && flags & FIB_RULE_INVERT == 0,
    };
    for (kind, value) in message::attributes(rest) {
        match kind {
            FRA_SRC => rule.source = wire::address(value).and_then(|ip| IpNet::new(ip, source_len).ok()),
            FRA_PRIORITY => rule.priority = Some(message::u32_of(value)),
            FRA_TABLE => rule.table = message::u32_of(value),
            // The kernel sends the origin, and "no suppression", with every rule.
            FRA_PROTOCOL => {}
            FRA_SUPPRESS_PREFIXLEN if message::u32_of(value) == u32::MAX => {}
            _ => rule.only_source = false,
        }
    }
    Ok(Some(rule))
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_core::Emitable;

    use super::*;

    fn bytes(rule: &Rule) -> Vec<u8> {
        let message = rule.message();
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        bytes
    }

    #[test]
    fn an_encoded_rule_decodes_to_the_same() {
        for (address, table) in [("10.1.2.3", 100), ("fd00::1", 1000)] {
            let mut rule = Rule::from_address(address.parse().unwrap(), table);
            assert_eq!(decode(&bytes(&rule)), Ok(Some(rule.clone())));
            assert_eq!(rule.to_string(), format!("from {address} lookup {table}"));
            rule.priority = Some(7);
            assert_eq!(decode(&bytes(&rule)), Ok(Some(rule)));
        }
    }

    #[test]
    fn further_conditions_are_noticed() {
        let plain = bytes(&Rule::from_address("10.1.2.3".parse().unwrap(), 100));
        let alone = |bytes: &[u8]| decode(bytes).unwrap().unwrap().only_source;
        assert!(alone(&plain));
        // A destination, a type of service, another action, and an inversion.
        for (at, value) in [(1, 32), (3, 8), (7, 6), (8, 2)] {
            let mut bytes = plain.clone();
            bytes[at] = value;
            assert!(!alone(&bytes), "byte {at}");
        }
        let with = |kind: u16, value: u32| {
            let mut bytes = plain.clone();
            bytes.extend(8_u16.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value.to_ne_bytes());
            bytes
        };
        assert!(alone(&with(FRA_SUPPRESS_PREFIXLEN, u32::MAX)) && alone(&with(FRA_PROTOCOL, 2)));
        assert!(!alone(&with(FRA_SUPPRESS_PREFIXLEN, 0)) && !alone(&with(10, 1)), "a mark");
        for length in 0..plain.len() {
            let _ = decode(&plain[..length]);
        }
    }
}
