// SPDX-License-Identifier: GPL-2.0-or-later

//! Decides how the address of a container leads to a shared chain.
//!
//! Usually, the network leads there: the map of networks has one element that leads all containers of a network to
//! their chain, so an ADD does not have to add an element that leads to a chain. An address has an element of its own
//! if it needs another chain (`masqAll`, several networks, another list of `nonMasqueradeCIDRs` than earlier
//! containers), or if its network overlaps with another one, because intervals in a map must not overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_nftables::{Element, ElementId, Transaction, Value, Verdict};
use ipnet::IpNet;

use super::plan::{Item, Lead, as_address};
use super::schema::{self, Layout, Map, SharedChain};
use super::session::{Listing, OwnedElement, Session, element_id};
use crate::Error;

/// A network, and the chain to which its containers lead.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NetworkChain {
    map: Map,
    first: IpAddr,
    last: IpAddr,
    /// None if Slipway does not know the chain.
    chain: Option<SharedChain>,
}

impl NetworkChain {
    fn of(map: Map, network: &IpNet, chain: &SharedChain) -> Self {
        Self { map, first: network.network(), last: network.broadcast(), chain: Some(chain.clone()) }
    }

    fn contains(&self, address: IpAddr) -> bool {
        (self.first..=self.last).contains(&address)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.map == other.map && self.first <= other.last && other.first <= self.last
    }

    fn id(&self) -> ElementId {
        element_id(self.map, &[Value::address(self.first)], Some(&[Value::address(self.last)]))
    }

    fn element(&self) -> Option<Element> {
        Some(Element::new(self.id()).verdict(Verdict::Goto(self.chain.as_ref()?.name())))
    }
}

/// Elements from the maps of networks.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetworkChains(Vec<NetworkChain>);

impl NetworkChains {
    /// Reads these maps. Tables with an earlier schema have none.
    fn read(session: &Session, maps: impl IntoIterator<Item = Map>) -> Result<Self, Error> {
        let mut all = Vec::new();
        for map in maps {
            // A dump contains only the first address of each interval.
            let chains = session.dump([map], |_| true)?;
            let chain_at = |first| chains.iter().find(|held| held.address() == Some(first))?.shared_chain();
            for (first, last) in session.ranges(map)? {
                if let (Some(first), Some(last)) = (as_address(&first), as_address(&last)) {
                    all.push(NetworkChain { map, first, last, chain: chain_at(first) });
                }
            }
        }
        Ok(Self(all))
    }

    /// Reads the elements of the networks that already lead these addresses to their chains. If the network around an
    /// address leads elsewhere, or no network is around it, reads the whole map, because a new element could overlap
    /// with any element. A dump is repeated until no other process changes the ruleset meanwhile, which can take long
    /// while many ADDs run, so the usual case avoids it.
    fn for_leads(session: &Session, leads: &[Lead]) -> Result<Self, Error> {
        let (mut known, mut whole) = (Vec::new(), BTreeSet::new());
        for lead in leads {
            let Some((map, network)) = lead.map.networks().zip(lead.chain.of_network()) else { continue };
            if leads_to(session, map, lead)? {
                known.push(NetworkChain::of(map, &network, &lead.chain));
            } else {
                whole.insert(map);
            }
        }
        known.extend(Self::read(session, whole)?.0);
        Ok(Self(known))
    }

    fn around(&self, map: Map, address: IpAddr) -> Option<&NetworkChain> {
        self.0.iter().find(|one| one.map == map && one.contains(address))
    }

    /// True if the network's element leads to exactly this chain.
    fn lead(&self, lead: &Lead) -> bool {
        let wanted = lead.map.networks().zip(lead.chain.of_network());
        wanted.is_some_and(|(map, network)| self.0.contains(&NetworkChain::of(map, &network, &lead.chain)))
    }
}

/// True if the element whose network contains the address leads to the right chain.
fn leads_to(session: &Session, networks: Map, lead: &Lead) -> Result<bool, Error> {
    let held = session.get(networks, &[Value::address(lead.address)])?;
    Ok(held.and_then(|held| held.shared_chain()).as_ref() == Some(&lead.chain))
}

