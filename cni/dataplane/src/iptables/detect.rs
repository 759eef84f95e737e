// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds the tables with chains of containers, and the variant of iptables that the node uses. No program is run to
//! find chains, so this is cheap enough for every DEL.

use cni_nftables::Socket;
use cni_spec::Attachment;

use super::legacy;
use super::names::{self, TableName, own_chains};
use super::tools::{self, Place, Variant, default_variant, nat_table, table_id};
use super::trial;
use crate::{AddressFamily, Error, Kinds};

/// Shared chains that only the reference plugins and Slipway create.
const OWN_CHAINS: [(TableName, &[&str]); 1] =
    [(TableName::Nat, &[names::HOSTPORT_DNAT, names::HOSTPORT_MASQ])];
/// Chains of other programs that reveal the node's variant: those that kubelet creates in the mangle table for this
/// purpose, then those of kube-proxy and Docker.
const HINTS: [(TableName, &[&str]); 2] = [
    (TableName::Mangle, &["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"]),
    (TableName::Nat, &["KUBE-POSTROUTING", "KUBE-SERVICES", "DOCKER"]),
];

/// Opens a socket. None if the kernel has no nf_tables.
fn socket() -> Result<Option<Socket>, Error> {
    match Socket::open().and_then(|socket| socket.generation().map(|_| socket)) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.unsupported().is_some() => Ok(None),
        Err(error) => Err(Error::kernel("reach nf_tables", error)),
    }
}

/// Reads the tables of both variants in the thread's network namespace.
struct Detector {
    socket: Option<Socket>,
}

impl Detector {
    fn open() -> Result<Self, Error> {
        Ok(Self { socket: socket()? })
    }

    fn places(&self, test: impl Fn(&Self, Place) -> Result<bool, Error>) -> Result<Vec<Place>, Error> {
        let mut places = Vec::new();
        for place in Place::all() {
            if test(self, place)? {
                places.push(place);
            }
        }
        Ok(places)
    }

