// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds the rules that keep two bridges apart, for `slipway explain`.

use super::layout;
use super::table::{self, FirewallTable};
use crate::iptables::filter;
use crate::{AddressFamily, Error};

/// Rules that drop packets from one link to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Separation {
    /// Names the rules for people.
    pub by: String,
    /// True if packets with a translated destination, those to published ports, pass all the same.
    pub passes_published: bool,
}

/// Finds the rules that drop forwarded packets of a family from one link to another.
///
/// # Errors
/// nf_tables or the chains of iptables cannot be read.
pub fn between(from: &str, to: &str, family: AddressFamily) -> Result<Option<Separation>, Error> {
    if let Some(table) = FirewallTable::open()?
        && let Some(set) = table.separates(from, to)?
    {
        let by = format!("set {set} of table {} has {from} and {to}", layout::TABLE);
        return Ok(Some(Separation { by, passes_published: true }));
    }
    let found = filter::separates(from, to, family)?;
    Ok(found.map(|(chain, passes_published)| {
        let by = format!("chain {chain} of iptables drops packets from {from} to {to}");
        Separation { by, passes_published }
    }))
}

/// True if an administrator has rules in the chain `admin` of the table, which all forwarded packets pass.
///
/// # Errors
/// nf_tables cannot be read.
pub fn has_rules_of_an_administrator() -> Result<bool, Error> {
    match FirewallTable::open()? {
        Some(table) if table.is_in_force()? => table::has_rules_of_others(),
        _ => Ok(false),
    }
}
