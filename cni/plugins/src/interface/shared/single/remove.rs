// SPDX-License-Identifier: GPL-2.0-or-later

//! DEL and GC of the plugins that make a single link. They do not depend on the current configuration.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cni_dataplane::owner::{AttachmentHash, NetworkHash, Owner};
use cni_kernel::netns::{Netns, NetnsError};
use cni_kernel::route::{Link, LinkKind, RouteSocket};
use cni_spec::{Attachment, CniError};

use super::temporary_name;
use crate::interface::shared::container::Container;
use crate::interface::shared::failed;
use crate::interface::shared::failures::Failures;
use crate::interface::shared::networks;
use crate::interface::shared::remove::{Seen, del_under_all_names, delete, with_ipam};
use crate::plugin::{NodeRequest, Request};
use crate::skel::delegate;

/// The folder of ip-netns(8) and the runtimes for the containers' namespaces.
const NAMESPACES: &str = "/run/netns";

/// Removes the link, then releases the addresses: an address must lead nowhere when IPAM frees it. A failed
/// step does not stop the others.
///
/// `is_kind` is true for the plugin's kind of links, to recognise those of another plugin set, which have no
/// alias.
///
/// # Errors
/// The steps that failed; all others were done.
pub(crate) fn del(request: &Request<'_>, is_kind: impl Fn(&LinkKind) -> bool) -> Result<(), CniError> {
    del_under_all_names(request, &|request, failures| {
        let mut seen = Seen::Nothing;
        failures.collect(delete_links(request, &is_kind, &mut seen));
        seen
    })
}

fn delete_links(
    request: &Request<'_>,
    is_kind: &dyn Fn(&LinkKind) -> bool,
    seen: &mut Seen,
) -> Result<(), CniError> {
    let Some(container) = Container::open_if_there(request.netns.as_deref())? else { return Ok(()) };
    let attachment = &request.attachment;
    let mut failures = Failures::default();
    let of_the_name = container.route.find_link(attachment.ifname()).map_err(failed)?;
    // An ADD that was killed leaves a link with a temporary name.
    let unfinished = container.route.find_link(&temporary_name(attachment)).map_err(failed)?;
    let ours = of_the_name.filter(|link| match owner(link) {
        Some(owner) if owner.attachment_hash == AttachmentHash::of(attachment) => true,
        Some(owner) => {
            *seen = Seen::Other(owner);
            false
        }
        None => is_kind(&link.kind),
    });
    if ours.is_some() || unfinished.is_some() {
        *seen = Seen::Own;
    }
    for link in ours.iter().chain(&unfinished) {
        failures.collect(delete(&container.route, link));
    }
    networks::left(&container, attachment);
    failures.into_result()
}

fn owner(link: &Link) -> Option<Owner> {
    Owner::from_comment(&link.alias)
}

/// Removes the links of attachments of the network that are not valid from all named namespaces, and calls
/// IPAM. A link in an unnamed namespace goes with it.
///
/// # Errors
/// The steps that failed; all others were done.
pub(crate) fn gc(request: &NodeRequest<'_>) -> Result<(), CniError> {
    // Without a list, nothing may be removed.
    let Some(valid) = &request.config.valid_attachments else { return Ok(()) };
    with_ipam(request.config, &|| delegate::ipam_gc(request), |failures| {
        failures.collect(delete_dead_links(&request.config.name, valid));
    })
}

fn delete_dead_links(network: &str, valid: &[Attachment]) -> Result<(), CniError> {
    let network = NetworkHash::of(network);
    let valid: BTreeSet<AttachmentHash> = valid.iter().map(AttachmentHash::of).collect();
    let is_dead = |link: &Link| {
        is_single(&link.kind)
            && owner(link)
                .is_some_and(|owner| owner.network_hash == network && !valid.contains(&owner.attachment_hash))
    };
    let mut failures = Failures::default();
    let own = Netns::current().map_err(failed)?.id();
    for path in named_namespaces()? {
        let netns = match Netns::open(&path) {
            Ok(netns) if netns.id() != own => netns,
            Ok(_) => continue,
            Err(error @ NetnsError::Open { .. }) if error.is_transient() => {
                failures.collect(Err(failed(error)));
                continue;
            }
            // The namespace is being removed, or the file is not a namespace.
            Err(error) => {
                log::debug!("search for dead links: {error}");
                continue;
            }
        };
        let links = RouteSocket::open_in(&netns).and_then(|route| Ok((route.links()?, route)));
        match links {
            Ok((links, route)) => {
                links
                    .iter()
                    .filter(|link| is_dead(link))
                    .for_each(|link| failures.collect(delete(&route, link)));
            }
            Err(error) if error.is_transient() => failures.collect(Err(failed(error))),
            // In a user namespace, the node's namespaces cannot be entered, and have none of our links.
            Err(error) => log::debug!("search for dead links: {error}"),
        }
    }
    failures.into_result()
}

/// True for the kinds of links that these plugins make.
fn is_single(kind: &LinkKind) -> bool {
    matches!(
        kind,
        LinkKind::Macvlan(_) | LinkKind::Ipvlan(_) | LinkKind::Vlan(_) | LinkKind::Dummy | LinkKind::Tun
    )
}

fn named_namespaces() -> Result<Vec<PathBuf>, CniError> {
    match std::fs::read_dir(NAMESPACES) {
        Ok(entries) => {
            entries.map(|entry| entry.map(|entry| entry.path()).map_err(|error| unlisted(&error))).collect()
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(unlisted(&error)),
    }
}

fn unlisted(error: &std::io::Error) -> CniError {
    CniError::internal(format!("list {NAMESPACES}: {error}"))
}
