// SPDX-License-Identifier: GPL-2.0-or-later

//! How the node and the containers of a bridge find a new container, and how it finds them, without flooding frames.
//!
//! A frame to all containers of a bridge costs the node some microseconds for each of them, and a full bridge has a
//! thousand. Therefore a container's MAC address is derived from its IP address: a neighbour that still knows the
//! address from an earlier container already has the right MAC address, so nothing needs to be announced. Netlink
//! messages tell the node and the bridge where the container is, and the container where its gateway is, so that their
//! first packets need no request either.

use std::net::IpAddr;

use cni_dataplane::owner::MADE;
use cni_kernel::mac::Mac;
use cni_kernel::route::{Counts, Link, LinkChange, Neighbour};
use cni_spec::CniError;
use ipnet::IpNet;

use super::AddContext;
use super::plan::Plan;
use crate::interface::shared::failed;

/// The MAC address of a container with these addresses; none without addresses.
///
/// With an IPv4 address it is 0a:58 and the first such address, as kubelet's kubenet made it, otherwise 40 bits of the
/// first IPv6 address. Both are unicast and locally administered.
pub(super) fn mac_of(addresses: &[IpNet]) -> Option<Mac> {
    Some(match source(addresses)?.addr() {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            Mac([0x0a, 0x58, a, b, c, d])
        }
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            let [.., a, b, c, d, e] = (bits ^ bits >> 40 ^ bits >> 80).to_be_bytes();
            Mac([0x0e, a, b, c, d, e])
        }
    })
}

/// The address that the MAC address is made of.
fn source(addresses: &[IpNet]) -> Option<&IpNet> {
    addresses.iter().find(|net| net.addr().is_ipv4()).or_else(|| addresses.first())
}

/// True if every earlier container with the address `net` must have had the MAC address that is derived from `source`.
/// This holds for `source` itself. It also holds for the first address of the other family if both addresses are at the
/// same place in their subnets, because IPAM then gives out the addresses of both families side by side. It does not
/// hold for a second range of a family: addresses in it may be taken in another order, and may be the first address of
/// another container.
fn is_implied(source: &IpNet, net: &IpNet, all: &[IpNet]) -> bool {
    let place = |net: &IpNet| match net {
        IpNet::V4(net) => u128::from(net.addr().to_bits() & net.hostmask().to_bits()),
        IpNet::V6(net) => net.addr().to_bits() & net.hostmask().to_bits(),
    };
    let is_v4 = |net: &IpNet| net.addr().is_ipv4();
    let is_first = all.iter().find(|one| is_v4(one) == is_v4(net)) == Some(net);
    source == net || is_v4(source) != is_v4(net) && is_first && place(source) == place(net)
}

