// SPDX-License-Identifier: GPL-2.0-or-later

//! Conditions in the syntax of iptables: which of them a configuration may contain, and how they are translated from
//! and to conditions of nftables.
//!
//! The words become part of a rule unchanged. Each is quoted as one word, so none can end the rule or start another
//! one. iptables decides what an option means. Options other than matches are refused, because a condition must
//! choose neither the packet's target nor the rule's chain.

use std::net::IpAddr;

use cni_nftables::{Cmp, Field, Operand, Stmt, Value};
use ipnet::IpNet;

use crate::{AddressFamily, ConditionError, Error, PortRequest, RequestError};

/// The one-letter options that are matches: address, protocol, link, fragment, module and family.
const SHORT: &str = "sdpiofm46";

/// The long options that are commands, targets or switches of the tool. The tool also accepts any unambiguous
/// abbreviation of them.
const REFUSED: &str = "append check delete insert replace list list-rules flush zero new-chain delete-chain \
    rename-chain policy help jump goto table modprobe noflush verbose version wait numeric line-numbers";

/// A condition that the other backend cannot express.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Untranslatable {
    #[error("the condition {0:?} of iptables has no counterpart in our table")]
    OfIptables(String),
    #[error("the condition \"{0}\" has no counterpart in iptables")]
    OfNftables(String),
}

/// Checks the words of one family's conditions.
///
/// # Errors
/// [`Error::Condition`] with the key and the first word that does not belong to a condition.
pub fn check(key: &'static str, words: &[String]) -> Result<(), Error> {
    let refused = |reason| Err(Error::Condition { key, reason });
    for word in words {
        if word.is_empty() || word.chars().any(char::is_control) {
            return refused(ConditionError::Word(word.clone()));
        }
        let is_condition = match (word.strip_prefix("--"), word.strip_prefix('-')) {
            (Some(long), _) => {
                let name = long.split('=').next().unwrap_or_default();
                !name.is_empty() && !REFUSED.split_whitespace().any(|refused| refused.starts_with(name))
            }
            // A number that begins with a minus sign is a value, not an option.
            (None, Some(short)) => short.starts_with(|c: char| SHORT.contains(c) || c.is_ascii_digit()),
            (None, None) => true,
        };
        if !is_condition {
            return refused(ConditionError::Option(word.clone()));
        }
    }
    Ok(())
}

/// Checks both families' conditions.
pub(crate) fn check_request(request: &PortRequest) -> Result<(), Error> {
    if !request.nftables.conditions.is_empty() {
        return Err(RequestError::NftablesConditions.into());
    }
    check("conditionsV4", &request.iptables.conditions.v4)?;
    check("conditionsV6", &request.iptables.conditions.v6)
}

/// Translates conditions into the syntax of nft, if both backends support them: addresses, networks and interfaces,
/// also negated.
pub(crate) fn to_nftables(words: &[String], family: AddressFamily) -> Result<Vec<String>, Untranslatable> {
    let header = match family {
        AddressFamily::V4 => "ip",
        AddressFamily::V6 => "ip6",
    };
    let untranslatable = |word: &str| Untranslatable::OfIptables(word.to_owned());
    let mut all = Vec::new();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let (option, sign) = match word {
            "!" => (words.next().unwrap_or_default(), "!= "),
            option => (option, ""),
        };
        let (field, is_link) = match option {
            "-s" => (format!("{header} saddr"), false),
            "-d" => (format!("{header} daddr"), false),
            "-i" => ("iifname".to_owned(), true),
            "-o" => ("oifname".to_owned(), true),
            other => return Err(untranslatable(other)),
        };
        let value = words.next().unwrap_or_default();
        let value = if is_link {
            let prefix = value.strip_suffix('+').map(|prefix| format!("{prefix}*"));
            format!("\"{}\"", prefix.as_deref().unwrap_or(value))
        } else {
            let net = value.parse::<IpNet>().or_else(|_| value.parse::<IpAddr>().map(IpNet::from));
            net.map_err(|_| untranslatable(value))?.to_string()
        };
        all.push(format!("{field} {sign}{value}"));
    }
    Ok(all)
}

