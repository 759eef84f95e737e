// SPDX-License-Identifier: GPL-2.0-or-later

//! The rules of a container of `bridge`, for `slipway restore`.

use cni_dataplane::macspoof;
use cni_kernel::mac::Mac;
use cni_kernel::route::RouteSocket;
use cni_spec::{AddResult, Attachment, CniError};

use super::config::Settings;
use crate::interface::shared::check::{Inside, present, previous_result, wrong};
use crate::interface::shared::{failed, masquerade};
use crate::plugin::{Request, Restorable};

/// All of the attachment's.
pub(super) fn of(request: &Request<'_>) -> Result<Vec<Box<dyn Restorable>>, CniError> {
    let settings = Settings::new(request.config, request.args)?;
    let previous = previous_result(request, "")?;
    let inside = Inside::open(request, previous, "")?;
    let attachment = &request.attachment;
    let mut all: Vec<Box<dyn Restorable>> = Vec::new();
    if settings.spoof_check {
        all.push(Box::new(SpoofGuard::of(attachment, &inside, previous)?));
    }
    let addresses = inside.addresses();
    all.extend(masquerade::restorable(&settings.common, attachment, &inside.container, &addresses)?);
    Ok(all)
}

/// The rules that let a container send with its own MAC address only.
struct SpoofGuard {
    attachment: Attachment,
    /// The host's end of the pair.
    port: String,
    index: u32,
    mac: Mac,
}

impl SpoofGuard {
    fn of(attachment: &Attachment, inside: &Inside<'_>, previous: &AddResult) -> Result<Self, CniError> {
        let inner = present(&inside.container.route, attachment.ifname())?;
        let host = RouteSocket::open().map_err(failed)?;
        let peer = inner.peer.ok_or_else(|| wrong(format!("link {} has no other end", inner.name)))?;
        let link = host.link_by_index(peer).map_err(failed)?;
        // The address of the ADD: the container may have changed it since, which the guard must prevent.
        let given = previous
            .interfaces
            .iter()
            .find(|one| one.name == attachment.ifname() && !one.sandbox.is_empty())
            .and_then(|interface| interface.mac.parse().ok());
        let mac = given.or(inner.mac);
        let mac = mac.ok_or_else(|| wrong(format!("link {} has no MAC address", inner.name)))?;
        Ok(Self { attachment: attachment.clone(), port: link.name, index: link.index, mac })
    }
}

impl Restorable for SpoofGuard {
    fn name(&self) -> String {
        format!("guard against spoofed addresses on {}, which may send with {}", self.port, self.mac)
    }

    fn check(&self) -> Result<(), CniError> {
        Ok(macspoof::check(&self.attachment, &self.port, self.mac)?)
    }

    fn put_back(&self) -> Result<(), CniError> {
        Ok(macspoof::protect(&self.attachment, &self.port, self.mac)?)
    }

    fn take_away(&self) -> Result<(), CniError> {
        // The link's name depends on the attachment only: another link is a later ADD's. The kernel may not have removed
        // this one yet.
        let host = RouteSocket::open().map_err(failed)?;
        match host.find_link(&self.port).map_err(failed)? {
            Some(link) if link.index != self.index => Ok(()),
            _ => Ok(macspoof::release(&self.attachment)?),
        }
    }
}
