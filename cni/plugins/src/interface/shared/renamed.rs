// SPDX-License-Identifier: GPL-2.0-or-later

//! Networks that were renamed while containers were attached.
//!
//! What an attachment owns is found by a hash that includes the network's name. A DEL under the new name finds nothing
//! by that hash, so it removes what the same container owns for the same interface under another name:
//!
//! ```text
//! whose it is                             because
//! the owner in the alias of the link      the link is in the namespace of CNI_NETNS
//! a reservation of host-local, or a file  the table's map of owners records this namespace for it, or one that is gone; without
//! in the cache of the runtime             an entry there, the reservation or the cache does
//! ```

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use cni_dataplane::owner::Life;
use cni_dataplane::owner_search::{self, Standing};
use cni_dataplane::{ContainerNetns, Owner};
use cni_runtime::config::LoadError;
use cni_runtime::{Cache, cache, config};
use cni_spec::{Attachment, CniError, Draft, ErrorCode, NetConf, Purpose};

use super::container::Container;
use super::failed;
use super::failures::Failures;
use crate::ipam::host_local::other_networks::{self, Claim};
use crate::ipam::host_local::reservation_life::ReservationLife;
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

/// The longest time that an installer takes to write a file.
const WRITING: Duration = Duration::from_secs(60);

/// True if a runtime still has a network of that name, so that it was not renamed. A runtime also calls DEL after an
/// ADD that was refused because the interface belongs to another network.
///
/// A file that cannot be read may be that network's, and so may one that an installer is writing at this moment.
pub(crate) fn is_configured(network: &str) -> bool {
    match config::load_all(Path::new(config::DIRECTORY)) {
        Ok(files) => files.into_iter().any(|file| match file.network {
            Ok(one) => one.name() == network,
            Err(error) => {
                let may_be = may_be_a_network(&file.path, &error);
                if may_be {
                    log::warn!("{} may be the network {network}: {error}", file.path.display());
                }
                may_be
            }
        }),
        Err(error) => {
            log::warn!("whether {network} is configured is not known: {error}");
            true
        }
    }
}

/// True if a file that cannot be used may be a network's in a moment.
fn may_be_a_network(path: &Path, error: &LoadError) -> bool {
    match error {
        // The file is complete, and has another name or none.
        LoadError::Name { .. } => false,
        // The file was removed meanwhile, or is a link that leads nowhere.
        LoadError::Read { error, .. } if error.kind() == ErrorKind::NotFound => false,
        LoadError::Read { .. } => true,
        _ => {
            let changed = std::fs::metadata(path).and_then(|data| data.modified());
            // A time in the future is of a clock that was set back.
            !changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > WRITING))
        }
    }
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
    let known = known_elsewhere(request)?;
    if let Some(owner) = by_link {
        // The link has one owner, to which the reservations belong.
        let found = owner.attachment(known.iter().map(Attachment::network), own.container_id());
        if found.is_none() {
            log::debug!("{owner} is of another container, or its network's name is too long to be known");
        }
        return Ok(found
            .into_iter()
            .filter(|found| found.ifname() == own.ifname() && found != own)
            .collect());
    }
    if known.is_empty() {
        return Ok(Vec::new());
    }
    // If the container has a link of another kind, only an owner whose namespace is gone counts as ours.
    let netns = match has_link(request)? {
        true => None,
        false => request.netns.as_deref().and_then(|path| ContainerNetns::read(path).ok()),
    };
    let standings = owner_search::standings(&known, netns.as_ref())?;
    let is_proven = |one: &Attachment| match standings.iter().find(|(found, _)| found == one) {
        Some((_, standing)) => *standing != Standing::Elsewhere,
        None => {
            is_its_reservation(request.config, one, netns.as_ref()) || is_gone_by_cache(one, netns.as_ref())
        }
    };
    Ok(known.into_iter().filter(is_proven).collect())
}

/// The attachments of the container for the same interface that are named by host-local's reservations, or else by the
/// runtime's cache. Runtimes repeat DEL, and usually there are no such attachments, so the search must not read the
/// files of all containers on the node.
fn known_elsewhere(request: &Request<'_>) -> Result<Vec<Attachment>, CniError> {
    let own = &request.attachment;
    if request.config.ipam == other_networks::TYPE {
        return other_networks::with_reservations_of(request.config, own);
    }
    let mut known = Vec::new();
    for directory in cache::DIRECTORIES {
        let cached = Cache::open(Path::new(directory))
            .and_then(|cache| cache.map_or(Ok(Vec::new()), |cache| cache.of_container(own.container_id())));
        match cached {
            Ok(cached) => known.extend(cached.into_iter().map(|cached| cached.attachment)),
            // Repeated, the DEL finds the attachments.
            Err(error) if error.is_transient() => {
                return Err(CniError::new(ErrorCode::Io, error.to_string()));
            }
            Err(error) => log::debug!("{error}"),
        }
    }
    known.retain(|one| one.ifname() == own.ifname() && one != own);
    Ok(known)
}

/// True if the container has a link of the interface's name.
fn has_link(request: &Request<'_>) -> Result<bool, CniError> {
    let Some(container) = Container::open_if_there(request.netns.as_deref())? else { return Ok(false) };
    Ok(container.route.find_link(request.attachment.ifname()).map_err(failed)?.is_some())
}

/// True if the reservation of an attachment records a namespace that is gone, or the namespace in question.
fn is_its_reservation(config: &NetConf, attachment: &Attachment, netns: Option<&ContainerNetns>) -> bool {
    match other_networks::life_of(config, attachment) {
        Ok(ReservationLife::Gone) => true,
        Ok(ReservationLife::Living(recorded)) => netns.is_some_and(|netns| recorded.is_same(netns)),
        Ok(ReservationLife::Unreserved | ReservationLife::Unknown) => false,
        Err(error) => {
            log::debug!("reservations of {attachment}: {error}");
            false
        }
    }
}

/// True if a runtime's cache has the attachment with a namespace that is gone, or with the namespace in question. Like
/// `CNI_NETNS`, the cached path is valid in the runtime's mount namespace.
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

/// Claims addresses until the container's link is in place. Refuses those that an attachment to another network of the node
/// has on the same bridge: under one name of the network host-local never gives an address twice, but a renamed network
/// begins without reservations.
///
/// # Errors
/// Code 11 with the owner.
pub(crate) fn claim(
    config: &NetConf,
    addresses: &[IpAddr],
    is_port: impl Fn(&Attachment) -> Result<bool, CniError>,
) -> Result<Claim, CniError> {
    other_networks::claim(config, addresses, |address, holder| {
        if !is_port(holder)? {
            return Ok(());
        }
        let text = format!("container address {address} is taken by {holder}");
        Err(CniError::new(ErrorCode::TryAgainLater, text).with_details(Owner::of(holder).way_out()))
    })
}
