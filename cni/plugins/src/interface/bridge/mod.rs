//! `bridge`: joins a container to a bridge of the node by a pair of links.
//!
//! ADD asks IPAM first, before anything in the kernel is touched, and gives the gateway's address to
//! the bridge last: what others share changes only when all else has succeeded. Every step that
//! makes something of this attachment registers how to take it back.

mod check;
mod config;
mod host;
mod plan;
mod restorable;

use cni_dataplane::macspoof;
use cni_kernel::route::{DuplicateDetection, Link, LinkChange};
use cni_spec::{AddResult, CniError, Interface};

use super::shared::container::{Container, Setting};
use super::shared::host::{Host, taken};
use super::shared::{failed, interface, masquerade, remove};
use crate::plugin::{NodeRequest, Plugin, Request, Restorable};
use crate::skel::delegate;
use crate::undo::Undo;
use config::Settings;
pub(crate) use host::MADE;
use plan::Plan;

/// The `bridge` plugin.
#[derive(Debug)]
pub struct Bridge;

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn summary(&self) -> &'static str {
        "joins a container to a bridge of the node"
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        &config::decodes() | &super::shared::keys::decodes()
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let settings = Settings::new(request.config, request.args)?;
        let container = Container::open(request.netns.as_deref())?;
        let host = Host::open()?;
        // Before IPAM: a second ADD of the same attachment must not take the first one's address
        // away when it fails.
        if container.route.find_link(request.attachment.ifname()).map_err(failed)?.is_some() {
            return Err(taken(&request.attachment));
        }
        let mut undo = Undo::new();
        let work = Work { request, settings: &settings, host: &host, container: &container };
        let early = match delegate::ipam_needs_link(request.config) {
            true => None,
            false => Some(work.plan(&mut undo)?),
        };
        let (links, plan) = set_up(&work, early, &mut undo)?;
        undo.keep();
        Ok(AddResult { interfaces: interfaces(&links, &container), ..plan.result })
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        remove::del(request)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        check::check(request)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        remove::gc(request)
    }

    fn restorable(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Restorable>>, CniError> {
        restorable::of(request)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let settings = Settings::new(request.config, "")?;
        masquerade::status(&settings.common)?;
        if settings.common.ipam { delegate::ipam_status(request) } else { Ok(()) }
    }
}

/// What the steps of an ADD work with.
struct Work<'a> {
    request: &'a Request<'a>,
    settings: &'a Settings,
    host: &'a Host,
    container: &'a Container,
}

impl<'a> Work<'a> {
    /// Asks IPAM, if there is one, and plans with what it says.
    fn plan(&self, undo: &mut Undo<'a>) -> Result<Plan, CniError> {
        let request = self.request;
        let ipam = match self.settings.common.ipam {
            true => {
                let answer = delegate::ipam_add(request)?;
                undo.on_failure("release the addresses", || delegate::ipam_del(request));
                Some(answer)
            }
            false => None,
        };
        plan::plan(self.settings, ipam)
    }
}

/// The links as they are in the end.
struct Links {
    bridge: Link,
    port: Link,
    inner: Link,
    /// The link of the gateway's addresses, where it is not the bridge.
    gateway: Option<Link>,
}

/// Carries the plan out, which is made on the way if IPAM needs the links for it.
fn set_up<'a>(work: &Work<'a>, plan: Option<Plan>, undo: &mut Undo<'a>) -> Result<(Links, Plan), CniError> {
    let Work { request, settings, host, container } = *work;
    let attachment = &request.attachment;
    let bridge = host.ensure_bridge(settings)?;
    let mtu = host.mtu(settings.common.mtu)?;
    let (inner, port) = host.create_pair(&container.route, attachment, settings.mac, mtu)?;
    let to_delete = inner.clone();
    undo.on_failure("delete the container's link", move || container.route.delete_link(&to_delete));
    if settings.spoof_check {
        let mac =
            inner.mac.ok_or_else(|| CniError::internal(format!("link {} has no MAC address", inner.name)))?;
        // Taken back whatever the outcome: a call that failed half-way may have left a part.
        undo.on_failure("remove the guard against spoofing", || macspoof::release(attachment));
        // The container's end is still down: no packet passes before the guard is there.
        macspoof::protect(attachment, &port.name, mac)?;
    }
    host.attach(&port, &bridge, attachment, settings)?;
    let plan = match plan {
        Some(plan) => plan,
        None => work.plan(undo)?,
    };
    let gateway = match plan.gateways.is_empty() {
        true => None,
        false => {
            let link = host.ensure_gateway_link(&bridge, settings, mtu)?;
            let change = host.gateway_change(&link, &plan.gateways, settings)?;
            Some((link, change))
        }
    };
    // The neighbours shall learn at once that an address has moved to this link.
    container.route.change_link(&inner, &LinkChange::new().arp_notify()).map_err(failed)?;
    container.prepare(&inner, &plan.layer3, settings_inside(settings))?;
    if !settings.container_link_down {
        container.bring_up(&inner, &plan.layer3, detection(settings))?;
        host.wait_for_port(&port)?;
    }
    masquerade::start(&settings.common, attachment, container, &plan.layer3.addresses, undo)?;
    if let Some((link, change)) = &gateway {
        host.become_gateway(link, &plan.gateways, change)?;
    }
    // Read again: other programs (systemd's link policies) change addresses after creation.
    let again = |link: &Link| host.route.link_by_index(link.index).map_err(failed);
    let links = Links {
        bridge: again(&bridge)?,
        port: again(&port)?,
        inner: container.route.link_by_index(inner.index).map_err(failed)?,
        gateway: match gateway {
            Some((link, _)) if link.index != bridge.index => Some(again(&link)?),
            _ => None,
        },
    };
    Ok((links, plan))
}

/// Whether the container's addresses are probed before they are used.
fn detection(settings: &Settings) -> DuplicateDetection {
    if settings.detect_duplicates { DuplicateDetection::AsLink } else { DuplicateDetection::Skip }
}

/// How the container's end is set before it has IPv6 addresses.
fn settings_inside(settings: &Settings) -> &'static [Setting] {
    match detection(settings) {
        DuplicateDetection::AsLink => &[("enhanced_dad", "1"), ("accept_dad", "1")],
        DuplicateDetection::Skip => &[("accept_dad", "0")],
    }
}

fn interfaces(links: &Links, container: &Container) -> Vec<Interface> {
    let mut all = vec![
        interface(&links.bridge, String::new()),
        interface(&links.port, String::new()),
        interface(&links.inner, container.sandbox()),
    ];
    all.extend(links.gateway.as_ref().map(|link| interface(link, String::new())));
    all
}
