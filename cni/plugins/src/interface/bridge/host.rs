// SPDX-License-Identifier: GPL-2.0-or-later

//! The host's side: the bridge, the port, the gateway.

use cni_dataplane::owner::{MADE, Owner};
use cni_kernel::forwarding;
use cni_kernel::route::{
    DuplicateDetection, Link, LinkChange, LinkKind, NewBridge, NewVeth, OperState, PortSettings, PortVlan,
    RouteError, Switch, VlanFiltering,
};
use cni_kernel::sysctl;
use cni_spec::{Attachment, CniError};
use ipnet::IpNet;
use nix::errno::Errno;

use super::config::{DEFAULT_VLAN, Settings, Vlans};
use crate::interface::shared::host::{Host, host_names, random_mac};
use crate::interface::shared::{failed, optional, spare};

/// The limit of a bridge's ports: `BR_MAX_PORTS` of the kernel's `net/bridge/br_private.h`, without port 0,
/// the bridge's own.
const MAX_PORTS: u32 = 1023;

/// The missing addresses of the gateway's link, and conflicting ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GatewayChange {
    remove: Vec<IpNet>,
    add: Vec<IpNet>,
}

impl Host {
    /// Finds the bridge or makes it. Another ADD may do so concurrently.
    ///
    /// The bridge stays if the ADD fails later, as other containers may use it.
    pub(super) fn ensure_bridge(&self, settings: &Settings) -> Result<Link, CniError> {
        let name = &settings.bridge;
        let mut change = LinkChange::new();
        let found = self.route.find_link(name).map_err(failed)?;
        let is_foreign = found.as_ref().is_some_and(|link| link.alias != MADE);
        let mut bridge = match found {
            Some(link) => link,
            None => self.create_bridge(settings)?,
        };
        if bridge.kind != LinkKind::Bridge {
            return Err(CniError::internal(format!("{name:?} already exists but is not a bridge")));
        }
        if settings.vlans.is_some() && bridge.vlan_filtering != Some(VlanFiltering::On) {
            bridge = self.switch_filtering_on(&bridge)?;
        }
        // The node must not accept routes from a container. But a bridge of another program may be the node's uplink,
        // and a router behind one of its ports the node's way out.
        let learns = || forwarding::learns_from_routers(&self.route, &bridge).map_err(failed);
        if bridge.accept_ra != 0 && !(is_foreign && learns()?) {
            refuse_advertisements(&bridge)?;
        }
        if settings.promiscuous && !bridge.promiscuous {
            change = change.promiscuous();
        }
        if !bridge.up {
            change = change.up();
        }
        if !change.is_empty() {
            self.route.change_link(&bridge, &change).map_err(failed)?;
        }
        Ok(bridge)
    }

    fn create_bridge(&self, settings: &Settings) -> Result<Link, CniError> {
        let filtering = if settings.vlans.is_some() { VlanFiltering::On } else { VlanFiltering::Off };
        let mac = random_mac()?;
        // A bridge whose MAC address was not set takes the lowest one of its ports, so the gateway's MAC address could
        // change with each container that comes or goes.
        let new = NewBridge {
            name: &settings.bridge,
            mac: Some(mac),
            mtu: settings.common.mtu,
            vlan_filtering: filtering,
        };
        match self.route.create_bridge(&new) {
            Err(error) if is_unsupported(&error) => return Err(no_filtering(&settings.bridge)),
            Err(error) if !error.already_exists() => return Err(failed(error)),
            _ => {}
        }
        // At once: if anything fails from here on, the bridge stays, and no later ADD would mark it.
        let bridge = self.route.link(&settings.bridge).map_err(failed)?;
        self.route.change_link(&bridge, &LinkChange::new().alias(MADE).up()).map_err(failed)?;
        // The link-local address that the kernel derives from this MAC address needs no duplicate address detection,
        // because no other host has the MAC address. Detection would take up to two seconds, in which the kernel does
        // not solicit any container. Addresses without a prefix route would be lost when the link goes down, so they
        // are kept.
        for (setting, value) in [("accept_dad", "0"), ("keep_addr_on_down", "1")] {
            spare(sysctl::set(&format!("net/ipv6/conf/{}/{setting}", settings.bridge), value));
        }
        Ok(Link { alias: MADE.to_owned(), up: true, ..bridge })
    }

