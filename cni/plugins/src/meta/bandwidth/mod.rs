// SPDX-License-Identifier: GPL-2.0-or-later

//! `bandwidth`: limits the rate of a container's traffic.
//!
//! Packets to the container are limited by a queue on the node's end of its pair of links. The kernel has no
//! queue for received packets: packets from the container are redirected to an intermediate device, limited
//! by its queue, and then received again.

mod config;
mod device;
mod expected;

use cni_dataplane::ebpf;
use cni_kernel::mac::Mac;
use cni_kernel::route::{Link, LinkKind, RouteError, RouteSocket, TokenBucket, Verdict};
use cni_spec::{AddResult, Attachment, CniError, Interface, Version};
use nix::errno::Errno;

use crate::expected::Expected;
use crate::interface::shared::container::Container;
use crate::interface::shared::{failed, interface};
use crate::meta::{gone, probe};
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::undo::Undo;
use config::Limits;
use device::Made;
pub use device::is_ours;

/// The `bandwidth` plugin.
#[derive(Debug)]
pub struct Bandwidth;

impl Plugin for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    fn summary(&self) -> &'static str {
        "limits the rate of the container's traffic"
    }

    fn place(&self) -> Place {
        Place::Chained
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        config::decodes()
    }

    fn versions(&self) -> &'static [Version] {
        // Results of earlier versions have no interfaces.
        const { since_0_3_0() }
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        Limits::read(request.config).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let limits = Limits::read(request.config)?;
        let previous = previous(request)?;
        let sides = if limits.is_none() {
            // Without limits any link will do. Limits of an earlier ADD can only be on a pair of links.
            Sides::find_if_there(request)?
        } else {
            let sides = Sides::find(request, previous)?;
            sides.must_be_named(previous)?;
            // The BPF programs bypass the queues.
            ebpf::limit_link(sides.veth.index);
            Some(sides)
        };
        let Some(sides) = sides else { return Ok(previous.clone()) };
        let Devices { limited, removed } = sides.limit(&limits, request)?;
        let mut result = previous.clone();
        // The result of a repeated ADD has the device already.
        let is_device = |name: &str| limited.iter().chain(&removed).any(|device| device.name == name);
        result.interfaces.retain(|one| !is_device(&one.name) || !one.sandbox.is_empty());
        result.interfaces.extend(limited.iter().map(|device| interface(device, String::new())));
        Ok(result)
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        let host = RouteSocket::open().map_err(failed)?;
        // The queues go with the links; they are removed here from links that stay.
        let released = outer_end(&host, request).and_then(|veth| {
            let devices = device::find(&host, &request.attachment).map_err(failed)?;
            veth.map_or(Ok(()), |veth| release(&host, &veth, &devices).map_err(failed))
        });
        // The device is removed also after a failure, because it is on the node.
        released.and(device::remove(&host, &request.attachment).map_err(failed))
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let limits = Limits::read(request.config)?;
        let previous = previous(request)?;
        if limits.is_none() {
            return Ok(());
        }
        let sides = Sides::find(request, previous)?;
        crate::expected::check(&expected::of(&sides, &limits, &request.attachment))
    }

    fn expected(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Expected>>, CniError> {
        let limits = Limits::read(request.config)?;
        if limits.is_none() {
            return Ok(Vec::new());
        }
        let sides = Sides::find(request, previous(request)?)?;
        Ok(expected::of(&sides, &limits, &request.attachment))
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let Some(valid) = &request.config.valid_attachments else { return Ok(()) };
        let host = RouteSocket::open().map_err(failed)?;
        device::retain(&host, &request.config.name, valid).map_err(failed)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        Limits::read(request.config)?;
        probe::in_new_namespace(|route| {
            route.create_ifb("probe", Mac([2, 0, 0, 0, 0, 1]), 1500)?;
            let link = route.link("probe")?;
            route.set_token_bucket(&link, &TokenBucket::new(125_000, 125_000, 25_000))?;
            route.redirect_ingress(&link, &link).map(drop)
        })
    }
}

const fn since_0_3_0() -> &'static [Version] {
    Version::ALL.split_at(2).1
}

