// SPDX-License-Identifier: GPL-2.0-or-later

//! How the address of a container leads to a shared chain.
//!
//! The usual way is by its network: the map of networks has one element that leads the containers of a network to
//! their chain, and an ADD makes nothing that leads anywhere. An address has an element of its own if it needs another
//! chain (`masqAll`, several networks, another list of `nonMasqueradeCIDRs` than the containers before it), and if its
//! network overlaps with another one: a map of intervals can have only one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_nftables::{Element, ElementId, Transaction, Value, Verdict};
use ipnet::IpNet;

use super::exempt;
use super::plan::{Item, Lead};
use super::schema::{self, Layout, Map, SharedChain};
use super::session::{OwnedElement, Session, element_id};
use crate::Error;

/// A network whose containers lead to this chain.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NetworkChain {
    map: Map,
    first: IpAddr,
    last: IpAddr,
    /// None for a chain that Slipway does not know.
    chain: Option<SharedChain>,
}

impl NetworkChain {
    /// Reads an element. A dump has only the first address of an interval, and the chain tells the last one.
    fn new(held: &OwnedElement) -> Option<Self> {
        let first = held.address()?;
        let chain = held.shared_chain();
        let network = chain.as_ref().and_then(SharedChain::of_network);
        let last = network.filter(|network| network.network() == first).map(|network| network.broadcast());
        Some(Self { map: held.map, first, last: last.unwrap_or(first), chain })
    }

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

/// The maps of networks.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetworkChains(Vec<NetworkChain>);

impl NetworkChains {
    /// Reads these maps; an earlier schema has none.
    pub(crate) fn read(session: &Session, maps: impl IntoIterator<Item = Map>) -> Result<Self, Error> {
        let held = session.dump(maps, |_| true)?;
        Ok(Self(held.iter().filter_map(NetworkChain::new).collect()))
    }

    fn around(&self, map: Map, address: IpAddr) -> Option<&NetworkChain> {
        self.0.iter().find(|one| one.map == map && one.contains(address))
    }

    /// True if the network's element leads exactly there.
    fn lead(&self, lead: &Lead) -> bool {
        let wanted = lead.map.networks().zip(lead.chain.of_network());
        wanted.is_some_and(|(map, network)| self.0.contains(&NetworkChain::of(map, &network, &lead.chain)))
    }
}

/// The way of each address of a plan.
#[derive(Debug, Default)]
pub(crate) struct Ways<'a> {
    leads: &'a [Lead],
    /// The networks that get an element.
    new: Vec<NetworkChain>,
    /// The addresses with an element of their own.
    own: Vec<&'a Lead>,
}

impl<'a> Ways<'a> {
    /// Decides from what the table has.
    pub(crate) fn decide(session: &Session, leads: &'a [Lead]) -> Result<Self, Error> {
        let maps: BTreeSet<Map> = leads.iter().filter_map(|lead| lead.map.networks()).collect();
        Ok(Self::given(NetworkChains::read(session, maps)?, leads))
    }

