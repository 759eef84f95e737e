// SPDX-License-Identifier: GPL-2.0-or-later

//! The parsers of this backend, for fuzzing.

use std::collections::BTreeSet;
use std::fmt::Debug;

use super::chain_reader::{read_masquerade, read_ports};
use super::conditions::{check, to_nftables};
use super::listing::Listing;
use super::names::{self, TableName};
use super::quote;
use super::withdraw::removal;
use crate::AddressFamily;
use crate::nftables::conditions as grammar;

/// The output of `iptables-save`: its rules, and what containers have in them.
pub fn saved_rules(text: &[u8]) -> impl Debug {
    let text = String::from_utf8_lossy(text);
    let listing = Listing::parse(&text, TableName::Nat);
    let mut read = Vec::new();
    for chain in listing.names() {
        let part = Listing::parse_chains(&text, TableName::Nat, &[chain]);
        assert_eq!(part.rules(chain), listing.rules(chain), "chain {chain:?} alone is read differently");
        for rule in listing.rules(chain) {
            // Names become part of the input of iptables-restore, where a line break would start another command.
            let line = rule.to_string();
            assert!(!line.contains(['\n', '\r', '\0']), "{line:?} is several lines");
            let is_changed = rule.words().iter().any(|word| word.contains(['\n', '\r', '\0']));
            assert!(is_changed || quote::split(&line) == rule.words(), "{line:?} is another rule");
            read.push((
                rule.owner(),
                rule.key(),
                rule.source(),
                rule.published(),
                rule.target().map(str::to_owned),
            ));
        }
    }
    let chains = |prefix: &str| -> BTreeSet<String> {
        listing.names().filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
    };
    let (ports, masquerade) = (chains(names::DNAT_PREFIX), chains(names::MASQUERADE_PREFIX));
    let of_family = AddressFamily::BOTH.map(|family| read_ports(&listing, family, &ports));
    let all: Vec<&str> = listing.names().collect();
    let batch = format!("{:?}", removal(&listing, &all));
    (read, of_family, read_masquerade(&listing, &masquerade), batch)
}

/// The conditions of a mapping in the syntax of iptables, one per line. Translated conditions must be accepted by the
/// other backend.
pub fn conditions(text: &[u8]) -> impl Debug {
    let text = String::from_utf8_lossy(text);
    let words: Vec<String> = text.lines().map(str::to_owned).collect();
    let checked = check("conditionsV4", &words).map_err(|error| error.to_string());
    let translated = AddressFamily::BOTH.map(|family| {
        let translated = to_nftables(&words, family).map_err(|error| error.to_string())?;
        Ok::<_, String>(grammar::parse(&translated, family).map_err(|error| error.to_string()))
    });
    (checked, translated)
}
