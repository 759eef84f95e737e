//! Conditions in the words of one backend said in those of the other, as far as both have them:
//! addresses, networks and interfaces, each also denied.

use std::net::IpAddr;

use cni_nftables::{Cmp, Field, Operand, Stmt, Value};
use ipnet::IpNet;

use crate::AddressFamily;

/// The words of iptables in nft's.
pub(crate) fn to_nftables(words: &[String], family: AddressFamily) -> Result<Vec<String>, String> {
    let header = match family {
        AddressFamily::V4 => "ip",
        AddressFamily::V6 => "ip6",
    };
    let cannot = |word: &str| format!("the condition {word:?} of iptables has no counterpart in our table");
    let mut all = Vec::new();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let (option, sign) = match word {
            "!" => (words.next().unwrap_or_default(), "!= "),
            option => (option, ""),
        };
        let field = match option {
            "-s" => format!("{header} saddr"),
            "-d" => format!("{header} daddr"),
            "-i" => "iifname".to_owned(),
            "-o" => "oifname".to_owned(),
            other => return Err(cannot(other)),
        };
        let value = words.next().unwrap_or_default();
        let value = if field.ends_with("ifname") {
            format!(
                "\"{}\"",
                value.strip_suffix('+').map_or_else(|| value.to_owned(), |begin| format!("{begin}*"))
            )
        } else {
            let net = value.parse::<IpNet>().or_else(|_| value.parse::<IpAddr>().map(IpNet::from));
            net.map_err(|_| cannot(value))?.to_string()
        };
        all.push(format!("{field} {sign}{value}"));
    }
    Ok(all)
}

/// A statement of ours in the words of iptables; none for one that says nothing more than the family.
pub(crate) fn to_iptables(stmt: &Stmt) -> Result<Vec<String>, String> {
    let cannot = || format!("the condition \"{stmt}\" has no counterpart in iptables");
    let Stmt::Match { fields, cmp, to } = stmt else { return Err(cannot()) };
    let option = match fields.as_slice() {
        [Field::NfProto] => return Ok(Vec::new()),
        [Field::IpSaddr | Field::Ip6Saddr] => "-s",
        [Field::IpDaddr | Field::Ip6Daddr] => "-d",
        [Field::Iifname] => "-i",
        [Field::Oifname] => "-o",
        _ => return Err(cannot()),
    };
    let value = match to {
        Operand::Value(Value::Ifname(name)) => name.clone(),
        Operand::Value(Value::IfnamePrefix(begin)) => format!("{begin}+"),
        Operand::Value(value @ (Value::Ipv4(_) | Value::Ipv6(_))) => value.to_string(),
        Operand::Prefix(value, bits) => format!("{value}/{bits}"),
        _ => return Err(cannot()),
    };
    let sign = (*cmp == Cmp::Ne).then(|| "!".to_owned());
    Ok(sign.into_iter().chain([option.to_owned(), value]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::conditions::parse;

    #[test]
    fn what_both_have_is_said_in_either() {
        let words: Vec<String> =
            ["!", "-s", "192.0.2.0/24", "-i", "eth+", "!", "-o", "eth1"].map(str::to_owned).into();
        let said = to_nftables(&words, AddressFamily::V4).unwrap();
        assert_eq!(said, ["ip saddr != 192.0.2.0/24", "iifname \"eth*\"", "oifname != \"eth1\""]);
        let stmts = parse(&said, AddressFamily::V4).unwrap();
        let back: Vec<String> = stmts.iter().flat_map(|stmt| to_iptables(stmt).unwrap()).collect();
        assert_eq!(back, words);
    }

    #[test]
    fn the_rest_is_named() {
        let words = ["-m".to_owned(), "limit".to_owned()];
        assert!(to_nftables(&words, AddressFamily::V4).unwrap_err().contains("\"-m\""));
        let stmts = parse(&["ip ttl 3".to_owned()], AddressFamily::V4).unwrap();
        let said: Vec<_> = stmts.iter().map(to_iptables).collect();
        assert!(said.iter().any(|one| one.as_ref().is_err_and(|why| why.contains("ip ttl 3"))), "{said:?}");
    }
}
