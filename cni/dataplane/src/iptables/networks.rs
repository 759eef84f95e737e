// SPDX-License-Identifier: GPL-2.0-or-later

//! Marks packets from a container's other networks on their way to its published ports (see `crate::networks`). The
//! rules have the same form as those that the reference plugin makes for the container's own network.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::batch::Batch;
use super::detect;
use super::listing::Listing;
use super::names::{self, CommentOwner, TableName};
use super::publish::set_rules;
use super::rule::Rule;
use super::tools::Tools;
use crate::Error;
use crate::networks::ContainerNetworks;
use crate::nftables::schema::other_networks;

/// Adapts the chains of the container's ports to these networks. Runs no program if there are no such chains.
pub(crate) fn set(container: &ContainerNetworks) -> Result<(), Error> {
    let operation = format!("set the networks of container {}", container.container_id);
    for place in detect::places_with_ports()? {
        // Most additional interfaces belong to containers without ports, and running a tool would take milliseconds.
        if !detect::has_rule(place, TableName::Nat, names::HOSTPORT_DNAT, &[begin(&container.container_id)])?
        {
            continue;
        }
        let tools = Tools::nat(place);
        let chains = chains_of(&tools.read(&[names::HOSTPORT_DNAT])?, container);
        if chains.is_empty() {
            continue;
        }
        let chains: Vec<&str> = chains.iter().map(String::as_str).collect();
        tools.update(&operation, &chains, None, |listing| {
            let mut batch = Batch::new(TableName::Nat);
            for chain in chains.iter().filter(|chain| listing.has(chain)) {
                set_rules(&mut batch, listing, chain, &with_networks(listing.rules(chain), container));
            }
            batch
        })?;
    }
    Ok(())
}

/// The part of a container's ID that appears in the comments of its rules, however long the network's name is.
fn begin(id: &str) -> Vec<u8> {
    id.bytes().take(8).collect()
}

/// The chains of the container's ports, whatever their network.
fn chains_of(listing: &Listing, container: &ContainerNetworks) -> Vec<String> {
    let id = &container.container_id;
    let is_of = |owner: &CommentOwner| match owner.cut {
        true => id.starts_with(&owner.container_id),
        false => *id == owner.container_id,
    };
    let entries = listing.rules(names::HOSTPORT_DNAT).iter();
    let own = entries.filter(|rule| rule.owner().as_ref().is_some_and(is_of));
    let mut chains: Vec<String> = own.filter_map(|rule| rule.target().map(str::to_owned)).collect();
    chains.sort_unstable();
    chains.dedup();
    chains
}

/// The rules of a chain, with the rules that mark packets from other networks adapted to these networks. The marking
/// rules come before each translation, and the one for the published network is the pattern for the others.
pub(super) fn with_networks(rules: &[Rule], container: &ContainerNetworks) -> Vec<Rule> {
    let mut all = Vec::new();
    for group in rules.split_inclusive(|rule| rule.translation().is_some()) {
        let Some((translation, marking)) = group.split_last() else { continue };
        let to = translation.translation().map(|to| to.ip());
        let Some((link, network)) = container.addresses.iter().find(|(_, net)| Some(net.addr()) == to) else {
            all.extend_from_slice(group);
            continue;
        };
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        // Another network may contain the container's own network, but cannot be inside it, so the narrowest one is
        // the container's own.
        let containing = |rule: &Rule| rule.source().filter(|source| source.contains(&network.addr()));
        let narrowest = marking.iter().filter_map(containing).max_by_key(IpNet::prefix_len);
        let is_own = |rule: &&Rule| narrowest.is_some() && rule.source() == narrowest;
        let is_kept =
            |rule: &&Rule| is_own(rule) || rule.source().is_none_or(|source| source.addr() == localhost);
        all.extend(marking.iter().filter(is_kept).cloned());
        if let Some(pattern) = marking.iter().find(is_own) {
            let others = other_networks(network, &container.elsewhere(*link));
            all.extend(others.into_iter().map(|other| pattern.clone().with_source_instead(other)));
        }
        all.push(translation.clone());
    }
    all
}
