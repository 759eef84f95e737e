// SPDX-License-Identifier: GPL-2.0-or-later

//! The bridge cbr0, and the MTU of the node's links.

use cni_dataplane::duplicates::Subnet;
use cni_kernel::mac::Mac;
use cni_kernel::route::{
    DuplicateDetection, Link, LinkChange, LinkKind, NewBridge, RouteError, RouteSocket, VlanFiltering,
};
use ipnet::IpNet;

use super::config::BRIDGE;

/// The MTU if no link suggests one.
const FALLBACK_MTU: u32 = 1460;
/// The least MTU that counts: that of an IPv4 packet which every host must take (RFC 791).
const LEAST_MTU: u32 = 576;
/// The alias by which `slipway uninstall` knows links that Slipway made.
const MADE: &str = "made by slipway";

/// The bridge could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// A call of the kernel failed.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A link of another kind has its name.
    #[error("{BRIDGE:?} already exists but is not a bridge")]
    NotABridge,
}

/// The least MTU of the links that are up. The loopback does not count, nor do links without a MAC address, such as
/// tunnels, nor the bridge of the pods and its ports.
pub(super) fn least_mtu() -> Result<u32, RouteError> {
    Ok(least_of(&RouteSocket::open()?.links()?))
}

fn least_of(links: &[Link]) -> u32 {
    let bridge = links.iter().find(|link| link.name == BRIDGE).map(|link| link.index);
    let counts = |link: &&Link| {
        let is_of_pods = bridge.is_some_and(|bridge| link.index == bridge || link.master == Some(bridge));
        link.up && link.name != "lo" && link.mac.is_some() && !is_of_pods
    };
    let least = links.iter().filter(counts).min_by_key(|link| link.mtu);
    match least {
        Some(link) if link.mtu >= LEAST_MTU => {
            log::debug!("Using interface {} MTU {} as bridge MTU", link.name, link.mtu);
            link.mtu
        }
        _ => {
            log::warn!("Failed to find default bridge MTU, using {FALLBACK_MTU}: no suitable interface");
            FALLBACK_MTU
        }
    }
}

/// Makes the bridge, or gives an existing one this MAC address, this MTU and the gateways' addresses. Other addresses
/// are removed.
pub(super) fn ensure(mac: Mac, mtu: u32, subnets: &[Subnet]) -> Result<Link, BridgeError> {
    let route = RouteSocket::open()?;
    let mut change = LinkChange::new();
    let bridge = match route.find_link(BRIDGE)? {
        Some(link) => link,
        None => {
            change = change.alias(MADE);
            let new = NewBridge {
                name: BRIDGE,
                mac: Some(mac),
                mtu: Some(mtu),
                vlan_filtering: VlanFiltering::Off,
            };
            match route.create_bridge(&new) {
                Err(error) if !error.already_exists() => return Err(error.into()),
                _ => route.link(BRIDGE)?,
            }
        }
    };
    if bridge.kind != LinkKind::Bridge {
        return Err(BridgeError::NotABridge);
    }
    if bridge.mac != Some(mac) {
        change = change.mac(mac);
    }
    if bridge.mtu != mtu {
        change = change.mtu(mtu);
    }
    if !bridge.up {
        change = change.up();
    }
    if !change.is_empty() {
        route.change_link(&bridge, &change)?;
    }
    set_addresses(&route, &bridge, subnets)?;
    Ok(bridge)
}

fn set_addresses(route: &RouteSocket, bridge: &Link, subnets: &[Subnet]) -> Result<(), RouteError> {
    let gateways: Vec<IpNet> = subnets.iter().filter_map(gateway_net).collect();
    let present = route.addresses(bridge)?;
    for address in &present {
        // The kernel makes fe80::/64 itself.
        if address.global && !gateways.contains(&address.net) {
            log::info!("Removing old address {} from {BRIDGE}", address.net);
            match route.delete_address(bridge, address.net) {
                // The kernel removes secondary addresses with the primary one.
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
    }
    for gateway in gateways {
        if present.iter().any(|address| address.net == gateway && !address.secondary) {
            continue;
        }
        match route.add_address(bridge, gateway, DuplicateDetection::Skip) {
            Err(error) if !error.already_exists() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The gateway's address with the length of the subnet's prefix.
fn gateway_net(subnet: &Subnet) -> Option<IpNet> {
    IpNet::new(subnet.gateway, subnet.net.prefix_len()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, mtu: u32) -> Link {
        let mac = Some(Mac([2, 0, 0, 0, 0, 1]));
        Link { index, name: name.into(), mtu, mac, up: true, ..Link::default() }
    }

    #[test]
    fn the_least_mtu_of_the_nodes_links_is_that_of_the_bridge() {
        let mut links = vec![
            link(1, "lo", 600),
            link(2, "eth0", 1500),
            link(3, "eth1", 1400),
            Link { up: false, ..link(4, "eth2", 1300) },
            Link { mac: None, ..link(5, "wg0", 1280) },
            link(6, "cbr0", 1000),
            Link { master: Some(6), ..link(7, "veth1", 900) },
        ];
        assert_eq!(least_of(&links), 1400);
        links.push(link(8, "tiny", 500));
        assert_eq!(least_of(&links), FALLBACK_MTU);
        assert_eq!(least_of(&[link(1, "lo", 65536)]), FALLBACK_MTU);
    }
}
