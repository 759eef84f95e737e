// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads and makes the sets of networks that are exempt from masquerade (see `schema::exempt`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_nftables::{Transaction, Value};
use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};

use super::network_chains::AllChains;
use super::plan::{Exempt, as_address};
use super::schema::exempt::fill;
use super::schema::{self, ExemptId, Map, SharedChain, family_of};
use super::session::{Listing, Session};
use crate::difference::ExemptDifference;
use crate::owned_table::unless_no_nf_tables;
use crate::{AddressFamily, Error};

/// Reads the networks of a set, in canonical form. None if the set is missing.
pub(crate) fn read(session: &Session, id: ExemptId) -> Result<Option<Vec<IpNet>>, Error> {
    match session.socket.ranges(&session.table, &id.name()) {
        Ok(ranges) => Ok(Some(ranges.iter().flat_map(networks).collect())),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(Error::kernel(format!("list set {} of table {}", id.name(), schema::TABLE), e)),
    }
}

/// The networks that make up a range.
fn networks((first, last): &(Value, Value)) -> Vec<IpNet> {
    match (as_address(first), as_address(last)) {
        (Some(IpAddr::V4(first)), Some(IpAddr::V4(last))) => {
            IpSubnets::from(Ipv4Subnets::new(first, last, 0)).collect()
        }
        (Some(IpAddr::V6(first)), Some(IpAddr::V6(last))) => {
            IpSubnets::from(Ipv6Subnets::new(first, last, 0)).collect()
        }
        _ => Vec::new(),
    }
}

/// Makes the sets that are missing or whose elements differ.
pub(crate) fn add_missing(
    session: &Session,
    batch: &mut Transaction,
    wanted: &[Exempt],
) -> Result<(), Error> {
    for Exempt { id, networks } in wanted {
        if read(session, *id)?.as_ref() != Some(networks) {
            fill(batch, *id, networks);
        }
    }
    Ok(())
}

/// Deletes the sets that none of these chains uses.
pub(crate) fn delete_unused(
    session: &Session,
    batch: &mut Transaction,
    chains: &BTreeSet<SharedChain>,
) -> Result<(), Error> {
    let used: BTreeSet<ExemptId> = chains.iter().filter_map(SharedChain::exempt).collect();
    let sets = session.socket.sets(&session.table);
    for set in sets.map_err(|e| Error::kernel(format!("list the sets of table {}", schema::TABLE), e))? {
        if ExemptId::from_name(&set.name).is_some_and(|id| !used.contains(&id)) {
            batch.delete_set(&session.table, &set.name);
        }
    }
    Ok(())
}

/// Compares the networks of a set, or no networks, with the wanted ones. Returns the first difference.
pub(crate) fn difference(
    session: &Session,
    id: Option<ExemptId>,
    wanted: &[IpNet],
) -> Result<Option<ExemptDifference>, Error> {
    let found = match id {
        Some(id) => read(session, id)?.unwrap_or_default(),
        None => Vec::new(),
    };
    let missing =
        wanted.iter().find(|network| !found.contains(network)).copied().map(ExemptDifference::Missing);
    let more = || found.into_iter().find(|network| !wanted.contains(network)).map(ExemptDifference::More);
    Ok(missing.or_else(more))
}

/// Counts the containers in the table whose packets to one of these networks are masqueraded, because the containers
/// were added with another list.
pub fn containers_without(networks: &[IpNet]) -> Result<usize, Error> {
    unless_no_nf_tables(Session::open().and_then(|session| {
        let mut lists: BTreeMap<SharedChain, bool> = BTreeMap::new();
        let mut owners = BTreeSet::new();
        let chains = AllChains::read(&session, Listing::Changing)?;
        for held in session.list(Listing::Changing, AddressFamily::BOTH.map(Map::Masqueraded), |_| true)? {
            let found = |address| chains.of(Map::Masquerade(AddressFamily::of(address)), address);
            let Some(chain @ SharedChain::Masquerade { network, exempt }) = held.address().and_then(found)
            else {
                continue;
            };
            let lacks = match lists.get(&chain) {
                Some(known) => *known,
                None => {
                    let mut list = exempt.map_or(Ok(None), |id| read(&session, id))?.unwrap_or_default();
                    list.push(network);
                    let of_family = networks.iter().filter(|net| family_of(net) == family_of(&network));
                    let lacks = of_family.into_iter().any(|net| !list.iter().any(|has| has.contains(net)));
                    lists.insert(chain, lacks);
                    lacks
                }
            };
            owners.extend(held.owner.filter(|_| lacks).map(|owner| owner.attachment_hash));
        }
        Ok(owners.len())
    }))
}
