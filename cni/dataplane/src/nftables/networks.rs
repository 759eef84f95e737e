// SPDX-License-Identifier: GPL-2.0-or-later

//! Makes the published addresses of a container lead to chains that know its other networks (see `crate::networks`).
//!
//! An element keeps its owner, so a DEL of the published network still removes it. A DEL of another network makes it
//! lead to its former chain again.

use cni_nftables::{Element, Transaction, Value, Verdict};
use ipnet::IpNet;

use super::network_chains::{self, Ways};
use super::plan::Lead;
use super::schema::{self, Map, SharedChain};
use super::session::{OwnedElement, Session, element_id};
use super::state::State;
use crate::networks::ContainerNetworks;
use crate::{AddressFamily, ContainerNetns, Error};

/// Makes the published addresses lead to chains that know these networks.
pub(crate) fn set(session: &Session, container: &ContainerNetworks) -> Result<(), Error> {
    if !matches!(session.state()?, State::Ready) {
        return Ok(());
    }
    let operation = format!("set the networks of container {}", container.container_id);
    for (link, network) in &container.addresses {
        let elsewhere = container.elsewhere(*link);
        // The chain is committed before the element, as in an ADD.
        session.transact(&operation, |_| {
            let mut batch = Transaction::new();
            if let Some((_, lead)) = change(session, container, (network, &elsewhere))? {
                Ways::decide(session, &[lead])?.add_missing(session, &mut batch)?;
            }
            Ok((batch, ()))
        })?;
        session.transact(&operation, |_| {
            let mut batch = Transaction::new();
            if let Some((held, lead)) = change(session, container, (network, &elsewhere))? {
                if let Some(own) = session.get(lead.map, &held.key)? {
                    batch.delete_element(own.id());
                }
                let leads = [lead];
                let ways = Ways::decide(session, &leads)?;
                ways.add_missing(session, &mut batch)?;
                for item in ways.own_items() {
                    let element = Element::new(element_id(item.map, &item.key, None));
                    batch.add_element(
                        held.owned_by_the_same(element.verdict(Verdict::Goto(leads[0].chain.name()))),
                    );
                }
            }
            Ok((batch, ()))
        })?;
    }
    Ok(())
}

/// The element of a published address and where it has to lead, or none if there is nothing to change. With `snat:
/// false` or `masqAll`, the masqueraded sources do not depend on the networks.
fn change(
    session: &Session,
    container: &ContainerNetworks,
    (network, elsewhere): (&IpNet, &[IpNet]),
) -> Result<Option<(OwnedElement, Lead)>, Error> {
    let (address, family) = (network.addr(), AddressFamily::of(network.addr()));
    let Some(held) = session.get(Map::Published(family), &[Value::address(address)])? else {
        return Ok(None);
    };
    let map = Map::Hairpin(family);
    let found = network_chains::chain_of(session, map, address)?;
    let Some(SharedChain::Hairpin { network: own, bit, .. }) = found else { return Ok(None) };
    let chain = SharedChain::hairpin(own, elsewhere, bit);
    if found.as_ref() == Some(&chain) || !is_of(session, &held, container)? {
        return Ok(None);
    }
    Ok(Some((held, Lead { map, address, chain })))
}

/// False if the element's owner lives in another namespace, because then this container only has the same address,
/// and the node does not know it.
fn is_of(session: &Session, held: &OwnedElement, container: &ContainerNetworks) -> Result<bool, Error> {
    let Some(owner) = &held.owner else { return Ok(true) };
    let entry = session.entry(owner.attachment_hash, schema::KIND_PORTS)?;
    let place = |netns: &ContainerNetns| (netns.dev, netns.ino);
    Ok(entry
        .and_then(|entry| entry.record)
        .is_none_or(|record| place(&record.netns) == place(&container.netns)))
}
