//! Where something of the reference's chains is: cheap enough for every DEL, and without running
//! anything.

use cni_nftables::{Family, Socket, TableId};
use cni_spec::Attachment;

use super::names;
use super::rule::TableName;
use super::tools::{Variant, default_variant, nat_table, table_id};
use super::{legacy, withdraw};
use crate::{AddressFamily, Error, Kinds};

/// Chains of others that show which variant a node uses: those that kubelet keeps for this very
/// purpose in the mangle table, then kube-proxy's, Docker's.
const HINTS: [(&str, &str); 5] = [
    ("mangle", "KUBE-IPTABLES-HINT"),
    ("mangle", "KUBE-KUBELET-CANARY"),
    ("nat", "KUBE-POSTROUTING"),
    ("nat", "KUBE-SERVICES"),
    ("nat", "DOCKER"),
];

/// Variants and families in which something was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Presence(Vec<(Variant, AddressFamily)>);

impl Presence {
    /// Whether there is anything.
    #[must_use]
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Where.
    pub fn places(&self) -> impl Iterator<Item = (Variant, AddressFamily)> {
        self.0.iter().copied()
    }

    /// The variant that has something of this family.
    #[must_use]
    pub fn variant(&self, family: AddressFamily) -> Option<Variant> {
        self.0.iter().find(|(_, of)| *of == family).map(|(variant, _)| *variant)
    }
}

/// Where chains of this attachment are.
pub(crate) fn of(attachment: &Attachment, kinds: Kinds) -> Result<Presence, Error> {
    let chains = withdraw::own_chains(attachment, kinds);
    let names: Vec<&str> = chains.iter().map(names::ChainName::as_str).collect();
    any_chain_of(&names)
}

/// Where chains of any attachment may be.
///
/// # Errors
/// What could not be read.
pub fn of_anyone() -> Result<Presence, Error> {
    let mut presence = Presence::default();
    for family in AddressFamily::BOTH {
        if nft_has_containers(family)? {
            presence.0.push((Variant::Nft, family));
        }
        if legacy::chains(family)?.iter().any(|chain| chain.starts_with(names::MASQUERADE_PREFIX)) {
            presence.0.push((Variant::Legacy, family));
        }
    }
    Ok(presence)
}

/// Where entry rules of published ports may be.
pub(crate) fn of_ports() -> Result<Presence, Error> {
    let mut presence = any_chain_of(&[names::HOSTPORT_DNAT])?;
    let socket = socket()?;
    let mut kept = Vec::new();
    for (variant, family) in presence.places() {
        let empty = match (variant, &socket) {
            (Variant::Nft, Some(socket)) => {
                let table = nat_table(family);
                let rules = socket.rules(&table, names::HOSTPORT_DNAT);
                rules.map_err(|e| Error::kernel(format!("read table {table}"), e))?.is_empty()
            }
            // An entry rule leads to a container's chain, which is seen by its name.
            _ => !legacy::chains(family)?.iter().any(|chain| chain.starts_with(names::DNAT_PREFIX)),
        };
        kept.extend((!empty).then_some((variant, family)));
    }
    presence.0 = kept;
    Ok(presence)
}

/// Where there is one of these chains in a table.
pub(crate) fn any_chain_in(table: TableName, names: &[&str]) -> Result<Vec<(Variant, AddressFamily)>, Error> {
    let mut places = Vec::new();
    let socket = socket()?;
    for family in AddressFamily::BOTH {
        if let Some(socket) = &socket
            && has_any(socket, &table_id(family, table), names)?
        {
            places.push((Variant::Nft, family));
        }
        if legacy::has_table(family, table.as_str())
            && legacy::chains_of(family, table.as_str())?.iter().any(|is| names.contains(&is.as_str()))
        {
            places.push((Variant::Legacy, family));
        }
    }
    Ok(places)
}

/// Where there is one of these chains of the nat table.
pub(crate) fn any_chain_of(names: &[&str]) -> Result<Presence, Error> {
    let mut presence = Presence::default();
    let socket = socket()?;
    for family in AddressFamily::BOTH {
        if let Some(socket) = &socket
            && has_any(socket, &nat_table(family), names)?
        {
            presence.0.push((Variant::Nft, family));
        }
        if legacy::has_nat(family) && legacy::chains(family)?.iter().any(|is| names.contains(&is.as_str())) {
            presence.0.push((Variant::Legacy, family));
        }
    }
    Ok(presence)
}

