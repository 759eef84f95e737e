// SPDX-License-Identifier: GPL-2.0-or-later

//! `host-device`: moves a link of the node into a container, and back.
//!
//! In the container, the link's alias is its name on the node, as with the reference: each plugin set can
//! move back the links of the other one. DEL takes the name from the ADD's [`record`], if there is one.

mod device;
mod move_link;
mod record;

use cni_kernel::mac::Mac;
use cni_kernel::route::{DuplicateDetection, Link};
use cni_spec::{AddResult, CniError, Dns, Interface};
use serde::Deserialize;

#[cfg(test)]
use super::shared::advertisements;
use super::shared::advertisements::Advertisements;
use super::shared::container::Container;
use super::shared::expected::Objects;
use super::shared::host::Host;
use super::shared::layer3::adopt;
use super::shared::networks;
use super::shared::remove::{Seen, del_under_all_names};
use super::shared::single::check::{Expected, check};
use super::shared::single::expected;
use super::shared::single::{Addresses, Recipe};
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::skel::delegate;
use crate::undo::Undo;
use device::Device;
use move_link::{Absence, Places};
use record::Record;

/// The `host-device` plugin.
#[derive(Debug)]
pub struct HostDevice;

impl Plugin for HostDevice {
    fn name(&self) -> &'static str {
        "host-device"
    }

    fn summary(&self) -> &'static str {
        "moves a link of the node into a container, and back"
    }

    fn place(&self) -> Place {
        Place::Link
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        &(&device::decodes() | &advertisements::decodes()) | &crate::keys::probe::fields::<Keys>()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        Device::of(request.config).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let device = Device::of(request.config)?;
        let keys: Keys = request.config.decode()?;
        let container = Container::open(request.netns.as_deref())?;
        let recipe = Recipe {
            request,
            plugin: "host device",
            addresses: Addresses::of(request),
            advertisements: Advertisements::with_ipam(request.config)?,
            dns: (!request.config.ipam.is_empty()).then_some(keys.dns),
            ipam_failed: "",
            settings: &[],
            detection: DuplicateDetection::AsLink,
        };
        recipe.refuse_if_taken(&container)?;
        if request.config.ipam.is_empty() {
            // Checked while the link still has its addresses and routes on the node.
            can_be_printed(&AddResult::default(), request)?;
        }
        if device.is_in_user_space()? {
            return without_a_link(&recipe, &container);
        }
        let host = Host::open()?;
        // The kernel may have moved the link back to the node since the last DEL.
        let absence = Absence { ifname: request.attachment.ifname(), ..Absence::default() };
        if let Err(error) = move_link::settle(&host.route, &device, &absence) {
            log::warn!("{error}");
        }
        let link = device.find(&host.route)?;
        let places = Places { host: &host, container: &container, ifname: request.attachment.ifname() };
        // The closure may be called twice.
        let move_back = || places.move_back(&link);
        let mut undo = Undo::new();
        if link.up {
            undo.on_failure("set the link up again", || places.set_up(&link));
        }
        undo.on_failure("remove the device's record", || record::forget(&request.attachment));
        undo.on_failure("move the link back", move_back);
        record::write(&request.attachment, &Record::new(&link, container.id()))?;
        let moved = places.move_to_container(&link)?;
        let result = recipe.configure(&container, &moved, &move_back, &mut undo)?;
        can_be_printed(&result, request)?;
        undo.keep();
        Ok(result)
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        // A device has no owner that would tell under which network name it was attached.
        del_under_all_names(request, &|request, failures| {
            failures.collect(move_back(request));
            Seen::Nothing
        })
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        if Device::of(request.config)?.is_in_user_space()? {
            let ipam = !request.config.ipam.is_empty();
            return if ipam { delegate::ipam_check(request) } else { Ok(()) };
        }
        let any = |_: &Link| Ok(());
        check(request, &Expected { no_result: "Required prevResult missing", link: &any }).map(drop)
    }

    fn expected(&self, request: &Request<'_>) -> Result<Objects, CniError> {
        if Device::of(request.config)?.is_in_user_space()? {
            Ok(Vec::new())
        } else {
            expected::inside(request)
        }
    }

    /// Calls IPAM only, because a link's alias has its name on the node but no owner. The kernel moves links of a
    /// namespace that is gone back to the node.
    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let ours = request.config.valid_attachments.is_some() && !request.config.ipam.is_empty();
        if ours { delegate::ipam_gc(request) } else { Ok(()) }
    }

    /// Calls IPAM only. A link that is in a container does not make the network unavailable.
    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        if request.config.ipam.is_empty() { Ok(()) } else { delegate::ipam_status(request) }
    }
}

