//! Taking the tables themselves away, when the node is to be without Slipway.

use std::collections::BTreeMap;

use cni_nftables::{TableId, Transaction};

use crate::owned_table::{Patience, unless_no_nf_tables};
use crate::{Error, Owner, firewall, macspoof, nftables};

/// A table of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnTable {
    /// `inet slipway`: published ports, masquerade, the guard of the loopback.
    Ports,
    /// `bridge slipway`: the guard against spoofed addresses.
    Spoofing,
    /// `inet slipway-firewall`: containers that the firewall plugin knows.
    Firewall,
}

/// What is in a table of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holding {
    /// There is no such table.
    NoTable,
    /// The table is there, and nothing in it belongs to anybody.
    Nothing,
    /// No attachment has anything in it, and an administrator has rules in a chain that is there for them.
    Rules,
    /// These attachments have something in it, each named once.
    Owners(Vec<Owner>),
}

/// What is done about what attachments have in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InUse {
    /// The table stays.
    Spare,
    /// It goes with the table.
    Remove,
}

impl OwnTable {
    /// All.
    pub const ALL: [Self; 3] = [Self::Ports, Self::Spoofing, Self::Firewall];

    /// Family and name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ports => nftables::schema::TABLE,
            Self::Spoofing => macspoof::TABLE,
            Self::Firewall => firewall::ledger::TABLE,
        }
    }

    fn id(self) -> TableId {
        match self {
            Self::Ports => nftables::schema::table(),
            Self::Spoofing => macspoof::table(),
            Self::Firewall => firewall::ledger::table(),
        }
    }

    /// What is in it.
    ///
    /// # Errors
    /// [`Error::ForeignTable`] or [`Error::NewerSchema`] when the table is not ours to judge; what
    /// could not be read.
    pub fn holding(self) -> Result<Holding, Error> {
        let owners = match self {
            Self::Ports => unless_no_nf_tables(nftables::owners())?,
            Self::Spoofing => macspoof::owners()?,
            Self::Firewall => firewall::ledger::owners()?,
        };
        let Some(owners) = owners else { return Ok(Holding::NoTable) };
        let unique: BTreeMap<_, _> = owners.into_iter().map(|owner| (owner.attachment_hash, owner)).collect();
        if unique.is_empty() {
            let rules = self == Self::Firewall && firewall::ledger::has_rules_of_others()?;
            return Ok(if rules { Holding::Rules } else { Holding::Nothing });
        }
        let mut owners: Vec<Owner> = unique.into_values().collect();
        owners.sort_by_key(ToString::to_string);
        Ok(Holding::Owners(owners))
    }

    /// Removes the table with its chains, maps and sets, and returns what was in it. With
    /// [`InUse::Spare`] nothing is removed if something in it belongs to an attachment, also to one
    /// that came a moment ago, or to an administrator.
    ///
    /// # Errors
    /// As [`Self::holding`]; what could not be removed; others changed the ruleset at every attempt.
    pub fn remove(self, in_use: InUse) -> Result<Holding, Error> {
        let operation = format!("remove table {}", self.name());
        let mut patience = Patience::new();
        loop {
            let Some(socket) = nftables::socket()? else { return Ok(Holding::NoTable) };
            let generation =
                socket.generation().map_err(|e| Error::kernel("read the ruleset's generation", e))?;
            let holding = self.holding()?;
            match (&holding, in_use) {
                (Holding::NoTable, _) | (Holding::Owners(_) | Holding::Rules, InUse::Spare) => {
                    return Ok(holding);
                }
                _ => {}
            }
            let mut batch = Transaction::new();
            batch.delete_table(&self.id());
            match socket.commit(&batch, Some(generation)) {
                Ok(()) => return Ok(holding),
                Err(failure) => patience.wait(&operation, failure)?,
            }
        }
    }
}
