//! Whether a node has anything at all that another backend may have made: one look at the names of its
//! tables, so that nodes with our own table alone are asked nothing more.

use cni_nftables::Family;
use cni_spec::Attachment;

use crate::nftables::owner_entry as record;
use crate::nftables::session::Session;
use crate::reference::{MASQUERADE_TABLE, PORT_TABLE};
use crate::{AddressFamily, Error, Kinds, iptables};

/// What there is.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    /// None where the kernel has no nf_tables.
    session: Option<Session>,
    /// A nat table of iptables, of either variant.
    pub(crate) iptables: bool,
    /// A table of the reference plugins' nftables backend.
    pub(crate) reference: bool,
}

impl Elsewhere {
    /// Looks.
    ///
    /// # Errors
    /// What nf_tables said.
    pub(crate) fn look() -> Result<Self, Error> {
        Self::look_by(None)
    }

    /// Looks, by a socket that is open already if there is one: each that closes waits for the ruleset's lock.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the ruleset cannot be read.
    pub(crate) fn look_by(session: Option<Session>) -> Result<Self, Error> {
        let legacy = AddressFamily::BOTH.into_iter().any(iptables::legacy_has_nat);
        let without = Self { session: None, iptables: legacy, reference: false };
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
        Ok(Self { session: Some(session), iptables: legacy || nat, reference })
    }

    /// Whether the attachment has an entry of the iptables backend in our table, which an ADD or DEL
    /// that was killed may have left without chains.
    pub(crate) fn is_recorded(&self, attachment: &Attachment, kinds: Kinds) -> Result<bool, Error> {
        let Some(session) = &self.session else { return Ok(false) };
        for kind in iptables::record_kinds(kinds) {
            if record::holds(session, attachment, kind)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
