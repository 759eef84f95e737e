// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected state: the bridge, the gateway, the port, the rules.

use cni_dataplane::macspoof;
use cni_dataplane::owner::MADE;
use cni_kernel::AddressFamily;
use cni_kernel::mac::Mac;
use cni_kernel::route::{Link, LinkKind, PortVlan, RouteSocket};
use cni_spec::{AddResult, Attachment, CniError};
use ipnet::IpNet;

use super::config::{Gateway, Settings};
use crate::expected::{Expected, Whose};
use crate::interface::shared::check::{Inside, present, previous_result, wrong};
use crate::interface::shared::expected::{self, Addresses, LinkLocal, Objects};
use crate::interface::shared::host::Host;
use crate::interface::shared::layer3::has;
use crate::interface::shared::{container_side, failed, masquerade};
use crate::plugin::Request;

/// All objects of the attachment, in the order of the ADD.
pub(super) fn of(request: &Request<'_>) -> Result<Objects, CniError> {
    let settings = Settings::new(request.config, request.args)?;
    let previous = previous_result(request, "")?;
    let inside = Inside::open(request, previous, "")?;
    let attachment = &request.attachment;
    let mut all: Objects = vec![Box::new(Bridge { settings: settings.clone() })];
    all.push(Box::new(Port::of(attachment, &inside, &settings)?));
    if settings.spoof_check {
        all.push(Box::new(SpoofGuard::of(attachment, &inside, previous)?));
    }
    if settings.gateway != Gateway::None {
        all.extend(gateway(&inside, &settings, previous)?);
    }
    let addresses = inside.addresses();
    all.extend(masquerade::expected(&settings.common, attachment, &inside.container, &addresses)?);
    all.extend(container_side::of(inside)?);
    Ok(all)
}

/// The gateway's addresses, and the forwarding behind it.
fn gateway(inside: &Inside<'_>, settings: &Settings, previous: &AddResult) -> Result<Objects, CniError> {
    let ips = inside.ips();
    let net = |ip: &cni_spec::IpConfig| IpNet::new(ip.gateway?, ip.address.prefix_len()).ok();
    let mut wanted: Vec<IpNet> = Vec::new();
    for gateway in ips.iter().filter_map(net) {
        if !wanted.contains(&gateway) {
            wanted.push(gateway);
        }
    }
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let link = settings.gateway_link().unwrap_or_else(|| settings.bridge.clone());
    let mut all = expected::settings(&link, &wanted, previous)?;
    let has_ipv6 = has(&wanted, AddressFamily::V6);
    let put_back = {
        let (settings, wanted) = (settings.clone(), wanted.clone());
        move || {
            let host = Host::open()?;
            let bridge = host.ensure_bridge(&settings)?;
            let link = host.ensure_gateway_link(&bridge, &settings, host.mtu(settings.common.mtu)?)?;
            let change = host.gateway_change(&link, &wanted, &settings)?;
            host.become_gateway(&link, &wanted, &change)
        }
    };
    all.push(Box::new(Addresses { link: link.clone(), wanted, put_back }));
    if has_ipv6 {
        all.push(Box::new(LinkLocal { link }));
    }
    Ok(all)
}

/// The bridge, which must be up and have the settings that the ADD makes.
struct Bridge {
    settings: Settings,
}

impl Expected for Bridge {
    fn name(&self) -> String {
        format!("bridge {}", self.settings.bridge)
    }

    fn whose(&self) -> Whose {
        // An ADD creates a missing bridge, and sets a bridge of another program up.
        let found = RouteSocket::open().and_then(|socket| socket.find_link(&self.settings.bridge));
        match found {
            Ok(Some(link)) if link.alias != MADE => Whose::Shared,
            _ => Whose::Ours,
        }
    }

    fn stops(&self, _family: AddressFamily, _is_forwarded: bool) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        let name = &self.settings.bridge;
        let bridge = present(&RouteSocket::open().map_err(failed)?, name)?;
        let is_wrong = |what: &str| Err(wrong(format!("Bridge interface {name} {what}")));
        match () {
            () if bridge.kind != LinkKind::Bridge => {
                Err(wrong(format!("Interface {name} does not have link type of bridge")))
            }
            // Another network on the same bridge may have asked for promiscuous mode.
            () if self.settings.promiscuous && !bridge.promiscuous => {
                is_wrong("configured Promisc Mode true doesn't match current state: false")
            }
            () if !bridge.up => is_wrong("is down"),
            () => Ok(()),
        }
    }

    fn put_back(&self) -> Result<(), CniError> {
        Host::open()?.ensure_bridge(&self.settings).map(drop)
    }
}

