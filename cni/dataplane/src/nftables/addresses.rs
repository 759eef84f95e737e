// SPDX-License-Identifier: GPL-2.0-or-later

//! Keeps the node's own addresses in the table, on nodes where other addresses are local, too (see
//! `schema::addresses`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_kernel::route::RouteSocket;
use cni_nftables::{Element, ElementId, Transaction, Value};

use super::schema::addresses::name;
use super::schema::{self, Layout, SharedChain};
use super::session::Session;
use super::state::State;
use crate::owned_table::{unchanged, unless_no_nf_tables};
use crate::{AddressFamily, Error, service_links};

fn element(address: IpAddr) -> ElementId {
    ElementId::new(&schema::table(), name(AddressFamily::of(address)), vec![Value::address(address)])
}

/// Adds the new addresses to the sets, and deletes the old ones.
fn exchange<'a>(
    batch: &mut Transaction,
    new: impl Iterator<Item = &'a IpAddr>,
    old: impl Iterator<Item = &'a IpAddr>,
) {
    for address in old {
        batch.delete_element(element(*address));
    }
    for address in new {
        batch.add_element(Element::new(element(*address)));
    }
}

/// Builds the whole table, including the node's own addresses if other addresses are local, too.
pub(crate) fn bootstrap() -> Result<Transaction, Error> {
    let own = own()?;
    let mut batch = schema::bootstrap(Layout { addresses: own.is_some(), ..Layout::PLAIN });
    exchange(&mut batch, own.iter().flatten(), [].iter());
    Ok(batch)
}

/// Reads the node's own addresses. None means that every local address counts.
fn own() -> Result<Option<BTreeSet<IpAddr>>, Error> {
    service_links::other_addresses().map_err(|e| Error::kernel("list the node's own addresses", e))
}

/// Reads the addresses from the table. None means that every local address counts.
pub(crate) fn recorded(session: &Session) -> Result<Option<BTreeSet<IpAddr>>, Error> {
    if session.chain(name(AddressFamily::V4))?.is_none() {
        return Ok(None);
    }
    let mut addresses = BTreeSet::new();
    for family in AddressFamily::BOTH {
        let found = match session.socket.elements(&session.table, name(family)) {
            Err(error) if error.is_not_found() => continue,
            found => found.map_err(|e| Error::kernel(format!("list set {}", name(family)), e))?,
        };
        let address = |key: &[Value]| super::plan::as_address(key.first()?);
        addresses.extend(found.iter().filter_map(|element| address(&element.key)));
    }
    Ok(Some(addresses))
}

/// Updates the addresses in the table: the node's own addresses if other addresses are local as well, or otherwise
/// none, so that every local address counts. A table that is missing or damaged is left alone, because the process
/// that makes it calls this function afterwards.
pub(crate) fn settle(session: &Session) -> Result<(), Error> {
    session.transact("record the node's own addresses", |_| {
        let (wanted, found) = (own()?, recorded(session)?);
        if wanted == found || !matches!(session.state()?, State::Ready) {
            return unchanged(());
        }
        let change = Change { found: found.as_ref(), wanted: wanted.as_ref() };
        Ok((change.batch(&session.shared_chains()?, session.layout()?), ()))
    })
}

/// The present and the wanted addresses of the table, where none means that every local address counts.
struct Change<'a> {
    found: Option<&'a BTreeSet<IpAddr>>,
    wanted: Option<&'a BTreeSet<IpAddr>>,
}

impl Change<'_> {
    fn batch(&self, shared: &[SharedChain], layout: Layout) -> Transaction {
        let (none, table) = (BTreeSet::new(), schema::table());
        let mut batch = Transaction::new();
        if let Some(wanted) = self.wanted {
            if self.found.is_none() {
                batch.append(schema::repair(shared, Layout { addresses: true, ..layout }));
            }
            let found = self.found.unwrap_or(&none);
            exchange(&mut batch, wanted.difference(found), found.difference(wanted));
        } else {
            batch.append(schema::repair(shared, Layout { addresses: false, ..layout }));
            for name in AddressFamily::BOTH.map(name) {
                batch.flush_chain(&table, name).delete_chain(&table, name).delete_set(&table, name);
            }
        }
        batch
    }
}

/// Calls [`settle`], and only logs its error, because ports that were already published stay published.
pub(crate) fn settle_or_warn(session: &Session) {
    if let Err(error) = settle(session) {
        log::warn!("published ports may respond at other addresses than the node's own: {error}");
    }
}

/// The names of this node's links to which the addresses of Services are assigned.
pub fn links_of_services() -> Result<Vec<String>, Error> {
    let found = RouteSocket::open().and_then(|socket| service_links::present(&socket));
    let found = found.map_err(|e| Error::kernel("look for links that hold the addresses of Services", e))?;
    Ok(found.into_iter().map(|link| link.name).collect())
}

/// At which of the node's addresses published ports respond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnsweringAddresses {
    /// At every local address, because the node has no link with the addresses of Services.
    Everywhere,
    /// At the loopback addresses, and at this many addresses in the table.
    At(usize),
    /// At the addresses in the table, which are no longer the node's. The next ADD or STATUS updates them.
    Outdated,
}

/// Compares the node's addresses with those in the table.
pub fn answering() -> Result<AnsweringAddresses, Error> {
    let wanted = own()?;
    let found = unless_no_nf_tables(Session::open().and_then(|session| {
        let there = matches!(session.state()?, State::Ready);
        Ok(if there { Some(recorded(&session)?) } else { None })
    }))?;
    Ok(match (wanted, found) {
        // If the table is missing, it will be made with the right addresses.
        (None, None | Some(None)) => AnsweringAddresses::Everywhere,
        (Some(wanted), None) => AnsweringAddresses::At(wanted.len()),
        (Some(wanted), Some(Some(found))) if wanted == found => AnsweringAddresses::At(wanted.len()),
        _ => AnsweringAddresses::Outdated,
    })
}

/// True if a port that is published on all of the node's addresses responds at this local address.
pub fn answers_at(address: IpAddr) -> Result<bool, Error> {
    let recorded = unless_no_nf_tables(Session::open().and_then(|session| recorded(&session)))?;
    Ok(address.is_loopback() || recorded.is_none_or(|own| own.contains(&address)))
}