/// How each address of a plan leads to its chain.
#[derive(Debug, Default)]
pub(crate) struct Ways<'a> {
    leads: &'a [Lead],
    /// The chains that may be missing, because no network's element leads to them, which would keep them from being
    /// deleted.
    chains: BTreeSet<&'a SharedChain>,
    /// The networks for which an element is added.
    new: Vec<NetworkChain>,
    /// The addresses that need an element of their own.
    own: Vec<&'a Lead>,
}

impl<'a> Ways<'a> {
    /// Decides by what the table contains.
    pub(crate) fn decide(session: &Session, leads: &'a [Lead]) -> Result<Self, Error> {
        Ok(Self::given(NetworkChains::for_leads(session, leads)?, leads))
    }

    fn given(mut known: NetworkChains, leads: &'a [Lead]) -> Self {
        let (mut chains, mut new, mut own) = (BTreeSet::new(), Vec::new(), Vec::new());
        for lead in leads {
            if known.lead(lead) {
                continue;
            }
            chains.insert(&lead.chain);
            let of_network = lead.map.networks().zip(lead.chain.of_network());
            let wanted = of_network.map(|(map, network)| NetworkChain::of(map, &network, &lead.chain));
            match wanted {
                Some(wanted) if !known.0.iter().any(|other| other.overlaps(&wanted)) => {
                    known.0.push(wanted.clone());
                    new.push(wanted);
                }
                _ => own.push(lead),
            }
        }
        Self { leads, chains, new, own }
    }

    /// The elements of the addresses that need their own.
    pub(crate) fn own_items(&self) -> impl Iterator<Item = Item> {
        self.own.iter().map(|lead| lead.own_item())
    }

    /// The keys of addresses that need no element of their own. An element there would lead the address elsewhere
    /// than its network does.
    pub(crate) fn without_own(&self) -> impl Iterator<Item = (Map, Vec<Value>)> {
        let others = self.leads.iter().filter(|lead| !self.own.contains(lead));
        others.map(|lead| (lead.map, vec![Value::address(lead.address)]))
    }

    /// Adds the missing chains and the missing elements of networks.
    pub(crate) fn add_missing(&self, session: &Session, batch: &mut Transaction) -> Result<(), Error> {
        for chain in &self.chains {
            if session.chain(&chain.name())?.is_none() {
                schema::add_shared(batch, chain, session.layout()?);
            }
        }
        self.add_networks(batch);
        Ok(())
    }

    fn add_networks(&self, batch: &mut Transaction) {
        for element in self.new.iter().filter_map(NetworkChain::element) {
            batch.add_element(element);
        }
    }

