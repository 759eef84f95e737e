// SPDX-License-Identifier: GPL-2.0-or-later

//! DEL and GC of all plugins with a veth pair. They do not depend on the current configuration.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_dataplane::owner::{AttachmentHash, NetworkHash, Owner};
use cni_dataplane::{Backend, Dataplane, Kinds, Withdrawal, macspoof};
use cni_kernel::route::{Link, LinkKind, RouteSocket};
use cni_spec::{Attachment, CniError, NetConf};
use serde::Deserialize;

use super::container::Container;
use super::failed;
use super::failures::Failures;
use super::host::{Host, host_names};
use super::{networks, renamed};
use crate::plugin::{NodeRequest, Request};
use crate::skel::delegate;

/// Removes the links and the dataplane's entries, then releases the addresses: nothing of this container may
/// be left when IPAM gives its address to another one. A failed step does not stop the others.
///
/// Deleting a link and deleting nftables elements each wait for the kernel's grace periods, 10–30 ms; they
/// run concurrently.
///
/// # Errors
/// The steps that failed; all others were done.
pub(crate) fn del(request: &Request<'_>) -> Result<(), CniError> {
    del_under_all_names(request, &remove)
}

/// Detaches the container. If `remove` finds no link of the attachment, this also removes what the container owns under
/// former names of the network.
///
/// # Errors
/// The steps that failed; all others were done.
pub(crate) fn del_under_all_names(
    request: &Request<'_>,
    remove: &dyn Fn(&Request<'_>, &mut Failures) -> Seen,
) -> Result<(), CniError> {
    let under_one_name = |request: &Request<'_>| {
        let mut seen = Seen::Nothing;
        let done = with_ipam(request.config, &|| delegate::ipam_del(request), |failures| {
            seen = remove(request, failures);
        });
        (seen, done)
    };
    let (seen, own) = under_one_name(request);
    let former = |request: &Request<'_>| under_one_name(request).1;
    let others = match &seen {
        Seen::Own => return own,
        Seen::Nothing => renamed::del(request, None, &former),
        Seen::Other(owner) => renamed::del(request, Some(owner), &former),
    };
    let mut failures = Failures::default();
    failures.collect(own);
    failures.collect(others);
    failures.into_result()
}

/// The links that a DEL has found.
pub(crate) enum Seen {
    /// A link of the attachment itself.
    Own,
    /// A link with the interface's name in the container that has another owner.
    Other(Owner),
    Nothing,
}

/// Runs `work` and then calls IPAM, because an address must lead nowhere when IPAM frees it. If IPAM needs the link
/// that `work` deletes, IPAM comes first. A failed step does not stop the others.
///
/// # Errors
/// The steps that failed; all others were done.
pub(crate) fn with_ipam(
    config: &NetConf,
    ipam: &dyn Fn() -> Result<(), CniError>,
    work: impl FnOnce(&mut Failures),
) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let early = delegate::ipam_needs_link(config);
    if early {
        failures.collect(ipam());
    }
    work(&mut failures);
    if !early && !config.ipam.is_empty() {
        failures.collect(ipam());
    }
    failures.into_result()
}

fn remove(request: &Request<'_>, failures: &mut Failures) -> Seen {
    let links = failures.keep(OwnLinks::find(request));
    let addresses = failures.keep(known_addresses(request, links.as_ref())).unwrap_or_default();
    let withdraw = || withdraw(request, &addresses);
    let Some(links) = links.as_ref().filter(|links| links.any()) else {
        failures.append(withdraw());
        return links.and_then(|links| links.other).map_or(Seen::Nothing, Seen::Other);
    };
    let withdrawn = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("withdraw".to_owned()).spawn_scoped(scope, withdraw);
        links.delete(failures);
        match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => withdraw(), // Without a thread: one after the other.
        }
    });
    failures.append(withdrawn);
    if let Some((container, _)) = &links.inner {
        networks::left(container, &request.attachment);
    }
    Seen::Own
}

/// Removes the attachment's entries from the dataplane. That includes ports: portmap's DEL has removed them
/// before, but a concurrent `slipway restore` may have put them back.
fn withdraw(request: &Request<'_>, addresses: &[IpAddr]) -> Failures {
    let mut failures = Failures::default();
    let (attachment, wanted) = (&request.attachment, Wanted::of(request.config));
    let withdrawal = Withdrawal { addresses, ..Withdrawal::of(attachment, Kinds::All) };
    failures.collect_if(wanted.ip_masq, Dataplane::default().withdraw(&withdrawal));
    failures.collect_if(wanted.macspoofchk, macspoof::release(attachment));
    failures
}

/// The current keys for the dataplane. As they may have changed since the ADD, DEL and GC search for all
/// entries; but a feature that the node lacks fails them only if the keys ask for it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wanted {
    ip_masq: bool,
    macspoofchk: bool,
}

impl Wanted {
    fn of(config: &NetConf) -> Self {
        config.decode().unwrap_or_default()
    }
}