    /// Enables VLAN filtering. A kernel built without it refuses the request, or accepts it without effect.
    fn switch_filtering_on(&self, bridge: &Link) -> Result<Link, CniError> {
        match self.route.set_vlan_filtering(bridge, VlanFiltering::On) {
            Err(error) if is_unsupported(&error) => return Err(no_filtering(&bridge.name)),
            other => other.map_err(failed)?,
        }
        let bridge = self.route.link_by_index(bridge.index).map_err(failed)?;
        if bridge.vlan_filtering == Some(VlanFiltering::On) {
            return Ok(bridge);
        }
        Err(no_filtering(&bridge.name))
    }

    /// Sets the host's end up, with its owner as its alias, before it is a port of the bridge.
    pub(super) fn set_up_alone(&self, port: &Link, attachment: &Attachment) -> Result<(), CniError> {
        without_ipv6(port);
        let change = LinkChange::new().alias(&Owner::of(attachment).to_comment()).up();
        self.route.change_link(port, &change).map_err(failed)
    }

    /// Makes the host's end a port of the bridge, as [`Settings::can_join_last`] allows.
    pub(super) fn join(&self, port: &Link, bridge: &Link) -> Result<(), CniError> {
        self.route
            .change_link(port, &LinkChange::new().master(bridge))
            .map_err(|error| joining(error, bridge))
    }

    /// Makes the host's end a port of the bridge, with its owner as its alias, and sets it up.
    pub(super) fn attach(
        &self,
        port: &Link,
        bridge: &Link,
        attachment: &Attachment,
        settings: &Settings,
    ) -> Result<(), CniError> {
        without_ipv6(port);
        let mut join = LinkChange::new().alias(&Owner::of(attachment).to_comment()).master(bridge);
        // No packet may pass before the port has its settings.
        let plain = settings.is_plain_port();
        if plain {
            join = join.up();
        }
        self.route.change_link(port, &join).map_err(|error| joining(error, bridge))?;
        if plain {
            return Ok(());
        }
        self.route.set_port(port, UNSET, settings.port).map_err(failed)?;
        if let Some(vlans) = &settings.vlans {
            self.set_vlans(port, vlans)?;
        }
        self.route.change_link(port, &LinkChange::new().up()).map_err(failed)
    }

    /// True if a port exchanges untagged frames with the ports of this configuration: other VLANs of the bridge may have
    /// the same addresses.
    pub(super) fn has_vlan_of(
        &self,
        bridge: &Link,
        port: &Link,
        settings: &Settings,
    ) -> Result<bool, CniError> {
        if bridge.vlan_filtering != Some(VlanFiltering::On) {
            return Ok(true);
        }
        let native = settings.vlans.as_ref().map_or(DEFAULT_VLAN, Vlans::native);
        let vlans = self.route.port_vlans(port).map_err(failed)?;
        Ok(vlans.iter().any(|vlan| vlan.pvid == Switch::On && vlan.first == native))
    }

    fn set_vlans(&self, port: &Link, vlans: &Vlans) -> Result<(), CniError> {
        self.route.add_port_vlan(port, PortVlan::native(vlans.native())).map_err(failed)?;
        for tagged in &vlans.trunk {
            self.route.add_port_vlan(port, *tagged).map_err(failed)?;
        }
        let wanted = vlans.trunk.iter().any(|range| (range.first..=range.last).contains(&DEFAULT_VLAN));
        if vlans.native() == DEFAULT_VLAN || vlans.keep_default || wanted {
            return Ok(());
        }
        // A bridge may have another default VLAN; deleting a missing one is not an error.
        self.route.delete_port_vlan(port, PortVlan::tagged(DEFAULT_VLAN, DEFAULT_VLAN)).map_err(failed)
    }

    /// Waits until the port carries packets.
    pub(super) fn wait_for_port(&self, port: &Link) -> Result<(), CniError> {
        let seen = self.wait_until_up(port)?;
        if seen.state == OperState::Up {
            return Ok(());
        }
        Err(CniError::internal(format!("bridge port in error state: {}", seen.state))
            .with_details(format!("port {} of the bridge", seen.name)))
    }