fn previous<'a>(request: &'a Request<'_>) -> Result<&'a AddResult, CniError> {
    let previous = request.config.prev_result.as_ref();
    previous.ok_or_else(|| CniError::config("must be called as chained plugin"))
}

/// The attachment's devices after an ADD.
struct Devices {
    /// The device that limits the container's egress.
    limited: Option<Link>,
    /// Devices that limited it before.
    removed: Vec<Link>,
}

/// The reference's words for a container whose link has no other end on the node.
const NO_PEER: &str = "no veth peer of container interface found in host ns";

/// The node's end of the container's pair of links.
struct Sides {
    host: RouteSocket,
    veth: Link,
}

impl Sides {
    fn find(request: &Request<'_>, previous: &AddResult) -> Result<Self, CniError> {
        if previous.interfaces.is_empty() {
            return Err(CniError::config("no interfaces provided"));
        }
        let ifname = request.attachment.ifname();
        let no_peer =
            |why: &str| CniError::internal(format!("container interface {ifname} has no veth peer: {why}"));
        let container = Container::open(request.netns.as_deref())?;
        let inner = container.route.link(ifname).map_err(|error| no_peer(&error.to_string()))?;
        let index = inner.peer.filter(|_| inner.kind == LinkKind::Veth);
        let index = index.ok_or_else(|| no_peer("it is not a veth"))?;
        let host = RouteSocket::open().map_err(failed)?;
        let veth = match host.link_by_index(index) {
            Err(error) if error.is_not_found() => {
                return Err(CniError::internal(format!("veth peer with index {index} is not in host ns")));
            }
            found => found.map_err(failed)?,
        };
        if !is_other_end(&veth, &inner) {
            return Err(CniError::internal(NO_PEER));
        }
        Ok(Self { host, veth })
    }

    /// Refuses an ADD if the previous plugin made a different link on the node, as the reference does.
    fn must_be_named(&self, previous: &AddResult) -> Result<(), CniError> {
        let is_named = |one: &Interface| one.sandbox.is_empty() && one.name == self.veth.name;
        if previous.interfaces.iter().any(is_named) {
            return Ok(());
        }
        Err(CniError::internal(NO_PEER))
    }

    /// Does the same as [`Sides::find`], but returns none if there is no such pair.
    fn find_if_there(request: &Request<'_>) -> Result<Option<Self>, CniError> {
        let host = RouteSocket::open().map_err(failed)?;
        Ok(outer_end(&host, request)?.map(|veth| Self { host, veth }))
    }

    /// Sets or removes the limit of each direction; after an error both are as before.
    fn limit(&self, limits: &Limits, request: &Request<'_>) -> Result<Devices, CniError> {
        let mut undo = Undo::new();
        match &limits.ingress {
            Some(bucket) => self.limit_ingress(bucket, &mut undo),
            None => self.free_ingress(&mut undo),
        }
        .map_err(failed)?;
        let devices = match &limits.egress {
            Some(bucket) => self.limit_egress(bucket, &request.attachment, &mut undo),
            None => self.free_egress(&request.attachment, &mut undo),
        }
        .map_err(failed)?;
        undo.keep();
        Ok(devices)
    }