    fn has_chain(&self, place: Place, table: TableName, names: &[&str]) -> Result<bool, Error> {
        if place.variant == Variant::Legacy {
            if !legacy::has_table(place.family, table)? {
                return Ok(false);
            }
            let ours = table == TableName::Nat
                && names.iter().all(|name| name.starts_with(names::MASQUERADE_PREFIX));
            let chains =
                if ours { legacy::cni_chains(place.family)? } else { legacy::chains(place.family, table)? };
            return Ok(chains.iter().any(|chain| names.contains(&chain.as_str())));
        }
        let Some(socket) = &self.socket else { return Ok(false) };
        let table = table_id(place.family, table);
        let failed = |e| Error::kernel(format!("read table {table}"), e);
        if socket.table(&table).map_err(failed)?.is_none() {
            return Ok(false);
        }
        for name in names {
            if socket.chain(&table, name).map_err(failed)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True if the nat table may contain chains of containers.
    fn has_containers(&self, place: Place) -> Result<bool, Error> {
        if place.variant == Variant::Legacy {
            return Ok(!legacy::cni_chains(place.family)?.is_empty());
        }
        let Some(socket) = &self.socket else { return Ok(false) };
        let table = nat_table(place.family);
        let failed = |e| Error::kernel(format!("read table {table}"), e);
        if socket.table(&table).map_err(failed)?.is_none() {
            return Ok(false);
        }
        let is_container = |target: &str| {
            target.starts_with(names::MASQUERADE_PREFIX)
                && target != names::HOSTPORT_MASQ
                && target != names::HOSTPORT_SNAT
        };
        for chain in names::ENTRY_CHAINS {
            let rules = socket.rules(&table, chain).map_err(failed)?;
            if rules.iter().any(|rule| rule.target.as_deref().is_some_and(is_container)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True if the nat table may contain entry rules of published ports.
    fn has_ports(&self, place: Place) -> Result<bool, Error> {
        if place.variant == Variant::Legacy {
            // Each entry rule jumps to a container's chain.
            let chains = legacy::cni_chains(place.family)?;
            return Ok(chains.iter().any(|name| name.starts_with(names::DNAT_PREFIX)));
        }
        let Some(socket) = &self.socket else { return Ok(false) };
        if !self.has_chain(place, TableName::Nat, &[names::HOSTPORT_DNAT])? {
            return Ok(false);
        }
        let table = nat_table(place.family);
        let rules = socket.rules(&table, names::HOSTPORT_DNAT);
        Ok(!rules.map_err(|e| Error::kernel(format!("read table {table}"), e))?.is_empty())
    }

    fn shows(&self, variant: Variant, chains: &[(TableName, &[&str])]) -> Result<bool, Error> {
        for place in Place::all().filter(|place| place.variant == variant) {
            for (table, names) in chains {
                if self.has_chain(place, *table, names)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// The places with a chain of this attachment.
pub(crate) fn places_of(attachment: &Attachment, kinds: Kinds) -> Result<Vec<Place>, Error> {
    let chains = own_chains(attachment, kinds);
    let names: Vec<&str> = chains.iter().map(names::ChainName::as_str).collect();
    places_with_chain(TableName::Nat, &names)
}

/// The place with a chain of this attachment in one family; the node's variant if there is none.
pub(crate) fn place_of(places: &[Place], family: AddressFamily) -> Result<Place, Error> {
    match places.iter().find(|place| place.family == family) {
        Some(place) => Ok(*place),
        None => Ok(Place { variant: chosen_variant()?, family }),
    }
}

/// The places that may have chains of containers.
pub fn containers_places() -> Result<Vec<Place>, Error> {
    Detector::open()?.places(Detector::has_containers)
}

/// The places that may have entry rules of published ports.
pub(crate) fn places_with_ports() -> Result<Vec<Place>, Error> {
    Detector::open()?.places(Detector::has_ports)
}

pub(crate) fn places_with_chain(table: TableName, names: &[&str]) -> Result<Vec<Place>, Error> {
    Detector::open()?.places(|detector, place| detector.has_chain(place, table, names))
}

/// True if a rule of the chain contains one of these texts, such as an address or a name. The kernel returns a legacy
/// table only as a whole, so there the rule may be in another chain.
pub(super) fn has_rule(
    place: Place,
    table: TableName,
    chain: &str,
    texts: &[Vec<u8>],
) -> Result<bool, Error> {
    if place.variant == Variant::Legacy {
        return legacy::contains(place.family, table, texts);
    }
    let Some(socket) = socket()? else { return Ok(false) };
    let table = table_id(place.family, table);
    let contains =
        |bytes: &[u8]| texts.iter().any(|text| bytes.windows(text.len().max(1)).any(|window| window == text));
    let found = socket.has_rule(&table, chain, contains);
    found.map_err(|e| Error::kernel(format!("read chain {table} {chain}"), e))
}

/// True if a chain of the filter table has more than `uses` uses: its own rules and those that jump to it. In a
/// legacy table, counting would mean reading all rules, so there every existing chain counts.
pub(super) fn has_more_than(place: Place, chain: &str, uses: u32) -> Result<bool, Error> {
    if place.variant == Variant::Legacy {
        return Ok(legacy::chains(place.family, TableName::Filter)?.iter().any(|name| name == chain));
    }
    let Some(socket) = socket()? else { return Ok(false) };
    let table = table_id(place.family, TableName::Filter);
    let found =
        socket.chain(&table, chain).map_err(|e| Error::kernel(format!("read chain {table} {chain}"), e))?;
    Ok(found.is_some_and(|chain| chain.uses > uses))
}

/// The variant that this node uses for a table: the one with chains of the reference plugins or of Slipway, or else
/// the one with chains of Kubernetes or Docker, or else that of the program `iptables` if it works, or else the other
/// one.
///
/// If there are any chains, they prove that the kernel has the variant's tables, and nothing else is tried.
pub(super) fn variant_for(table: TableName) -> Result<Variant, Error> {
    match shown_variant()? {
        Some(variant) => Ok(variant),
        None => trial::first_working(&candidates()?, table),
    }
}

/// The same for the nat table.
pub(super) fn chosen_variant() -> Result<Variant, Error> {
    variant_for(TableName::Nat)
}

/// Like [`variant_for`], but always tries the variant's programs.
pub(super) fn tried_variant(table: TableName) -> Result<Variant, Error> {
    match shown_variant()? {
        Some(variant) => trial::try_out(variant, table).map(|()| variant),
        None => trial::first_tried(&candidates()?, table),
    }
}

/// The variant that this node uses for the nat table, whose programs have been tried.
///
/// # Errors
/// [`Error::NoIptables`] or [`Error::IptablesFails`] if no variant works.
pub fn working_variant() -> Result<Variant, Error> {
    tried_variant(TableName::Nat)
}

/// The variants in the order in which they are tried, beginning with that of the program `iptables`.
fn candidates() -> Result<Vec<Variant>, Error> {
    let plain = default_variant()?;
    let others = Variant::ALL.into_iter().filter(|variant| Some(*variant) != plain);
    Ok(plain.into_iter().chain(others).collect())
}

/// The variant whose chains are on the node, if its programs are installed.
fn shown_variant() -> Result<Option<Variant>, Error> {
    let detector = Detector::open()?;
    // Chains of containers come first, because if there is only masquerade, no chain has a fixed name.
    if let Some(place) = detector.places(Detector::has_containers)?.first() {
        return Ok(Some(place.variant));
    }
    for chains in [&OWN_CHAINS[..], &HINTS[..]] {
        for variant in Variant::ALL {
            if detector.shows(variant, chains)? && tools::are_installed(variant)? {
                return Ok(Some(variant));
            }
        }
    }
    Ok(None)
}