    /// The link for the gateway's addresses: the bridge, or with `vlan` a veth whose peer is a port of that
    /// VLAN. Every ADD completes such a veth, as the ADD that made it may have been killed.
    pub(super) fn ensure_gateway_link(
        &self,
        bridge: &Link,
        settings: &Settings,
        mtu: Option<u32>,
    ) -> Result<Link, CniError> {
        let (Some(name), Some(vlans)) = (settings.gateway_link(), &settings.vlans) else {
            return Ok(bridge.clone());
        };
        let link = match self.route.find_link(&name).map_err(failed)? {
            Some(link) => link,
            None => self.create_gateway_link(&name, mtu)?,
        };
        if link.kind != LinkKind::Veth {
            return Err(CniError::internal(format!("{name:?} already exists but is not a veth")));
        }
        // Containers of that VLAN are at its other end.
        if link.accept_ra != 0 {
            refuse_advertisements(&link)?;
        }
        let peer = link.peer.ok_or_else(|| CniError::internal(format!("veth {name:?} has no peer")))?;
        let port = self.route.link_by_index(peer).map_err(failed)?;
        if port.master != Some(bridge.index) {
            let join = LinkChange::new().master(bridge);
            self.route.change_link(&port, &join).map_err(|error| joining(error, bridge))?;
        }
        self.set_vlans(&port, &Vlans { trunk: Vec::new(), keep_default: false, ..vlans.clone() })?;
        for end in [&port, &link] {
            if !end.up {
                self.route.change_link(end, &LinkChange::new().up()).map_err(failed)?;
            }
        }
        Ok(link)
    }

    fn create_gateway_link(&self, name: &str, mtu: Option<u32>) -> Result<Link, CniError> {
        // The name of the port is derived from the name of the link, which is unique on the node.
        let attachment =
            Attachment::new("gateway", "bridge", name).map_err(|e| CniError::config(e.to_string()))?;
        for peer_name in host_names(&attachment) {
            let new = NewVeth {
                name,
                mac: None,
                peer_name: &peer_name,
                peer_mac: None,
                peer_netns: &self.netns,
                mtu,
            };
            match self.route.create_veth(&new) {
                Err(error) if !error.already_exists() => return Err(failed(error)),
                _ => {}
            }
            // The link was made by this ADD or by a concurrent one.
            if let Some(link) = self.route.find_link(name).map_err(failed)? {
                self.route.change_link(&link, &LinkChange::new().alias(MADE)).map_err(failed)?;
                return Ok(link);
            }
        }
        Err(CniError::internal(format!("create link {name:?}: no free name for its peer")))
    }

    /// The changes that give the link the gateway's addresses.
    pub(super) fn gateway_change(
        &self,
        link: &Link,
        gateways: &[IpNet],
        settings: &Settings,
    ) -> Result<GatewayChange, CniError> {
        let present = self.route.addresses(link).map_err(failed)?;
        let present: Vec<IpNet> = present.into_iter().map(|address| address.net).collect();
        let change = GatewayChange::between(&present, gateways);
        match change.remove.first() {
            Some(_) if !settings.force_address => {
                let wanted = change.add.first().copied().unwrap_or(gateways[0]);
                Err(CniError::internal(format!(
                    "failed to set bridge addr: {:?} already has an IP address different from {wanted}",
                    link.name
                ))
                .with_details(format!("it has {}", join(&change.remove))))
            }
            _ => Ok(change),
        }
    }

    /// Makes the changes, and enables forwarding on the node.
    pub(super) fn become_gateway(
        &self,
        link: &Link,
        gateways: &[IpNet],
        change: &GatewayChange,
    ) -> Result<(), CniError> {
        for net in &change.remove {
            match self.route.delete_address(link, *net) {
                Err(error) if !error.is_not_found() => return Err(failed(error)),
                _ => {}
            }
        }
        for net in &change.add {
            // Duplicate address detection is skipped, because a tentative gateway would not answer the first container.
            match self.route.add_address(link, *net, DuplicateDetection::Skip) {
                Err(error) if !error.already_exists() => return Err(failed(error)),
                _ => {}
            }
        }
        if !change.add.is_empty()
            && let (LinkKind::Bridge, Some(mac)) = (&link.kind, link.mac)
        {
            // Setting the MAC address keeps it, also on a bridge of another program that has none of its own.
            self.route.change_link(link, &LinkChange::new().mac(mac)).map_err(failed)?;
        }
        if change.add.iter().any(|net| net.addr().is_ipv6()) {
            // The kernel adds a link-local address only some time after a port is up, and does not solicit any
            // container before that.
            self.ensure_link_local(link)?;
        }
        self.forward(gateways)
    }
}

