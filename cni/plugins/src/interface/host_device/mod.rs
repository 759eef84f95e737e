//! `host-device`: moves a link of the node's into a container, and back.
//!
//! While it is away the link's alias is the name that it had on the node, as with the reference: each side
//! brings home what the other one has moved.

mod device;
mod move_link;

use cni_kernel::mac::Mac;
use cni_kernel::route::{DuplicateDetection, Link};
use cni_spec::{AddResult, CniError, Dns, Interface};
use serde::Deserialize;

use super::shared::container::Container;
use super::shared::host::Host;
use super::shared::layer3::adopt;
use super::shared::remove::with_ipam;
use super::shared::single::check::{Expected, check};
use super::shared::single::{Addresses, Recipe};
use crate::plugin::{NodeRequest, Plugin, Request};
use crate::skel::delegate;
use crate::undo::Undo;
use device::Device;
use move_link::Journey;

/// The `host-device` plugin.
#[derive(Debug)]
pub struct HostDevice;

impl Plugin for HostDevice {
    fn name(&self) -> &'static str {
        "host-device"
    }

    fn summary(&self) -> &'static str {
        "moves a link of the node's into a container, and back"
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        &device::decodes() | &crate::keys::probe::fields::<Keys>()
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let device = Device::of(request.config)?;
        let keys: Keys = request.config.decode()?;
        let container = Container::open(request.netns.as_deref())?;
        let recipe = Recipe {
            request,
            plugin: "host device",
            addresses: Addresses::of(request),
            dns: (!request.config.ipam.is_empty()).then_some(keys.dns),
            ipam_failed: "",
            settings: &[],
            detection: DuplicateDetection::AsLink,
        };
        recipe.refuse_if_taken(&container)?;
        if request.config.ipam.is_empty() {
            // Before the link loses what it has on the node.
            can_be_told(&AddResult::default(), request)?;
        }
        if device.is_driven_by_a_program()? {
            return without_a_link(&recipe, &container);
        }
        let host = Host::open()?;
        // One that the kernel has brought back since the last DEL.
        if let Err(error) = move_link::settle(&host.route, &device, request.attachment.ifname(), None) {
            log::warn!("{error}");
        }
        let link = device.find(&host.route)?;
        let journey = Journey { host: &host, container: &container, ifname: request.attachment.ifname() };
        // A second time the link is home already.
        let take_away = || journey.bring_home(&link);
        let mut undo = Undo::new();
        if link.up {
            undo.on_failure("switch the link on again", || journey.switch_on(&link));
        }
        undo.on_failure("bring the link home", take_away);
        let moved = journey.take_there(&link)?;
        let result = recipe.configure(&container, &moved, &take_away, &mut undo)?;
        can_be_told(&result, request)?;
        undo.keep();
        Ok(result)
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        with_ipam(request.config, &|| delegate::ipam_del(request), |failures| {
            failures.collect(bring_home(request));
        })
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        if Device::of(request.config)?.is_driven_by_a_program()? {
            let ipam = !request.config.ipam.is_empty();
            return if ipam { delegate::ipam_check(request) } else { Ok(()) };
        }
        let any = |_: &Link| Ok(());
        check(request, &Expected { no_result: "Required prevResult missing", link: &any }).map(drop)
    }

    /// Links are not looked for: a link's alias tells where it belongs, not whose it is. The kernel gives
    /// those of a namespace that is gone back to the node.
    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let ours = request.config.valid_attachments.is_some() && !request.config.ipam.is_empty();
        if ours { delegate::ipam_gc(request) } else { Ok(()) }
    }

    /// Whether the link is there is not looked at: a container that has it does not make the network
    /// unavailable to those that run.
    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        if request.config.ipam.is_empty() { Ok(()) } else { delegate::ipam_status(request) }
    }
}

/// Results before version 0.3.0 must have an address. An ADD whose result cannot be told is undone by its
/// DEL, after which the link is off.
fn can_be_told(result: &AddResult, request: &Request<'_>) -> Result<(), CniError> {
    result.print(request.config.version).map(drop).map_err(|error| CniError::internal(error.to_string()))
}

/// The keys that do not say which device it is, as they are written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    dns: Dns,
}

/// A device that a program of the container drives itself is no link of the kernel's: it has addresses, and
/// nobody to give them to.
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

/// Brings the attachment's link home, from wherever it is by now.
fn bring_home(request: &Request<'_>) -> Result<(), CniError> {
    // What cannot be told any more may still be in the container, under the attachment's name.
    let device = Device::of(request.config).inspect_err(|error| log::debug!("{error}")).ok();
    if device.as_ref().is_some_and(|device| device.is_driven_by_a_program().unwrap_or(false)) {
        return Ok(());
    }
    let (ifname, told) = (request.attachment.ifname(), told_mac(request));
    let host = Host::open()?;
    let container = Container::open_if_there(request.netns.as_deref())?;
    if let Some(container) = &container {
        let journey = Journey { host: &host, container, ifname };
        if let Some((link, name)) = journey.find_abroad(device.as_ref(), told)? {
            return journey.bring_home_as(&link, &name);
        }
    }
    match (&device, &container) {
        (None, _) => Ok(()),
        // It was not in the container, or is home; the kernel has brought back nothing.
        (Some(device), Some(_)) => move_link::settle(&host.route, device, ifname, None),
        (Some(device), None) => move_link::await_return(&host.route, device, ifname, told),
    }
}

/// The address that the link had in the container, as the ADD's result tells it; none without the result of
/// an ADD that ended well.
fn told_mac(request: &Request<'_>) -> Option<Mac> {
    let ifname = request.attachment.ifname();
    let mut interfaces = request.config.prev_result.as_ref()?.interfaces.iter();
    let ours = interfaces.find(|interface| interface.name == ifname && !interface.sandbox.is_empty())?;
    ours.mac.parse().ok()
}
