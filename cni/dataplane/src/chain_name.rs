// SPDX-License-Identifier: GPL-2.0-or-later

//! Names of iptables' chains.

use std::fmt;

/// The longest name of a chain, in bytes: `XT_FUNCTION_MAXNAMELEN` without the NUL (`linux/netfilter/x_tables.h`).
/// `iptables` itself accepts no longer ones either.
const CHAIN_MAX: usize = 28;

/// A chain's name that is safe in a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainName(String);

impl ChainName {
    /// Reads a name from a configuration or a listing.
    pub fn new(name: &str) -> Result<Self, &'static str> {
        if name.is_empty() {
            return Err("it is empty");
        }
        if name.len() > CHAIN_MAX {
            return Err("it has more than 28 characters");
        }
        if name.starts_with(['-', '!']) {
            return Err("it begins like an option");
        }
        if !name.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'\\')) {
            return Err("it has a character that no chain's name may have");
        }
        Ok(Self(name.to_owned()))
    }

    pub(crate) fn fixed(name: &'static str) -> Self {
        Self(name.to_owned())
    }

    /// Makes a name of a prefix and as many digits as fit.
    pub(crate) fn hashed(prefix: &str, digits: &str) -> Self {
        let mut name = format!("{prefix}{digits}");
        name.truncate(CHAIN_MAX);
        Self(name)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_outside_are_checked() {
        assert_eq!(ChainName::new("KUBE-MARK-MASQ").unwrap().as_str(), "KUBE-MARK-MASQ");
        for bad in ["", "-j", "!x", "a b", "a\nCOMMIT", "a\"", "ä", "12345678901234567890123456789"] {
            assert!(ChainName::new(bad).is_err(), "{bad}");
        }
    }
}
