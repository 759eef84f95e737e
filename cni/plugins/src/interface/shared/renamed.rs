// SPDX-License-Identifier: GPL-2.0-or-later

//! Networks that were renamed while containers were attached.
//!
//! What an attachment owns is found by a hash that includes the network's name. DEL under the new name finds nothing by
//! it, and removes what the same container owns for the same interface under another name:
//!
//! ```text
//! whose it is                             because
//! the owner in the alias of the link      the link is in the namespace of CNI_NETNS
//! an entry in the table's map of owners   it records this namespace, or one that is gone
//! a reservation of host-local             the same, by its entry or by the cache of the runtime
//! ```

use std::path::Path;

use cni_dataplane::owner::Life;
use cni_dataplane::owner_search::{self, Standing};
use cni_dataplane::{ContainerNetns, Owner};
use cni_runtime::{Cache, cache, config};
use cni_spec::{Attachment, CniError, Draft, ErrorCode, NetConf, Purpose};

use super::container::Container;
use super::failed;
use super::failures::Failures;
use crate::ipam::host_local::other_networks;
use crate::plugin::Request;

/// The chained plugins that own something outside of the container's namespace, in the order of their DELs.
const CHAINED: [&str; 4] = ["tuning", "bandwidth", "firewall", "portmap"];

/// Removes what the request's container owns under other names of the network. `by_link` is the owner of the link that
/// was found in the container; `remove` is the DEL of the interface plugin.
///
/// # Errors
/// The steps that failed; all others were done.
pub(crate) fn del(
    request: &Request<'_>,
    by_link: Option<&Owner>,
    remove: &dyn Fn(&Request<'_>) -> Result<(), CniError>,
) -> Result<(), CniError> {
    let mut failures = Failures::default();
    for old in others(request, by_link)? {
        if is_configured(old.network()) {
            log::info!("{old} is left alone: its network exists beside {}", request.attachment.network());
            continue;
        }
        log::info!("removing what {old} owns: its network is called {} now", request.attachment.network());
        failures.collect(del_as(request, old, remove));
    }
    failures.into_result()
}

/// True if a runtime still has a network of that name: it was not renamed. A runtime calls DEL also after an ADD that was
/// refused because the interface is another network's.
fn is_configured(network: &str) -> bool {
    let files = config::load_all(Path::new(config::DIRECTORY)).unwrap_or_default();
    files.iter().any(|file| file.network.as_ref().is_ok_and(|one| one.name() == network))
}

/// DEL of everything that an attachment under another name of the network owns.
pub(crate) fn del_as(
    request: &Request<'_>,
    old: Attachment,
    remove: &dyn Fn(&Request<'_>) -> Result<(), CniError>,
) -> Result<(), CniError> {
    let config = renamed(request.config, old.network())?;
    let netns = request.netns.clone();
    let request = Request { attachment: old, netns, args: request.args, config: &config, env: request.env };
    let mut failures = Failures::default();
    for plugin in request.env.plugins.iter().filter(|plugin| CHAINED.contains(&plugin.name())) {
        failures.collect(plugin.del(&request));
    }
    failures.collect(remove(&request));
    failures.into_result()
}

/// The configuration under another name.
fn renamed(config: &NetConf, name: &str) -> Result<NetConf, CniError> {
    let mut raw = config.raw.clone();
    raw.retain(|key, _| !key.eq_ignore_ascii_case("name"));
    raw.insert("name".to_owned(), name.into());
    let bytes = serde_json::to_vec(&raw).map_err(|error| CniError::internal(error.to_string()))?;
    Draft::parse(bytes)?.finish(config.version, Purpose::Removal)
}

/// The attachments of the container under other names of the network.
fn others(request: &Request<'_>, by_link: Option<&Owner>) -> Result<Vec<Attachment>, CniError> {
    let own = &request.attachment;
    let reserved = other_networks::with_reservations_of(request.config, own)?;
    let attachment = |owner: &Owner| {
        let found = owner.attachment(reserved.iter().map(Attachment::network), own.container_id());
        if found.is_none() {
            log::debug!("{owner} is of another container, or its network's name is too long to be known");
        }
        found
    };
    if let Some(owner) = by_link {
        // The link has a single owner, who also owns the reservations.
        let of_link = attachment(owner).filter(|found| found.ifname() == own.ifname() && found != own);
        return Ok(of_link.into_iter().collect());
    }
    // If the container has a link of another kind, only an owner whose namespace is gone counts as ours.
    let netns = match has_link(request)? {
        true => None,
        false => request.netns.as_deref().and_then(|path| ContainerNetns::read(path).ok()),
    };
    let mut proven = Vec::new();
    let mut alive = Vec::new();
    for (owner, standing) in owner_search::of_other_networks(own, netns.as_ref())? {
        let found = attachment(&owner);
        if standing == Standing::Elsewhere { alive.extend(found) } else { proven.extend(found) }
    }
    for other in reserved {
        if !proven.contains(&other) && !alive.contains(&other) && is_gone_by_cache(&other, netns.as_ref()) {
            proven.push(other);
        }
    }
    Ok(proven)
}

/// True if the container has a link of the interface's name.
fn has_link(request: &Request<'_>) -> Result<bool, CniError> {
    let Some(container) = Container::open_if_there(request.netns.as_deref())? else { return Ok(false) };
    Ok(container.route.find_link(request.attachment.ifname()).map_err(failed)?.is_some())
}

/// True if a runtime's cache has the attachment with a namespace that is gone, or with the namespace in question. The
/// cached path is one of the runtime's mount namespace, as `CNI_NETNS` is.
fn is_gone_by_cache(attachment: &Attachment, netns: Option<&ContainerNetns>) -> bool {
    let cached = cache::DIRECTORIES.iter().find_map(|directory| {
        let cache = Cache::open(Path::new(directory)).ok().flatten()?;
        cache.get(attachment).ok().flatten()
    });
    let Some(path) = cached.and_then(|cached| cached.netns) else { return false };
    if netns.is_some_and(|netns| netns.path == path) {
        return true;
    }
    // Without an identity, only a missing path shows that the namespace is gone.
    let recorded = ContainerNetns { path, ..ContainerNetns::unknown() };
    !recorded.path.exists() && recorded.life() == Life::Dead
}

/// Refuses an address that an attachment to another network of the node has on the same bridge. Under one name of the
/// network host-local never gives an address twice; a renamed network begins with none.
///
/// # Errors
/// Code 11 with the owner.
pub(crate) fn refuse_taken(
    config: &NetConf,
    addresses: impl Iterator<Item = std::net::IpAddr>,
    is_port: impl Fn(&Attachment) -> Result<bool, CniError>,
) -> Result<(), CniError> {
    for address in addresses {
        for holder in other_networks::holders(config, address)? {
            if is_port(&holder)? {
                let text = format!("container address {address} is taken by {holder}");
                let way_out = Owner::of(&holder).way_out();
                return Err(CniError::new(ErrorCode::TryAgainLater, text).with_details(way_out));
            }
        }
    }
    Ok(())
}