impl AddContext<'_> {
    /// Tells the bridge that the container is behind the port, which has just joined. Returns true if the bridge
    /// already knows the MAC address, for instance from a container whose namespace is still being torn down. The entry
    /// then moves to the new port only with an announcement.
    pub(super) fn is_known_to_bridge(&self, port: &Link, inner: &Link) -> bool {
        let told = inner.mac.map(|mac| self.host.route.introduce_to_bridge(port, mac));
        match told {
            Some(Err(error)) if error.already_exists() => true,
            Some(told) => {
                unneeded(told);
                false
            }
            None => false,
        }
    }

    /// Tells the node and the bridge where the container is, and the container where its gateways are. Lets the kernel
    /// announce addresses that others may know with another MAC address.
    pub(super) fn introduce(
        &self,
        bridge: &Link,
        inner: &Link,
        plan: &Plan,
        is_known_to_bridge: bool,
    ) -> Result<(), CniError> {
        let (host, container) = (self.host, self.container);
        let notify = LinkChange::new().arp_notify();
        let Some((mac, source)) = inner.mac.zip(source(&plan.layer3.addresses)) else {
            return container.route.change_link(inner, &notify).map_err(failed);
        };
        // A bridge of another program may have ports that Slipway did not make, and a LAN behind it.
        let is_ours = bridge.alias == MADE;
        let (mut v4, mut v6) = (false, false);
        for net in &plan.layer3.addresses {
            let address = net.addr();
            let former = host.route.neighbour(bridge, address);
            let is_known = former
                .as_ref()
                .is_ok_and(|former| former.and_then(|former| former.mac).is_none_or(|former| former == mac));
            let is_elsewhere = is_known_to_bridge || self.settings.mac.is_some() || !is_ours || !is_known;
            if is_elsewhere || !is_implied(source, net, &plan.layer3.addresses) {
                if address.is_ipv4() { v4 = true } else { v6 = true }
            }
            let former = former.unwrap_or_default();
            if former.is_some_and(|former| former.is_permanent) {
                if !is_known {
                    log::warn!(
                        "{} has another permanent neighbour {address}, which is left as it is",
                        bridge.name
                    );
                }
                continue;
            }
            // The entries only save requests. If the kernel refuses them, it sends the requests instead.
            let new = Neighbour { address, mac };
            unneeded(host.route.introduce_neighbour(bridge, new, former, Counts::Yes));
        }
        // With arp_notify and ndisc_notify, the kernel announces the addresses when the MAC address is set, even to the
        // same value. arp_notify stays on, in case the container changes its MAC address.
        if v4 {
            container.route.change_link(inner, &notify).map_err(failed)?;
        }
        if v4 || v6 {
            container.route.change_link(inner, &LinkChange::new().mac(mac)).map_err(failed)?;
        }
        if !v4 {
            container.route.change_link(inner, &notify).map_err(failed)?;
        }
        // The gateways come last, because setting the MAC address empties the link's table. The MAC address of a
        // bridge of another program may have changed with the port that joined.
        if let Some(mac) = bridge.mac.filter(|_| is_ours) {
            for gateway in &plan.gateways {
                let new = Neighbour { address: gateway.addr(), mac };
                unneeded(container.route.introduce_neighbour(inner, new, None, Counts::No));
            }
        }
        Ok(())
    }
}

/// Logs the error of an operation that only saves requests.
fn unneeded<E: std::fmt::Display>(result: Result<(), E>) {
    if let Err(error) = result {
        log::debug!("{error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_mac_address_is_made_of_the_first_ipv4_address_or_else_of_ipv6() {
        for (addresses, mac) in [
            (vec!["10.9.1.7/20"], "0a:58:0a:09:01:07"),
            (vec!["fd00::7/64", "10.9.1.7/20", "10.8.0.1/24"], "0a:58:0a:09:01:07"),
            (vec!["fd00:9::1:7/64"], "0e:00:00:01:00:07"),
        ] {
            let found = mac_of(&nets(&addresses)).unwrap();
            if addresses[0].starts_with("fd00:9") {
                assert_eq!(found.0[4..], [0, 7], "{addresses:?}");
            } else {
                assert_eq!(found.to_string(), mac, "{addresses:?}");
            }
            assert!(!found.is_multicast() && found.0[0] & 2 == 2);
        }
        assert_eq!(mac_of(&[]), None);
    }

    #[test]
    fn the_first_addresses_of_both_families_at_the_same_place_have_the_same_mac_address() {
        for (all, implied) in [
            (vec!["10.9.1.7/20"], vec![true]),
            (vec!["10.9.1.7/20", "fd00::107/64"], vec![true, true]),
            (vec!["10.9.1.7/20", "fd00::1:107/64"], vec![true, false]),
            (vec!["10.9.1.7/24", "fd00::7/64"], vec![true, true]),
            (vec!["10.9.1.7/24", "fd00::8/64"], vec![true, false]),
            (vec!["10.9.1.7/32", "fd00::8/128"], vec![true, true]),
            // Further ranges of a family.
            (vec!["10.9.1.7/24", "10.8.1.7/24"], vec![true, false]),
            (vec!["fd00::7/64", "fd01::7/64"], vec![true, false]),
            (vec!["10.9.1.7/24", "fd00::7/64", "fd01::7/64"], vec![true, true, false]),
            (vec!["fd00::7/64", "fd01::7/64", "10.9.1.7/24"], vec![true, false, true]),
        ] {
            let all = nets(&all);
            let found: Vec<bool> =
                all.iter().map(|net| is_implied(source(&all).unwrap(), net, &all)).collect();
            assert_eq!(found, implied, "{all:?}");
        }
    }
}
