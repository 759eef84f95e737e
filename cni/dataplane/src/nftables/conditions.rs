// SPDX-License-Identifier: GPL-2.0-or-later

//! The grammar of `conditionsV4` and `conditionsV6`, a small part of nft's. Conditions are parsed into statements, so
//! no text from a configuration reaches the kernel.
//!
//! The list's strings are joined by spaces. `{`, `}` and `,` are words of their own wherever they occur.
//!
//! ```text
//! conditions = condition { condition }
//! condition  = field [ "==" | "!=" ] value
//!            | mark "&" mask ( "==" | "!=" ) number
//!            | "ct" "state" state { "," state }
//! field      = [ "meta" ] ( "iifname" | "oifname" )         "eth0", eth0, eth*
//!            | "ip" ( "saddr" | "daddr" )                   in conditionsV4
//!            | "ip6" ( "saddr" | "daddr" )                  in conditionsV6
//!            | "ip" ( "ttl" | "length" | "protocol" ) | "ip6" ( "hoplimit" | "length" )
//!            | [ "meta" ] "l4proto"                         tcp, udp, sctp, icmp, ipv6-icmp or a number
//!            | ( "tcp" | "udp" | "sctp" | "th" ) ( "sport" | "dport" )
//!            | mark
//!            | "fib" ( "saddr" | "daddr" ) "type"           local
//! mark       = [ "meta" ] "mark" | "ct" "mark"
//! value      = one | "{" one { "," one } "}"
//! one        = word | word "-" word | address "/" bits
//! state      = "new" | "established" | "related" | "invalid"
//! ```

use std::net::IpAddr;

use cni_nftables::{Cmp, DataType, Field, Operand, Stmt, Value};
use ipnet::IpNet;

use crate::{AddressFamily, ConditionError, Error};

/// Parses the conditions of one family.
///
/// # Errors
/// [`Error::Condition`] with the first word that does not belong there.
pub fn parse(conditions: &[String], family: AddressFamily) -> Result<Vec<Stmt>, Error> {
    let words = words(conditions);
    let mut parser = Parser { words: &words, family };
    let mut stmts = Vec::new();
    while !parser.words.is_empty() {
        stmts.push(parser.condition().map_err(|reason| Error::Condition { key: key(family), reason })?);
    }
    Ok(stmts)
}

fn key(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "conditionsV4",
        AddressFamily::V6 => "conditionsV6",
    }
}

fn words(conditions: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    for text in conditions {
        for word in text.split_whitespace() {
            let mut rest = word;
            while let Some(at) = rest.find(['{', '}', ',']) {
                let (before, from) = rest.split_at(at);
                let (mark, after) = from.split_at(1);
                words.extend([before, mark].into_iter().filter(|w| !w.is_empty()).map(str::to_owned));
                rest = after;
            }
            if !rest.is_empty() {
                words.push(rest.to_owned());
            }
        }
    }
    words
}

struct Parser<'a> {
    words: &'a [String],
    family: AddressFamily,
}

