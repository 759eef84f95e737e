// SPDX-License-Identifier: GPL-2.0-or-later

//! `bridge`: connects a container to a bridge of the node by a veth pair.
//!
//! ADD calls IPAM first, before any change in the kernel, and adds the gateway's address to the bridge last:
//! shared objects change only after all else has succeeded. Every step of this attachment registers its undo.

mod check;
mod config;
mod expected;
mod host;
mod neighbours;
mod plan;

use cni_dataplane::macspoof;
use cni_dataplane::owner::MADE;
use cni_kernel::route::{DuplicateDetection, Link, LinkChange, LinkKind};
use cni_spec::{AddResult, CniError, Interface, NetConf};
use ipnet::IpNet;

use super::shared::container::{Container, Setting};
use super::shared::host::{Host, taken};
use super::shared::{failed, interface, masquerade, networks, remove, renamed};
use crate::expected::Expected;
use crate::ipam::host_local::other_networks::Claim;
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::skel::delegate;
use crate::undo::Undo;
use config::Settings;
use neighbours::mac_of;
use plan::Plan;

/// The IPv6 counterpart of `arp_notify`.
const NOTIFY_V6: Setting = ("ndisc_notify", "1");

/// The `bridge` plugin.
#[derive(Debug)]
pub struct Bridge;

/// The name of a configuration's bridge.
pub(crate) fn name(config: &NetConf) -> Result<String, CniError> {
    Ok(Settings::new(config, "")?.bridge)
}

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn summary(&self) -> &'static str {
        "connects a container to a bridge of the node"
    }

    fn place(&self) -> Place {
        Place::Link
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        &config::decodes() | &super::shared::keys::decodes()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        let settings = Settings::new(request.config, request.args)?;
        plan::plan(&settings, request.config.prev_result.clone()).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let settings = Settings::new(request.config, request.args)?;
        let container = Container::open(request.netns.as_deref())?;
        let host = Host::open()?;
        // Checked before IPAM is called: if a second ADD fails, it must not release the first one's address.
        if container.route.find_link(request.attachment.ifname()).map_err(failed)?.is_some() {
            return Err(taken(&request.attachment));
        }
        let mut undo = Undo::new();
        let context = AddContext { request, settings: &settings, host: &host, container: &container };
        let early = match delegate::ipam_needs_link(request.config) {
            true => None,
            false => Some(context.plan(&mut undo)?),
        };
        let (links, plan) = set_up(&context, early, &mut undo)?;
        undo.keep();
        Ok(AddResult { interfaces: interfaces(&links, &container), ..plan.result })
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        remove::del(request)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        check::check(request)?;
        crate::expected::check(&self.expected(request)?)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        remove::gc(request)
    }

    fn expected(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Expected>>, CniError> {
        expected::of(request)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let settings = Settings::new(request.config, "")?;
        masquerade::status(&settings.common)?;
        if settings.common.ipam { delegate::ipam_status(request) } else { Ok(()) }
    }
}

/// The context of an ADD's steps.
struct AddContext<'a> {
    request: &'a Request<'a>,
    settings: &'a Settings,
    host: &'a Host,
    container: &'a Container,
}

impl<'a> AddContext<'a> {
    /// Calls IPAM, if the configuration has one, and plans with its result.
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

    /// Claims the container's addresses on the bridge, until its port has joined.
    fn claim(&self, bridge: &Link, plan: &Plan) -> Result<Claim, CniError> {
        let addresses: Vec<_> = plan.layer3.addresses.iter().map(IpNet::addr).collect();
        renamed::claim(self.request.config, &addresses, |holder| {
            let port = self.host.port_of(bridge, holder)?;
            port.map_or(Ok(false), |port| self.host.has_vlan_of(bridge, &port, self.settings))
        })
    }
}

/// The links after the ADD.
struct Links {
    bridge: Link,
    port: Link,
    inner: Link,
    /// The link of the gateway's addresses, unless it is the bridge.
    gateway: Option<Link>,
}

