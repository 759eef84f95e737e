// SPDX-License-Identifier: GPL-2.0-or-later

//! DEL and GC of all plugins with a veth pair. They do not depend on the current configuration.

use std::net::IpAddr;

use cni_dataplane::owner::{AttachmentHash, NetworkHash, Owner};
use cni_dataplane::{Backend, Dataplane, Kinds, Withdrawal, macspoof};
use cni_kernel::route::{Link, LinkKind, RouteSocket};
use cni_spec::{Attachment, CniError, NetConf};
use serde::Deserialize;

use super::container::Container;
use super::failed;
use super::host::{Host, host_names};
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
    with_ipam(request.config, &|| delegate::ipam_del(request), |failures| remove(request, failures))
}

/// Runs `work`, then calls IPAM: an address must lead nowhere when IPAM frees it. In the opposite order if
/// IPAM needs the link that `work` deletes. A failed step does not stop the others.
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

fn remove(request: &Request<'_>, failures: &mut Failures) {
    let links = failures.keep(OwnLinks::find(request));
    let addresses = failures.keep(known_addresses(request, links.as_ref())).unwrap_or_default();
    let withdraw = || withdraw(request, &addresses);
    let Some(links) = links.as_ref().filter(|links| links.any()) else {
        failures.0.extend(withdraw().0);
        return;
    };
    let withdrawn = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("withdraw".to_owned()).spawn_scoped(scope, withdraw);
        links.delete(failures);
        match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => withdraw(), // Without a thread: one after the other.
        }
    });
    failures.0.extend(withdrawn.0);
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
    /// Without a container's end, the host's ends that are left.
    outer: Vec<Link>,
}

impl OwnLinks {
    fn find(request: &Request<'_>) -> Result<Self, CniError> {
        let host = Host::open()?;
        let attachment = &request.attachment;
        if let Some(container) = Container::open_if_there(request.netns.as_deref())? {
            let link = container.route.find_link(attachment.ifname()).map_err(failed)?;
            if let Some(link) = link.filter(|link| may_delete(&host, link, attachment)) {
                return Ok(Self { host, inner: Some((container, link)), outer: Vec::new() });
            }
        }
        let mut outer = Vec::new();
        for name in host_names(attachment) {
            let link = host.route.find_link(&name).map_err(failed)?;
            outer.extend(link.filter(|link| is_host_end_of(link, attachment)));
        }
        Ok(Self { host, inner: None, outer })
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

/// True if a link of the container belongs to this attachment: a veth whose peer's alias names no other
/// owner. (The reference writes no alias.)
fn may_delete(host: &Host, link: &Link, attachment: &Attachment) -> bool {
    let owner = || {
        let outer = host.route.link_by_index(link.peer?).ok()?;
        Owner::from_comment(&outer.alias)
    };
    link.kind == LinkKind::Veth
        && owner().is_none_or(|owner| owner.attachment_hash == AttachmentHash::of(attachment))
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
    let valid: Vec<AttachmentHash> = valid.iter().map(AttachmentHash::of).collect();
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

/// The errors of independent steps. The first one determines the code.
#[derive(Default)]
pub(crate) struct Failures(Vec<CniError>);

impl Failures {
    /// Adds the error, if it is one.
    pub(crate) fn collect(&mut self, result: Result<(), CniError>) {
        self.0.extend(result.err());
    }

    fn keep<T>(&mut self, result: Result<T, CniError>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }

    /// Adds the dataplane's error if the configuration asks for the feature, otherwise logs it.
    fn collect_if(&mut self, wanted: bool, result: Result<(), cni_dataplane::Error>) {
        match result.map_err(CniError::from) {
            Err(error) if !wanted => {
                log::warn!("remove entries of a feature that is not configured: {error}");
            }
            other => self.collect(other),
        }
    }

    /// Joins all errors: the first one, with the others in its details.
    pub(crate) fn into_result(self) -> Result<(), CniError> {
        let mut errors = self.0.into_iter();
        let Some(first) = errors.next() else { return Ok(()) };
        Err(errors.fold(first, |all, next| {
            let details = if all.details.is_empty() { String::new() } else { format!("{}; ", all.details) };
            CniError { details: format!("{details}also: {next}"), ..all }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_joined() {
        let mut failures = Failures::default();
        failures.collect(Ok(()));
        assert_eq!(std::mem::take(&mut failures.0), []);
        failures.collect(Err(CniError::config("first")));
        failures.collect(Err(CniError::internal("second")));
        failures.collect(Err(CniError::internal("third").with_details("why")));
        let error = failures.into_result().unwrap_err();
        assert_eq!((error.msg.as_str(), error.code.number()), ("first", 7));
        assert_eq!(error.details, "also: second; also: third; why");
    }
}
