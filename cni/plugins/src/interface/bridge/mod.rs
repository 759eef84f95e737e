//! `bridge`: joins a container to a bridge of the node by a pair of links.
//!
//! ADD asks IPAM first, before anything in the kernel is touched, and gives the gateway's address to
//! the bridge last: what others share changes only when all else has succeeded. Every step that
//! makes something of this attachment registers how to take it back.

mod check;
mod config;
mod container;
mod host;
mod plan;
mod remove;

use std::fmt::Display;

use cni_dataplane::nftables::Nftables;
use cni_dataplane::{Backend, Kinds, MasqueradeRequest, Withdrawal, macspoof};
use cni_kernel::route::Link;
use cni_kernel::sysctl::SysctlError;
use cni_spec::{AddResult, CniError, ErrorCode, Interface};

use crate::plugin::{NodeRequest, Plugin, Request};
use crate::skel::delegate;
use crate::undo::Undo;
use config::Settings;
use container::Container;
use host::Host;
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

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let settings = Settings::new(request.config, request.args)?;
        let container = Container::open(request.netns.as_deref())?;
        let host = Host::open()?;
        // Before IPAM: a second ADD of the same attachment must not take the first one's address
        // away when it fails.
        if container.route.find_link(request.attachment.ifname()).map_err(failed)?.is_some() {
            return Err(host::taken(&request.attachment));
        }
        let mut undo = Undo::new();
        let ipam = match settings.ipam {
            true => {
                let answer = delegate::ipam_add(request)?;
                undo.on_failure("release the addresses", || delegate::ipam_del(request));
                Some(answer)
            }
            false => None,
        };
        let plan = plan::plan(&settings, ipam)?;
        let links = set_up(
            &Work { request, settings: &settings, host: &host, container: &container },
            &plan,
            &mut undo,
        )?;
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

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let settings = Settings::new(request.config, "")?;
        if settings.masquerade {
            Nftables::new()
                .status()
                .map_err(|error| CniError::new(ErrorCode::NotAvailable, error.to_string()))?;
        }
        if settings.ipam { delegate::ipam_status(request) } else { Ok(()) }
    }
}

/// What the steps of an ADD work with.
struct Work<'a> {
    request: &'a Request<'a>,
    settings: &'a Settings,
    host: &'a Host,
    container: &'a Container,
}

/// The links as they are in the end.
struct Links {
    bridge: Link,
    port: Link,
    inner: Link,
    /// The link of the gateway's addresses, where it is not the bridge.
    gateway: Option<Link>,
}

/// Carries the plan out.
fn set_up<'a>(work: &Work<'a>, plan: &Plan, undo: &mut Undo<'a>) -> Result<Links, CniError> {
    let Work { request, settings, host, container } = *work;
    let attachment = &request.attachment;
    let bridge = host.ensure_bridge(settings)?;
    let mtu = host.mtu(settings)?;
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
    let gateway = match plan.gateways.is_empty() {
        true => None,
        false => {
            let link = host.ensure_gateway_link(&bridge, settings, mtu)?;
            let change = host.gateway_change(&link, &plan.gateways, settings)?;
            Some((link, change))
        }
    };
    container.configure(&inner, plan, settings)?;
    if !settings.container_link_down {
        host.wait_for_port(&port)?;
    }
    if settings.masquerade && settings.ipam {
        undo.on_failure("stop masquerading", || {
            Nftables::new().withdraw(&Withdrawal::of(attachment, Kinds::Masquerade))
        });
        let (addresses, netns) = (plan.addresses.clone(), container.netns());
        let masquerade = MasqueradeRequest { attachment: attachment.clone(), netns, addresses };
        Nftables::new().masquerade(&masquerade)?;
    }
    if let Some((link, change)) = &gateway {
        host.become_gateway(link, &plan.gateways, change)?;
    }
    // Read again: other programs (systemd's link policies) change addresses after creation.
    let again = |link: &Link| host.route.link_by_index(link.index).map_err(failed);
    Ok(Links {
        bridge: again(&bridge)?,
        port: again(&port)?,
        inner: container.route.link_by_index(inner.index).map_err(failed)?,
        gateway: match gateway {
            Some((link, _)) if link.index != bridge.index => Some(again(&link)?),
            _ => None,
        },
    })
}

/// The MTU is left out, as by the reference: its results for old and new versions stay the same.
fn interfaces(links: &Links, container: &Container) -> Vec<Interface> {
    let interface = |link: &Link, sandbox: String| Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        sandbox,
        ..Interface::default()
    };
    let mut all = vec![
        interface(&links.bridge, String::new()),
        interface(&links.port, String::new()),
        interface(&links.inner, container.sandbox()),
    ];
    all.extend(links.gateway.as_ref().map(|link| interface(link, String::new())));
    all
}

/// An error of the kernel's side as the specification's.
#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn failed(error: impl Display) -> CniError {
    CniError::internal(error.to_string())
}

/// A setting that a kernel without IPv6, or an older one, does not have.
fn optional<T>(result: Result<T, SysctlError>) -> Result<(), CniError> {
    match result {
        Err(error) if !error.is_not_found() => Err(failed(error)),
        _ => Ok(()),
    }
}