/// The host's end of the pair, as a port of the bridge.
struct Port {
    attachment: Attachment,
    settings: Settings,
    /// The link's name and index.
    name: String,
    index: u32,
}

impl Port {
    fn of(attachment: &Attachment, inside: &Inside<'_>, settings: &Settings) -> Result<Self, CniError> {
        let inner = present(&inside.container.route, attachment.ifname())?;
        let missing = || wrong(format!("CNI veth created for bridge {} was not found", settings.bridge));
        let index = inner.peer.ok_or_else(missing)?;
        let link = match RouteSocket::open().map_err(failed)?.link_by_index(index) {
            Err(error) if error.is_not_found() => return Err(missing()),
            other => other.map_err(failed)?,
        };
        Ok(Self { attachment: attachment.clone(), settings: settings.clone(), name: link.name, index })
    }

    fn check_vlans(&self, socket: &RouteSocket, port: &Link) -> Result<(), CniError> {
        let Some(vlans) = &self.settings.vlans else { return Ok(()) };
        let present = socket.port_vlans(port).map_err(failed)?;
        let has = |wanted: &PortVlan| {
            present.iter().any(|is| {
                is.first <= wanted.first
                    && wanted.last <= is.last
                    && is.pvid == wanted.pvid
                    && is.untagged == wanted.untagged
            })
        };
        let native = PortVlan::native(vlans.native());
        match std::iter::once(&native).chain(&vlans.trunk).find(|wanted| !has(wanted)) {
            Some(missing) => Err(wrong(format!("Interface {}: {missing} not found on the port", self.name))),
            None => Ok(()),
        }
    }
}

impl Expected for Port {
    fn name(&self) -> String {
        format!("port {} of bridge {}", self.name, self.settings.bridge)
    }

    fn stops(&self, _family: AddressFamily, _is_forwarded: bool) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        let socket = RouteSocket::open().map_err(failed)?;
        let port = socket.link_by_index(self.index).map_err(failed)?;
        let bridge = socket.find_link(&self.settings.bridge).map_err(failed)?;
        let (name, bridge_name) = (&self.name, &self.settings.bridge);
        if bridge.is_none_or(|bridge| port.master != Some(bridge.index)) {
            return Err(wrong(format!("{name} is no port of bridge {bridge_name}")));
        }
        if !port.up {
            return Err(wrong(format!("Interface {name} is down")));
        }
        match port.port {
            Some(is) if is != self.settings.port => Err(wrong(format!(
                "Interface {name}: port is set to {is:?} and should be {:?}",
                self.settings.port
            ))),
            _ => self.check_vlans(&socket, &port),
        }
    }

    fn put_back(&self) -> Result<(), CniError> {
        let host = Host::open()?;
        let bridge = host.ensure_bridge(&self.settings)?;
        let port = host.route.link_by_index(self.index).map_err(failed)?;
        host.attach(&port, &bridge, &self.attachment, &self.settings)
    }
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
        // The MAC address that the ADD set counts, because the container may have changed its address since, and that
        // is what the guard must prevent.
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

impl Expected for SpoofGuard {
    fn name(&self) -> String {
        format!("guard against spoofed addresses on {}, which may send with {}", self.port, self.mac)
    }

    fn is_rules(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        Ok(macspoof::check(&self.attachment, &self.port, self.mac)?)
    }

    fn put_back(&self) -> Result<(), CniError> {
        Ok(macspoof::protect(&self.attachment, &self.port, self.mac)?)
    }

    fn take_away(&self) -> Result<(), CniError> {
        // The link's name depends only on the attachment, so a link with another index belongs to a later ADD, which
        // needs the guard. A link with the same index is one that the kernel has not removed yet.
        let host = RouteSocket::open().map_err(failed)?;
        match host.find_link(&self.port).map_err(failed)? {
            Some(link) if link.index != self.index => Ok(()),
            _ => Ok(macspoof::release(&self.attachment)?),
        }
    }
}