/// The container's addresses, which spare the dataplane a search.
fn known_addresses(request: &Request<'_>, links: Option<&OwnLinks>) -> Result<Vec<IpAddr>, CniError> {
    if let Some(previous) = &request.config.prev_result {
        return Ok(previous.ips.iter().map(|ip| ip.address.addr()).collect());
    }
    let Some(OwnLinks { inner: Some((container, link)), .. }) = links else { return Ok(Vec::new()) };
    let all = container.route.addresses(link).map_err(failed)?;
    Ok(all.iter().filter(|address| address.global).map(|address| address.net.addr()).collect())
}

/// The links of an attachment.
struct OwnLinks {
    host: Host,
    /// The container's end. The host's end goes with it.
    inner: Option<(Container, Link)>,
    /// The remaining host's ends, if the container's end is gone.
    outer: Vec<Link>,
    /// The owner of the container's link with the interface's name, if that is another attachment.
    other: Option<Owner>,
}

impl OwnLinks {
    fn find(request: &Request<'_>) -> Result<Self, CniError> {
        let host = Host::open()?;
        let attachment = &request.attachment;
        let mut other = None;
        if let Some(container) = Container::open_if_there(request.netns.as_deref())? {
            let link = container.route.find_link(attachment.ifname()).map_err(failed)?;
            if let Some(link) = link.filter(|link| link.kind == LinkKind::Veth) {
                let owner = owner_of(&host, &link)?;
                if is_its_or_unknown(owner.as_ref(), attachment) {
                    let inner = Some((container, link));
                    return Ok(Self { host, inner, outer: Vec::new(), other: None });
                }
                other = owner;
            }
        }
        let mut outer = Vec::new();
        for name in host_names(attachment) {
            let link = host.route.find_link(&name).map_err(failed)?;
            outer.extend(link.filter(|link| is_host_end_of(link, attachment)));
        }
        Ok(Self { host, inner: None, outer, other })
    }

    fn any(&self) -> bool {
        self.inner.is_some() || !self.outer.is_empty()
    }

    fn delete(&self, failures: &mut Failures) {
        if let Some((container, link)) = &self.inner {
            failures.collect(delete(&container.route, link));
        }
        for link in &self.outer {
            failures.collect(delete(&self.host.route, link));
        }
    }
}

/// The owner of the container's end of a pair, by its peer's alias.
fn owner_of(host: &Host, link: &Link) -> Result<Option<Owner>, CniError> {
    let Some(peer) = link.peer else { return Ok(None) };
    match host.route.link_by_index(peer) {
        Ok(outer) => Ok(Owner::from_comment(&outer.alias)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// True unless a link names another owner. The reference plugins write no alias.
fn is_its_or_unknown(owner: Option<&Owner>, attachment: &Attachment) -> bool {
    owner.is_none_or(|owner| owner.attachment_hash == AttachmentHash::of(attachment))
}

/// True if a link of the node with one of the attachment's names is its end of the pair. It has no alias if
/// the ADD was killed early.
fn is_host_end_of(link: &Link, attachment: &Attachment) -> bool {
    let named = || {
        Owner::from_comment(&link.alias)
            .is_some_and(|owner| owner.attachment_hash == AttachmentHash::of(attachment))
    };
    link.kind == LinkKind::Veth && (link.alias.is_empty() || named())
}

/// Deletes a link, unless it is gone already.
pub(super) fn delete(route: &RouteSocket, link: &Link) -> Result<(), CniError> {
    match route.delete_link(link) {
        Err(error) if !error.is_not_found() => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Removes what belongs to attachments of the network that are not valid any more.
///
/// # Errors
/// The objects that could not be removed; all others were.
pub(crate) fn gc(request: &NodeRequest<'_>) -> Result<(), CniError> {
    // Without a list, nothing may be removed.
    let Some(valid) = &request.config.valid_attachments else { return Ok(()) };
    let network = &request.config.name;
    let wanted = Wanted::of(request.config);
    with_ipam(request.config, &|| delegate::ipam_gc(request), |failures| {
        failures.collect(delete_dead_links(network, valid));
        failures.collect_if(wanted.ip_masq, Dataplane::default().retain(network, valid, Kinds::Masquerade));
        failures.collect_if(wanted.macspoofchk, macspoof::retain(network, valid).map(drop));
    })
}

fn delete_dead_links(network: &str, valid: &[Attachment]) -> Result<(), CniError> {
    let host = Host::open()?;
    let valid: BTreeSet<AttachmentHash> = valid.iter().map(AttachmentHash::of).collect();
    let network = NetworkHash::of(network);
    let is_dead = |link: &Link| {
        link.kind == LinkKind::Veth
            && Owner::from_comment(&link.alias)
                .is_some_and(|owner| owner.network_hash == network && !valid.contains(&owner.attachment_hash))
    };
    let mut failures = Failures::default();
    for link in host.route.links().map_err(failed)?.iter().filter(|link| is_dead(link)) {
        failures.collect(delete(&host.route, link));
    }
    failures.into_result()
}