impl<'a> Parser<'a> {
    fn next(&mut self, wanted: &'static str) -> Result<&'a str, ConditionError> {
        let (first, rest) = self.words.split_first().ok_or(ConditionError::End(wanted))?;
        self.words = rest;
        Ok(first)
    }

    fn accept(&mut self, word: &str) -> bool {
        match self.words.split_first() {
            Some((first, rest)) if first == word => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }

    fn condition(&mut self) -> Result<Stmt, ConditionError> {
        let field = self.field()?;
        if field == Field::CtState {
            return self.states();
        }
        if matches!(field, Field::Mark | Field::CtMark) && self.accept("&") {
            let mask = Value::Mark(number(self.next("a mask")?)?);
            let cmp = self.comparison().ok_or(ConditionError::Mask)?;
            let value = Value::Mark(number(self.next("a number")?)?);
            return Ok(Stmt::Masked { field, mask, cmp, value });
        }
        let cmp = self.comparison().unwrap_or(Cmp::Eq);
        let to = if self.accept("{") { self.set(field)? } else { operand(field, self.next("a value")?)? };
        Ok(Stmt::Match { fields: vec![field], cmp, to })
    }

    fn comparison(&mut self) -> Option<Cmp> {
        if self.accept("==") {
            Some(Cmp::Eq)
        } else if self.accept("!=") {
            Some(Cmp::Ne)
        } else {
            None
        }
    }

    fn field(&mut self) -> Result<Field, ConditionError> {
        let first = self.next("a field")?;
        let meta = first == "meta";
        let word = if meta { self.next("a field of meta")? } else { first };
        let field = match word {
            "iifname" => Field::Iifname,
            "oifname" => Field::Oifname,
            "l4proto" => Field::L4Proto,
            "mark" => Field::Mark,
            _ if meta => return Err(ConditionError::UnknownField(format!("meta {word}"))),
            _ => self.field_of(word)?,
        };
        Ok(field)
    }

    fn field_of(&mut self, header: &str) -> Result<Field, ConditionError> {
        let known = ["ip", "ip6", "tcp", "udp", "sctp", "th", "ct", "fib"];
        if !known.contains(&header) {
            return Err(ConditionError::UnknownField(header.to_owned()));
        }
        let name = self.next("a field's name")?;
        let field = match (header, name) {
            ("ip", "saddr") => Field::IpSaddr,
            ("ip", "daddr") => Field::IpDaddr,
            ("ip", "ttl") => Field::IpTtl,
            ("ip", "length") => Field::IpLength,
            ("ip", "protocol") => Field::L4Proto,
            ("ip6", "saddr") => Field::Ip6Saddr,
            ("ip6", "daddr") => Field::Ip6Daddr,
            ("ip6", "hoplimit") => Field::Ip6Hoplimit,
            ("ip6", "length") => Field::Ip6Length,
            ("tcp", "sport") => Field::TcpSport,
            ("tcp", "dport") => Field::TcpDport,
            ("udp", "sport") => Field::UdpSport,
            ("udp", "dport") => Field::UdpDport,
            ("sctp", "sport") => Field::SctpSport,
            ("sctp", "dport") => Field::SctpDport,
            ("th", "sport") => Field::ThSport,
            ("th", "dport") => Field::ThDport,
            ("ct", "state") => Field::CtState,
            ("ct", "mark") => Field::CtMark,
            ("fib", "saddr") if self.accept("type") => Field::FibSaddrType,
            ("fib", "daddr") if self.accept("type") => Field::FibDaddrType,
            _ => return Err(ConditionError::UnknownField(format!("{header} {name}"))),
        };
        let other = match self.family {
            AddressFamily::V4 => "ip6",
            AddressFamily::V6 => "ip",
        };
        if header == other {
            Err(ConditionError::FieldOfOtherFamily(format!("{header} {name}")))
        } else {
            Ok(field)
        }
    }

    fn states(&mut self) -> Result<Stmt, ConditionError> {
        self.accept("==");
        let braces = self.accept("{");
        let mut bits = 0;
        loop {
            bits |= match self.next("a state")? {
                "new" => Value::CT_NEW,
                "established" => Value::CT_ESTABLISHED,
                "related" => Value::CT_RELATED,
                "invalid" => Value::CT_INVALID,
                other => return Err(ConditionError::UnknownState(other.to_owned())),
            };
            if !self.accept(",") {
                break;
            }
        }
        if braces && !self.accept("}") {
            return Err(ConditionError::OpenStates);
        }
        Ok(Stmt::AnyBit { field: Field::CtState, bits: Value::CtState(bits) })
    }

    fn set(&mut self, field: Field) -> Result<Operand, ConditionError> {
        let mut elements = Vec::new();
        loop {
            let word = self.next("an element of a set")?;
            match operand(field, word)? {
                Operand::Value(Value::IfnamePrefix(_)) => {
                    return Err(ConditionError::PrefixInSet(word.to_owned()));
                }
                element => elements.push(element),
            }
            if self.accept("}") {
                return Ok(Operand::OneOf(elements));
            }
            if !self.accept(",") {
                return Err(ConditionError::OpenSet);
            }
        }
    }
}

fn operand(field: Field, word: &str) -> Result<Operand, ConditionError> {
    let kind = field.data_type();
    if ["{", "}", ","].contains(&word) {
        return Err(ConditionError::Value(word.to_owned()));
    }
    if kind == DataType::Ifname {
        return ifname(word).map(Operand::Value);
    }
    if matches!(kind, DataType::Ipv4Addr | DataType::Ipv6Addr) && word.contains('/') {
        let network: IpNet = word.parse().map_err(|_| ConditionError::Network(word.to_owned()))?;
        let first = Value::address(network.network());
        let fits = first.data_type() == kind;
        return if fits { Ok(Operand::Prefix(first, network.prefix_len())) } else { Err(wrong_family(word)) };
    }
    let ordered = kind != DataType::FibAddrType && kind != DataType::Mark;
    match word.split_once('-').filter(|_| ordered) {
        Some((from, to)) => {
            let (from, to) = (value(kind, from)?, value(kind, to)?);
            let backwards = from.encode() > to.encode();
            if backwards {
                Err(ConditionError::Backwards(word.to_owned()))
            } else {
                Ok(Operand::Range(from, to))
            }
        }
        None => value(kind, word).map(Operand::Value),
    }
}

fn value(kind: DataType, word: &str) -> Result<Value, ConditionError> {
    Ok(match kind {
        DataType::Ipv4Addr | DataType::Ipv6Addr => {
            let address: IpAddr = word.parse().map_err(|_| ConditionError::Address(word.to_owned()))?;
            let value = Value::address(address);
            if value.data_type() != kind {
                return Err(wrong_family(word));
            }
            value
        }
        DataType::InetService => Value::Port(number(word)?),
        DataType::Integer16 => Value::U16(number(word)?),
        DataType::Integer8 => Value::U8(number(word)?),
        DataType::Mark => Value::Mark(number(word)?),
        DataType::InetProto => match Value::protocol(word) {
            Some(protocol) => protocol,
            None => Value::Proto(number(word)?),
        },
        DataType::FibAddrType if word == "local" => Value::AddrType(Value::RTN_LOCAL),
        _ => return Err(ConditionError::Value(word.to_owned())),
    })
}

fn wrong_family(word: &str) -> ConditionError {
    ConditionError::OtherFamily(word.to_owned())
}

fn ifname(word: &str) -> Result<Value, ConditionError> {
    let bare = word.strip_prefix('"').and_then(|w| w.strip_suffix('"')).unwrap_or(word);
    let (name, prefix) = match bare.strip_suffix('*') {
        Some(name) => (name, true),
        None => (bare, false),
    };
    cni_spec::check_ifname(name)?;
    // When printed, a control character would yield another name, or act on a terminal.
    if name.contains(['"', '\\', '*']) || name.contains(char::is_control) {
        return Err(ConditionError::Quotes(name.to_owned()));
    }
    Ok(if prefix { Value::IfnamePrefix(name.to_owned()) } else { Value::Ifname(name.to_owned()) })
}

/// Parses a decimal number, or a hexadecimal one with `0x`.
fn number<N: TryFrom<u64>>(word: &str) -> Result<N, ConditionError> {
    let parsed = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    parsed.ok().and_then(|n| N::try_from(n).ok()).ok_or_else(|| ConditionError::Number(word.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use AddressFamily::{V4, V6};

    fn show(conditions: &[&str], family: AddressFamily) -> String {
        let conditions: Vec<String> = conditions.iter().map(|&c| c.to_owned()).collect();
        match parse(&conditions, family) {
            Ok(stmts) => stmts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn accepted_conditions_print_as_nft_prints_them() {
        let same = [
            "iifname \"eth0\"",
            "ip saddr != 192.0.2.0/24",
            "ip daddr { 192.0.2.1, 198.51.100.0/24, 203.0.113.1-203.0.113.9 }",
            "tcp sport 1024-65535 ip ttl != 1",
            "meta l4proto { tcp, udp }",
            "meta mark & 0x00004000 == 0x00004000",
            "meta mark != 0x00000001",
            "ct state new",
            "iifname != \"docker*\"",
        ];
        for condition in same {
            assert_eq!(show(&[condition], V4), condition);
        }
        assert_eq!(show(&["ip6", "saddr", "2001:db8::1/32"], V6), "ip6 saddr 2001:db8::/32");
        assert_eq!(show(&["ip", "protocol", "==", "tcp"], V4), "meta l4proto tcp");
        assert_eq!(show(&["ip protocol 1"], V4), "meta l4proto icmp");
        assert_eq!(show(&["meta l4proto icmp"], V4), "meta l4proto icmp");
        assert_eq!(show(&["ip saddr {10.0.0.1,10.0.0.2}"], V4), "ip saddr { 10.0.0.1, 10.0.0.2 }");
        assert_eq!(show(&[], V4), "");
    }

    #[test]
    fn errors_name_the_offending_word() {
        let cases = [
            ("ip6 saddr ::1", "conditionsV4: field \"ip6 saddr\" is of the other family"),
            ("ip saddr ::1", "conditionsV4: \"::1\" is of the other family"),
            ("ip saddr", "conditionsV4: ends where a value should follow"),
            ("counter drop", "conditionsV4: unknown field \"counter\""),
            ("tcp dport 99999", "conditionsV4: \"99999\" is not a number that fits here"),
            ("tcp dport 9-1", "conditionsV4: range \"9-1\" is backwards"),
            ("ip saddr { 10.0.0.1", "conditionsV4: a set's elements are separated by commas, its end is }"),
            (
                "iifname \"a;flush\" ip saddr 1.1.1.1; flush ruleset",
                "conditionsV4: \"1.1.1.1;\" is not an address",
            ),
            ("oifname eth\u{f}0", "conditionsV4: \"eth\u{f}0\" is not the name of an interface"),
            ("oifname}mark 5", "conditionsV4: \"}\" cannot be a value of this field"),
            ("iifname { eth0, , eth1 }", "conditionsV4: \",\" cannot be a value of this field"),
        ];
        for (condition, error) in cases {
            assert_eq!(show(&[condition], V4), error);
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(words in proptest::collection::vec("(meta|ip|ip6|saddr|==|!=|\\{|\\}|,|iifname|[a-z0-9./:*-]{0,12}|\\PC{0,6})", 0..8)) {
            let _ = parse(&words, V4);
            let _ = parse(&words, V6);
        }
    }
}
