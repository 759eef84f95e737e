// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected state: the host's end with its addresses and routes, and the rules.

use cni_kernel::AddressFamily;
use cni_kernel::route::{MAIN_TABLE, RouteSocket};
use cni_spec::{Attachment, CniError};

use super::check::{PLUGIN, has_route};
use super::host::to_container;
use super::plan::{Outside, outside};
use crate::expected::Expected;
use crate::interface::shared::check::{Inside, present, previous_result, wrong};
use crate::interface::shared::expected::{self, Addresses, LinkLocal, Objects};
use crate::interface::shared::host::Host;
use crate::interface::shared::keys::Common;
use crate::interface::shared::layer3::has;
use crate::interface::shared::{container_side, failed, masquerade};
use crate::plugin::Request;

/// All objects of the attachment, in the order of the ADD.
pub(super) fn of(request: &Request<'_>) -> Result<Objects, CniError> {
    let common = Common::new(request.config)?;
    let previous = previous_result(request, PLUGIN)?;
    let inside = Inside::open(request, previous, PLUGIN)?;
    let (attachment, addresses) = (&request.attachment, inside.addresses());
    let end = HostEnd::of(attachment, &inside)?;
    let put_back = {
        let end = end.clone();
        move || end.put_back()
    };
    let mut all: Objects = vec![Box::new(end.clone())];
    if !addresses.is_empty() {
        let wanted = end.outside.gateways.clone();
        all.push(Box::new(Addresses { link: end.name.clone(), wanted, put_back }));
        all.push(Box::new(Routes(end.clone())));
    }
    if has(&addresses, AddressFamily::V6) {
        all.push(Box::new(LinkLocal { link: end.name.clone() }));
    }
    all.extend(masquerade::expected(&common, attachment, &inside.container, &addresses)?);
    all.extend(expected::settings(&end.name, &addresses, previous)?);
    all.extend(container_side::of(inside)?);
    Ok(all)
}

/// The host's end of the pair, which must be up.
#[derive(Clone)]
struct HostEnd {
    attachment: Attachment,
    outside: Outside,
    /// The link's name and index.
    name: String,
    index: u32,
}

impl HostEnd {
    fn of(attachment: &Attachment, inside: &Inside<'_>) -> Result<Self, CniError> {
        let inner = present(&inside.container.route, attachment.ifname())?;
        let missing =
            || wrong(format!("{PLUGIN}host end of container interface {} was not found", inner.name));
        let index = inner.peer.ok_or_else(missing)?;
        let link = match RouteSocket::open().map_err(failed)?.link_by_index(index) {
            Err(error) if error.is_not_found() => return Err(missing()),
            other => other.map_err(failed)?,
        };
        Ok(Self { attachment: attachment.clone(), outside: outside(&inside.ips())?, name: link.name, index })
    }
}

impl Expected for HostEnd {
    fn name(&self) -> String {
        format!("link {}", self.name)
    }

    fn stops(&self, _family: AddressFamily, _is_forwarded: bool) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        let link = RouteSocket::open().and_then(|socket| socket.link_by_index(self.index)).map_err(failed)?;
        if link.up { Ok(()) } else { Err(wrong(format!("Interface {} is down", link.name))) }
    }

    fn put_back(&self) -> Result<(), CniError> {
        let host = Host::open()?;
        let link = host.route.link_by_index(self.index).map_err(failed)?;
        host.serve(&link, &self.outside, &self.attachment)
    }
}

/// The routes to the container's addresses.
struct Routes(HostEnd);

impl Expected for Routes {
    fn name(&self) -> String {
        let containers: Vec<String> = self.0.outside.containers.iter().map(ToString::to_string).collect();
        format!("routes to {} by {}", containers.join(", "), self.0.name)
    }

    fn stops(&self, family: AddressFamily, _is_forwarded: bool) -> bool {
        has(&self.0.outside.containers, family)
    }

    fn check(&self) -> Result<(), CniError> {
        let socket = RouteSocket::open().map_err(failed)?;
        let link = socket.link_by_index(self.0.index).map_err(failed)?;
        let possible = |net: &&ipnet::IpNet| net.addr().is_ipv4() || !link.disables_ipv6;
        for container in self.0.outside.containers.iter().filter(possible) {
            has_route(&socket, &to_container(*container, &link), &[MAIN_TABLE])?;
        }
        Ok(())
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.0.put_back()
    }
}
