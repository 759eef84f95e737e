// SPDX-License-Identifier: GPL-2.0-or-later

//! Leads the published addresses of a container to chains that know its other networks: see `crate::networks`.
//!
//! An element keeps its owner, so a DEL of the published network removes it as before, and a DEL of another network
//! makes it lead to its former chain again.

use cni_nftables::{Element, Transaction, Value, Verdict};
use ipnet::IpNet;

use super::schema::{self, Map, SharedChain};
use super::session::{OwnedElement, Session, State};
use crate::networks::ContainerNetworks;
use crate::{AddressFamily, ContainerNetns, Error};

/// Makes the elements of the published addresses match these networks.
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
            if let Some((_, chain)) = change(session, container, (network, &elsewhere))?
                && session.chain(&chain.name())?.is_none()
            {
                schema::add_shared(&mut batch, &chain, session.layout()?);
            }
            Ok((batch, ()))
        })?;
        session.transact(&operation, |_| {
            let mut batch = Transaction::new();
            if let Some((held, chain)) = change(session, container, (network, &elsewhere))? {
                batch.delete_element(held.id());
                let element = Element::new(held.id()).verdict(Verdict::Jump(chain.name()));
                batch.add_element(match &held.owner {
                    Some(owner) => element.comment(&owner.to_comment()),
                    None => element,
                });
            }
            Ok((batch, ()))
        })?;
    }
    Ok(())
}

/// The element of a published address, and the chain that it is to lead to; none if there is nothing to change. With
/// `snat: false` or `masqAll` the sources do not depend on the networks.
fn change(
    session: &Session,
    container: &ContainerNetworks,
    (network, elsewhere): (&IpNet, &[IpNet]),
) -> Result<Option<(OwnedElement, SharedChain)>, Error> {
    let map = Map::Hairpin(AddressFamily::of(network.addr()));
    let Some(held) = session.get(map, &[Value::address(network.addr())])? else { return Ok(None) };
    let Some(SharedChain::Hairpin { network: own, bit, .. }) = held.shared_chain() else { return Ok(None) };
    let wanted = SharedChain::hairpin(own, elsewhere, bit);
    if held.shared_chain().as_ref() == Some(&wanted) || !is_of(session, &held, container)? {
        return Ok(None);
    }
    Ok(Some((held, wanted)))
}

/// False if the element's owner lives in another namespace: the container has an equal address that the node does not know.
fn is_of(session: &Session, held: &OwnedElement, container: &ContainerNetworks) -> Result<bool, Error> {
    let Some(owner) = &held.owner else { return Ok(true) };
    let entry = session.entry(owner.attachment_hash, schema::KIND_PORTS)?;
    let place = |netns: &ContainerNetns| (netns.dev, netns.ino);
    Ok(entry
        .and_then(|entry| entry.record)
        .is_none_or(|record| place(&record.netns) == place(&container.netns)))
}