    fn given(mut known: NetworkChains, leads: &'a [Lead]) -> Self {
        let (mut new, mut own) = (Vec::new(), Vec::new());
        for lead in leads {
            if known.lead(lead) {
                continue;
            }
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
        Self { leads, new, own }
    }

    /// The elements of addresses that have their own.
    pub(crate) fn own_items(&self) -> impl Iterator<Item = Item> {
        self.own.iter().map(|lead| lead.own_item())
    }

    /// Adds the chains and the elements of networks that are missing.
    pub(crate) fn add_missing(
        &self,
        session: &Session,
        batch: &mut Transaction,
        layout: Layout,
    ) -> Result<(), Error> {
        let chains: BTreeSet<&SharedChain> = self.leads.iter().map(|lead| &lead.chain).collect();
        for chain in chains {
            if session.chain(&chain.name())?.is_none() {
                schema::add_shared(batch, chain, layout);
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

    /// True if the networks of the table still lead the addresses without an element of their own to their chains. The
    /// garbage collection removes a network's element if it finds none of its containers, and ignores containers that
    /// are added after it.
    pub(crate) fn hold(&self, session: &Session) -> Result<bool, Error> {
        let by_network = |lead: &&Lead| !self.own.contains(lead);
        let maps: BTreeSet<Map> =
            self.leads.iter().filter(by_network).filter_map(|lead| lead.map.networks()).collect();
        let known = NetworkChains::read(session, maps)?;
        Ok(self.leads.iter().filter(by_network).all(|lead| known.lead(lead)))
    }
}

/// The chain that an address leads to; `map` is [`Map::Hairpin`] or [`Map::Masquerade`]. Its set must have the address.
pub(crate) fn chain_of(session: &Session, map: Map, address: IpAddr) -> Result<Option<SharedChain>, Error> {
    for map in [Some(map), map.networks()].into_iter().flatten() {
        if let Some(held) = session.get(map, &[Value::address(address)])? {
            return Ok(held.shared_chain());
        }
    }
    Ok(None)
}

/// The chains of all addresses.
#[derive(Debug)]
pub(crate) struct AllChains {
    own: BTreeMap<(Map, IpAddr), Option<SharedChain>>,
    networks: NetworkChains,
}

impl AllChains {
    pub(crate) fn read(session: &Session) -> Result<Self, Error> {
        let own = session.dump(of_addresses(), |_| true)?;
        let own = own.iter().filter_map(|held| Some(((held.map, held.address()?), held.shared_chain())));
        let own = own.collect();
        Ok(Self { own, networks: NetworkChains::read(session, Map::of_networks())? })
    }

    /// The chain that an address leads to; `map` is [`Map::Hairpin`] or [`Map::Masquerade`].
    pub(crate) fn of(&self, map: Map, address: IpAddr) -> Option<SharedChain> {
        match self.own.get(&(map, address)) {
            Some(chain) => chain.clone(),
            None => self.networks.around(map.networks()?, address)?.chain.clone(),
        }
    }
}

/// The maps with the chains of single addresses.
fn of_addresses() -> impl Iterator<Item = Map> {
    Map::all().filter(|map| map.networks().is_some())
}

/// Builds the step from the schemas 1 and 2, in which each address had an element of its own and the sets and networks
/// were missing.
pub(crate) fn upgrade(session: &Session, batch: &mut Transaction) -> Result<(), Error> {
    for map in of_addresses() {
        let Some(set) = map.addresses() else { continue };
        let lead = |held: OwnedElement| {
            Some((Lead { map, address: held.address()?, chain: held.shared_chain()? }, held))
        };
        let (leads, held): (Vec<Lead>, Vec<OwnedElement>) =
            session.dump([map], |_| true)?.into_iter().filter_map(lead).unzip();
        let ways = Ways::given(NetworkChains::default(), &leads);
        ways.add_networks(batch);
        for held in &held {
            batch.add_element(held.owned_by_the_same(Element::new(element_id(set, &held.key, None))));
            // An address's own element jumped to its chain, and now the way ends there.
            batch.delete_element(held.id());
        }
        let own: BTreeSet<IpAddr> = ways.own.iter().map(|lead| lead.address).collect();
        for (lead, held) in leads.iter().zip(&held).filter(|(lead, _)| own.contains(&lead.address)) {
            let element = Element::new(held.id()).verdict(Verdict::Goto(lead.chain.name()));
            batch.add_element(held.owned_by_the_same(element));
        }
    }
    Ok(())
}

/// True if a container leads to the network's chain.
fn has_container(session: &Session, network: &NetworkChain, all: &AllChains) -> Result<bool, Error> {
    let Some(map) = of_addresses().find(|map| map.networks() == Some(network.map)) else { return Ok(false) };
    let leads_there = |held: &OwnedElement| {
        held.address()
            .is_some_and(|address| network.contains(address) && !all.own.contains_key(&(map, address)))
    };
    Ok(!session.dump(map.addresses(), leads_there)?.is_empty())
}

/// Builds the removal of shared chains to which no address leads, and of the sets that only these use.
pub(crate) fn remove_unused(session: &Session) -> Result<Transaction, Error> {
    let all = AllChains::read(session)?;
    let mut batch = Transaction::new();
    let mut used = BTreeSet::new();
    for found in session.chains()? {
        let Some(chain) = SharedChain::from_name(&found.name) else { continue };
        let of_chain: Vec<_> =
            all.networks.0.iter().filter(|network| network.chain.as_ref() == Some(&chain)).collect();
        // The kernel counts the chain's rules, and the elements that lead to it.
        let least = chain.rules(Layout::PLAIN).len() + of_chain.len();
        let mut is_used = usize::try_from(found.uses).is_ok_and(|uses| uses > least);
        for network in &of_chain {
            is_used = is_used || has_container(session, network, &all)?;
        }
        if is_used {
            used.insert(chain);
            continue;
        }
        for network in of_chain {
            batch.delete_element(network.id());
        }
        batch.flush_chain(&session.table, &found.name).delete_chain(&session.table, &found.name);
    }
    exempt::delete_unused(session, &mut batch, &used)?;
    Ok(batch)
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
        // Also within one plan.
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
        // Alone, it makes the network's chain.
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