    /// True if the networks in the table still lead all addresses without an element of their own to their chains.
    /// The garbage collection removes a network's element if it finds none of its containers, and misses containers
    /// that are added after it has looked.
    pub(crate) fn hold(&self, session: &Session) -> Result<bool, Error> {
        for lead in self.leads.iter().filter(|lead| !self.own.contains(lead)) {
            let Some(map) = lead.map.networks() else { continue };
            if !leads_to(session, map, lead)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The chain to which an address leads. `map` is [`Map::Hairpin`] or [`Map::Masquerade`], and its set must contain
/// the address.
pub(crate) fn chain_of(session: &Session, map: Map, address: IpAddr) -> Result<Option<SharedChain>, Error> {
    for map in [Some(map), map.networks()].into_iter().flatten() {
        if let Some(held) = session.get(map, &[Value::address(address)])? {
            return Ok(held.shared_chain());
        }
    }
    Ok(None)
}

/// The chains to which all addresses lead.
#[derive(Debug)]
pub(crate) struct AllChains {
    own: BTreeMap<(Map, IpAddr), Option<SharedChain>>,
    networks: NetworkChains,
}

impl AllChains {
    pub(crate) fn read(session: &Session, listing: Listing) -> Result<Self, Error> {
        let own = session.list(listing, of_addresses(), |_| true)?;
        let own = own.iter().filter_map(|held| Some(((held.map, held.address()?), held.shared_chain())));
        let own = own.collect();
        Ok(Self { own, networks: NetworkChains::read(session, Map::of_networks())? })
    }

    /// The chain to which an address leads. `map` is [`Map::Hairpin`] or [`Map::Masquerade`].
    pub(crate) fn of(&self, map: Map, address: IpAddr) -> Option<SharedChain> {
        match self.own.get(&(map, address)) {
            Some(chain) => chain.clone(),
            None => self.networks.around(map.networks()?, address)?.chain.clone(),
        }
    }
}

/// The maps that lead single addresses to chains.
fn of_addresses() -> impl Iterator<Item = Map> {
    Map::all().filter(|map| map.networks().is_some())
}

/// Builds the upgrade from schemas 1 and 2, in which each address had an element of its own. Their maps had other
/// names than the present ones, so that an ADD of an earlier version fails if it read the table before this upgrade.
pub(crate) fn upgrade(session: &Session, batch: &mut Transaction) -> Result<(), Error> {
    for map in of_addresses() {
        let (Some(set), Some(former)) = (map.addresses(), map.former_name()) else { continue };
        let read = session.socket.elements(&session.table, former);
        let former_elements = match read {
            Err(e) if e.is_not_found() => continue,
            read => {
                read.map_err(|e| Error::kernel(format!("list map {former} of table {}", schema::TABLE), e))?
            }
        };
        let lead = |info| {
            let held = OwnedElement::new(map, info);
            Some((Lead { map, address: held.address()?, chain: held.shared_chain()? }, held))
        };
        let (leads, held): (Vec<Lead>, Vec<OwnedElement>) =
            former_elements.into_iter().filter_map(lead).unzip();
        let ways = Ways::given(NetworkChains::default(), &leads);
        ways.add_networks(batch);
        for held in &held {
            batch.add_element(held.owned_by_the_same(Element::new(element_id(set, &held.key, None))));
        }
        let own: BTreeSet<IpAddr> = ways.own.iter().map(|lead| lead.address).collect();
        for (lead, held) in leads.iter().zip(&held).filter(|(lead, _)| own.contains(&lead.address)) {
            let element = Element::new(held.id()).verdict(Verdict::Goto(lead.chain.name()));
            batch.add_element(held.owned_by_the_same(element));
        }
        batch.delete_set(&session.table, former);
    }
    Ok(())
}

/// Builds the removal of the shared chains to which no address leads. Also returns the other shared chains.
pub(crate) fn remove_unused(
    session: &Session,
    listing: Listing,
) -> Result<(Transaction, BTreeSet<SharedChain>), Error> {
    let all = AllChains::read(session, listing)?;
    let mut by_network = BTreeSet::new();
    for map in of_addresses() {
        let held = session.list(listing, map.addresses(), |_| true)?;
        let keys = held.iter().filter_map(|held| Some((map, held.address()?)));
        by_network.extend(keys.filter(|key| !all.own.contains_key(key)));
    }
    let leads = |network: &&NetworkChain| {
        let map = of_addresses().find(|map| map.networks() == Some(network.map));
        map.is_some_and(|map| by_network.range((map, network.first)..=(map, network.last)).next().is_some())
    };
    let mut used: BTreeSet<&SharedChain> = all.own.values().flatten().collect();
    used.extend(all.networks.0.iter().filter(leads).filter_map(|network| network.chain.as_ref()));
    let (mut batch, mut kept) = (Transaction::new(), BTreeSet::new());
    for found in session.chains()? {
        let Some(chain) = SharedChain::from_name(&found.name) else { continue };
        let of_chain: Vec<_> =
            all.networks.0.iter().filter(|network| network.chain.as_ref() == Some(&chain)).collect();
        // The kernel counts the chain's rules and the elements that lead to it. The count is higher if somebody has
        // added a rule or an element by hand.
        let known = chain.rules(Layout::PLAIN).len() + of_chain.len();
        if used.contains(&chain) || usize::try_from(found.uses).is_ok_and(|uses| uses > known) {
            kept.insert(chain);
            continue;
        }
        for network in of_chain {
            batch.delete_element(network.id());
        }
        batch.flush_chain(&session.table, &found.name).delete_chain(&session.table, &found.name);
    }
    Ok((batch, kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AddressFamily;
    use crate::nftables::schema::ExemptId;

    fn lead(address: &str, network: &str) -> Lead {
        let chain = SharedChain::Masquerade { network: network.parse().unwrap(), exempt: None };
        let address: IpAddr = address.parse().unwrap();
        Lead { map: Map::Masquerade(AddressFamily::of(address)), address, chain }
    }

    fn known(leads: &[Lead]) -> NetworkChains {
        NetworkChains(Ways::given(NetworkChains::default(), leads).new)
    }

    fn own(known: NetworkChains, lead: &Lead) -> (usize, usize) {
        let leads = [lead.clone()];
        let ways = Ways::given(known, &leads);
        (ways.new.len(), ways.own.len())
    }

    #[test]
    fn a_network_has_one_element_for_all_its_containers() {
        let first = lead("10.22.0.2", "10.22.0.0/16");
        assert_eq!(own(NetworkChains::default(), &first), (1, 0));
        let table = known(&[first]);
        assert_eq!(own(table.clone(), &lead("10.22.255.254", "10.22.0.0/16")), (0, 0));
        assert_eq!(own(table.clone(), &lead("10.23.0.2", "10.23.0.0/16")), (1, 0));
        assert_eq!(own(table, &lead("fd00::2", "fd00::/64")), (1, 0));
    }

    #[test]
    fn addresses_of_overlapping_networks_have_their_own_elements() {
        let table = known(&[lead("10.22.0.2", "10.22.0.0/16")]);
        for network in ["10.22.5.0/24", "10.0.0.0/8", "10.22.0.0/15"] {
            assert_eq!(own(table.clone(), &lead("10.22.5.2", network)), (0, 1), "{network}");
        }
        // The same holds within one plan.
        let leads = [lead("10.22.5.2", "10.22.5.0/24"), lead("10.22.0.2", "10.22.0.0/16")];
        let ways = Ways::given(NetworkChains::default(), &leads);
        assert_eq!((ways.new.len(), ways.own.len()), (1, 1));
    }

    #[test]
    fn other_chains_than_the_networks_have_their_own_elements() {
        let first = lead("10.22.0.2", "10.22.0.0/16");
        let table = known(std::slice::from_ref(&first));
        let exempt = ExemptId::of(AddressFamily::V4, &["192.0.2.0/24".parse().unwrap()]);
        let chain =
            SharedChain::Masquerade { network: "10.22.0.0/16".parse().unwrap(), exempt: Some(exempt) };
        let other = Lead { address: "10.22.0.3".parse().unwrap(), chain, ..first };
        assert_eq!(own(table, &other), (0, 1));
        // If the network has no chain yet, this one becomes the network's chain.
        assert_eq!(own(NetworkChains::default(), &other), (1, 0));
    }

    #[test]
    fn a_network_of_one_container_has_no_element() {
        for network in ["10.22.0.2/32", "10.22.0.0/30"] {
            assert_eq!(own(NetworkChains::default(), &lead("10.22.0.2", network)), (0, 1), "{network}");
        }
        assert_eq!(own(NetworkChains::default(), &lead("10.22.0.2", "10.22.0.0/29")), (1, 0));
        let hairpin = |others: &[&str], bit| {
            let elsewhere: Vec<IpNet> = others.iter().map(|one| one.parse().unwrap()).collect();
            let chain = SharedChain::hairpin("10.22.0.2/16".parse().unwrap(), &elsewhere, bit);
            Lead { map: Map::Hairpin(AddressFamily::V4), address: "10.22.0.2".parse().unwrap(), chain }
        };
        assert_eq!(own(NetworkChains::default(), &hairpin(&[], 13)), (1, 0));
        assert_eq!(own(NetworkChains::default(), &hairpin(&[], 5)), (0, 1));
        assert_eq!(own(NetworkChains::default(), &hairpin(&["10.9.0.2/24"], 13)), (0, 1));
    }
}
