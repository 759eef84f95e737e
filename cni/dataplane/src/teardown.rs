// SPDX-License-Identifier: GPL-2.0-or-later

//! Removes the tables themselves when Slipway is uninstalled from a node.

use std::collections::BTreeMap;

use cni_nftables::{TableId, Transaction};

use crate::owned_table::{transact, unchanged, unless_no_nf_tables};
use crate::{Error, Owner, duplicates, firewall, macspoof, nftables, tunnel_guard};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnTable {
    /// `inet slipway`: published ports, masquerade, the guard of the loopback.
    Ports,
    /// `bridge slipway`: the guard against spoofed addresses.
    Spoofing,
    /// `inet slipway-firewall`: the records of the firewall plugin.
    Firewall,
    /// `bridge slipway-kubenet`: the guard against duplicates, in which attachments own nothing.
    Duplicates,
    /// `inet slipway-tunnel`: the guard of slipwayd's tunnels, in which attachments own nothing.
    Tunnel,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableContent {
    NoTable,
    /// The table exists, and nothing in it has an owner.
    Nothing,
    /// No attachment owns anything in the table, but an administrator has rules in the chain `admin`.
    Rules,
    /// The attachments that own something in the table, each only once.
    Owners(Vec<Owner>),
}

/// How a table is treated that attachments or an administrator use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsedTable {
    Keep,
    /// The table is removed with its content.
    Remove,
}

impl OwnTable {
    pub const ALL: [Self; 5] = [Self::Ports, Self::Spoofing, Self::Firewall, Self::Duplicates, Self::Tunnel];

    /// Family and name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ports => nftables::schema::TABLE,
            Self::Spoofing => macspoof::TABLE,
            Self::Firewall => firewall::layout::TABLE,
            Self::Duplicates => duplicates::TABLE,
            Self::Tunnel => tunnel_guard::TABLE,
        }
    }

    fn id(self) -> TableId {
        match self {
            Self::Ports => nftables::schema::table(),
            Self::Spoofing => macspoof::table(),
            Self::Firewall => firewall::layout::table(),
            Self::Duplicates => duplicates::table(),
            Self::Tunnel => tunnel_guard::table(),
        }
    }

    /// Reads the table's content.
    ///
    /// # Errors
    /// [`Error::ForeignTable`] or [`Error::NewerSchema`] if this version of Slipway did not make the table;
    /// [`Error::Kernel`] if it cannot be read.
    pub fn holding(self) -> Result<TableContent, Error> {
        let owners = match self {
            Self::Ports => unless_no_nf_tables(nftables::owners())?,
            Self::Spoofing => macspoof::owners()?,
            Self::Firewall => firewall::table::owners()?,
            Self::Duplicates => duplicates::is_present()?.then(Vec::new),
            Self::Tunnel => tunnel_guard::is_present()?.then(Vec::new),
        };
        let Some(owners) = owners else { return Ok(TableContent::NoTable) };
        let unique: BTreeMap<_, _> = owners.into_iter().map(|owner| (owner.attachment_hash, owner)).collect();
        if unique.is_empty() {
            let rules = self == Self::Firewall && firewall::table::has_rules_of_others()?;
            return Ok(if rules { TableContent::Rules } else { TableContent::Nothing });
        }
        let mut owners: Vec<Owner> = unique.into_values().collect();
        owners.sort_by_key(ToString::to_string);
        Ok(TableContent::Owners(owners))
    }

    /// Removes the table, and returns what it contained. With [`UsedTable::Keep`], a table stays if it has owners or
    /// an administrator's rules, including any that were added a moment ago.
    ///
    /// # Errors
    /// As for [`Self::holding`]; [`Error::Busy`] if other processes changed the ruleset at every attempt.
    pub fn remove(self, in_use: UsedTable) -> Result<TableContent, Error> {
        let Some(socket) = nftables::socket()? else { return Ok(TableContent::NoTable) };
        transact(&socket, &format!("remove table {}", self.name()), |_| {
            let holding = self.holding()?;
            match (&holding, in_use) {
                (TableContent::NoTable, _)
                | (TableContent::Owners(_) | TableContent::Rules, UsedTable::Keep) => unchanged(holding),
                _ => {
                    let mut batch = Transaction::new();
                    batch.delete_table(&self.id());
                    Ok((batch, holding))
                }
            }
        })
    }
}