/// A port needs no IPv6 of its own, because the bridge takes every packet. The routes of the port would slow down every
/// change of a link, because the kernel then walks all routes (`fib6_ifdown`).
fn without_ipv6(port: &Link) {
    spare(sysctl::set(&format!("net/ipv6/conf/{}/disable_ipv6", port.name), "1"));
}

impl Settings {
    /// True if a port needs no settings but the bridge's.
    fn is_plain_port(&self) -> bool {
        self.vlans.is_none() && self.port == UNSET
    }

    /// True if the host's end may join the bridge as the last step: no packet would pass before the port has its settings,
    /// and nothing of the ADD needs the bridge's other hosts.
    pub(super) fn can_join_last(&self) -> bool {
        self.is_plain_port() && !self.detect_duplicates && !self.container_link_down
    }
}

/// The kernel's settings of a new port.
const UNSET: PortSettings = PortSettings { hairpin: Switch::Off, isolated: Switch::Off };

impl GatewayChange {
    /// Compares addresses. In IPv4 any other address conflicts, in IPv6 one whose subnet overlaps; link-local
    /// addresses never do, as the kernel makes them.
    fn between(present: &[IpNet], wanted: &[IpNet]) -> Self {
        let add: Vec<IpNet> = wanted.iter().filter(|net| !present.contains(net)).copied().collect();
        let overlaps = |a: &IpNet, b: &IpNet| a.contains(&b.network()) || b.contains(&a.network());
        let conflicts = |net: &&IpNet| {
            add.iter().any(|new| match (net, new) {
                (IpNet::V4(_), IpNet::V4(_)) => true,
                (IpNet::V6(_), IpNet::V6(_)) => overlaps(net, new),
                _ => false,
            })
        };
        let others = present.iter().filter(|net| !wanted.contains(net));
        Self { remove: others.filter(conflicts).copied().collect(), add }
    }
}

fn refuse_advertisements(link: &Link) -> Result<(), CniError> {
    optional(sysctl::set(&format!("net/ipv6/conf/{}/accept_ra", link.name), "0"))
}

fn is_unsupported(error: &RouteError) -> bool {
    error.errno() == Some(Errno::EOPNOTSUPP)
}

fn no_filtering(bridge: &str) -> CniError {
    CniError::internal(format!(
        "bridge {bridge:?}: this kernel's bridges do not filter by VLAN (CONFIG_BRIDGE_VLAN_FILTERING), \
         which the keys \"vlan\" and \"vlanTrunk\" need"
    ))
}

fn joining(error: RouteError, bridge: &Link) -> CniError {
    if error.errno() == Some(Errno::EXFULL) {
        return CniError::internal(format!(
            "bridge {:?} is full: it has {MAX_PORTS} ports, the most that a bridge can have",
            bridge.name
        ));
    }
    failed(error)
}

fn join(nets: &[IpNet]) -> String {
    nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(present: &[&str], wanted: &[&str]) -> (Vec<String>, Vec<String>) {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        let change = GatewayChange::between(&nets(present), &nets(wanted));
        let texts = |nets: Vec<IpNet>| nets.iter().map(ToString::to_string).collect();
        (texts(change.remove), texts(change.add))
    }

    #[test]
    fn only_conflicting_addresses_are_removed() {
        let none: Vec<String> = Vec::new();
        assert_eq!(change(&[], &["10.1.2.1/24"]), (none.clone(), vec!["10.1.2.1/24".to_owned()]));
        assert_eq!(change(&["10.1.2.1/24"], &["10.1.2.1/24"]), (none.clone(), none.clone()));
        let (remove, _) =
            change(&["10.9.0.1/24", "fe80::1/64", "fd00::1/64"], &["10.1.2.1/24", "fd01::1/64"]);
        assert_eq!(remove, ["10.9.0.1/24"]);
        let (remove, add) = change(&["fd00::9/48"], &["fd00::1/64"]);
        assert_eq!((remove, add), (vec!["fd00::9/48".to_owned()], vec!["fd00::1/64".to_owned()]));
        // Two gateways of one family do not conflict.
        let (remove, add) = change(&["10.1.2.1/24"], &["10.1.2.1/24", "10.1.3.1/24"]);
        assert_eq!((remove, add), (none, vec!["10.1.3.1/24".to_owned()]));
    }
}
