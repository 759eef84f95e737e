//! DEL and GC.

use std::net::IpAddr;

use cni_dataplane::nftables::Nftables;
use cni_dataplane::owner::{AttachmentHash, NetworkHash, Owner};
use cni_dataplane::{Backend, Kinds, Withdrawal};
use cni_kernel::route::{Link, LinkKind};
use cni_spec::{Attachment, CniError, NetConf};
use serde::Deserialize;

use super::container::Container;
use super::failed;
use super::host::{Host, port_names};
use crate::plugin::{NodeRequest, Request};
use crate::skel::delegate;

/// Removes the links, then the masquerade, then the addresses: an address that IPAM may give to the
/// next container must have no trace of this one. What fails does not keep the rest from being done.
pub(super) fn del(request: &Request<'_>) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let mut addresses: Vec<IpAddr> = match &request.config.prev_result {
        Some(previous) => previous.ips.iter().map(|ip| ip.address.addr()).collect(),
        None => Vec::new(),
    };
    failures.collect(delete_links(request, &mut addresses));
    let attachment = &request.attachment;
    let withdrawal = Withdrawal { addresses: &addresses, ..Withdrawal::of(attachment, Kinds::Masquerade) };
    let withdrawn = Nftables::new().withdraw(&withdrawal).map_err(CniError::from);
    failures.collect(if_masquerading(request.config, withdrawn));
    if !request.config.ipam.is_empty() {
        failures.collect(delegate::ipam_del(request));
    }
    failures.into_result()
}

/// Deletes the container's link, and with it the port; where the namespace is gone, what may be left
/// of the port. Adds the container's addresses to `addresses` where these are not known.
fn delete_links(request: &Request<'_>, addresses: &mut Vec<IpAddr>) -> Result<(), CniError> {
    let host = Host::open()?;
    let attachment = &request.attachment;
    if let Some(container) = Container::open_if_there(request.netns.as_deref())? {
        let link = container.route.find_link(attachment.ifname()).map_err(failed)?;
        if let Some(link) = link.filter(|link| may_delete(&host, link, attachment)) {
            if addresses.is_empty() {
                let all = container.route.addresses(&link).map_err(failed)?;
                addresses
                    .extend(all.iter().filter(|address| address.global).map(|address| address.net.addr()));
            }
            return match container.route.delete_link(&link) {
                Err(error) if !error.is_not_found() => Err(failed(error)),
                _ => Ok(()),
            };
        }
    }
    for name in port_names(attachment) {
        if let Some(link) = host.route.find_link(&name).map_err(failed)?
            && is_port_of(&link, attachment)
        {
            delete(&host, &link)?;
        }
    }
    Ok(())
}

/// Whether a link of the container's is this attachment's: one end of a pair, whose other end does
/// not name another owner. (The reference's ports name none.)
fn may_delete(host: &Host, link: &Link, attachment: &Attachment) -> bool {
    let owner = || {
        let port = host.route.link_by_index(link.peer?).ok()?;
        Owner::from_comment(&port.alias)
    };
    link.kind == LinkKind::Veth
        && owner().is_none_or(|owner| owner.attachment_hash == AttachmentHash::of(attachment))
}

/// Whether a link of the node's, of a name that follows from the attachment, is its port. An ADD
/// that was killed early has written no owner on it.
fn is_port_of(link: &Link, attachment: &Attachment) -> bool {
    let named = || {
        Owner::from_comment(&link.alias)
            .is_some_and(|owner| owner.attachment_hash == AttachmentHash::of(attachment))
    };
    link.kind == LinkKind::Veth && (link.alias.is_empty() || named())
}

fn delete(host: &Host, link: &Link) -> Result<(), CniError> {
    match host.route.delete_link(link) {
        Err(error) if !error.is_not_found() => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Removes what belongs to attachments of the network that are not valid any more.
pub(super) fn gc(request: &NodeRequest<'_>) -> Result<(), CniError> {
    // Without a list nothing may be removed.
    let Some(valid) = &request.config.valid_attachments else { return Ok(()) };
    let network = &request.config.name;
    let mut failures = Failures::default();
    failures.collect(delete_dead_ports(network, valid));
    let retained = Nftables::new().retain(network, valid, Kinds::Masquerade).map_err(CniError::from);
    failures.collect(if_masquerading(request.config, retained));
    if !request.config.ipam.is_empty() {
        failures.collect(delegate::ipam_gc(request));
    }
    failures.into_result()
}

/// The configuration may have been another one when the container came, so that masquerade is looked
/// for in any case; but a node that cannot masquerade and is not asked to must not fail.
fn if_masquerading(config: &NetConf, result: Result<(), CniError>) -> Result<(), CniError> {
    #[derive(Deserialize, Default)]
    #[serde(default, rename_all = "camelCase")]
    struct Keys {
        ip_masq: bool,
    }
    match result {
        Err(error) if !config.decode::<Keys>().is_ok_and(|keys| keys.ip_masq) => {
            log::warn!("look for masquerade: {error}");
            Ok(())
        }
        other => other,
    }
}

fn delete_dead_ports(network: &str, valid: &[Attachment]) -> Result<(), CniError> {
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
        failures.collect(delete(&host, link));
    }
    failures.into_result()
}

/// The errors of steps that do not depend on each other. The first one gives the code.
#[derive(Default)]
struct Failures(Vec<CniError>);

impl Failures {
    fn collect(&mut self, result: Result<(), CniError>) {
        self.0.extend(result.err());
    }

    fn into_result(self) -> Result<(), CniError> {
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
    fn errors_are_told_together() {
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
