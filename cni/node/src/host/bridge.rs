// SPDX-License-Identifier: GPL-3.0-or-later

//! The bridge of the node's pods.

use cni_dataplane::owner::MADE;
use cni_kernel::mac::Mac;
use cni_kernel::route::{
    DuplicateDetection, Link, LinkChange, LinkKind, NewBridge, RouteError, RouteSocket, VlanFiltering,
};
use ipnet::IpNet;

/// The bridge could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// A call of the kernel failed.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A link of another kind has its name.
    #[error("{0:?} already exists but is not a bridge")]
    NotABridge(String),
    /// A bridge that Slipway did not make has its name.
    #[error(
        "a bridge {0:?} exists that Slipway did not make: delete it, or choose another name with --bridge"
    )]
    Foreign(String),
}

/// True if another program made the link. A link that is down and has no alias was made by a process of ours that was killed
/// before it set both.
pub(crate) fn is_foreign(link: &Link) -> bool {
    link.alias != MADE && (link.up || !link.alias.is_empty())
}

/// A bridge as it should be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BridgeSpec<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: Mac,
    /// In bytes.
    pub(crate) mtu: u32,
    /// The gateways' addresses, with the lengths of their subnets.
    pub(crate) gateways: &'a [IpNet],
    /// The fate of other addresses.
    pub(crate) others: OtherAddresses,
    /// True to change a bridge of another program, too.
    pub(crate) takes_foreign: bool,
}

/// The fate of addresses that [`BridgeSpec::gateways`] does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherAddresses {
    Remove,
    /// Pods of an earlier subnet need them.
    Keep,
}

/// Makes the bridge, or gives an existing one this MAC address, this MTU and the gateways' addresses.
///
/// # Errors
/// [`BridgeError`].
pub(crate) fn ensure(route: &RouteSocket, wanted: &BridgeSpec<'_>) -> Result<Link, BridgeError> {
    let BridgeSpec { name, mac, mtu, .. } = *wanted;
    let mut change = LinkChange::new();
    let bridge = match route.find_link(name)? {
        Some(link) => {
            if !wanted.takes_foreign && link.kind == LinkKind::Bridge && link.alias != MADE {
                if is_foreign(&link) {
                    return Err(BridgeError::Foreign(name.to_owned()));
                }
                change = change.alias(MADE);
            }
            link
        }
        None => {
            change = change.alias(MADE);
            let new = NewBridge { name, mac: Some(mac), mtu: Some(mtu), vlan_filtering: VlanFiltering::Off };
            match route.create_bridge(&new) {
                Err(error) if !error.already_exists() => return Err(error.into()),
                _ => route.link(name)?,
            }
        }
    };
    if bridge.kind != LinkKind::Bridge {
        return Err(BridgeError::NotABridge(name.to_owned()));
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
    set_addresses(route, &bridge, wanted)?;
    Ok(bridge)
}

fn set_addresses(route: &RouteSocket, bridge: &Link, wanted: &BridgeSpec<'_>) -> Result<(), RouteError> {
    let present = route.addresses(bridge)?;
    for address in present.iter().filter(|_| wanted.others == OtherAddresses::Remove) {
        // The kernel makes fe80::/64 itself.
        if address.global && !wanted.gateways.contains(&address.net) {
            log::info!("Removing old address {} from {}", address.net, wanted.name);
            match route.delete_address(bridge, address.net) {
                // The kernel removes secondary addresses with the primary one.
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
    }
    for gateway in wanted.gateways {
        if present.iter().any(|address| address.net == *gateway && !address.secondary) {
            continue;
        }
        match route.add_address(bridge, *gateway, DuplicateDetection::Skip) {
            Err(error) if !error.already_exists() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