/// Checks that a result can be printed: one before version 0.3.0 must have an address. Otherwise skel would
/// undo the ADD by a DEL, which leaves the link down.
fn can_be_printed(result: &AddResult, request: &Request<'_>) -> Result<(), CniError> {
    result.print(request.config.version).map(drop).map_err(|error| CniError::internal(error.to_string()))
}

/// The other keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    dns: Dns,
}

/// The ADD of a device in user space: IPAM reserves addresses, but there is no link for them.
fn without_a_link(recipe: &Recipe<'_>, container: &Container) -> Result<AddResult, CniError> {
    let request = recipe.request;
    let mut result = match request.config.ipam.is_empty() {
        true => AddResult::default(),
        false => {
            let answer = delegate::ipam_add(request)?;
            let mut undo = Undo::new();
            undo.on_failure("release the addresses", || delegate::ipam_del(request));
            let result = adopt(answer, 0, recipe.dns.as_ref())?;
            undo.keep();
            result
        }
    };
    let name = request.attachment.ifname().to_owned();
    result.interfaces = vec![Interface { name, sandbox: container.sandbox(), ..Interface::default() }];
    Ok(result)
}

/// Moves the attachment's link back to the node.
fn move_back(request: &Request<'_>) -> Result<(), CniError> {
    // With an invalid configuration, the link is found in the container by the attachment's name.
    let device = Device::of(request.config).inspect_err(|error| log::debug!("{error}")).ok();
    if device.as_ref().is_some_and(|device| device.is_in_user_space().unwrap_or(false)) {
        return Ok(());
    }
    let (attachment, previous) = (&request.attachment, previous_mac(request));
    let host = Host::open()?;
    let container = Container::open_if_there(request.netns.as_deref())?;
    let mut record = record::read(attachment)?;
    if let Some(old) = &record
        && let Some(link) = old.find_on_node(&host.route)?
    {
        old.restore(&host.route, &link)?;
        record::forget(attachment)?;
        record = None;
    }
    let absence = Absence { ifname: attachment.ifname(), ..Absence::default() };
    if let Some(container) = &container {
        let places = Places { host: &host, container, ifname: attachment.ifname() };
        let record = record.as_ref().filter(|record| record.is_in(container.id()));
        if let Some(found) = places.find_in_container(device.as_ref(), previous, record)? {
            places.move_back_as(&found.link, &found.host_name, record)?;
            networks::left(container, attachment);
            return record::forget(attachment);
        }
    }
    match (&device, &container) {
        (None, _) => Ok(()),
        // The namespace exists, so the kernel has moved nothing back.
        (Some(device), Some(_)) => move_link::settle(&host.route, device, &absence),
        (Some(device), None) => {
            let absence = Absence { previous, record: record.as_ref(), ..absence };
            move_link::await_return(&host.route, device, &absence)?;
            record::forget(attachment)
        }
    }
}

/// The link's MAC address in `prevResult`; none without a successful ADD.
fn previous_mac(request: &Request<'_>) -> Option<Mac> {
    let ifname = request.attachment.ifname();
    let mut interfaces = request.config.prev_result.as_ref()?.interfaces.iter();
    let ours = interfaces.find(|interface| interface.name == ifname && !interface.sandbox.is_empty())?;
    ours.mac.parse().ok()
}