/// Carries out the plan. Without a plan, calls IPAM after the links are made.
fn set_up<'a>(
    context: &AddContext<'a>,
    plan: Option<Plan>,
    undo: &mut Undo<'a>,
) -> Result<(Links, Plan), CniError> {
    let AddContext { request, settings, host, container } = *context;
    let attachment = &request.attachment;
    let bridge = host.ensure_bridge(settings)?;
    let mtu = host.mtu(settings.common.mtu)?;
    let joins_last = plan.is_some() && settings.can_join_last();
    let made_of =
        if joins_last { plan.as_ref().and_then(|plan| mac_of(&plan.layer3.addresses)) } else { None };
    let mut claim = plan.as_ref().map(|plan| context.claim(&bridge, plan)).transpose()?;
    let (inner, port) = host.create_pair(&container.route, attachment, settings.mac.or(made_of), mtu)?;
    let to_delete = inner.clone();
    undo.on_failure("delete the container's link", move || container.route.delete_link(&to_delete));
    // A process in a running container could send through the new interface before its port joins the bridge. The rules
    // that name the bridge would not apply to those packets.
    let joins_last = joins_last && networks::is_first(container, &inner)?;
    if settings.spoof_check {
        let mac =
            inner.mac.ok_or_else(|| CniError::internal(format!("link {} has no MAC address", inner.name)))?;
        // Registered before the step, which may fail half-way.
        undo.on_failure("remove the guard against spoofing", || macspoof::release(attachment));
        // The container's end is still down: no packet passes before.
        macspoof::protect(attachment, &port.name, mac)?;
        // The guard does not see frames of LLDP and the like. With a neighbour's address as their source, the bridge
        // would send that neighbour's frames to this container.
        host.route.ignore_link_local_sources(&bridge).map_err(failed)?;
    }
    masquerade::prepare(&settings.common, &port)?;
    if joins_last {
        host.set_up_alone(&port, attachment)?;
    } else {
        host.attach(&port, &bridge, attachment, settings)?;
        claim.take();
    }
    settings.common.advertisements.apply(container, &inner)?;
    let plan = match plan {
        Some(plan) => plan,
        None => context.plan(undo)?,
    };
    let gateway = match plan.gateways.is_empty() {
        true => None,
        false => {
            let link = host.ensure_gateway_link(&bridge, settings, mtu)?;
            let change = host.gateway_change(&link, &plan.gateways, settings)?;
            Some((link, change))
        }
    };
    container.prepare(&inner, &plan.layer3, settings_inside(settings))?;
    let mut is_known_to_bridge = false;
    if joins_last {
        if bridge.alias == MADE {
            container.quieten(&inner, &plan.layer3);
        }
        container.bring_up(&inner, &plan.layer3, DuplicateDetection::Skip)?;
        masquerade::start(&settings.common, attachment, container, &plan.layer3.addresses, undo)?;
        // The packets that the kernel sends when the container's end comes up reach nobody, because the other end has
        // not joined the bridge yet. A port that is up when it joins forwards at once.
        host.wait_for_port(&port)?;
        host.join(&port, &bridge)?;
        claim.take();
        is_known_to_bridge = context.is_known_to_bridge(&port, &inner);
    } else {
        container.route.change_link(&inner, &LinkChange::new().arp_notify()).map_err(failed)?;
        if !settings.container_link_down {
            container.bring_up(&inner, &plan.layer3, detection(settings))?;
            host.wait_for_port(&port)?;
            announce(container, &inner, &plan)?;
        }
        masquerade::start(&settings.common, attachment, container, &plan.layer3.addresses, undo)?;
    }
    if let Some((link, change)) = &gateway {
        host.become_gateway(link, &plan.gateways, change)?;
    }
    if joins_last {
        // Setting the bridge's MAC address has emptied its table of neighbours.
        context.introduce(&bridge, &inner, &plan, is_known_to_bridge)?;
    }
    networks::joined(container, attachment, &inner)?;
    // Links are read again, because other programs (systemd's link policies) change addresses that the kernel chose.
    let again = |link: Link| match link.alias == MADE && link.kind == LinkKind::Bridge {
        true => Ok(link),
        false => host.route.link_by_index(link.index).map_err(failed),
    };
    let gateway = gateway.map(|(link, _)| link).filter(|link| link.index != bridge.index);
    let links = Links { bridge: again(bridge)?, port, inner, gateway: gateway.map(again).transpose()? };
    Ok((links, plan))
}

/// Lets the kernel announce the container's addresses to the node and to other containers, which may still know them
/// with the MAC address of an earlier container. Announcements that the kernel sends when the link comes up are lost,
/// because the bridge's port does not forward yet.
fn announce(container: &Container, inner: &Link, plan: &Plan) -> Result<(), CniError> {
    match inner.mac.filter(|_| !plan.layer3.addresses.is_empty()) {
        // With arp_notify and ndisc_notify, the kernel announces the addresses when the MAC address is set, even to the
        // same value.
        Some(mac) => container.route.change_link(inner, &LinkChange::new().mac(mac)).map_err(failed),
        None => Ok(()),
    }
}

fn detection(settings: &Settings) -> DuplicateDetection {
    if settings.detect_duplicates { DuplicateDetection::AsLink } else { DuplicateDetection::Skip }
}

/// The settings of the container's end, made before it has IPv6 addresses.
fn settings_inside(settings: &Settings) -> &'static [Setting] {
    match detection(settings) {
        DuplicateDetection::AsLink => &[("enhanced_dad", "1"), ("accept_dad", "1"), NOTIFY_V6],
        DuplicateDetection::Skip => &[("accept_dad", "0"), NOTIFY_V6],
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
