// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads the names of the node's tables, which show which backends may have objects on the node. If the node has only
//! our own table, nothing else has to be read.

use cni_nftables::{Family, TableInfo};
use cni_spec::Attachment;

use crate::nftables::owner_entry;
use crate::nftables::session::Session;
use crate::reference::{MASQUERADE_TABLE, PORT_TABLE};
use crate::{AddressFamily, Error, Kinds, iptables};

/// The backends other than nftables that have tables on the node.
#[derive(Debug)]
pub(crate) struct OtherBackends {
    /// None if the kernel has no nf_tables.
    session: Option<Session>,
    /// True if either variant of iptables has a nat table.
    pub(crate) iptables: bool,
    /// True if the nftables backend of the reference plugins has a table.
    pub(crate) reference: bool,
    /// The node's tables.
    pub(crate) tables: Vec<TableInfo>,
}

impl OtherBackends {
    /// Reads the names of the tables.
    pub(crate) fn look() -> Result<Self, Error> {
        Self::look_by(None)
    }

    /// Reads the names through `session`, if there is one, because closing an additional socket would wait for the
    /// ruleset's lock.
    pub(crate) fn look_by(session: Option<Session>) -> Result<Self, Error> {
        let legacy =
            iptables::legacy_has_nat(AddressFamily::V4)? || iptables::legacy_has_nat(AddressFamily::V6)?;
        let without = Self { session: None, iptables: legacy, reference: false, tables: Vec::new() };
        let session = match session.map_or_else(Session::open, Ok) {
            Ok(session) => session,
            Err(Error::NoNfTables(_)) => return Ok(without),
            Err(error) => return Err(error),
        };
        let tables = match session.socket.tables() {
            Ok(tables) => tables,
            Err(error) => match session.generation() {
                Err(Error::NoNfTables(_)) => return Ok(without),
                _ => return Err(Error::kernel("list tables", error)),
            },
        };
        let is_nat = |family, name: &str| matches!(family, Family::Ip | Family::Ip6) && name == "nat";
        let nat = tables.iter().any(|table| is_nat(table.id.family, &table.id.name));
        let reference =
            tables.iter().any(|table| [PORT_TABLE, MASQUERADE_TABLE].contains(&table.id.name.as_str()));
        Ok(Self { session: Some(session), iptables: legacy || nat, reference, tables })
    }

    /// True if the attachment has an entry of the iptables backend in our table. An ADD or DEL that was killed may
    /// have left an entry without chains.
    pub(crate) fn is_recorded(&self, attachment: &Attachment, kinds: Kinds) -> Result<bool, Error> {
        let Some(session) = &self.session else { return Ok(false) };
        for kind in iptables::record_kinds(kinds) {
            if owner_entry::holds(session, attachment, kind)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