/// True if rules in a chain of a table contain one of these texts: an address, a name. It may be a rule of another
/// chain in a legacy table, which the kernel hands out as a whole only.
pub(super) fn has_rule(
    (variant, family): (Variant, AddressFamily),
    (table, chain): (TableName, &str),
    texts: &[Vec<u8>],
) -> Result<bool, Error> {
    if variant == Variant::Legacy {
        return legacy::contains(family, table.as_str(), texts);
    }
    let Some(socket) = socket()? else { return Ok(false) };
    let table = table_id(family, table);
    let contains =
        |bytes: &[u8]| texts.iter().any(|text| bytes.windows(text.len().max(1)).any(|window| window == text));
    let found = socket.has_rule(&table, chain, contains);
    found.map_err(|e| Error::kernel(format!("read chain {table} {chain}"), e))
}

/// A socket to nf_tables; none where the kernel has none.
fn socket() -> Result<Option<Socket>, Error> {
    let opened = Socket::open().and_then(|socket| socket.generation().map(|_| socket));
    match opened {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.unsupported().is_some() => Ok(None),
        Err(error) => Err(Error::kernel("reach nf_tables", error)),
    }
}

fn has_any(socket: &Socket, table: &TableId, names: &[&str]) -> Result<bool, Error> {
    let read = |e| Error::kernel(format!("read table {table}"), e);
    if socket.table(table).map_err(read)?.is_none() {
        return Ok(false);
    }
    for name in names {
        if socket.chain(table, name).map_err(read)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether rules of nf_tables' nat table lead to containers' chains.
fn nft_has_containers(family: AddressFamily) -> Result<bool, Error> {
    let Some(socket) = socket()? else { return Ok(false) };
    let table = nat_table(family);
    let read = |e| Error::kernel(format!("read table {table}"), e);
    if socket.table(&table).map_err(read)?.is_none() {
        return Ok(false);
    }
    for chain in withdraw::LEADING {
        let rules = socket.rules(&table, chain).map_err(read)?;
        let leads = |target: &str| {
            target.starts_with(names::MASQUERADE_PREFIX)
                && target != names::HOSTPORT_MASQ
                && target != names::HOSTPORT_SNAT
        };
        if rules.iter().any(|rule| rule.target.as_deref().is_some_and(leads)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The variant that this node uses: the one that has chains of the reference's or ours, else the one
/// that has those of Kubernetes or Docker, else the one that the name `iptables` leads to.
///
/// # Errors
/// [`Error::NoIptables`] if nothing shows one and there is no program of that name.
pub fn chosen_variant() -> Result<Variant, Error> {
    let own = [("nat", names::HOSTPORT_DNAT), ("nat", names::HOSTPORT_MASQ)];
    // Masquerade alone has no chain of a fixed name.
    if let Some((variant, _)) = of_anyone()?.places().next() {
        return Ok(variant);
    }
    for hints in [&own[..], &HINTS[..]] {
        if nft_has_a_hint(hints)? {
            return Ok(Variant::Nft);
        }
        if legacy_has_a_hint(hints)? {
            return Ok(Variant::Legacy);
        }
    }
    default_variant().ok_or_else(|| Error::NoIptables { program: "iptables".to_owned() })
}

fn nft_has_a_hint(hints: &[(&str, &str)]) -> Result<bool, Error> {
    let Some(socket) = socket()? else { return Ok(false) };
    for family in [Family::Ip, Family::Ip6] {
        for (table, chain) in hints {
            let table = TableId::new(family, table);
            let read = socket.chain(&table, chain);
            if read.map_err(|e| Error::kernel(format!("read chain {table} {chain}"), e))?.is_some() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn legacy_has_a_hint(hints: &[(&str, &str)]) -> Result<bool, Error> {
    for family in AddressFamily::BOTH {
        for table in ["mangle", "nat"] {
            let wanted: Vec<&str> = hints.iter().filter(|(of, _)| *of == table).map(|(_, c)| *c).collect();
            if wanted.is_empty() || !legacy::has_table(family, table) {
                continue;
            }
            if legacy::chains_of(family, table)?.iter().any(|is| wanted.contains(&is.as_str())) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