    fn limit_ingress<'a>(&'a self, bucket: &TokenBucket, undo: &mut Undo<'a>) -> Result<(), RouteError> {
        let (host, veth) = (&self.host, &self.veth);
        let before = host.token_bucket(veth)?;
        // Registered before the step, which may succeed with its reply lost.
        undo.on_failure(format!("rate of {}", veth.name), move || put_back(host, veth, before));
        host.set_token_bucket(veth, bucket)
    }

    fn limit_egress<'a>(
        &'a self,
        bucket: &TokenBucket,
        attachment: &Attachment,
        undo: &mut Undo<'a>,
    ) -> Result<Devices, RouteError> {
        let (host, veth) = (&self.host, &self.veth);
        let (device, made) = device::provide(host, attachment, veth.mtu)?;
        let at = device.clone();
        let before = match made {
            Made::Now => None,
            Made::Before => host.token_bucket(&device)?,
        };
        undo.on_failure(format!("device {}", device.name), move || match made {
            Made::Now => gone(host.delete_link(&at)),
            Made::Before => put_back(host, &at, before),
        });
        host.set_token_bucket(&device, bucket)?;
        let index = device.index;
        if host.before_redirection(veth, index)?.is_none() {
            undo.on_failure("redirection", move || gone(host.delete_redirections(veth, &[index])));
        }
        for filter in host.redirect_ingress(veth, &device)? {
            if filter.verdict == Verdict::Final {
                log::warn!("{}", expected::early(&filter, veth, &device));
            }
        }
        Ok(Devices { limited: Some(device), removed: Vec::new() })
    }

    /// Removes the queue of an earlier ADD.
    fn free_ingress<'a>(&'a self, undo: &mut Undo<'a>) -> Result<(), RouteError> {
        let (host, veth) = (&self.host, &self.veth);
        let before = host.token_bucket(veth)?;
        if before.is_none() {
            return Ok(());
        }
        let deleted = host.delete_token_bucket(veth);
        if !is_foreign(&deleted) {
            undo.on_failure(format!("rate of {}", veth.name), move || put_back(host, veth, before));
        }
        done(deleted)
    }

    /// Removes device and redirection of an earlier ADD.
    fn free_egress<'a>(
        &'a self,
        attachment: &Attachment,
        undo: &mut Undo<'a>,
    ) -> Result<Devices, RouteError> {
        let (host, veth) = (&self.host, &self.veth);
        let removed = device::find(host, attachment)?;
        for device in &removed {
            if host.before_redirection(veth, device.index)?.is_some() {
                let to = device.clone();
                undo.on_failure("redirection", move || host.redirect_ingress(veth, &to).map(drop));
                gone(host.delete_redirections(veth, &[device.index]))?;
            }
            // No later step can fail, because there is usually only one device.
            gone(host.delete_link(device))?;
        }
        Ok(Devices { limited: None, removed })
    }
}

fn put_back(host: &RouteSocket, link: &Link, before: Option<TokenBucket>) -> Result<(), RouteError> {
    match before {
        Some(bucket) => host.set_token_bucket(link, &bucket),
        None => done(host.delete_token_bucket(link)),
    }
}

/// Removes redirection and queue from the node's end.
fn release(host: &RouteSocket, veth: &Link, devices: &[Link]) -> Result<(), RouteError> {
    let devices: Vec<u32> = devices.iter().map(|device| device.index).collect();
    let redirection = gone(host.delete_redirections(veth, &devices));
    let queue = match host.token_bucket(veth) {
        Ok(Some(_)) => done(host.delete_token_bucket(veth)),
        // The link may be gone.
        read => gone(read.map(drop)),
    };
    redirection.and(queue)
}

/// True if a queue was not deleted because another program has replaced it: its handle differs.
fn is_foreign(deleted: &Result<(), RouteError>) -> bool {
    deleted.as_ref().is_err_and(|error| error.errno() == Some(Errno::EINVAL))
}

/// Accepts that a queue to delete is gone or foreign.
fn done(deleted: Result<(), RouteError>) -> Result<(), RouteError> {
    if is_foreign(&deleted) { Ok(()) } else { gone(deleted) }
}

/// True if the links are ends of one pair. Link indexes are unique only within a namespace, so each must be
/// the other's peer.
fn is_other_end(outer: &Link, inner: &Link) -> bool {
    outer.kind == LinkKind::Veth && outer.peer == Some(inner.index)
}

/// The node's end of the pair, if it still exists.
fn outer_end(host: &RouteSocket, request: &Request<'_>) -> Result<Option<Link>, CniError> {
    let Some(container) = Container::open_if_there(request.netns.as_deref())? else { return Ok(None) };
    let inner = container.route.find_link(request.attachment.ifname()).map_err(failed)?;
    let Some(inner) = inner.filter(|link| link.kind == LinkKind::Veth) else { return Ok(None) };
    let Some(index) = inner.peer else { return Ok(None) };
    match host.link_by_index(index) {
        Err(error) if error.is_not_found() => Ok(None),
        found => Ok(Some(found.map_err(failed)?).filter(|outer| is_other_end(outer, &inner))),
    }
}