/// Translates a statement of our table. Returns no words for a statement that only matches the family.
pub(crate) fn to_iptables(stmt: &Stmt) -> Result<Vec<String>, Untranslatable> {
    let untranslatable = || Untranslatable::OfNftables(stmt.to_string());
    let Stmt::Match { fields, cmp, to } = stmt else { return Err(untranslatable()) };
    let option = match fields.as_slice() {
        [Field::NfProto] => return Ok(Vec::new()),
        [Field::IpSaddr | Field::Ip6Saddr] => "-s",
        [Field::IpDaddr | Field::Ip6Daddr] => "-d",
        [Field::Iifname] => "-i",
        [Field::Oifname] => "-o",
        _ => return Err(untranslatable()),
    };
    let value = match to {
        Operand::Value(Value::Ifname(name)) => name.clone(),
        Operand::Value(Value::IfnamePrefix(prefix)) => format!("{prefix}+"),
        Operand::Value(value @ (Value::Ipv4(_) | Value::Ipv6(_))) => value.to_string(),
        Operand::Prefix(value, bits) => format!("{value}/{bits}"),
        _ => return Err(untranslatable()),
    };
    let sign = (*cmp == Cmp::Ne).then(|| "!".to_owned());
    Ok(sign.into_iter().chain([option.to_owned(), value]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::conditions::parse;

    fn ok(words: &[&str]) -> bool {
        check("conditionsV4", &words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>()).is_ok()
    }

    #[test]
    fn matches_of_any_module_are_conditions() {
        assert!(ok(&["-d", "192.0.2.0/24"]));
        assert!(ok(&["!", "-i", "eth0", "-m", "mac", "--mac-source", "02:00:00:00:00:01"]));
        assert!(ok(&["-m", "limit", "--limit", "5/min", "-m", "comment", "--comment", "it is; \"so\""]));
        assert!(ok(&["-s10.0.0.0/8", "--dport", "80"]));
    }

    #[test]
    fn options_that_are_no_matches_are_refused() {
        for words in [
            &["-j", "ACCEPT"][..],
            &["-jACCEPT"],
            &["--jump", "ACCEPT"],
            &["--ju=ACCEPT"],
            &["-g", "x"],
            &["-t", "filter"],
            &["-A", "INPUT"],
            &["--tab", "filter"],
            &["--"],
            &["-"],
            &["-m", "mac\nCOMMIT"],
            &[""],
        ] {
            assert!(!ok(words), "{words:?}");
        }
    }

    #[test]
    fn conditions_of_both_backends_are_translated() {
        let words: Vec<String> =
            ["!", "-s", "192.0.2.0/24", "-i", "eth+", "!", "-o", "eth1"].map(str::to_owned).into();
        let translated = to_nftables(&words, AddressFamily::V4).unwrap();
        assert_eq!(translated, ["ip saddr != 192.0.2.0/24", "iifname \"eth*\"", "oifname != \"eth1\""]);
        let stmts = parse(&translated, AddressFamily::V4).unwrap();
        let back: Vec<String> = stmts.iter().flat_map(|stmt| to_iptables(stmt).unwrap()).collect();
        assert_eq!(back, words);
    }

    #[test]
    fn errors_name_the_condition() {
        let words = ["-m".to_owned(), "limit".to_owned()];
        assert!(to_nftables(&words, AddressFamily::V4).unwrap_err().to_string().contains("\"-m\""));
        let stmts = parse(&["ip ttl 3".to_owned()], AddressFamily::V4).unwrap();
        let results: Vec<_> = stmts.iter().map(to_iptables).collect();
        assert!(results.contains(&Err(Untranslatable::OfNftables("ip ttl 3".to_owned()))), "{results:?}");
    }
}
